//! Data pointers: PRPs and SGLs to segments of host memory, and data transfers.

use std::ops::Range;

use bus::{Carry, DevicePort, DmaError, Payload, Posting, Segment, Unreadable};
use media::{Media, MediaError};
use runtime::{Stage, Time};
use wire::BusAddr;
use wire::nvme::entry::DataPointer;
use wire::nvme::prp::{self, Coalesce, PrpWalk, Step};
use wire::nvme::sgl::{Descriptor, Flow, SglWalk, Stretch};
use wire::nvme::status::Status;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::Controller;
use super::slot::Slot;
use crate::moved;
use crate::scratch_guard::Scratch;

/// PRP list entries per read request.
const LIST_ENTRIES: usize = 512;

/// SGL descriptors per read request: the same number of bytes.
const DESCRIPTORS: usize = 256;

/// Status of a failed transfer.
pub(super) fn of_dma(error: DmaError) -> Status {
    match error {
        DmaError::Address(_) => Status::DATA_TRANSFER_ERROR,
        DmaError::Unreadable => Status::UNRECOVERED_READ_ERROR,
    }
}

/// Status of a failed medium access.
pub(super) fn of_media(error: MediaError) -> Status {
    match error {
        MediaError::Range => Status::LBA_OUT_OF_RANGE.with_dnr(),
        MediaError::Unreadable => Status::UNRECOVERED_READ_ERROR,
        MediaError::Full => Status::CAPACITY_EXCEEDED,
        MediaError::Stale => Status::STALE_PLACE,
        _ => Status::WRITE_FAULT,
    }
}

/// The part of a data pointer that is still to be read.
pub(super) enum Lists {
    /// A PRP walk that needs a list, and the current run of adjacent pages.
    Prp(PrpWalk, Coalesce),
    /// An SGL, given its first descriptor.
    Sgl(Descriptor),
}

/// A byte range of a payload.
struct Part<'a, Q: ?Sized> {
    of: &'a Q,
    from: u32,
    until: u32,
}

impl<Q: Payload + ?Sized> Payload for Part<'_, Q> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        self.of.runs(&mut |offset, run| {
            let low = self.from.max(offset);
            let high = self.until.min(offset + run.len() as u32);
            if low < high {
                put(low - self.from, &run[(low - offset) as usize..(high - offset) as usize]);
            }
        })
    }
}

fn of_wire(segment: prp::Segment) -> Segment {
    Segment { at: segment.addr, bytes: segment.bytes as u32 }
}

/// For the bytes from `from` to `end`, with these ascending discarded ranges: the number of discarded bytes
/// at the start, and the end of the wanted bytes after them.
fn wanted(discarded: &[Range<u32>], from: u32, end: u32) -> (u32, u32) {
    let mut begin = from;
    for range in discarded {
        if range.start > begin {
            return (begin - from, range.start.min(end).max(begin));
        }
        begin = begin.max(range.end.min(end));
    }
    (begin - from, end)
}

fn discarded_before(discarded: &[Range<u32>], at: u32) -> u32 {
    discarded.iter().map(|range| range.end.min(at).saturating_sub(range.start)).sum()
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Resolves a command's data pointer into the slot's segment list.
    pub(super) async fn locate(
        &self,
        number: u16,
        data: &DataPointer,
        bytes: u32,
        flow: Flow,
    ) -> Result<(), Status> {
        match self.locate_named(number, data, bytes)? {
            Some(lists) => self.locate_listed(number, lists, bytes, flow).await,
            None => Ok(()),
        }
    }

    /// As [`locate`](Self::locate), for the part in the command itself, which is usually all. Returns the
    /// remaining lists.
    #[inline]
    pub(super) fn locate_named(
        &self,
        number: u16,
        data: &DataPointer,
        bytes: u32,
    ) -> Result<Option<Lists>, Status> {
        let slot = &self.slots[number];
        let mut segments = slot.segments.borrow_mut();
        segments.clear();
        slot.discarded.borrow_mut().clear();
        let (prp1, prp2) = match *data {
            DataPointer::Prp { prp1, prp2 } => (prp1, prp2),
            DataPointer::Sgl(first) => return Ok(Some(Lists::Sgl(first))),
        };
        let page_bytes = self.registers.settings.get().page_bytes();
        let mut walk =
            PrpWalk::new(prp1, prp2, u64::from(bytes), page_bytes).map_err(Status::with_dnr)?;
        let mut joined = Coalesce::default();
        while let Some(step) = walk.step() {
            match step {
                Step::Segment(segment) => segments.extend(joined.push(segment).map(of_wire)),
                Step::NeedList { .. } => return Ok(Some(Lists::Prp(walk, joined))),
            }
        }
        segments.extend(joined.finish().map(of_wire));
        Ok(None)
    }

    /// Resolves lists; each is read once.
    pub(super) async fn locate_listed(
        &self,
        number: u16,
        lists: Lists,
        bytes: u32,
        flow: Flow,
    ) -> Result<(), Status> {
        let slot = &self.slots[number];
        let (mut walk, mut joined) = match lists {
            Lists::Prp(walk, joined) => (walk, joined),
            Lists::Sgl(first) => return self.locate_sgl(slot, &first, bytes, flow).await,
        };
        let take = |segment: Option<prp::Segment>| {
            slot.segments.borrow_mut().extend(segment.map(of_wire));
        };
        while let Some(step) = walk.step() {
            match step {
                Step::Segment(segment) => take(joined.push(segment)),
                Step::NeedList { addr, entries } => {
                    let mut list = Scratch::from(&slot.list);
                    list.resize((entries as usize).min(LIST_ENTRIES), U64::ZERO);
                    self.read_list(addr, list.as_mut_bytes(), self.stages.prp_list).await?;
                    let entries = &list[..];
                    let named = walk.supply(entries).map_err(Status::with_dnr)?;
                    named.for_each(|segment| take(joined.push(segment)));
                }
            }
        }
        take(joined.finish());
        Ok(())
    }

    /// As [`locate_listed`](Self::locate_listed), for an SGL. Discarded ranges are recorded separately.
    async fn locate_sgl(
        &self,
        slot: &Slot,
        first: &Descriptor,
        bytes: u32,
        flow: Flow,
    ) -> Result<(), Status> {
        let mut walk = SglWalk::new(bytes.into(), flow);
        let (mut joined, mut before, mut past) = (Coalesce::default(), 0, false);
        let mut take = |stretch| match stretch {
            Stretch::Memory(segment) => {
                past |= segment.addr.offset(segment.bytes - 1).is_none();
                slot.segments.borrow_mut().extend(joined.push(segment).map(of_wire));
                before += segment.bytes as u32;
            }
            Stretch::Discarded(bytes) => {
                slot.discarded.borrow_mut().push(before..before + bytes as u32);
                before += bytes as u32;
            }
        };
        walk.supply(std::slice::from_ref(first), &mut take).map_err(Status::with_dnr)?;
        while let Some((at, descriptors)) = walk.wants() {
            let mut list = Scratch::from(&slot.descriptors);
            list.resize((descriptors as usize).min(DESCRIPTORS), Descriptor::default());
            self.read_list(at, list.as_mut_bytes(), self.stages.sgl_segment).await?;
            walk.supply(&list, &mut take).map_err(Status::with_dnr)?;
        }
        walk.finish().map_err(Status::with_dnr)?;
        if past {
            // The segment would wrap past the end of the address space.
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        slot.segments.borrow_mut().extend(joined.finish().map(of_wire));
        Ok(())
    }

    async fn read_list(&self, at: BusAddr, list: &mut [u8], stage: Stage) -> Result<(), Status> {
        let from = Segment { at, bytes: list.len() as u32 };
        self.port.read(&[from], list, Carry::All).await.map_err(of_dma)?;
        self.rt.record(stage);
        Ok(())
    }

    /// Sends `bytes` bytes of the command's data, from `offset` on, to the host.
    pub(super) async fn send(
        &self,
        number: u16,
        (offset, bytes): (u32, u32),
        blocks: &(impl Payload + ?Sized),
        ready: Time,
    ) -> Result<(), Status> {
        let slot = &self.slots[number];
        if !slot.discarded.borrow().is_empty() {
            return self.write_around(number, (offset, bytes), blocks, ready).await;
        }
        let mut to = Scratch::from(&slot.part);
        part_of(&slot.segments.borrow(), offset, bytes, &mut to);
        self.port.write(&to, blocks, self.posting(), ready).await.map_err(of_dma)
    }

    /// As [`send`](Self::send), except for bytes in bit buckets.
    pub(super) async fn write_around(
        &self,
        number: u16,
        (offset, bytes): (u32, u32),
        blocks: &(impl Payload + ?Sized),
        ready: Time,
    ) -> Result<(), Status> {
        let slot = &self.slots[number];
        let mut to = Scratch::from(&slot.part);
        let posting = self.posting();
        let (mut from, end) = (offset, offset + bytes);
        while from < end {
            let (skipped, until) = wanted(&slot.discarded.borrow(), from, end);
            let (low, high) = (from + skipped, until);
            if low < high {
                let gone = discarded_before(&slot.discarded.borrow(), low);
                part_of(&slot.segments.borrow(), low - gone, high - low, &mut to);
                let part = Part { of: blocks, from: low - offset, until: high - offset };
                self.port.write(&to, &part, posting, ready).await.map_err(of_dma)?;
            }
            from = high.max(low);
        }
        if ready > Time::ZERO {
            self.rt.sleep_until(ready).await;
            self.rt.record(self.stages.media);
        }
        Ok(())
    }

    /// The segments of `bytes` bytes at `offset` of a command's data, which has `all` bytes. The slot's own
    /// list if that is all of it, otherwise a scratch list.
    #[inline]
    pub(super) fn part<'a>(
        &self,
        slot: &'a Slot,
        (offset, bytes): (u32, u32),
        all: u32,
    ) -> Scratch<'a, Segment> {
        if bytes == all {
            return Scratch::from(&slot.segments);
        }
        let mut part = Scratch::from(&slot.part);
        part_of(&slot.segments.borrow(), offset, bytes, &mut part);
        part
    }

    /// Attributes of data writes to the host.
    pub(super) fn posting(&self) -> Posting {
        Posting { relaxed: self.options.relaxed_ordering, ..Posting::STRICT }
    }

    /// Bytes of written data worth transferring.
    pub(super) fn carry(&self) -> Carry {
        moved::carry(self.head)
    }

    /// Fills `into` with a command's data from the host.
    pub(super) async fn receive(
        &self,
        number: u16,
        data: &DataPointer,
        into: &mut [u8],
    ) -> Result<(), Status> {
        self.locate(number, data, into.len() as u32, Flow::FromHost).await?;
        let from = Scratch::from(&self.slots[number].segments);
        self.port.read(&from, into, Carry::All).await.map_err(of_dma)
    }

    /// Sends data to the host in response to an admin command, up to the length that the host requested.
    pub(super) async fn answer(
        &self,
        number: u16,
        data: DataPointer,
        answer: &[u8],
    ) -> Result<(), Status> {
        self.locate(number, &data, answer.len() as u32, Flow::ToHost).await?;
        let slot = &self.slots[number];
        let to = Scratch::from(&slot.segments);
        self.port.write(&to, answer, Posting::STRICT, Time::ZERO).await.map_err(of_dma)
    }
}

/// The part of some segments that holds `bytes` bytes from `offset`.
pub(super) fn part_of(segments: &[Segment], offset: u32, bytes: u32, part: &mut Vec<Segment>) {
    part.clear();
    let (mut before, end) = (0, offset + bytes);
    for segment in segments {
        let (low, high) = (before.max(offset), (before + segment.bytes).min(end));
        if low < high {
            let at = BusAddr(segment.at.0 + u64::from(low - before));
            part.push(Segment { at, bytes: high - low });
        }
        before += segment.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sgl_bit_buckets_split_transfer_ranges() {
        let discarded = [0..10, 10..20, 30..40, 50..90];
        let stretches = |mut from: u32, end: u32| {
            let mut found = Vec::new();
            while from < end {
                let (skipped, until) = wanted(&discarded, from, end);
                found.push((from + skipped..until, discarded_before(&discarded, from + skipped)));
                from = until.max(from + skipped);
            }
            found
        };
        let all = [(20..30, 20), (40..50, 30), (90..100, 70)];
        assert_eq!(stretches(0, 100), all);
        assert_eq!(stretches(25, 45), [(25..30, 20), (40..45, 30)]);
        assert_eq!(stretches(60, 80), [(80..80, 60)], "nothing");
        assert_eq!(wanted(&[], 3, 9), (0, 9));
    }

    #[test]
    fn transfer_part_splits_first_and_last_segment() {
        let segments = [
            Segment { at: BusAddr(0x1000), bytes: 100 },
            Segment { at: BusAddr(0x3000), bytes: 50 },
            Segment { at: BusAddr(0x5000), bytes: 100 },
        ];
        let mut part = Vec::new();
        part_of(&segments, 90, 80, &mut part);
        assert_eq!(
            part,
            [
                Segment { at: BusAddr(0x1000 + 90), bytes: 10 },
                Segment { at: BusAddr(0x3000), bytes: 50 },
                Segment { at: BusAddr(0x5000), bytes: 20 },
            ]
        );
        part_of(&segments, 0, 250, &mut part);
        assert_eq!(part, segments);
    }
}
