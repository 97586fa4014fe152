//! NV-SRAM smaller than the write buffer: which slots lie in it.
//!
//! ```text
//!   oldest ─► kept ─► kept ─► first without room ─► none ─► newest
//!             └── at most `slots` units ──┘
//! ```
//!
//! A slot of the host enters the NV-SRAM when it is filled, or, if there is no room, when older ones have
//! left it for flash, in write order: so one slot, `first`, divides the buffer. A write returns when that
//! slot is newer than all of its own. Slots of the layer itself (trim records) have their own room.

use alloc::vec::Vec;

use crate::layout::NONE;
use crate::slot::{Phase, Slot};

/// NV-SRAM for some of the slots.
#[derive(Clone)]
pub(crate) struct Region {
    /// Slots with lower numbers are the host's.
    host_slots: u32,
    /// Units that still fit.
    room: u32,
    /// Oldest slot of the host without room.
    first: u32,
    /// Kept slots that are being programmed.
    flying: u32,
    /// Slots that have found room since the caller last told the flash.
    found_room: Vec<u32>,
}

impl Region {
    /// Room for this number of units.
    pub fn new(host_slots: u32, room: u32) -> Region {
        let found_room = Vec::with_capacity(host_slots as usize);
        Region { host_slots, room, first: NONE, flying: 0, found_room }
    }

    /// A slot has been filled, and is the newest.
    pub fn enter(&mut self, slots: &mut [Slot], at: u32) {
        if at >= self.host_slots || self.first != NONE {
            return;
        }
        if self.room == 0 {
            self.first = at;
            return;
        }
        self.room -= 1;
        slots[at as usize].kept = true;
    }

    /// A slot is being programmed.
    pub fn takes_off(&mut self, slot: &Slot) {
        self.flying += u32::from(slot.kept);
    }

    /// The program of a slot has failed, and it waits again.
    pub fn grounded(&mut self, slot: &Slot) {
        self.flying -= u32::from(slot.kept);
    }

    /// A slot is about to leave its place in the list.
    pub fn passes(&mut self, slots: &[Slot], at: u32) {
        if self.first == at {
            self.first = self.next_without(slots, slots[at as usize].after);
        }
    }

    /// Passes the room of a failed slot, or its place as the first without, to the one that replaces it.
    pub fn inherit(&mut self, slots: &mut [Slot], old: u32, new: u32) {
        let [from, to] = [old, new].map(|at| slots[at as usize]);
        if from.kept && !to.kept {
            self.flying -= u32::from(from.phase == Phase::Flying);
            self.flying += u32::from(to.phase == Phase::Flying);
            self.found_room.push(new);
            slots[old as usize].kept = false;
            slots[new as usize].kept = true;
        }
        if self.first == old {
            self.first = new;
        }
    }

    /// A slot has become free: the oldest without room gets its room.
    pub fn leave(&mut self, slots: &mut [Slot], left: Slot) {
        if !left.kept {
            return;
        }
        self.room += 1;
        self.flying -= u32::from(left.phase == Phase::Flying);
        if self.first == NONE {
            return;
        }
        self.room -= 1;
        self.found_room.push(self.first);
        let slot = &mut slots[self.first as usize];
        slot.kept = true;
        self.flying += u32::from(slot.phase == Phase::Flying);
        let next = slot.after;
        self.first = self.next_without(slots, next);
    }

    /// The host's next slot from here on; none of them has room.
    fn next_without(&self, slots: &[Slot], mut at: u32) -> u32 {
        while at != NONE && at >= self.host_slots {
            at = slots[at as usize].after;
        }
        at
    }

    /// Returns true if some write waits for room.
    pub fn lacks_room(&self) -> bool {
        self.first != NONE
    }

    /// A slot that has found room, and is still there.
    pub fn pop_found(&mut self, slots: &[Slot]) -> Option<u32> {
        core::iter::from_fn(|| self.found_room.pop()).find(|at| slots[*at as usize].kept)
    }

    /// Returns true if the writes up to this number are in NV-SRAM or on flash.
    pub fn is_safe(&self, slots: &[Slot], order: u64) -> bool {
        self.first == NONE || slots[self.first as usize].order > order
    }

    /// Returns true if none of the kept slots is on its way to flash.
    pub fn is_stuck(&self) -> bool {
        self.flying == 0
    }
}
