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

use crate::buffer::{Buffer, Phase, Slot};
use crate::ftl::Inner;
use crate::layout::NONE;
use crate::options::{Error, Options};
use crate::pages::Pages;

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
    /// The region that these options ask for.
    pub fn of(options: &Options) -> Option<Region> {
        let room = options.nv_slots?;
        let found_room = Vec::with_capacity(options.slots as usize);
        Some(Region { host_slots: options.slots, room, first: NONE, flying: 0, found_room })
    }
}

impl Buffer {
    /// A slot has been filled, and is the newest.
    pub fn enter(&mut self, at: u32) {
        let Some(region) = &mut self.region else { return };
        if at >= region.host_slots || region.first != NONE {
            return;
        }
        if region.room == 0 {
            region.first = at;
            return;
        }
        region.room -= 1;
        self.slots[at as usize].kept = true;
    }

    /// A slot is being programmed.
    pub fn takes_off(&mut self, at: u32) {
        let kept = self.slots[at as usize].kept;
        self.region.iter_mut().for_each(|region| region.flying += u32::from(kept));
    }

    /// The program of a slot has failed, and it waits again.
    pub fn grounded(&mut self, at: u32) {
        let kept = self.slots[at as usize].kept;
        self.region.iter_mut().for_each(|region| region.flying -= u32::from(kept));
    }

    /// A slot is about to leave its place in the list.
    pub fn passes(&mut self, at: u32) {
        if self.region.as_ref().is_some_and(|region| region.first == at) {
            let next = self.next_without(self.slots[at as usize].after);
            self.set_first(next);
        }
    }

    /// This is the oldest slot of the host without room.
    pub fn set_first(&mut self, at: u32) {
        self.region.iter_mut().for_each(|region| region.first = at);
    }

    /// Passes the room of a failed slot to the one that replaces it. Returns true if the failed one was the
    /// first without.
    pub fn inherit(&mut self, old: u32, new: u32) -> bool {
        let [from, to] = [old, new].map(|at| self.slots[at as usize]);
        let Some(region) = &mut self.region else { return false };
        if from.kept && !to.kept {
            region.flying -= u32::from(from.phase == Phase::Flying);
            region.flying += u32::from(to.phase == Phase::Flying);
            region.found_room.push(new);
            self.slots[old as usize].kept = false;
            self.slots[new as usize].kept = true;
        }
        region.first == old
    }

    /// A slot has become free: the oldest without room gets its room.
    pub fn leave(&mut self, left: Slot) {
        let Some(region) = self.region.as_mut().filter(|_| left.kept) else { return };
        region.room += 1;
        region.flying -= u32::from(left.phase == Phase::Flying);
        let first = region.first;
        if first == NONE {
            return;
        }
        region.room -= 1;
        region.found_room.push(first);
        let slot = &mut self.slots[first as usize];
        slot.kept = true;
        region.flying += u32::from(slot.phase == Phase::Flying);
        let next = slot.after;
        let next = self.next_without(next);
        self.set_first(next);
    }

    /// The host's next slot from here on; none of them has room.
    fn next_without(&self, mut at: u32) -> u32 {
        let hosts = self.region.as_ref().map_or(0, |region| region.host_slots);
        while at != NONE && at >= hosts {
            at = self.slots[at as usize].after;
        }
        at
    }

    /// Returns true if this slot is in NV-SRAM, or there is no bound.
    pub fn is_kept(&self, at: u32) -> bool {
        self.region.is_none() || self.slots[at as usize].kept
    }

    /// Returns true if some write waits for room.
    pub fn lacks_room(&self) -> bool {
        self.region.as_ref().is_some_and(|region| region.first != NONE)
    }

    /// A slot that has found room, and is still there.
    fn pop_found(&mut self) -> Option<u32> {
        let region = self.region.as_mut()?;
        core::iter::from_fn(|| region.found_room.pop()).find(|at| self.slots[*at as usize].kept)
    }

    /// Returns true if the writes up to this number are in NV-SRAM or on flash.
    fn is_safe(&self, order: u64) -> bool {
        let first = self.region.as_ref().map_or(NONE, |region| region.first);
        first == NONE || self.slots[first as usize].order > order
    }

    /// Returns true if none of the kept slots is on its way to flash.
    fn is_stuck(&self) -> bool {
        self.region.as_ref().is_some_and(|region| region.flying == 0)
    }
}

impl<P: Pages> Inner<P> {
    /// Returns when the writes up to this number survive a power cut, in a write buffer that does.
    ///
    /// # Errors
    /// [`Error::WornOut`]: there is no room, and there never will be.
    pub async fn until_kept(&self, order: u64) -> Result<(), Error> {
        if self.options.nv_slots.is_none() || self.is_kept(order) {
            return Ok(());
        }
        let since = self.blame.begin_wait(&self.rt, &*self.pages);
        // Writes that come at this moment fill the superpage that would be padded.
        self.rt.yield_now().await;
        let done = loop {
            let seen = self.landed.version();
            if self.is_kept(order) {
                break Ok(());
            }
            if self.state.borrow().worn_out {
                break Err(Error::WornOut);
            }
            self.make_room();
            self.landed.changed(&self.rt, seen).await;
        };
        self.blame.end_wait(&self.rt, &*self.pages, since, self.blame.buffer);
        done
    }

    /// Tells the flash which slots have found room, and looks.
    fn is_kept(&self, order: u64) -> bool {
        let mut state = self.state.borrow_mut();
        while let Some(slot) = state.buffer.pop_found() {
            self.pages.preserve(slot, true);
        }
        self.options.mistakes.nv_sram_has_no_bound || state.buffer.is_safe(order)
    }

    /// Sends the oldest units to flash if none of those in the NV-SRAM is on its way: a superpage that does
    /// not fill is padded.
    fn make_room(&self) {
        let mut state = self.state.borrow_mut();
        if !state.buffer.is_stuck() {
            drop(state);
            // Superpages may be held until others close their word lines.
            return self.collect.notify(&self.rt);
        }
        if let Some((oldest, _)) = state.buffer.oldest_waiting() {
            state.force = state.force.max(oldest);
        }
        drop(state);
        self.form();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::TRIM;
    use crate::policy::Heat;

    /// A buffer of four slots of the host and one of the layer, with NV-SRAM for this number.
    fn buffer(room: u32) -> Buffer {
        let found_room = Vec::with_capacity(4);
        let region = Region { host_slots: 4, room, first: NONE, flying: 0, found_room };
        Buffer::new(5, false, Some(region))
    }

    #[test]
    fn room_goes_to_the_oldest_slot_without_and_never_to_a_trim_record() {
        let mut buffer = buffer(1);
        let first = buffer.fill(0, 7, Heat::Typical);
        buffer.fill_first(4, TRIM);
        let [second, third] = [1, 2].map(|slot| buffer.fill(slot, 10 + slot, Heat::Typical));
        assert!(buffer.is_safe(first) && !buffer.is_safe(second) && buffer.is_stuck());
        assert_eq!(
            (buffer.take_off(Heat::Typical), buffer.take_off(Heat::Typical)),
            (Some(4), Some(0))
        );
        assert!(!buffer.is_stuck(), "on its way");
        buffer.landed(4);
        assert!(!buffer.is_safe(second), "the record had room of its own");
        buffer.landed(0);
        assert!(buffer.is_safe(second) && !buffer.is_safe(third));
        assert_eq!((buffer.pop_found(), buffer.pop_found()), (Some(1), None));
    }

    /// Otherwise a power cut would lose data that an earlier write has put into NV-SRAM.
    #[test]
    fn slot_that_replaces_a_failed_one_takes_its_room() {
        let mut buffer = buffer(1);
        buffer.fill(0, 7, Heat::Typical);
        assert_eq!(buffer.take_off(Heat::Typical), Some(0));
        let other = buffer.fill(1, 8, Heat::Typical);
        let newer = buffer.fill(2, 7, Heat::Typical);
        assert!(!buffer.is_safe(newer));
        assert!(buffer.fell(0), "the newer version is written instead");
        assert!(buffer.slots[2].kept && buffer.is_stuck());
        assert_eq!(buffer.pop_found(), Some(2));
        assert!(!buffer.is_safe(other), "there is no more room than before");
    }
}
