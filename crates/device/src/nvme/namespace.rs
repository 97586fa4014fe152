//! The namespace: which formats its blocks can have, and how they lie on the medium's.

use std::cell::Cell;

use bus::DevicePort;
use media::{Extent, Media};
use wire::nvme::identify::LbaFormat;
use wire::nvme::status::Status;
use zerocopy::FromZeros;

use super::Controller;
use crate::faults::Hook;

/// A block of this many bytes, as a power of two, is offered beside the medium's own.
const LARGE_LOG2: u8 = 12;

/// What the medium keeps of the namespace: a mark, a version, and the block's length as a power of two.
const MARK: [u8; 5] = *b"DBNS\x01";

/// The namespace's blocks.
pub(super) struct Namespace {
    /// Blocks of the medium in one of the namespace's.
    units: Cell<u32>,
}

/// The formats there are over a medium, as powers of two: its own first.
fn formats<M: Media>(media: &M) -> impl Iterator<Item = u8> + use<M> {
    let own = media.block_bytes().ilog2() as u8;
    // Another one must outlast the controller.
    let large = own < LARGE_LOG2 && media.label().is_some();
    [Some(own), large.then_some(LARGE_LOG2)].into_iter().flatten()
}

impl Namespace {
    /// As the medium has it; the medium's own blocks if it says nothing, or nothing of sense.
    pub fn of<M: Media>(media: &M) -> Namespace {
        let own = media.block_bytes().ilog2() as u8;
        let label = media.label().unwrap_or_default();
        let kept = label.strip_prefix(&MARK).and_then(|rest| rest.first().copied());
        let log2 = kept.filter(|kept| formats(media).any(|format| format == *kept));
        Namespace { units: Cell::new(1 << (log2.unwrap_or(own) - own)) }
    }
}

impl<P: DevicePort, M: Media, H: Hook> Controller<P, M, H> {
    /// Bytes of a block of the namespace.
    pub(super) fn lba_bytes(&self) -> u32 {
        self.namespace.units.get() * self.media.block_bytes()
    }

    /// Blocks of the namespace.
    pub(super) fn lbas(&self) -> u64 {
        self.media.blocks() / u64::from(self.namespace.units.get())
    }

    /// The formats, in the order in which Identify numbers them, and the number of the one in use.
    pub(super) fn lba_formats(&self) -> (Vec<LbaFormat>, u8) {
        let format = |ds| LbaFormat { ds, ..LbaFormat::new_zeroed() };
        let formats: Vec<LbaFormat> = formats(&*self.media).map(format).collect();
        let now = self.lba_bytes().ilog2() as u8;
        let number = formats.iter().position(|format| format.ds == now).expect("one of them");
        (formats, number as u8)
    }

    /// Changes the format to the one of this number, for good.
    pub(super) fn set_format(&self, number: u8) -> Result<(), Status> {
        let (formats, now) = self.lba_formats();
        let format = formats.get(usize::from(number)).ok_or(Status::INVALID_FORMAT)?;
        if number != now {
            let label = [&MARK[..], &[format.ds]].concat();
            self.media.set_label(&label).map_err(|error| self.failed(error))?;
        }
        self.namespace.units.set(1 << (u32::from(format.ds) - self.media.block_bytes().ilog2()));
        Ok(())
    }

    /// Where these blocks of the namespace lie: blocks of the medium, the first and how many.
    pub(super) fn place(&self, lba: u64, blocks: u32) -> Result<(u64, u64), Status> {
        let (all, units) = (self.lbas(), u64::from(self.namespace.units.get()));
        if lba > all || u64::from(blocks) > all - lba {
            return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        Ok((lba * units, u64::from(blocks) * units))
    }

    /// As [`place`](Self::place), of no more blocks than a command can name.
    pub(super) fn extent(&self, lba: u64, blocks: u32) -> Result<Extent, Status> {
        let (block, blocks) = self.place(lba, blocks)?;
        // At most 65,536 blocks of at most eight of the medium's.
        Ok(Extent { block, blocks: u32::try_from(blocks).map_err(|_| Status::INVALID_FIELD)? })
    }
}
