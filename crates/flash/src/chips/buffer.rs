//! The write buffer: slots of one mapping unit each; contents are kept to the same extent as those of the
//! flash.

use ftl::{META, Tag};
use media::contents::{Keep, STAMP_BYTES};
use media::nand::{Nand, PageAt};

use super::stop_without_row;

#[derive(Clone)]
pub(super) struct Buffer {
    keep: Keep,
    unit_bytes: usize,
    block_bytes: usize,
    /// Bytes kept per slot.
    kept_bytes: usize,
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    /// Free buffers for units that are kept whole although only stamps are kept.
    pool: Vec<Vec<u8>>,
}

#[derive(Clone, Default)]
struct Slot {
    tag: Option<Tag>,
    /// Not in NV-SRAM.
    volatile: bool,
    whole: Option<Vec<u8>>,
}

impl Buffer {
    pub(super) fn new(nand: &Nand) -> Buffer {
        let (spec, kept_bytes) = (nand.spec(), nand.kept_bytes() as usize);
        Buffer {
            keep: spec.keep,
            unit_bytes: spec.geometry.unit_bytes as usize,
            block_bytes: spec.block_bytes as usize,
            kept_bytes,
            bytes: Vec::new(),
            slots: Vec::new(),
            pool: Vec::new(),
        }
    }

    pub(super) fn slots(&mut self, count: u32) {
        let count = count as usize;
        self.slots.resize_with(count, Slot::default);
        self.bytes.resize(count * self.kept_bytes, 0);
    }

    pub(super) fn tag(&self, slot: u32) -> Option<Tag> {
        self.slots.get(slot as usize)?.tag
    }

    /// The kept bytes of a slot, in the form of [`media::nand::Data::Kept`].
    pub(super) fn kept(&self, slot: u32) -> &[u8] {
        &self.bytes[slot as usize * self.kept_bytes..][..self.kept_bytes]
    }

    fn kept_mut(&mut self, slot: u32) -> &mut [u8] {
        &mut self.bytes[slot as usize * self.kept_bytes..][..self.kept_bytes]
    }

    /// All bytes of a slot that is kept whole.
    pub(super) fn whole(&self, slot: u32) -> Option<&[u8]> {
        self.slots[slot as usize].whole.as_deref()
    }

    /// Sets the slot's tag; zero-fills the slot if it was empty.
    fn tag_slot(&mut self, slot: u32, tag: Tag) {
        let is_new = self.slots[slot as usize].tag.is_none();
        if is_new {
            self.kept_mut(slot).fill(0);
        }
        self.slots[slot as usize].tag = Some(tag);
        let whole = tag.logical & META != 0 && self.keep == Keep::Stamps;
        match (&mut self.slots[slot as usize].whole, whole) {
            (place @ None, true) => {
                let mut room = self.pool.pop().unwrap_or_default();
                room.clear();
                room.resize(self.unit_bytes, 0);
                *place = Some(room);
            }
            (place @ Some(_), false) => self.pool.extend(place.take()),
            _ => {}
        }
    }

    pub(super) fn stage(&mut self, slot: u32, tag: Tag, offset: u32, data: &[u8]) {
        let offset = offset as usize;
        assert!(offset + data.len() <= self.unit_bytes, "{} bytes at {offset}", data.len());
        self.tag_slot(slot, tag);
        if let Some(whole) = &mut self.slots[slot as usize].whole {
            return whole[offset..offset + data.len()].copy_from_slice(data);
        }
        if self.keep == Keep::Everything {
            return self.kept_mut(slot)[offset..offset + data.len()].copy_from_slice(data);
        }
        let block_bytes = self.block_bytes;
        let good = offset.is_multiple_of(block_bytes) && data.len().is_multiple_of(block_bytes);
        assert!(good, "{} bytes at {offset} are not whole blocks", data.len());
        let stamps =
            self.kept_mut(slot)[offset / block_bytes * STAMP_BYTES..].chunks_mut(STAMP_BYTES);
        for (stamp, block) in stamps.zip(data.chunks_exact(block_bytes)) {
            stamp.copy_from_slice(&block[..STAMP_BYTES]);
        }
    }

    pub(super) fn stage_copy(
        &mut self,
        slot: u32,
        tag: Tag,
        nand: &Nand,
        from: Option<(PageAt, u32)>,
    ) {
        self.tag_slot(slot, tag);
        let out = self.kept_mut(slot);
        let Some((at, unit)) = from else {
            out.fill(0);
            if let Some(whole) = &mut self.slots[slot as usize].whole {
                whole.fill(0);
            }
            return;
        };
        let found = nand.kept(at, unit, out);
        stop_without_row(nand, at, found);
        assert!(found, "{at:?} is copied and holds nothing");
        if let Some(whole) = &mut self.slots[slot as usize].whole {
            match nand.whole(at, unit) {
                Some(bytes) => whole.copy_from_slice(bytes),
                None => whole.fill(0),
            }
        }
    }

    pub(super) fn stage_slot(&mut self, slot: u32, tag: Tag, from: u32) {
        self.tag_slot(slot, tag);
        let (begin, kept) = (from as usize * self.kept_bytes, self.kept_bytes);
        self.bytes.copy_within(begin..begin + kept, slot as usize * kept);
        if slot == from {
            return;
        }
        if let Some(mut whole) = self.slots[slot as usize].whole.take() {
            match &self.slots[from as usize].whole {
                Some(bytes) => whole.copy_from_slice(bytes),
                None => whole.fill(0),
            }
            self.slots[slot as usize].whole = Some(whole);
        }
    }

    pub(super) fn release(&mut self, slot: u32) {
        let slot = &mut self.slots[slot as usize];
        (slot.tag, slot.volatile) = (None, false);
        self.pool.extend(slot.whole.take());
    }

    pub(super) fn preserve(&mut self, slot: u32, preserved: bool) {
        self.slots[slot as usize].volatile = !preserved;
    }

    /// Empties what a power cut loses: slots that are not in NV-SRAM, and the newest data in excess of its
    /// `most` units.
    pub(super) fn lose_power(&mut self, most: Option<u32>) {
        let mut data: Vec<(u64, u32)> = Vec::new();
        for at in 0..self.slots.len() as u32 {
            match self.slots[at as usize] {
                Slot { volatile: true, .. } => self.release(at),
                Slot { tag: Some(tag), .. } if tag.logical & META == 0 => {
                    data.push((tag.order, at))
                }
                Slot { .. } => {}
            }
        }
        data.sort_unstable();
        let most = most.map_or(data.len(), |most| most as usize);
        data.iter().skip(most).for_each(|(_, at)| self.release(*at));
    }

    pub(super) fn lend(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8])) {
        if let Some(whole) = self.whole(slot) {
            return put(0, whole);
        }
        match self.keep {
            Keep::Everything => put(0, self.kept(slot)),
            Keep::Stamps => {
                for (place, stamp) in self.kept(slot).chunks_exact(STAMP_BYTES).enumerate() {
                    put((place * self.block_bytes) as u32, stamp);
                }
            }
        }
    }
}
