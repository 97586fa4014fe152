//! Superblocks: their phase, their valid units, their wear.

use alloc::vec::Vec;

use crate::bits::Bits;
use crate::content::UNCOMMITTED;
use crate::layout::{Layout, WritePointer};
use crate::pages::{Header, Page, Pages};
use crate::policy::{Candidate, Health, Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Erased, or to be erased before it is opened.
    Free {
        clean: bool,
    },
    Open,
    Filled,
    /// Being collected, or collected and not yet erased.
    Victim,
    /// No good block is left.
    Gone,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Super {
    pub phase: Phase,
    /// Units that the map points to.
    pub valid: u32,
    /// Units of its good blocks.
    pub units: u32,
    /// While it is open: units not written yet.
    pub left: u32,
    pub erases: u32,
    /// Sequence number of its first superpage, and the next one when it was filled.
    pub opened: u64,
    pub filled: u64,
    pub health: Health,
    /// Its data are to be moved at once: one of its blocks has failed, or is about to lose data.
    pub refresh: bool,
    /// Copies from it that are still in flight.
    pub copies: u32,
    /// Superpages into it that are still in flight.
    pub flying: u32,
    /// It holds parts of a cached map.
    pub of_map: bool,
    /// A mount has found uncommitted superpages in it, and one that commits them.
    pub tried: bool,
}

/// Next position of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frontier {
    pub at: Option<WritePointer>,
}

#[derive(Clone)]
pub(crate) struct Supers {
    pub layout: Layout,
    pub all: Vec<Super>,
    /// Good planes of each superblock, die by die.
    members: Vec<u32>,
    /// Planes that have failed a program: not written any more, and marked bad once their data have been
    /// moved.
    doomed: Vec<u32>,
    valid: Bits,
    pub frontiers: [Frontier; Stream::COUNT],
    pub free: u32,
    pub free_units: u64,
    /// Free superblocks that are known to be erased.
    pub clean: u32,
    /// Number of superblocks to be moved soon.
    pub refreshing: u32,
    /// Map parts are to be moved soon; a checkpoint does that.
    pub map_in_danger: bool,
    pub most_erases: u32,
}

impl Supers {
    pub fn new<P: Pages>(pages: &P, layout: Layout) -> Supers {
        let shape = layout.shape;
        let mut supers = Supers {
            layout,
            all: Vec::with_capacity(shape.blocks as usize),
            members: Vec::with_capacity((shape.blocks * shape.dies) as usize),
            doomed: alloc::vec![0; (shape.blocks * shape.dies) as usize],
            valid: Bits::new(shape.all_units() as usize),
            frontiers: [Frontier::default(); Stream::COUNT],
            free: 0,
            free_units: 0,
            clean: 0,
            refreshing: 0,
            map_in_danger: false,
            most_erases: 0,
        };
        for block in 0..shape.blocks {
            for die in 0..shape.dies {
                let good = |plane: &u32| !pages.is_bad(Page { die, plane: *plane, block, page: 0 });
                let planes = (0..shape.planes).filter(good).fold(0, |all, plane| all | 1 << plane);
                supers.members.push(planes & !layout.of_roots(block, die));
            }
            supers.all.push(Super {
                phase: Phase::Gone,
                valid: 0,
                units: 0,
                left: 0,
                erases: 0,
                opened: 0,
                filled: 0,
                health: Health::default(),
                refresh: false,
                copies: 0,
                flying: 0,
                of_map: false,
                tried: false,
            });
            supers.recount(block);
            let one = &mut supers.all[block as usize];
            if one.units > 0 {
                one.phase = Phase::Free { clean: false };
                supers.free += 1;
                supers.free_units += u64::from(one.units);
            }
        }
        supers
    }

    /// Copies share what may be large until they change it.
    pub fn share(&mut self) {
        self.valid.share();
    }

    /// Memory that grows with the flash, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.all.len() * size_of::<Super>() + self.valid.len() * size_of::<u64>();
        (tables + (self.members.len() + self.doomed.len()) * size_of::<u32>()) as u64
    }

    /// Planes of a superblock on a die that are written.
    #[inline]
    pub fn members(&self, superblock: u32, die: u32) -> u32 {
        let at = (superblock * self.layout.shape.dies + die) as usize;
        self.members[at] & !self.doomed[at]
    }

    /// Planes that have failed a program.
    pub fn doomed(&self, superblock: u32, die: u32) -> u32 {
        self.doomed[(superblock * self.layout.shape.dies + die) as usize]
    }

    /// Handles a failed program: the planes are not written any more, and their data are to be moved.
    pub fn doom(&mut self, superblock: u32, die: u32, planes: u32) {
        let at = (superblock * self.layout.shape.dies + die) as usize;
        let new = planes & self.members[at] & !self.doomed[at];
        self.doomed[at] |= new;
        let rows_left = self.rows_left(superblock, die);
        let one = &mut self.all[superblock as usize];
        let lost = new.count_ones() * self.layout.plane_units * rows_left;
        one.left = one.left.saturating_sub(lost);
        self.set_refresh(superblock);
    }

    fn rows_left(&self, superblock: u32, die: u32) -> u32 {
        let write_pointer =
            self.frontiers.iter().filter_map(|f| f.at).find(|s| s.superblock == superblock);
        write_pointer.map_or(0, |at| self.layout.groups - at.group - u32::from(die < at.die))
    }

    /// Removes planes permanently.
    pub fn drop_members(&mut self, superblock: u32, die: u32, planes: u32) {
        let at = (superblock * self.layout.shape.dies + die) as usize;
        self.members[at] &= !planes;
        self.doomed[at] &= !planes;
        self.recount(superblock);
    }

    fn recount(&mut self, superblock: u32) {
        let planes: u32 =
            (0..self.layout.shape.dies).map(|die| self.members(superblock, die).count_ones()).sum();
        self.all[superblock as usize].units = planes * self.layout.plane_units * self.layout.groups;
    }

    #[inline]
    pub fn is_valid(&self, unit: u32) -> bool {
        self.valid[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }

    #[inline]
    pub fn set_valid(&mut self, unit: u32) {
        let word = &mut self.valid.own()[(unit / 64) as usize];
        debug_assert!(*word >> (unit % 64) & 1 == 0, "a unit becomes valid once");
        *word |= 1 << (unit % 64);
        self.all[self.layout.superblock(unit) as usize].valid += 1;
    }

    /// Valid bits, to be set by a mount, which then has them counted by
    /// [`count_marked`](Supers::count_marked).
    pub fn marks(&mut self) -> &mut [u64] {
        self.valid.own()
    }

    /// Counts the valid bits of each superblock. Returns false if one is set where nothing was written.
    pub fn count_marked(&mut self) -> bool {
        let mut good = true;
        for superblock in 0..self.layout.shape.blocks {
            let (first, end) = self.range(superblock);
            let valid = self.count_valid(first, end);
            let one = &mut self.all[superblock as usize];
            one.valid = valid;
            good &= valid == 0 || one.phase == Phase::Filled;
        }
        good
    }

    /// Number of valid units in `from..end`.
    fn count_valid(&self, from: u32, end: u32) -> u32 {
        let (mut count, mut at) = (0, from);
        while at < end {
            let here = (64 - at % 64).min(end - at);
            let word = self.valid[(at / 64) as usize] >> (at % 64) << (64 - here);
            (count, at) = (count + word.count_ones(), at + here);
        }
        count
    }

    /// Returns true if its superblock now has no valid unit.
    #[inline]
    pub fn clear_valid(&mut self, unit: u32) -> bool {
        let word = &mut self.valid.own()[(unit / 64) as usize];
        debug_assert!(*word >> (unit % 64) & 1 != 0, "a unit becomes invalid once");
        *word &= !(1 << (unit % 64));
        let one = &mut self.all[self.layout.superblock(unit) as usize];
        one.valid -= 1;
        one.valid == 0
    }

    /// Next valid unit in `from..end`.
    pub fn next_valid(&self, from: u32, end: u32) -> Option<u32> {
        let mut at = from;
        while at < end {
            let word = self.valid[(at / 64) as usize] >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros();
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Next superpage of a stream, if it has an open superblock with space.
    pub fn peek(&mut self, stream: Stream) -> Option<(WritePointer, u32)> {
        let frontier = stream as usize;
        loop {
            let write_pointer = self.frontiers[frontier].at?;
            let planes = self.members(write_pointer.superblock, write_pointer.die);
            if planes != 0 {
                return Some((write_pointer, planes));
            }
            self.step(frontier, write_pointer);
        }
    }

    /// Returns true if a stream has an open superblock with space.
    pub fn has_rows(&mut self) -> bool {
        Stream::DATA.into_iter().any(|stream| self.peek(stream).is_some())
    }

    /// Advances the stream past that superpage.
    pub fn advance(&mut self, stream: Stream, planes: u32, next_sequence: u64) {
        let frontier = stream as usize;
        let write_pointer = self.frontiers[frontier].at.expect("an open superblock");
        let one = &mut self.all[write_pointer.superblock as usize];
        one.left = one.left.saturating_sub(planes.count_ones() * self.layout.plane_units);
        one.filled = next_sequence;
        one.flying += 1;
        self.step(frontier, write_pointer);
    }

    fn step(&mut self, frontier: usize, mut write_pointer: WritePointer) {
        write_pointer.die += 1;
        if write_pointer.die == self.layout.shape.dies {
            (write_pointer.die, write_pointer.group) = (0, write_pointer.group + 1);
        }
        if write_pointer.group < self.layout.groups {
            self.frontiers[frontier].at = Some(write_pointer);
            return;
        }
        self.frontiers[frontier].at = None;
        let one = &mut self.all[write_pointer.superblock as usize];
        (one.phase, one.left) = (Phase::Filled, 0);
    }

    /// Opens a free superblock for a stream.
    pub fn open(&mut self, stream: Stream, superblock: u32, sequence: u64) {
        let one = &mut self.all[superblock as usize];
        (one.phase, one.left) = (Phase::Open, one.units);
        (one.opened, one.filled) = (sequence, sequence);
        one.health = Health::default();
        one.tried = false;
        one.of_map = stream == Stream::Map;
        self.free -= 1;
        self.clean -= 1;
        self.free_units -= u64::from(one.units);
        self.frontiers[stream as usize].at = Some(WritePointer { superblock, group: 0, die: 0 });
    }

    /// Takes a free superblock that is about to be erased; returns false if it has no good block.
    pub fn take(&mut self, superblock: u32) -> bool {
        let one = &mut self.all[superblock as usize];
        let Phase::Free { clean } = one.phase else { return false };
        one.phase = Phase::Victim;
        self.free -= 1;
        self.clean -= u32::from(clean);
        self.free_units -= u64::from(one.units);
        true
    }

    /// Frees a superblock that has been erased.
    pub fn release(&mut self, superblock: u32) {
        let one = &mut self.all[superblock as usize];
        debug_assert!(one.valid == 0 && one.copies == 0 && one.flying == 0, "{superblock} {one:?}");
        self.refreshing -= u32::from(one.refresh);
        one.refresh = false;
        one.phase = if one.units == 0 { Phase::Gone } else { Phase::Free { clean: true } };
        if one.units > 0 {
            self.clean += 1;
            self.free += 1;
            self.free_units += u64::from(one.units);
        }
    }

    /// The superblock as a candidate for collection.
    pub fn candidate(&self, superblock: u32, now: u64) -> Option<Candidate> {
        let one = &self.all[superblock as usize];
        let age = now - one.filled.min(now);
        (one.phase == Phase::Filled && one.flying == 0 && !one.of_map).then_some(Candidate {
            valid: one.valid,
            units: one.units,
            age,
            erases: one.erases,
        })
    }

    /// Units that can still be written in erased superblocks and in the open ones of data streams.
    pub fn left(&self) -> u64 {
        let open = |f: &Frontier| f.at.map_or(0, |s| self.all[s.superblock as usize].left.into());
        let data = Stream::DATA.iter().map(|stream| &self.frontiers[*stream as usize]);
        self.free_units + data.map(open).sum::<u64>()
    }

    /// First unit of a superblock, and the one after its last.
    pub fn range(&self, superblock: u32) -> (u32, u32) {
        let first = superblock * self.layout.super_units;
        (first, first + self.layout.super_units)
    }

    /// Records that a mount found a superpage there.
    pub fn saw(&mut self, superblock: u32, header: Header) {
        let one = &mut self.all[superblock as usize];
        if let Phase::Free { .. } = one.phase {
            one.phase = Phase::Filled;
            one.opened = header.sequence;
            self.free -= 1;
            self.free_units -= u64::from(one.units);
        }
        one.opened = one.opened.min(header.sequence);
        one.filled = one.filled.max(header.sequence);
        one.tried |= header.erases & UNCOMMITTED != 0;
        one.erases = one.erases.max(header.erases & !UNCOMMITTED);
        self.most_erases = self.most_erases.max(one.erases);
    }

    /// Marks a superblock as erased: nothing was written there since its erase.
    pub fn set_clean(&mut self, superblock: u32) {
        let one = &mut self.all[superblock as usize];
        if one.phase == (Phase::Free { clean: false }) {
            one.phase = Phase::Free { clean: true };
            self.clean += 1;
        }
    }

    /// After a mount: frees superblocks without live data.
    pub fn free_empty(&mut self) {
        let is_empty =
            |one: &&mut Super| one.phase == Phase::Filled && one.valid == 0 && !one.of_map;
        for one in self.all.iter_mut().filter(is_empty) {
            one.phase = Phase::Free { clean: false };
            self.free += 1;
            self.free_units += u64::from(one.units);
        }
    }

    /// Closes a superblock; its unwritten remainder is not used.
    pub fn fill_up(&mut self, superblock: u32) {
        let one = &mut self.all[superblock as usize];
        (one.phase, one.left) = (Phase::Filled, 0);
    }

    /// Continues writing a superblock that was open, from this group on.
    pub fn reopen(&mut self, stream: Stream, superblock: u32, group: u32, next_sequence: u64) {
        let groups_left = self.layout.groups - group;
        let one = &mut self.all[superblock as usize];
        one.left = one.units / self.layout.groups * groups_left;
        (one.phase, one.filled) = (Phase::Open, next_sequence);
        self.frontiers[stream as usize].at = Some(WritePointer { superblock, group, die: 0 });
    }

    /// Marks the superblock to be moved soon.
    pub fn set_refresh(&mut self, superblock: u32) {
        let one = &mut self.all[superblock as usize];
        if one.of_map {
            self.map_in_danger = true;
            return;
        }
        self.refreshing += u32::from(!one.refresh);
        one.refresh = true;
    }

    /// Clears all valid bits: a mount starts over.
    pub fn forget_valid(&mut self) {
        self.valid.own().fill(0);
        self.all.iter_mut().for_each(|one| one.valid = 0);
    }

    /// Marks a free superblock as filled although nothing was written to it.
    pub fn lay(&mut self, superblock: u32, opened: u64) {
        let one = &mut self.all[superblock as usize];
        (one.phase, one.opened) = (Phase::Filled, opened);
        self.free -= 1;
        self.clean -= 1;
        self.free_units -= u64::from(one.units);
    }
}
