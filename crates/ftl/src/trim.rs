//! Trims: units are unmapped at once, and a trim record is written to flash.

use alloc::vec::Vec;

use crate::content::TRIM;
use crate::ftl::Inner;
use crate::options::Error;
use crate::pages::{Pages, Tag};
use crate::space::NOTES_MAX;
use crate::state::{OpenNote, State};

/// Bytes of one trim in a record: its first unit, their number, and the superpage before which it came.
const TRIM_RECORD_BYTES: u32 = 16;

/// A trim in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrimRecord {
    pub first: u32,
    pub count: u32,
    /// Data of these units in superpages with smaller numbers are superseded.
    pub before: u64,
}

impl TrimRecord {
    fn to_bytes(self) -> [u8; TRIM_RECORD_BYTES as usize] {
        let mut bytes = [0; TRIM_RECORD_BYTES as usize];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..].copy_from_slice(&self.before.to_le_bytes());
        bytes
    }
}

/// Decodes the trims of a record.
pub(crate) fn trim_records(bytes: &[u8], into: &mut Vec<TrimRecord>) {
    for one in bytes.chunks_exact(TRIM_RECORD_BYTES as usize) {
        let (first, rest) = one.split_at(4);
        let (count, before) = rest.split_at(4);
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let before = u64::from_le_bytes(before.try_into().expect("8 bytes"));
        let (first, count) = (number(first), number(count));
        if count > 0 {
            into.push(TrimRecord { first, count, before });
        }
    }
}

impl<P: Pages> Inner<P> {
    pub async fn trim(&self, block: u64, blocks: u32) -> Result<(), Error> {
        let pieces = self.pieces(block, blocks)?;
        let unit_bytes = self.layout.shape.unit_bytes;
        let (mut first, mut count, mut newest) = (0, 0, 0);
        for (logical, offset, bytes) in pieces {
            if bytes == unit_bytes {
                first = if count == 0 { logical } else { first };
                count += 1;
                continue;
            }
            // Part of a unit: the rest of it stays.
            let zeros = [0; 512];
            for at in (offset..offset + bytes).step_by(zeros.len()) {
                newest = newest.max(self.write_unit(logical, at, &zeros).await?);
            }
        }
        while count > 0 {
            let step = count.min(self.trim_step(first));
            self.few_changes().await;
            self.trim_units(first, step).await;
            (first, count) = (first + step, count - step);
        }
        self.until_kept(newest).await
    }

    /// Units that are trimmed between two awaits; with a cached map, within one part.
    fn trim_step(&self, first: u32) -> u32 {
        let state = self.state.borrow();
        if state.cached().is_some() { state.per_part - first % state.per_part } else { TRIM_STEP }
    }

    /// Returns when the map admits more changes.
    async fn few_changes(&self) {
        loop {
            let seen = self.mapped.version();
            if !self.state.borrow().is_map_full() || self.state.borrow().worn_out {
                return;
            }
            self.mapped.changed(&self.rt, seen).await;
        }
    }

    /// Trims whole units and records that.
    async fn trim_units(&self, first: u32, count: u32) {
        if self.state.borrow().note.is_none() {
            self.few_notes().await;
            let slot = self.take_meta_slot().await;
            let mut state = self.state.borrow_mut();
            if state.note.is_some() {
                drop(state);
                self.meta_slots.give(&self.rt, slot);
            } else {
                let number = state.next_note;
                state.next_note = (number + 1) % (1 << 28);
                state.note = Some(OpenNote { slot, number, count: 0, stands_for: u64::MAX });
                let tag = Tag { logical: TRIM | number, order: state.buffer.next_order() };
                self.pages.stage_copy(slot, tag, None);
            }
        }
        let mut state = self.state.borrow_mut();
        let mut stands_for = u64::MAX;
        for logical in first..first + count {
            let (slot, order) = state.drop_unit(logical);
            stands_for = stands_for.min(order);
            if let Some(slot) = slot {
                self.free_slot(slot);
            }
        }
        self.retag_dead(&mut state);
        let mut note = state.note.expect("opened above, and no time has passed");
        let bytes = TrimRecord { first, count, before: state.next_sequence }.to_bytes();
        let tag = Tag { logical: TRIM | note.number, order: state.buffer.next_order() };
        if !self.options.mistakes.trims_are_not_logged {
            self.pages.stage(note.slot, tag, note.count * TRIM_RECORD_BYTES, &bytes);
        }
        note.count += 1;
        note.stands_for = note.stands_for.min(stands_for);
        state.note = Some(note);
        if (note.count + 1) * TRIM_RECORD_BYTES > self.layout.shape.unit_bytes {
            state.seal_note();
            drop(state);
            self.form();
        }
        self.collect.notify(&self.rt);
        // Tasks that wait for trimmed data check again.
        self.landed.notify(&self.rt);
    }

    /// Returns when all waiting trim records plus one more fit into one superpage, and flash does not hold
    /// too many.
    async fn few_notes(&self) {
        loop {
            let seen = self.landed.version();
            {
                let state = self.state.borrow();
                let waiting = state.waiting_notes.len() as u32;
                let all = waiting + state.notes.len() as u32;
                let few = all < NOTES_MAX || state.rootless || state.worn_out;
                if few && waiting + 1 < self.layout.plane_units.max(2) {
                    return;
                }
            }
            self.hurry();
            self.landed.changed(&self.rt, seen).await;
        }
    }
}

/// Maximum number of units trimmed between two awaits.
const TRIM_STEP: u32 = 1 << 16;

impl State {
    /// Closes the trim record being filled; it goes to flash with the next superpage.
    pub fn seal_note(&mut self) {
        if let Some(note) = self.note.take_if(|note| note.count > 0) {
            self.buffer.fill_first(note.slot, TRIM | note.number);
            if note.stands_for != u64::MAX {
                self.standing.push((note.number, note.stands_for));
            }
            self.waiting_notes.push(note.number);
        }
    }
}
