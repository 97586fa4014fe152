//! Namespaces with metadata: eight bytes per block, in a separate buffer (MPTR) or inline, with protection
//! information if the format has it (NVM command set 1.0, 5.2).
//!
//! Data and metadata are copied into the slot's buffers as one snapshot, and checked there: exactly the bytes
//! that were checked are sent. The futures of these commands are boxed, so that they do not enlarge those of
//! other commands.

use bus::{Carry, DevicePort, Segment};
use media::{BlockMetadata, Extent, Media, MediaError};
use runtime::Time;
use wire::Lba;
use wire::nvme::entry::DataPointer;
use wire::nvme::io::{Access, CopyTo};
use wire::nvme::pi::{self, Kind, Protection, Tuple};
use wire::nvme::ranges::CopyRange;
use wire::nvme::sgl::Flow;
use wire::nvme::status::Status;
use zerocopy::{FromBytes, IntoBytes};

use super::Controller;
use super::data::{of_dma, part_of};
use super::interleaved::{Interleaved, take_apart};
use super::namespace::Namespace;
use super::slot::Slot;
use crate::scratch_guard::Scratch;

/// Metadata of a block that was never written, or deallocated: disables all checks.
const UNWRITTEN: u8 = 0xff;

/// Metadata handling of a command.
#[derive(Clone, Copy)]
pub(super) struct WithPi {
    kind: Option<Kind>,
    pi_fields: Protection,
    /// True if metadata are transferred between controller and host.
    moves: bool,
    /// True if these metadata are inline.
    inline: bool,
    /// Logical block size in bytes.
    lba_bytes: usize,
}

impl WithPi {
    /// Block number (from `first`), data and metadata of each block.
    fn each<'a>(
        &self,
        first: u32,
        data: &'a [u8],
        tuples: &'a [u8],
    ) -> impl Iterator<Item = (u32, &'a [u8], Tuple)> + use<'a> {
        let blocks = data.chunks_exact(self.lba_bytes).zip(tuples.chunks_exact(pi::BYTES));
        (first..).zip(blocks).map(|(number, (data, tuple))| {
            (number, data, Tuple::read_from_bytes(tuple).expect("eight bytes"))
        })
    }

    /// Checks protection information as the command requests.
    pub fn check(&self, first: u32, data: &[u8], tuples: &[u8]) -> Result<(), Status> {
        let Some(kind) = self.kind else { return Ok(()) };
        for (number, data, tuple) in self.each(first, data, tuples) {
            let found = self.pi_fields.check(kind, number, &tuple, data);
            found.map_err(|mismatch| mismatch.status().with_dnr())?;
        }
        Ok(())
    }

    /// Generates protection information, if the controller must. Returns false otherwise.
    pub fn make(&self, first: u32, data: &[u8], tuples: &mut [u8]) -> bool {
        let Some(kind) = self.kind.filter(|_| self.pi_fields.act) else { return false };
        let blocks = data.chunks_exact(self.lba_bytes).zip(tuples.chunks_exact_mut(pi::BYTES));
        for (number, (data, tuple)) in (first..).zip(blocks) {
            tuple.copy_from_slice(self.pi_fields.tuple(kind, number, data).as_bytes());
        }
        true
    }

    /// Returns true if metadata have a separate buffer.
    fn apart(&self) -> bool {
        self.moves && !self.inline
    }

    /// Offset and length in host memory of a range of block data.
    fn in_host(&self, offset: u32, bytes: u32) -> (u32, u32) {
        let beside = |bytes: u32| bytes / self.lba_bytes as u32 * pi::BYTES as u32;
        match self.inline {
            true => (offset + beside(offset), bytes + beside(bytes)),
            false => (offset, bytes),
        }
    }

    /// Number of the first block, and range of the metadata, of a piece of the command's data.
    fn part(&self, offset: u32, bytes: usize) -> (u32, core::ops::Range<usize>) {
        let first = offset as usize / self.lba_bytes;
        let begin = first * pi::BYTES;
        (first as u32, begin..begin + bytes / self.lba_bytes * pi::BYTES)
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Determines the metadata handling of these blocks. `None` if the namespace has no metadata.
    pub(super) fn with_pi(
        &self,
        ns: Namespace,
        pi_fields: Protection,
        lba: Lba,
    ) -> Result<Option<WithPi>, Status> {
        let Some(metadata) = ns.metadata else { return Ok(None) };
        if let Some(kind) = metadata.kind {
            pi_fields.validate(kind, lba).map_err(Status::with_dnr)?;
        }
        let moves = metadata.kind.is_none() || !pi_fields.act;
        let lba_bytes = (self.block_bytes as usize) << ns.shift;
        let inline = moves && metadata.inline;
        Ok(Some(WithPi { kind: metadata.kind, pi_fields, moves, inline, lba_bytes }))
    }

    /// As [`with_pi`](Self::with_pi), for a namespace known to have metadata.
    fn of_access(&self, ns: Namespace, access: &Access) -> Result<WithPi, Status> {
        self.with_pi(ns, access.protection, access.lba)?.ok_or(Status::INVALID_FIELD)
    }

    /// As [`with_pi`](Self::with_pi), for commands that neither insert nor strip protection information.
    fn compared(&self, ns: Namespace, access: &Access) -> Result<WithPi, Status> {
        let with_pi = self.of_access(ns, access)?;
        if with_pi.kind.is_some() && with_pi.pi_fields.act {
            return Err(Status::INVALID_PROTECTION_INFORMATION.with_dnr());
        }
        Ok(with_pi)
    }

    /// Resolves the data pointer. Returns the blocks, and the segment of separate metadata. Inline metadata
    /// count for the transfer limit (MDTS: NVMe base 2.0, 5.17.2.1).
    async fn locate_with_pi(
        &self,
        number: u16,
        (ns, access, with_pi): (Namespace, &Access, &WithPi),
        data: &DataPointer,
        flow: Flow,
    ) -> Result<(Extent, Option<Segment>), Status> {
        let (bytes, extent) = self.validate(ns, access)?;
        let (_, bytes) = with_pi.in_host(0, bytes);
        if bytes > self.options.transfer_bytes_max {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let apart = with_pi.apart().then(|| Self::metadata_at(access)).transpose()?;
        self.locate(number, data, bytes, flow).await?;
        Ok((extent, apart))
    }

    /// The slot's buffers for data, and for the metadata of all blocks of the command.
    fn buffers<'a>(slot: &'a Slot, access: &Access) -> (Scratch<'a, u8>, Scratch<'a, u8>) {
        let mut tuples = Scratch::from(&slot.tuples);
        tuples.clear();
        tuples.resize(access.blocks as usize * pi::BYTES, UNWRITTEN);
        (Scratch::from(&slot.data), tuples)
    }

    /// Fetches a piece of a command's data from the host, and moves inline metadata to `tuples`.
    async fn brought_in(
        &self,
        number: u16,
        with_pi: &WithPi,
        (offset, piece_bytes): (u32, u32),
        buffer: &mut Vec<u8>,
        tuples: &mut [u8],
    ) -> Result<(), Status> {
        let slot = &self.slots[number];
        let mut from = Scratch::from(&slot.part);
        let (offset, bytes) = with_pi.in_host(offset, piece_bytes);
        part_of(&slot.segments.borrow(), offset, bytes, &mut from);
        buffer.clear();
        buffer.resize(bytes as usize, 0);
        self.port.read(&from, buffer, Carry::All).await.map_err(of_dma)?;
        self.rt.record(self.stages.transfer);
        if with_pi.inline {
            take_apart(buffer, tuples, with_pi.lba_bytes);
            self.carried_beside(number, tuples);
        }
        Ok(())
    }

    /// Sends a piece, the counterpart of [`brought_in`](Self::brought_in).
    async fn sent_out(
        &self,
        number: u16,
        with_pi: &WithPi,
        (offset, ready): (u32, Time),
        data: &[u8],
        tuples: &mut [u8],
    ) -> Result<(), Status> {
        let (offset, bytes) = with_pi.in_host(offset, data.len() as u32);
        if !with_pi.inline {
            return self.send(number, (offset, bytes), data, ready).await;
        }
        self.carried_beside(number, tuples);
        let whole = Interleaved { data, tuples, lba_bytes: with_pi.lba_bytes };
        self.send(number, (offset, bytes), &whole, ready).await
    }

    /// The segment of separate metadata in host memory.
    fn metadata_at(access: &Access) -> Result<Segment, Status> {
        let (at, bytes) = (access.metadata, access.blocks * pi::BYTES as u32);
        // SGLS, bit 17: dword granularity.
        let whole = at.0.is_multiple_of(4) && at.offset(u64::from(bytes) - 1).is_some();
        if whole { Ok(Segment { at, bytes }) } else { Err(Status::INVALID_FIELD.with_dnr()) }
    }

    /// The medium's metadata, which exist if a namespace has any.
    fn beside(&self) -> Result<&dyn BlockMetadata, Status> {
        self.media.capabilities().metadata.ok_or_else(|| self.failed(MediaError::Unreadable))
    }

    /// Copies blocks of the medium and their metadata, as one snapshot.
    pub(super) fn take_in(
        &self,
        ns: Namespace,
        at: Extent,
        data: &mut Vec<u8>,
        tuples: &mut [u8],
    ) -> Result<(), Status> {
        self.load(at, data)?;
        let beside = self.beside()?;
        for (lba, tuple) in (0_u64..).zip(tuples.chunks_exact_mut(pi::BYTES)) {
            let held = beside.metadata_of(at.block + (lba << ns.shift));
            tuple.copy_from_slice(&held.map_err(|error| self.failed(error))?);
        }
        Ok(())
    }

    /// Copies a piece of a command's blocks and checks it, for commands without a transfer to the host.
    /// Returns the number of its first block within the command.
    async fn checked(
        &self,
        ns: Namespace,
        with_pi: &WithPi,
        (offset, at): (u32, Extent),
        data: &mut Vec<u8>,
        tuples: &mut Vec<u8>,
    ) -> Result<u32, Status> {
        self.sensed(at).await?;
        let piece_bytes = (at.blocks * self.block_bytes) as usize;
        let (first, part) = with_pi.part(offset, piece_bytes);
        tuples.clear();
        tuples.resize(part.len(), UNWRITTEN);
        self.take_in(ns, at, data, tuples)?;
        with_pi.check(first, data, tuples)?;
        Ok(first)
    }

    /// Writes blocks and their metadata, atomically for other commands.
    pub(super) async fn put_out(
        &self,
        ns: Namespace,
        at: Extent,
        data: &[u8],
        tuples: &[u8],
    ) -> Result<(), Status> {
        self.store(at, data).await?;
        let beside = self.beside()?;
        for (lba, tuple) in (0_u64..).zip(tuples.chunks_exact(pi::BYTES)) {
            let tuple = tuple.try_into().expect("eight bytes");
            let kept = beside.set_metadata(at.block + (lba << ns.shift), tuple);
            kept.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// A read, with a check before data are sent.
    pub(super) async fn read_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let with_pi = self.of_access(ns, access)?;
        let moved = (ns, access, &with_pi);
        let (extent, to_host) = self.locate_with_pi(number, moved, data, Flow::ToHost).await?;
        if access.fua {
            self.flush().await?;
        }
        let slot = &self.slots[number];
        let (mut buffer, mut tuples) = Self::buffers(slot, access);
        for (offset, at) in self.pieces(extent) {
            self.must_be_readable(at)?;
            let ready = self.media.read(at).await.map_err(|error| self.failed(error))?;
            let piece_bytes = at.blocks * self.block_bytes;
            let (first, part) = with_pi.part(offset, piece_bytes as usize);
            self.take_in(ns, at, &mut buffer, &mut tuples[part.clone()])?;
            with_pi.check(first, &buffer, &tuples[part.clone()])?;
            self.carried(number, extent, at, &mut buffer);
            let when = (offset, ready);
            self.sent_out(number, &with_pi, when, &buffer, &mut tuples[part]).await?;
        }
        if let Some(at) = to_host {
            self.carried_beside(number, &mut tuples);
            let sent = self.port.write(&[at], &tuples[..], self.posting(), Time::ZERO).await;
            sent.map_err(of_dma)?;
        }
        self.count_read(extent);
        Ok(())
    }

    /// A write: separate metadata are fetched first, or protection information is generated; both are checked
    /// before a piece is written.
    pub(super) async fn write_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let with_pi = self.of_access(ns, access)?;
        let moved = (ns, access, &with_pi);
        let (extent, from_host) = self.locate_with_pi(number, moved, data, Flow::FromHost).await?;
        self.claim(number, extent).await;
        let slot = &self.slots[number];
        let (mut buffer, mut tuples) = Self::buffers(slot, access);
        if let Some(at) = from_host {
            self.port.read(&[at], &mut tuples, Carry::All).await.map_err(of_dma)?;
            self.carried_beside(number, &mut tuples);
        }
        for (offset, at) in self.pieces(extent) {
            let piece_bytes = at.blocks * self.block_bytes;
            let (first, part) = with_pi.part(offset, piece_bytes as usize);
            let (piece, beside) = ((offset, piece_bytes), &mut tuples[part.clone()]);
            self.brought_in(number, &with_pi, piece, &mut buffer, beside).await?;
            self.carried(number, extent, at, &mut buffer);
            if !with_pi.make(first, &buffer, &mut tuples[part.clone()]) {
                with_pi.check(first, &buffer, &tuples[part.clone()])?;
            }
            self.put_out(ns, at, &buffer, &tuples[part]).await?;
        }
        self.make_durable(access.fua).await?;
        self.count_write(extent);
        Ok(())
    }

    /// A compare: of the data, and a check of the protection information on the medium. Metadata without
    /// protection information are compared as well.
    pub(super) async fn compare_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let with_pi = self.compared(ns, access)?;
        let moved = (ns, access, &with_pi);
        let (extent, from_host) = self.locate_with_pi(number, moved, data, Flow::FromHost).await?;
        if access.fua {
            self.flush().await?;
        }
        let slot = &self.slots[number];
        let (mut buffer, mut tuples) = Self::buffers(slot, access);
        let (mut given, mut theirs) = (vec![0; tuples.len()], Vec::new());
        if let Some(at) = from_host {
            self.port.read(&[at], &mut given, Carry::All).await.map_err(of_dma)?;
        }
        for (offset, at) in self.pieces(extent) {
            let piece_bytes = at.blocks * self.block_bytes;
            let (first, part) = with_pi.part(offset, piece_bytes as usize);
            let (piece, beside) = ((offset, piece_bytes), &mut given[part.clone()]);
            self.brought_in(number, &with_pi, piece, &mut theirs, beside).await?;
            self.sensed(at).await?;
            self.take_in(ns, at, &mut buffer, &mut tuples[part.clone()])?;
            with_pi.check(first, &buffer, &tuples[part.clone()])?;
            let alike = with_pi.kind.is_some() || given[part.clone()] == tuples[part];
            if theirs[..] != buffer[..] || !alike {
                return Err(Status::COMPARE_FAILURE.with_dnr());
            }
        }
        self.count_read(extent);
        Ok(())
    }

    /// A verify: checks only, without a transfer.
    pub(super) async fn verify_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
    ) -> Result<(), Status> {
        let extent = ns.extent(access.lba.0, access.blocks)?;
        let with_pi = self.compared(ns, access)?;
        if access.fua {
            self.flush().await?;
        }
        let slot = &self.slots[number];
        let (mut buffer, mut tuples) = (Scratch::from(&slot.data), Scratch::from(&slot.tuples));
        for (offset, at) in self.pieces(extent) {
            self.checked(ns, &with_pi, (offset, at), &mut buffer, &mut tuples).await?;
        }
        self.count_read(extent);
        Ok(())
    }

    /// Writes zeros; with generated protection information if the controller must, else with zero metadata.
    pub(super) async fn zeroes_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
    ) -> Result<(), Status> {
        let extent = ns.extent(access.lba.0, access.blocks)?;
        let with_pi = self.of_access(ns, access)?;
        let slot = &self.slots[number];
        let (mut buffer, mut tuples) = (Scratch::from(&slot.data), Scratch::from(&slot.tuples));
        for (offset, at) in self.pieces(extent) {
            let piece_bytes = (at.blocks * self.block_bytes) as usize;
            let (first, part) = with_pi.part(offset, piece_bytes);
            buffer.clear();
            buffer.resize(piece_bytes, 0);
            tuples.clear();
            tuples.resize(part.len(), 0);
            with_pi.make(first, &buffer, &mut tuples);
            self.put_out(ns, at, &buffer, &tuples).await?;
            self.rt.yield_now().await;
        }
        Ok(())
    }

    /// Checks the protection settings of a copy's destination. If stripped at the source, protection
    /// information must be generated at the destination.
    pub(super) fn with_pi_copy(&self, ns: Namespace, copy: &CopyTo) -> Result<(), Status> {
        let Some(with_pi) = self.with_pi(ns, copy.protection, copy.to)? else { return Ok(()) };
        let source = Protection::of_range(copy.source, 0, 0, 0);
        if with_pi.kind.is_some() && source.act != copy.protection.act {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok(())
    }

    /// As [`with_pi_copy`](Self::with_pi_copy), for one source range.
    pub(super) fn with_pi_source(
        &self,
        ns: Namespace,
        copy: &CopyTo,
        range: &CopyRange,
    ) -> Result<Option<WithPi>, Status> {
        let (reference, tag, mask) = (range.eilbrt.get(), range.elbat.get(), range.elbatm.get());
        let pi_fields = Protection::of_range(copy.source, reference, tag, mask);
        self.with_pi(ns, pi_fields, Lba(range.lba.get()))
    }

    /// Copies a range to the medium block `to`, after `done` blocks of the same command. The data are checked
    /// with the source's settings, and then with the destination's, unless protection information is
    /// regenerated.
    pub(super) async fn copy_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        (from, source): (Extent, &WithPi),
        (to, done, copy): (u64, u32, &CopyTo),
    ) -> Result<(), Status> {
        let target = WithPi { pi_fields: copy.protection, ..*source };
        let slot = &self.slots[number];
        let (mut buffer, mut tuples) = (Scratch::from(&slot.data), Scratch::from(&slot.tuples));
        for (offset, at) in self.pieces(from) {
            let first = self.checked(ns, source, (offset, at), &mut buffer, &mut tuples).await?;
            if !target.make(done + first, &buffer, &mut tuples) {
                target.check(done + first, &buffer, &tuples)?;
            }
            let into = Extent { block: to + (at.block - from.block), ..at };
            self.claim(number, into).await;
            self.put_out(ns, into, &buffer, &tuples).await?;
            self.rt.yield_now().await;
        }
        Ok(())
    }
}
