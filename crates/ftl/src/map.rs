//! The map: where each unit that the host sees lies. It is whole in memory, or lies on flash in *parts* of a
//! unit each, of which a cache holds some.
//!
//! A map that is cached knows of every part where it lies (the directory, [`State::chunks`]), and has
//! - *frames*: parts as flash has them, replaced by a clock;
//! - *changes*: entries that differ from flash, each by itself. A part is written with all of its changes.
//!
//! A change need not know what it replaces: its part may lie on flash alone. Then the old place goes on
//! counting as valid, and the change is *stale*, until the part is read, or until the collector comes by the
//! old place and sees in its spare bytes whose it was. So what has landed never waits for a part, nor does
//! the collector: a place is somebody's if it is valid and no change says otherwise.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::Cell;

use crate::layout::NONE;
use crate::options::{ENTRY_BYTES, Options};
use crate::pages::Shape;
use crate::space::Quota;
use crate::state::{Holds, State, holds};

pub(crate) enum Map {
    /// One more than the number of each unit's place; 0: none. Fresh memory is zeros already.
    Whole(Vec<u32>),
    Cached(Box<Cached>),
}

pub(crate) struct Cached {
    per_part: u32,
    /// Units that there are.
    units: u32,
    changes: Changes,
    /// How many changes each part has.
    counts: Vec<u32>,
    /// How many of all are stale.
    pub stale: u32,
    /// From this many on, what would make more of them waits.
    limit: u32,
    /// Which frame a part is in.
    seats: Vec<u32>,
    frames: Vec<Frame>,
    entries: Vec<u32>,
    /// The clock's hand, and where the search for a part to be written goes on.
    hand: usize,
    sweep: u32,
    /// Parts that are being read.
    pub loading: Vec<u32>,
    /// Slots with parts that wait for a row, and that are in one, oldest first. No part: a newer version has
    /// come to flash.
    pub waiting: VecDeque<(u32, u32)>,
    pub flying: Vec<(u32, u32)>,
    /// What waits goes in a row that is not full.
    pub force: bool,
    /// What is held until its word lines are closed is to be closed.
    pub closing: bool,
    pub dump: Dump,
    /// Parts that somebody is about to write.
    pub busy: u32,
    pub quota: Quota,
    /// Superblocks that hold parts of the map.
    pub supers: u32,
    /// As [`Map::Whole`], instead of what lies on flash: a drive is being prepared.
    pub laid: Option<Vec<u32>>,
}

/// A checkpoint writes every part anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    Off,
    At(u32),
    Done,
}

struct Frame {
    part: u32,
    used: Cell<bool>,
}

/// Bytes of a change in a table that is half full.
const CHANGE_BYTES: u64 = 16;
/// Parts that a cache holds at least.
const FRAMES_MIN: u64 = 1;

impl Map {
    /// None: the cache is too small.
    pub fn new(options: &Options, shape: &Shape, quota: Quota) -> Map {
        let Some((frames, limit)) = sizes(options, shape) else {
            return Map::Whole(alloc::vec![0; options.units as usize]);
        };
        let per_part = shape.unit_bytes / ENTRY_BYTES;
        let parts = options.units.div_ceil(per_part) as usize;
        let frames = (frames as usize).min(parts);
        let in_flight = shape.row_units(u32::MAX >> (32 - shape.planes)) * shape.dies;
        Map::Cached(Box::new(Cached {
            per_part,
            units: options.units,
            changes: Changes::new(limit + in_flight),
            counts: alloc::vec![0; parts],
            stale: 0,
            limit,
            seats: alloc::vec![NONE; parts],
            frames: (0..frames).map(|_| Frame { part: NONE, used: Cell::new(false) }).collect(),
            entries: alloc::vec![NONE; frames * per_part as usize],
            hand: 0,
            sweep: 0,
            loading: Vec::new(),
            waiting: VecDeque::new(),
            flying: Vec::new(),
            force: false,
            closing: false,
            dump: Dump::Off,
            busy: 0,
            quota,
            supers: 0,
            laid: None,
        }))
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Map::Whole(map) => size_of_val(&map[..]) as u64,
            Map::Cached(cached) => cached.bytes(),
        }
    }
}

/// Frames, and changes, of a cache of so many bytes: half of it for each.
fn sizes(options: &Options, shape: &Shape) -> Option<(u32, u32)> {
    let half = options.map_cache? / 2;
    let frames = (half / u64::from(shape.unit_bytes)).max(FRAMES_MIN);
    let changes = half / CHANGE_BYTES;
    Some((frames.min(1 << 24) as u32, changes.clamp(1, 1 << 28) as u32))
}

/// The least bytes of a cache of the map on flash of this shape: one part, and changes for a row of
/// each die.
pub(crate) fn least_cache(shape: &Shape) -> u64 {
    let row = shape.row_units(u32::MAX >> (32 - shape.planes));
    let changes = u64::from(row) * u64::from(shape.dies) * CHANGE_BYTES;
    2 * changes.max(FRAMES_MIN * u64::from(shape.unit_bytes))
}

impl Cached {
    fn bytes(&self) -> u64 {
        let words = self.counts.len() + self.seats.len() + self.entries.len();
        let table = self.changes.entries.len() * size_of::<(u32, u32)>();
        (words * size_of::<u32>() + self.frames.len() * size_of::<Frame>() + table) as u64
    }

    #[inline]
    pub fn part(&self, logical: u32) -> u32 {
        logical / self.per_part
    }

    /// Units of a part.
    fn range(&self, part: u32) -> core::ops::Range<u32> {
        part * self.per_part..((part + 1) * self.per_part).min(self.units)
    }

    pub fn parts(&self) -> u32 {
        self.counts.len() as u32
    }

    pub fn is_loaded(&self, part: u32) -> bool {
        self.seats[part as usize] != NONE
    }

    #[inline]
    fn frame_entry(&self, logical: u32) -> Option<u32> {
        let part = self.part(logical);
        let pci_slot = self.seats[part as usize];
        if pci_slot == NONE {
            return None;
        }
        self.frames[pci_slot as usize].used.set(true);
        Some(self.entries[(pci_slot * self.per_part + logical % self.per_part) as usize])
    }

    /// Where a unit lies. None: the cache doesn't know.
    #[inline]
    pub fn look(&self, logical: u32) -> Option<u32> {
        self.change(logical).or_else(|| self.frame_entry(logical))
    }

    /// Where a unit lies, if that has changed.
    pub fn change(&self, logical: u32) -> Option<u32> {
        self.changes.find(logical).map(|at| self.changes.entries[at].1)
    }

    /// So it is from now on. `from`: where it lay, if that is known and nothing has changed. Returns the
    /// place that is no longer valid, or none.
    fn put(&mut self, logical: u32, unit: u32, from: Option<u32>) -> u32 {
        if let Some(at) = self.changes.find(logical) {
            return core::mem::replace(&mut self.changes.entries[at].1, unit);
        }
        let old = from.or_else(|| self.frame_entry(logical));
        self.changes.insert(logical, unit, old.is_none());
        self.stale += u32::from(old.is_none());
        let part = self.part(logical);
        self.counts[part as usize] += 1;
        old.unwrap_or(NONE)
    }

    /// As [`put`](Cached::put), while nothing is known to be valid yet.
    pub fn replay(&mut self, logical: u32, unit: u32) {
        self.put(logical, unit, Some(NONE));
    }

    /// The change of this unit is no longer stale. False: it was not.
    fn freshen(&mut self, logical: u32) -> bool {
        let Some(at) = self.changes.find(logical) else { return false };
        let was = core::mem::replace(&mut self.changes.entries[at].0, logical) != logical;
        self.stale -= u32::from(was);
        was
    }

    /// A part has been read: `entry` says what it has, `clear` takes places that are no longer valid.
    pub fn install(
        &mut self,
        part: u32,
        mut entry: impl FnMut(usize) -> u32,
        mut clear: impl FnMut(u32),
    ) {
        let pci_slot = self.next_frame();
        let frame = &mut self.frames[pci_slot];
        if frame.part != NONE {
            self.seats[frame.part as usize] = NONE;
        }
        (frame.part, frame.used) = (part, Cell::new(true));
        self.seats[part as usize] = pci_slot as u32;
        let base = pci_slot * self.per_part as usize;
        let range = self.range(part);
        for at in 0..range.len() {
            self.entries[base + at] = entry(at);
        }
        if self.counts[part as usize] == 0 {
            return;
        }
        for (at, logical) in range.enumerate() {
            let old = self.entries[base + at];
            if self.freshen(logical) && old != NONE {
                clear(old);
            }
        }
    }

    fn next_frame(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.frames.len();
            if !self.frames[self.hand].used.replace(false) {
                return self.hand;
            }
        }
    }

    /// A part that is loaded takes over its changes, and is written to `into`.
    pub fn merge(&mut self, part: u32, mut into: impl FnMut(usize, u32)) {
        let base = self.seats[part as usize] as usize * self.per_part as usize;
        for (at, logical) in self.range(part).enumerate() {
            if self.counts[part as usize] > 0
                && let Some(found) = self.changes.find(logical)
            {
                self.entries[base + at] = self.changes.remove(found);
                self.counts[part as usize] -= 1;
            }
            into(at, self.entries[base + at]);
        }
    }

    /// Whether nothing more may change before a part has been written.
    pub fn is_full(&self) -> bool {
        self.changes.len >= self.limit
    }

    /// Whether a part should be written.
    pub fn is_filling(&self) -> bool {
        self.changes.len > self.limit / 4 * 3
    }

    /// No part is on its way to flash.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty()
    }

    /// The tasks that had begun with parts are no more.
    pub fn wake(&mut self) {
        self.loading.clear();
        (self.busy, self.dump) = (0, Dump::Off);
        (self.force, self.closing) = (false, false);
    }

    /// Whether a part has changed, or is on its way to flash.
    pub fn is_touched(&self, part: u32) -> bool {
        self.counts[part as usize] > 0 || self.slot_of(part).is_some()
    }

    /// The slot that has a part's newest version.
    pub fn slot_of(&self, part: u32) -> Option<u32> {
        let of_part = |(_, one): &&(u32, u32)| *one == part;
        let newest_first = self.waiting.iter().chain(self.flying.iter().rev());
        newest_first.into_iter().find(of_part).map(|(slot, _)| *slot)
    }

    /// A part with as many changes as most, to be written. The search goes round.
    pub fn next_part(&mut self) -> Option<u32> {
        let parts = self.parts();
        let mean = self.changes.len / parts;
        let next = (1..=parts).map(|step| (self.sweep + step) % parts);
        let found = next.into_iter().find(|part| self.counts[*part as usize] > mean.max(1) - 1)?;
        self.sweep = found;
        Some(found)
    }

    /// A part of which some changes are stale, and how far the search for it has come.
    pub fn next_stale(&self, from: usize) -> Option<(u32, usize)> {
        let rest = self.changes.entries.get(from..)?;
        let at = rest.iter().position(|(key, _)| *key != NONE && key & STALE != 0)?;
        Some((self.part(rest[at].0 & !STALE), from + at))
    }

    /// What a unit's place has changed to, if this is the place: whose.
    pub fn changed_to(&self, place: u32) -> Option<u32> {
        let here = |(key, at): &&(u32, u32)| *key != NONE && *at == place;
        self.changes.entries.iter().find(here).map(|(key, _)| key & !STALE)
    }

    /// Which unit of a loaded part lies there, if it has not changed.
    pub fn unit_at(&self, part: u32, place: u32) -> Option<u32> {
        self.range(part).find(|logical| {
            self.frame_entry(*logical) == Some(place) && self.change(*logical).is_none()
        })
    }

    pub fn forget(&mut self) {
        self.changes.entries.fill((NONE, NONE));
        (self.changes.len, self.stale) = (0, 0);
        self.counts.fill(0);
        self.seats.fill(NONE);
        self.frames.iter_mut().for_each(|frame| frame.part = NONE);
    }
}

impl State {
    /// The map, if it is cached.
    #[inline]
    pub fn cached(&self) -> Option<&Cached> {
        match &self.map {
            Map::Cached(cached) => Some(cached),
            Map::Whole(_) => None,
        }
    }

    #[inline]
    pub fn cached_mut(&mut self) -> Option<&mut Cached> {
        match &mut self.map {
            Map::Cached(cached) => Some(cached),
            Map::Whole(_) => None,
        }
    }

    /// Where a unit lies. None: the cache doesn't know.
    #[inline]
    pub fn look(&self, logical: u32) -> Option<u32> {
        match &self.map {
            Map::Whole(map) => Some(map[logical as usize].wrapping_sub(1)),
            Map::Cached(cached) => cached.look(logical).or_else(|| self.blank(logical)),
        }
    }

    /// Nowhere, if nothing of this unit's part has ever come to flash.
    fn blank(&self, logical: u32) -> Option<u32> {
        let cached = self.cached()?;
        let part = cached.part(logical);
        let blank = self.chunks[part as usize] == NONE
            && cached.laid.is_none()
            && cached.slot_of(part).is_none();
        blank.then_some(NONE)
    }

    /// The map says so from now on, and nothing else: not what is valid.
    #[inline]
    pub fn put(&mut self, logical: u32, unit: u32) {
        match &mut self.map {
            Map::Whole(map) => {
                map[logical as usize] = unit.wrapping_add(1);
                self.dirty[(logical / self.per_part) as usize] = true;
            }
            Map::Cached(cached) => match &mut cached.laid {
                Some(map) => map[logical as usize] = unit.wrapping_add(1),
                None => cached.replay(logical, unit),
            },
        }
    }

    /// A unit lies there from now on, or nowhere; where it lay holds nothing any more. `from`: where that
    /// was, if it is known.
    #[inline]
    pub fn replace(&mut self, logical: u32, unit: u32, from: Option<u32>) {
        let from = from.or_else(|| self.blank(logical));
        let before = match &mut self.map {
            Map::Whole(map) => {
                let entry = &mut map[logical as usize];
                let before = core::mem::replace(entry, unit.wrapping_add(1)).wrapping_sub(1);
                if before != unit {
                    self.dirty[(logical / self.per_part) as usize] = true;
                }
                before
            }
            Map::Cached(cached) => cached.put(logical, unit, from),
        };
        if before != NONE {
            self.supers.clear_valid(before);
        }
    }

    /// Whether what the spare bytes of a place name still lies there. The place has not been erased since
    /// they were read.
    #[inline]
    pub fn is_still_at(&mut self, logical: u32, at: u32) -> bool {
        let (Map::Cached(cached), Holds::Data { logical, .. }) = (&mut self.map, holds(logical))
        else {
            return self.owner(logical) == at;
        };
        match cached.change(logical) {
            None => self.supers.is_valid(at),
            Some(now) if now == at => true,
            Some(_) => {
                // This is what the change has replaced.
                if self.supers.is_valid(at) && cached.freshen(logical) {
                    self.supers.clear_valid(at);
                }
                false
            }
        }
    }

    /// Whether nothing more may change in the map before a part of it has been written.
    #[inline]
    pub fn is_map_full(&self) -> bool {
        self.cached().is_some_and(Cached::is_full)
    }

    /// Changes of the map whose old places still count.
    #[inline]
    pub fn stale(&self) -> u32 {
        self.cached().map_or(0, |cached| cached.stale)
    }

    /// Erased superblocks that are kept for the map.
    #[inline]
    pub fn owed(&self) -> u32 {
        self.cached().map_or(0, |cached| cached.quota.superblocks.saturating_sub(cached.supers))
    }

    /// Superblocks that are erased, or may be, and may be used for data.
    #[inline]
    pub fn free(&self) -> u32 {
        self.supers.free.saturating_sub(self.owed())
    }
}

/// Set in a change's key: what it has replaced still counts as valid.
const STALE: u32 = 1 << 31;

/// Changes by unit: a table with open addressing, at most half full.
struct Changes {
    entries: Vec<(u32, u32)>,
    shift: u32,
    len: u32,
}

impl Changes {
    fn new(count: u32) -> Changes {
        let size = (2 * count.max(4)).next_power_of_two();
        let entries = alloc::vec![(NONE, NONE); size as usize];
        Changes { entries, shift: 32 - size.trailing_zeros(), len: 0 }
    }

    #[inline]
    fn home(&self, logical: u32) -> usize {
        // As in the index of the write buffer.
        (logical.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    #[inline]
    fn position(&self, logical: u32) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = self.home(logical);
        while self.entries[at].0 != NONE && self.entries[at].0 & !STALE != logical {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    fn find(&self, logical: u32) -> Option<usize> {
        let at = self.position(logical);
        (self.entries[at].0 != NONE).then_some(at)
    }

    /// It is not there yet.
    fn insert(&mut self, logical: u32, unit: u32, stale: bool) {
        if 2 * (self.len as usize + 1) > self.entries.len() {
            self.grow();
        }
        let at = self.position(logical);
        self.entries[at] = (logical | if stale { STALE } else { 0 }, unit);
        self.len += 1;
    }

    /// Only after a mount, and in a row of a trial's end: otherwise what makes changes waits.
    fn grow(&mut self) {
        let mut larger = Changes::new(self.entries.len() as u32);
        for (key, unit) in self.entries.iter().filter(|(key, _)| *key != NONE) {
            larger.insert(key & !STALE, *unit, key & STALE != 0);
        }
        *self = larger;
    }

    fn remove(&mut self, mut hole: usize) -> u32 {
        let mask = self.entries.len() - 1;
        let (_, unit) = self.entries[hole];
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (key, _) = self.entries[at];
            if key == NONE {
                break;
            }
            // Whoever could stand in the hole moves there.
            let home = self.home(key & !STALE);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
        }
        self.entries[hole] = (NONE, NONE);
        self.len -= 1;
        unit
    }
}
