//! The map: location of each mapping unit of the host. It is fully resident in memory, or on flash in *parts*
//! of one unit each, some of them cached.
//!
//! A cached map holds the location of every part (the directory, `State::chunks`), and
//! - *frames*: parts as they are on flash, replaced by a CLOCK policy;
//! - *changes*: single entries that differ from flash. A part is written with all of its changes.
//!
//! A change may be recorded without the location that it replaces, because its part may be on flash only.
//! Then the old location still counts as valid, and the change is *stale*, until the part is read, or until
//! the collector reaches the old location and finds its owner in the spare bytes. So neither completed
//! programs nor the collector ever wait for a part: a location is live if it is valid and no change
//! contradicts it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::entries::Entries;
use crate::layout::{ENTRY_BYTES, NONE};
use crate::options::Options;
use crate::pages::Shape;
use crate::space::{CHANGE_BYTES, FRAMES_MIN, Quota};

#[derive(Clone)]
pub(crate) enum Map {
    /// Location number plus one for each unit; 0 if unmapped. Fresh memory is zero already.
    Whole(Entries),
    Cached(Box<Cached>),
}

#[derive(Clone)]
pub(crate) struct Cached {
    per_part: u32,
    /// Number of mapping units.
    units: u32,
    changes: Changes,
    /// Number of changes in each part.
    counts: Vec<u32>,
    /// Total number of stale changes.
    pub stale: u32,
    /// Limit at which operations that add changes wait.
    limit: u32,
    /// Frame that holds each part.
    seats: Vec<u32>,
    frames: Vec<Frame>,
    entries: Vec<u32>,
    /// CLOCK hand, and position of the search for a part to be written.
    hand: usize,
    sweep: u32,
    /// Parts being read.
    pub loading: Vec<u32>,
    /// Slots with parts that wait for a superpage or are in one, oldest first. The part is `NONE` if a newer
    /// version has reached flash.
    pub waiting: VecDeque<(u32, u32)>,
    pub flying: Vec<(u32, u32)>,
    /// Write waiting parts even if the superpage is not full.
    pub force: bool,
    /// Close the word lines of superpages that are held back.
    pub closing: bool,
    pub dump: Dump,
    /// Parts about to be written.
    pub busy: u32,
    pub quota: Quota,
    /// Superblocks that hold map parts.
    pub supers: u32,
    /// As [`Map::Whole`], used instead of the parts on flash while a drive is being preconditioned.
    pub laid: Option<Vec<u32>>,
}

/// Progress of a checkpoint, which rewrites every part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    Off,
    /// The next part to write.
    At(u32),
    /// The writes of all parts have begun.
    Done,
}

struct Frame {
    part: u32,
    /// Atomic so that a suspended map can be copied from several threads; one at a time uses it.
    used: AtomicBool,
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        Frame { part: self.part, used: AtomicBool::new(self.used.load(Ordering::Relaxed)) }
    }
}

impl Map {
    /// Creates the map; fails if the cache is too small.
    pub fn new(options: &Options, shape: &Shape, quota: Quota) -> Map {
        let Some((frames, limit)) = sizes(options, shape) else {
            return Map::Whole(Entries::new(options.units as usize));
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
            frames: (0..frames)
                .map(|_| Frame { part: NONE, used: AtomicBool::new(false) })
                .collect(),
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
            Map::Whole(map) => (map.len() * ENTRY_BYTES as usize) as u64,
            Map::Cached(cached) => cached.bytes(),
        }
    }
}

/// Number of frames and of changes in the configured cache: half of the bytes for each.
fn sizes(options: &Options, shape: &Shape) -> Option<(u32, u32)> {
    let half = options.map_cache? / 2;
    let frames = (half / u64::from(shape.unit_bytes)).max(FRAMES_MIN);
    let changes = half / CHANGE_BYTES;
    Some((frames.min(1 << 24) as u32, changes.clamp(1, 1 << 28) as u32))
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

    /// Mapping units of a part.
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
        self.frames[pci_slot as usize].used.store(true, Ordering::Relaxed);
        Some(self.entries[(pci_slot * self.per_part + logical % self.per_part) as usize])
    }

    /// Location of a unit; `None` on a cache miss.
    #[inline]
    pub fn look(&self, logical: u32) -> Option<u32> {
        self.change(logical).or_else(|| self.frame_entry(logical))
    }

    /// Location of a unit, if it has a change.
    pub fn change(&self, logical: u32) -> Option<u32> {
        self.changes.find(logical).map(|at| self.changes.entries[at].1)
    }

    /// Sets the location of a unit. `from` is the old location, if it is known and has no change. Returns the
    /// location that is no longer valid, or `NONE`.
    pub fn put(&mut self, logical: u32, unit: u32, from: Option<u32>) -> u32 {
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

    /// As [`put`](Cached::put), before valid locations are known.
    pub fn replay(&mut self, logical: u32, unit: u32) {
        self.put(logical, unit, Some(NONE));
    }

    /// Clears the stale flag of this unit's change; returns false if it was not stale.
    pub fn freshen(&mut self, logical: u32) -> bool {
        let Some(at) = self.changes.find(logical) else { return false };
        let was = core::mem::replace(&mut self.changes.entries[at].0, logical) != logical;
        self.stale -= u32::from(was);
        was
    }

    /// Installs a part that has been read: `entry` returns its entries, `clear` receives locations that are
    /// no longer valid.
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
        (frame.part, frame.used) = (part, AtomicBool::new(true));
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
            if !core::mem::take(self.frames[self.hand].used.get_mut()) {
                return self.hand;
            }
        }
    }

    /// Merges a loaded part with its changes, and passes the entries to `into`.
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

    /// Returns true if a part must be written before further changes.
    pub fn is_full(&self) -> bool {
        self.changes.len >= self.limit
    }

    /// Returns true if a part should be written.
    pub fn is_filling(&self) -> bool {
        self.changes.len > self.limit / 4 * 3
    }

    /// Returns true if no part is being written.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty()
    }

    /// Forgets work in progress: its tasks have ended.
    pub fn wake(&mut self) {
        self.loading.clear();
        (self.busy, self.dump) = (0, Dump::Off);
        (self.force, self.closing) = (false, false);
    }

    /// Returns true if a part has changes or is being written.
    pub fn is_touched(&self, part: u32) -> bool {
        self.counts[part as usize] > 0 || self.slot_of(part).is_some()
    }

    /// Slot with the newest version of a part.
    pub fn slot_of(&self, part: u32) -> Option<u32> {
        let of_part = |(_, one): &&(u32, u32)| *one == part;
        let newest_first = self.waiting.iter().chain(self.flying.iter().rev());
        newest_first.into_iter().find(of_part).map(|(slot, _)| *slot)
    }

    /// Picks a part with the most changes, to be written. The search is circular.
    pub fn next_part(&mut self) -> Option<u32> {
        let parts = self.parts();
        let mean = self.changes.len / parts;
        let next = (1..=parts).map(|step| (self.sweep + step) % parts);
        let found = next.into_iter().find(|part| self.counts[*part as usize] > mean.max(1) - 1)?;
        self.sweep = found;
        Some(found)
    }

    /// Next part with stale changes, and the position to continue from.
    pub fn next_stale(&self, from: usize) -> Option<(u32, usize)> {
        let rest = self.changes.entries.get(from..)?;
        let at = rest.iter().position(|(key, _)| *key != NONE && key & STALE != 0)?;
        Some((self.part(rest[at].0 & !STALE), from + at))
    }

    /// Unit whose change points to this location.
    pub fn changed_to(&self, place: u32) -> Option<u32> {
        let here = |(key, at): &&(u32, u32)| *key != NONE && *at == place;
        self.changes.entries.iter().find(here).map(|(key, _)| key & !STALE)
    }

    /// Unit of a loaded part at this location, if it has no change.
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

/// Flag in a change's key: the replaced location still counts as valid.
const STALE: u32 = 1 << 31;

/// Changes by unit: an open-addressing hash table, at most half full.
#[derive(Clone)]
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
        // Same hash as the index of the write buffer.
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

    /// Inserts a unit that is not in the table.
    fn insert(&mut self, logical: u32, unit: u32, stale: bool) {
        if 2 * (self.len as usize + 1) > self.entries.len() {
            self.grow();
        }
        let at = self.position(logical);
        self.entries[at] = (logical | if stale { STALE } else { 0 }, unit);
        self.len += 1;
    }

    /// Grows the table. This happens only after a mount and at the commit of an uncommitted superblock;
    /// otherwise operations that add changes wait.
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
            // Move an entry whose probe sequence crosses the hole.
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
