//! The write buffer: contents, age and write order of its slots.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::content::{CHUNK, Holds, NUMBER, holds};
use crate::layout::NONE;
use crate::pages::META;
use crate::policy::Heat;
use crate::region::Region;
use crate::slot::{EMPTY, Phase, Slot};

/// Returns true for tags that can be looked up in the buffer: data and map parts. Each trim record is new.
fn is_found(logical: u32) -> bool {
    logical & META == 0 || logical & !NUMBER == CHUNK
}

/// All slots. Those in use form a list in write order.
#[derive(Clone)]
pub(crate) struct Buffer {
    pub slots: Vec<Slot>,
    /// Slots that wait for a superpage, in FIFO order, by heat.
    pending: [VecDeque<u32>; Heat::ALL.len()],
    oldest: u32,
    newest: u32,
    next_order: u64,
    index: Index,
    /// Slots in flight whose data are superseded, for the caller to process.
    pub died: Vec<u32>,
    /// NV-SRAM of a bounded size, if there is one.
    region: Option<Region>,
}

impl Buffer {
    pub fn new(count: u32, hints: bool, region: Option<Region>) -> Buffer {
        let queue = |used: bool| VecDeque::with_capacity(if used { count as usize + 1 } else { 0 });
        Buffer {
            slots: alloc::vec![EMPTY; count as usize],
            pending: [queue(true), queue(hints), queue(hints)],
            oldest: NONE,
            newest: NONE,
            next_order: 1,
            index: Index::new(count),
            died: Vec::with_capacity(count as usize),
            region,
        }
    }

    /// Memory of its tables in bytes. It grows with the number of slots.
    pub fn table_bytes(&self) -> u64 {
        let slots = self.slots.len() * size_of::<Slot>();
        let pending: usize = self.pending.iter().map(VecDeque::capacity).sum();
        let lists = (pending + self.died.capacity()) * size_of::<u32>();
        (slots + lists + self.index.entries.len() * size_of::<(u32, u32)>()) as u64
    }

    #[inline]
    fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Newest version of this tag in the buffer.
    #[inline]
    pub fn find(&self, logical: u32) -> Option<u32> {
        self.index.get(logical).filter(|slot| !self.slots[*slot as usize].dead)
    }

    /// Returns true if a version of this tag is in flight to flash.
    #[inline]
    pub fn is_flying(&self, logical: u32) -> bool {
        let mut at = self.index.get(logical).unwrap_or(NONE);
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.phase == Phase::Flying && !slot.dead {
                return true;
            }
            at = slot.older;
        }
        false
    }

    /// Number that the next write will get.
    pub fn next_order(&self) -> u64 {
        self.next_order
    }

    /// Number of the oldest write that is not on flash yet.
    pub fn oldest_order(&self) -> Option<u64> {
        (self.oldest != NONE).then(|| self.slots[self.oldest as usize].order)
    }

    /// Number of slots that wait for a superpage.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.pending.iter().map(VecDeque::len).sum::<usize>() as u32
    }

    /// Of them, slots of this heat.
    #[inline]
    pub fn waiting_of(&self, heat: Heat) -> u32 {
        self.pending[heat as usize].len() as u32
    }

    /// Lowest write number among the slots that wait for a superpage, and the heat of its slot.
    pub fn oldest_waiting(&self) -> Option<(u64, Heat)> {
        let mut at = self.oldest;
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.phase == Phase::Pending {
                return Some((slot.order, slot.heat));
            }
            at = slot.after;
        }
        None
    }

    /// Fills a free slot and queues it for a superpage. Returns its write number.
    pub fn fill(&mut self, slot: u32, logical: u32, heat: Heat) -> u64 {
        let order = self.next_order;
        self.next_order += 1;
        self.put(slot, logical, heat, order);
        order
    }

    /// As [`fill`](Buffer::fill), but to be written before all others.
    pub fn fill_first(&mut self, slot: u32, logical: u32) -> u64 {
        let order = self.fill(slot, logical, Heat::Typical);
        self.pending[Heat::Typical as usize].rotate_right(1);
        order
    }

    fn put(&mut self, at: u32, logical: u32, heat: Heat, order: u64) {
        let older = if is_found(logical) { self.index.insert(logical, at) } else { NONE };
        let before = self.newest;
        *self.slot(at) = Slot {
            logical,
            order,
            phase: Phase::Pending,
            heat,
            dead: false,
            kept: false,
            older,
            before,
            after: NONE,
        };
        match before {
            NONE => self.oldest = at,
            before => self.slot(before).after = at,
        }
        self.newest = at;
        self.pending[heat as usize].push_back(at);
        if let Some(region) = &mut self.region {
            region.enter(&mut self.slots, at);
        }
    }

    /// Takes the next slot to be written: of this heat, or of any other if there is none.
    pub fn take_off(&mut self, heat: Heat) -> Option<u32> {
        let queues = core::iter::once(heat).chain(Heat::ALL).map(|heat| heat as usize);
        let at = queues.into_iter().find_map(|queue| self.pending[queue].pop_front())?;
        self.slot(at).phase = Phase::Flying;
        if let Some(region) = &mut self.region {
            region.takes_off(&self.slots[at as usize]);
        }
        Some(at)
    }

    /// Takes a trim record, ahead of older slots.
    pub fn take_note(&mut self) -> Option<u32> {
        let place = self.notes_waiting().next()?;
        let at = self.pending[Heat::Typical as usize].remove(place)?;
        self.slot(at).phase = Phase::Flying;
        Some(at)
    }

    /// Returns true if a trim record waits for a superpage.
    pub fn has_note(&self) -> bool {
        self.notes_waiting().next().is_some()
    }

    /// Positions of trim records in the queue: at the front, behind slots that failed.
    fn notes_waiting(&self) -> impl Iterator<Item = usize> {
        let is_note = |at: &u32| matches!(holds(self.slots[*at as usize].logical), Holds::Trim(_));
        let pending = &self.pending[Heat::Typical as usize];
        pending.iter().enumerate().filter(move |(_, at)| is_note(at)).map(|(place, _)| place)
    }

    /// Handles the arrival of a slot in flight, or that it is no longer needed: the slot is free, and the
    /// caller releases it.
    pub fn landed(&mut self, at: u32) {
        if !self.slots[at as usize].dead {
            // Older versions in flight arrive too late.
            let mut older = self.slots[at as usize].older;
            while older != NONE {
                self.mark_dead(older);
                older = self.slots[older as usize].older;
            }
        }
        self.forget(at);
    }

    /// Handles the failure of a slot in flight: it is queued again before all others. If there is a newer
    /// version, that takes its place; then returns true: this slot is free.
    pub fn fell(&mut self, at: u32) -> bool {
        let logical = self.slots[at as usize].logical;
        if self.slots[at as usize].dead {
            self.forget(at);
            return true;
        }
        if is_found(logical) && self.index.get(logical) != Some(at) {
            let mut newer = self.index.get(logical).expect("a newer version");
            while self.slots[newer as usize].older != at {
                newer = self.slots[newer as usize].older;
            }
            self.take_over(at, newer);
            return true;
        }
        self.slot(at).phase = Phase::Pending;
        if let Some(region) = &mut self.region {
            region.grounded(&self.slots[at as usize]);
        }
        let heat = self.slots[at as usize].heat;
        self.pending[heat as usize].push_front(at);
        false
    }

    /// Transfers the waiters of write `old` to write `new`.
    fn take_over(&mut self, old: u32, new: u32) {
        let order = self.slots[old as usize].order;
        self.unlink(new);
        let before = self.slots[old as usize].before;
        if let Some(region) = &mut self.region {
            region.inherit(&mut self.slots, old, new);
        }
        self.forget(old);
        let slot = self.slot(new);
        (slot.order, slot.before) = (order, before);
        let after = match before {
            NONE => core::mem::replace(&mut self.oldest, new),
            before => core::mem::replace(&mut self.slot(before).after, new),
        };
        self.slot(new).after = after;
        match after {
            NONE => self.newest = new,
            after => self.slot(after).before = new,
        }
    }

    /// Marks all versions of this tag dead after a trim. Returns the slot that is now free, if any, and the
    /// number of the oldest write that is replaced by the trim: waiters of that write wait for the trim
    /// instead.
    pub fn kill(&mut self, logical: u32) -> (Option<u32>, u64) {
        let Some(newest) = self.index.get(logical) else { return (None, u64::MAX) };
        let (mut at, mut oldest) = (newest, u64::MAX);
        while at != NONE {
            oldest = oldest.min(self.slots[at as usize].order);
            self.mark_dead(at);
            at = self.slots[at as usize].older;
        }
        if self.slots[newest as usize].phase != Phase::Pending {
            return (None, oldest);
        }
        let heat = self.slots[newest as usize].heat;
        self.pending[heat as usize].retain(|waiting| *waiting != newest);
        self.forget(newest);
        (Some(newest), oldest)
    }

    fn mark_dead(&mut self, at: u32) {
        let slot = self.slot(at);
        if !slot.dead && slot.phase == Phase::Flying {
            self.died.push(at);
        }
        self.slot(at).dead = true;
    }

    fn unlink(&mut self, at: u32) {
        let Slot { before, after, .. } = self.slots[at as usize];
        if let Some(region) = &mut self.region {
            region.passes(&self.slots, at);
        }
        match before {
            NONE => self.oldest = after,
            before => self.slot(before).after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.slot(after).before = before,
        }
    }

    fn forget(&mut self, at: u32) {
        self.unlink(at);
        let Slot { logical, older, .. } = self.slots[at as usize];
        if is_found(logical) {
            let first = self.index.get(logical).expect("in the index");
            if first == at {
                match older {
                    NONE => self.index.remove(logical),
                    older => _ = self.index.insert(logical, older),
                }
            } else {
                let mut newer = first;
                while self.slots[newer as usize].older != at {
                    newer = self.slots[newer as usize].older;
                }
                self.slot(newer).older = older;
            }
        }
        let left = core::mem::replace(self.slot(at), EMPTY);
        if let Some(region) = &mut self.region {
            region.leave(&mut self.slots, left);
        }
    }

    /// Returns true if this slot is in NV-SRAM, or there is no bound.
    pub fn is_kept(&self, at: u32) -> bool {
        self.region.is_none() || self.slots[at as usize].kept
    }

    /// Returns true if some write waits for room in NV-SRAM.
    pub fn lacks_room(&self) -> bool {
        self.region.as_ref().is_some_and(Region::lacks_room)
    }

    /// A slot that has found room in NV-SRAM, and is still there.
    pub fn pop_found(&mut self) -> Option<u32> {
        self.region.as_mut()?.pop_found(&self.slots)
    }

    /// Returns true if the writes up to this number are in NV-SRAM or on flash.
    pub fn is_safe(&self, order: u64) -> bool {
        self.region.as_ref().is_none_or(|region| region.is_safe(&self.slots, order))
    }

    /// Returns true if none of the slots in NV-SRAM is on its way to flash.
    pub fn is_stuck(&self) -> bool {
        self.region.as_ref().is_some_and(Region::is_stuck)
    }
}

/// Slot of the newest version of each tag: an open-addressing hash table, at most half full.
#[derive(Clone)]
struct Index {
    entries: Vec<(u32, u32)>,
    shift: u32,
}

impl Index {
    fn new(count: u32) -> Index {
        let size = (2 * count.max(4)).next_power_of_two();
        Index {
            entries: alloc::vec![(NONE, NONE); size as usize],
            shift: 32 - size.trailing_zeros(),
        }
    }

    #[inline]
    fn home(&self, key: u32) -> usize {
        // Fibonacci hashing (Knuth, volume 3, 6.4): the golden ratio spreads neighbours.
        (key.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    #[inline]
    fn position(&self, key: u32) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = self.home(key);
        while self.entries[at].1 != NONE && self.entries[at].0 != key {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    fn get(&self, key: u32) -> Option<u32> {
        let (_, slot) = self.entries[self.position(key)];
        (slot != NONE).then_some(slot)
    }

    /// Returns the slot that it replaces.
    fn insert(&mut self, key: u32, slot: u32) -> u32 {
        let at = self.position(key);
        core::mem::replace(&mut self.entries[at], (key, slot)).1
    }

    fn remove(&mut self, key: u32) {
        let mask = self.entries.len() - 1;
        let mut hole = self.position(key);
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (key, slot) = self.entries[at];
            if slot == NONE {
                break;
            }
            // Move an entry whose probe sequence crosses the hole.
            let home = self.home(key);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = (key, slot);
                hole = at;
            }
        }
        self.entries[hole] = (NONE, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::TRIM;

    /// A buffer of four slots of the host and one of the layer, with NV-SRAM for this number.
    fn buffer(room: u32) -> Buffer {
        Buffer::new(5, false, Some(Region::new(4, room)))
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
