//! From a command's data pointer to segments of host memory, and data either way.

use bus::{Carry, DevicePort, DmaError, Payload, Posting, Segment, Unreadable};
use media::{Extent, Media, MediaError};
use runtime::Time;
use wire::BusAddr;
use wire::nvme::entry::DataPointer;
use wire::nvme::prp::{Coalesce, PrpWalk, Step};
use wire::nvme::status::Status;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::Controller;
use crate::faults::Hook;
use crate::lent::Lent;

/// Entries of a PRP list that are read with one request.
const LIST_ENTRIES: usize = 512;

/// The status for a transfer that failed.
pub(super) fn of_dma(error: DmaError) -> Status {
    match error {
        DmaError::Address(_) => Status::DATA_TRANSFER_ERROR,
        DmaError::Unreadable => Status::UNRECOVERED_READ_ERROR,
    }
}

/// The status for a medium that failed.
pub(super) fn of_media(error: MediaError) -> Status {
    match error {
        MediaError::Range => Status::LBA_OUT_OF_RANGE.with_dnr(),
        MediaError::Unreadable => Status::UNRECOVERED_READ_ERROR,
        MediaError::Full => Status::CAPACITY_EXCEEDED,
        _ => Status::WRITE_FAULT,
    }
}

/// Blocks of the medium, as something that the bus can copy from.
pub(super) struct Blocks<'a, M> {
    pub media: &'a M,
    pub at: Extent,
}

impl<M: Media> Payload for Blocks<'_, M> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        self.media.runs(self.at, put).map_err(|_| Unreadable)
    }
}

impl<P: DevicePort, M: Media, H: Hook> Controller<P, M, H> {
    /// Where a command's data lie in host memory, into the slot's list. Lists are read, once.
    pub(super) async fn locate(
        &self,
        number: u16,
        data: &DataPointer,
        bytes: u32,
    ) -> Result<(), Status> {
        let slot = &self.slots[usize::from(number)];
        slot.segments.borrow_mut().clear();
        let &DataPointer::Prp { prp1, prp2 } = data;
        let page_bytes = self.settings.get().page_bytes();
        let mut walk =
            PrpWalk::new(prp1, prp2, u64::from(bytes), page_bytes).map_err(Status::with_dnr)?;
        let mut joined = Coalesce::default();
        let take = |segment: Option<wire::nvme::prp::Segment>| {
            let here = |s: wire::nvme::prp::Segment| Segment { at: s.addr, bytes: s.bytes as u32 };
            slot.segments.borrow_mut().extend(segment.map(here));
        };
        while let Some(step) = walk.step() {
            match step {
                Step::Segment(segment) => take(joined.push(segment)),
                Step::NeedList { addr, entries } => {
                    let mut list = Lent::from(&slot.list);
                    list.resize((entries as usize).min(LIST_ENTRIES), U64::ZERO);
                    self.read_list(addr, list.as_mut_bytes()).await?;
                    let entries = &list[..];
                    let named = walk.supply(entries).map_err(Status::with_dnr)?;
                    named.for_each(|segment| take(joined.push(segment)));
                }
            }
        }
        take(joined.finish());
        Ok(())
    }

    async fn read_list(&self, at: BusAddr, list: &mut [u8]) -> Result<(), Status> {
        let from = Segment { at, bytes: list.len() as u32 };
        self.port.read(&[from], list, Carry::All).await.map_err(of_dma)?;
        self.rt.mark(self.stages.prp_list);
        Ok(())
    }

    /// Which bytes of written data are worth moving.
    pub(super) fn carry(&self) -> Carry {
        match self.media.head() {
            None => Carry::All,
            Some(head) => Carry::Heads { bytes: head.bytes, of: head.of },
        }
    }

    /// Answers an admin command with data, as much of them as the host has asked for.
    pub(super) async fn answer(
        &self,
        number: u16,
        data: DataPointer,
        answer: &[u8],
    ) -> Result<(), Status> {
        self.locate(number, &data, answer.len() as u32).await?;
        let slot = &self.slots[usize::from(number)];
        let to = Lent::from(&slot.segments);
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
    fn a_part_begins_and_ends_inside_segments() {
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
