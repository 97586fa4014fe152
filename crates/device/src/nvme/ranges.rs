//! Commands on block ranges, which transfer at most range lists: write zeroes, dataset management, copy (NVM
//! command set 1.0, 3.2.8, 3.2.3, 3.2.2).

use bus::DevicePort;
use media::{Extent, Heat, Media};
use wire::nvme::dsm::{Context, DatasetManagement, Frequency};
use wire::nvme::entry::DataPointer;
use wire::nvme::io::{CopyTo, WriteZeroes};
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::status::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::namespace::Namespace;
use super::protect::WithPi;
use super::{COPY_RANGES_MAX, Controller, DEALLOCATE_BYTES, PIECE_BYTES};
use crate::scratch_guard::Scratch;

/// Blocks as one extent, clamped to its maximum length.
fn hull(block: u64, blocks: u64) -> Extent {
    Extent { block, blocks: blocks.try_into().unwrap_or(u32::MAX) }
}

/// Expected frequency of writes. `None` if the hints say nothing about writes.
fn heat(context: Context) -> Option<Heat> {
    match context.frequency() {
        Frequency::Typical => Some(Heat::Typical),
        Frequency::Rare | Frequency::Reads => Some(Heat::Cold),
        Frequency::Writes | Frequency::Both | Frequency::OverwrittenSoon => Some(Heat::Hot),
        Frequency::Unspecified | Frequency::OneRead | Frequency::SpeculativeReads => None,
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Write Zeroes: writes zeros, or deallocates if the host permits it (DEAC).
    pub(super) async fn write_zeroes(
        &self,
        number: u16,
        ns: Namespace,
        zeroes: WriteZeroes,
    ) -> Result<(), Status> {
        let access = zeroes.access;
        let extent = ns.extent(access.lba.0, access.blocks)?;
        self.claim(number, extent).await;
        if zeroes.deallocate {
            self.deallocate(extent.block, extent.blocks.into()).await?;
        } else if ns.metadata.is_some() {
            Box::pin(self.zeroes_with_pi(number, ns, &access)).await?;
        } else {
            let mut buffer = Scratch::from(&self.slots[number].data);
            buffer.clear();
            buffer.resize(PIECE_BYTES as usize, 0);
            for (_, at) in self.pieces(extent) {
                let bytes = (at.blocks * self.block_bytes) as usize;
                self.store(at, &buffer[..bytes]).await?;
                // Let other tasks run during a long command: the medium may take no time at all.
                self.rt.yield_now().await;
            }
        }
        self.make_durable(access.fua).await?;
        // NVMe base 2.0, 5.16.1.3: only writes of host data are counted.
        Ok(())
    }

    /// Dataset Management: passes hints about writes to the medium, and deallocates ranges. Other hints are
    /// ignored.
    pub(super) async fn manage(
        &self,
        number: u16,
        ns: Namespace,
        dsm: DatasetManagement,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let slot = &self.slots[number];
        let mut ranges = Scratch::from(&slot.ranges);
        let mut contexts = Scratch::from(&slot.contexts);
        ranges.clear();
        contexts.clear();
        self.read_ranges(number, data, dsm.ranges, |range: &DsmRange| {
            ranges.push(Extent { block: range.lba.get(), blocks: range.blocks.get() });
            contexts.push(range.context());
        })
        .await?;
        // Validate all ranges before the first takes effect.
        let place = |range: &Extent| ns.place(range.block, range.blocks);
        ranges.iter().try_for_each(|range| place(range).map(drop))?;
        let hints = self.media.capabilities().hints;
        for (range, context) in ranges.iter().zip(contexts.iter()) {
            if let Some(heat) = heat(*context) {
                let (block, blocks) = place(range)?;
                hints.into_iter().for_each(|hints| hints.hint(block, blocks, heat));
            }
        }
        if !dsm.attributes.deallocate() {
            return Ok(());
        }
        for range in ranges.iter() {
            let (block, blocks) = place(range)?;
            self.claim(number, hull(block, blocks)).await;
            self.deallocate(block, blocks).await?;
        }
        self.make_durable(false).await
    }

    /// Copy, range by range and piece by piece. An error gives the index of the failed range. If destination
    /// and source overlap, later pieces read what earlier ones have written.
    pub(super) async fn copy(
        &self,
        number: u16,
        ns: Namespace,
        copy: CopyTo,
        data: &DataPointer,
    ) -> Result<(), (Status, u32)> {
        let nothing_done = |status| (status, 0);
        let mut ranges = Scratch::from(&self.slots[number].ranges);
        let mut sources = Vec::new();
        let validated =
            self.validate_copy(number, ns, copy, data, (&mut ranges, &mut sources)).await;
        let begin = validated.map_err(nothing_done)?;
        let mut to = begin;
        for (index, range) in (0_u32..).zip(ranges.iter()) {
            let copied = match sources.get(index as usize) {
                Some(source) => {
                    let done = ((to - begin) >> ns.shift) as u32;
                    let (from, to) = ((*range, source), (to, done, &copy));
                    Box::pin(self.copy_with_pi(number, ns, from, to)).await
                }
                None => self.copy_range(number, *range, to).await,
            };
            copied.map_err(|status| (status, index))?;
            to += u64::from(range.blocks);
        }
        let last = ranges.len() as u32 - 1;
        self.make_durable(copy.fua).await.map_err(|status| (status, last))
    }

    /// Fetches and validates the source ranges of a copy, and maps them to the medium. Returns the first
    /// destination block. Nothing is copied if any range, or their sum, is invalid.
    async fn validate_copy(
        &self,
        number: u16,
        ns: Namespace,
        copy: CopyTo,
        data: &DataPointer,
        (ranges, sources): (&mut Vec<Extent>, &mut Vec<WithPi>),
    ) -> Result<u64, Status> {
        if copy.format != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let limit = Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr();
        if copy.ranges > COPY_RANGES_MAX {
            return Err(limit);
        }
        ranges.clear();
        let mut validated = self.with_pi_copy(ns, &copy);
        self.read_ranges(number, data, copy.ranges, |range: &CopyRange| {
            ranges.push(Extent { block: range.lba.get(), blocks: range.blocks() });
            if validated.is_ok() && ns.metadata.is_some() {
                match self.with_pi_source(ns, &copy, range) {
                    Ok(source) => sources.extend(source),
                    Err(status) => validated = Err(status),
                }
            }
        })
        .await?;
        validated?;
        let (one, all) = self.copy_blocks_max(ns);
        let sum: u64 = ranges.iter().map(|range| u64::from(range.blocks)).sum();
        if sum > u64::from(all) || ranges.iter().any(|range| range.blocks > u32::from(one)) {
            return Err(limit);
        }
        for range in ranges.iter_mut() {
            *range = ns.extent(range.block, range.blocks)?;
        }
        Ok(ns.extent(copy.to.0, sum as u32)?.block)
    }

    /// Maximum blocks of one source range, and of all together (MSSRL, MCL).
    pub(super) fn copy_blocks_max(&self, ns: Namespace) -> (u16, u32) {
        let one = self.options.transfer_bytes_max / (self.block_bytes << ns.shift);
        let one = one.clamp(1, u16::MAX.into()) as u16;
        (one, u32::from(one) * 4)
    }

    async fn copy_range(&self, number: u16, from: Extent, to: u64) -> Result<(), Status> {
        let mut buffer = Scratch::from(&self.slots[number].data);
        for (_, at) in self.pieces(from) {
            self.sensed(at).await?;
            self.load(at, &mut buffer)?;
            let into = Extent { block: to + (at.block - from.block), ..at };
            self.claim(number, into).await;
            self.store(into, &buffer).await?;
            self.rt.yield_now().await;
        }
        Ok(())
    }

    /// Deallocates blocks in steps, between which other tasks run.
    pub(super) async fn deallocate(&self, lba: u64, blocks: u64) -> Result<(), Status> {
        let most = u64::from(DEALLOCATE_BYTES / self.block_bytes);
        let (mut block, end) = (lba, lba + blocks);
        while block < end {
            let blocks = (end - block).min(most) as u32;
            let step = Extent { block, blocks };
            let taken = self.media.deallocate(step).await;
            taken.map_err(|error| self.failed(error))?;
            self.shared.namespaces.marks.clear(step);
            block += u64::from(blocks);
            self.rt.yield_now().await;
        }
        Ok(())
    }

    /// Fetches a command's range list, once, and passes each range to `take`.
    async fn read_ranges<R: FromBytes + Immutable + KnownLayout + IntoBytes>(
        &self,
        number: u16,
        data: &DataPointer,
        ranges: u16,
        mut take: impl FnMut(&R),
    ) -> Result<(), Status> {
        let bytes = u32::from(ranges) * size_of::<R>() as u32;
        let mut buffer = Scratch::with_room(&self.slots[number].data, bytes);
        let list = &mut buffer[..bytes as usize];
        self.receive(number, data, list).await?;
        self.rt.record(self.stages.transfer);
        for range in list.chunks_exact(size_of::<R>()) {
            take(&R::read_from_bytes(range).expect("a chunk of its length"));
        }
        Ok(())
    }
}
