//! Namespaces whose blocks have metadata: eight bytes each, which lie in a buffer of their own (MPTR) or
//! behind each block's data, and are protection information if the format says so (NVM command set 1.0, 5.2).
//!
//! Data are taken into the slot's buffer here, together with their metadata and at one moment, and checked
//! there: what is sent is what was checked. The commands of such a namespace are boxed, so that others do not
//! make room for them.

use bus::{Carry, DevicePort, Payload, Segment};
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

/// Metadata of a block that was never written, or was taken back: nothing of it is compared.
const UNWRITTEN: u8 = 0xff;

/// What a command does with metadata.
#[derive(Clone, Copy)]
pub(super) struct WithPi {
    kind: Option<Kind>,
    says: Protection,
    /// Whether they move between the controller and the host.
    moves: bool,
    /// Whether they follow each block's data there.
    inline: bool,
    /// Bytes of a block of the namespace.
    lba_bytes: usize,
}

impl WithPi {
    /// The blocks of this data, with their numbers from `first` on, and the metadata of each.
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

    /// Compares what the command says is to be compared.
    pub fn check(&self, first: u32, data: &[u8], tuples: &[u8]) -> Result<(), Status> {
        let Some(kind) = self.kind else { return Ok(()) };
        for (number, data, tuple) in self.each(first, data, tuples) {
            let found = self.says.check(kind, number, &tuple, data);
            found.map_err(|mismatch| mismatch.status().with_dnr())?;
        }
        Ok(())
    }

    /// Makes protection information, where the controller is to make it.
    pub fn make(&self, first: u32, data: &[u8], tuples: &mut [u8]) -> bool {
        let Some(kind) = self.kind.filter(|_| self.says.act) else { return false };
        let blocks = data.chunks_exact(self.lba_bytes).zip(tuples.chunks_exact_mut(pi::BYTES));
        for (number, (data, tuple)) in (first..).zip(blocks) {
            tuple.copy_from_slice(self.says.tuple(kind, number, data).as_bytes());
        }
        true
    }

    /// Whether they have a buffer of their own.
    fn apart(&self) -> bool {
        self.moves && !self.inline
    }

    /// What a run of the blocks' data is in host memory: its offset, and its length.
    fn in_host(&self, offset: u32, bytes: u32) -> (u32, u32) {
        let beside = |bytes: u32| bytes / self.lba_bytes as u32 * pi::BYTES as u32;
        match self.inline {
            true => (offset + beside(offset), bytes + beside(bytes)),
            false => (offset, bytes),
        }
    }

    /// Which of the metadata belong to this piece of the command's data.
    fn part(&self, offset: u32, bytes: usize) -> (u32, core::ops::Range<usize>) {
        let first = offset as usize / self.lba_bytes;
        let begin = first * pi::BYTES;
        (first as u32, begin..begin + bytes / self.lba_bytes * pi::BYTES)
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// What is to be done with the metadata of these blocks, if the namespace has any.
    pub(super) fn with_pi(
        &self,
        ns: Namespace,
        says: Protection,
        lba: Lba,
    ) -> Result<Option<WithPi>, Status> {
        let Some(metadata) = ns.metadata else { return Ok(None) };
        if let Some(kind) = metadata.kind {
            says.validate(kind, lba).map_err(Status::with_dnr)?;
        }
        let moves = metadata.kind.is_none() || !says.act;
        let lba_bytes = (self.block_bytes as usize) << ns.shift;
        let inline = moves && metadata.inline;
        Ok(Some(WithPi { kind: metadata.kind, says, moves, inline, lba_bytes }))
    }

    /// The same, of a namespace that was found to have some.
    fn of_access(&self, ns: Namespace, access: &Access) -> Result<WithPi, Status> {
        self.with_pi(ns, access.protection, access.lba)?.ok_or(Status::INVALID_FIELD)
    }

    /// As [`with_pi`](Self::guarded), for commands that neither make protection information nor take it away.
    fn compared(&self, ns: Namespace, access: &Access) -> Result<WithPi, Status> {
        let with_pi = self.of_access(ns, access)?;
        if with_pi.kind.is_some() && with_pi.says.act {
            return Err(Status::INVALID_PROTECTION_INFORMATION.with_dnr());
        }
        Ok(with_pi)
    }

    /// Finds where the command's data lie in host memory. Gives its blocks, and where its metadata are, if
    /// those lie apart. Metadata that follow the data are judged with them (MDTS counts them: NVMe base 2.0,
    /// 5.17.2.1).
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

    /// A slot's buffers for data and for the metadata of all of a command's blocks.
    fn buffers<'a>(slot: &'a Slot, access: &Access) -> (Scratch<'a, u8>, Scratch<'a, u8>) {
        let mut tuples = Scratch::from(&slot.tuples);
        tuples.clear();
        tuples.resize(access.blocks as usize * pi::BYTES, UNWRITTEN);
        (Scratch::from(&slot.data), tuples)
    }

    /// Takes a piece of what the host brings into the buffer, and its metadata, where they follow the data,
    /// to their place.
    async fn brought_in(
        &self,
        number: u16,
        with_pi: &WithPi,
        (offset, piece_bytes): (u32, u32),
        buffer: &mut Vec<u8>,
        tuples: &mut [u8],
    ) -> Result<(), Status> {
        let slot = &self.slots[usize::from(number)];
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

    /// Sends a piece, as [`brought_in`](Self::brought_in) takes one.
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
            return self.sent_to(number, (offset, bytes), data, ready).await;
        }
        self.carried_beside(number, tuples);
        let whole = Interleaved { data, tuples, lba_bytes: with_pi.lba_bytes };
        self.sent_to(number, (offset, bytes), &whole, ready).await
    }

    /// Sends this to a part of the command's data in host memory.
    async fn sent_to(
        &self,
        number: u16,
        (offset, bytes): (u32, u32),
        blocks: &(impl Payload + ?Sized),
        ready: Time,
    ) -> Result<(), Status> {
        let slot = &self.slots[usize::from(number)];
        if !slot.discarded.borrow().is_empty() {
            return self.write_around(number, (offset, bytes), blocks, ready).await;
        }
        let mut to = Scratch::from(&slot.part);
        part_of(&slot.segments.borrow(), offset, bytes, &mut to);
        self.port.write(&to, blocks, self.posting(), ready).await.map_err(of_dma)
    }

    /// Where the metadata of so many blocks lie in host memory.
    fn metadata_at(access: &Access) -> Result<Segment, Status> {
        let (at, bytes) = (access.metadata, access.blocks * pi::BYTES as u32);
        // SGLS, bit 17: whole dwords.
        let whole = at.0.is_multiple_of(4) && at.offset(u64::from(bytes) - 1).is_some();
        if whole { Ok(Segment { at, bytes }) } else { Err(Status::INVALID_FIELD.with_dnr()) }
    }

    /// What the medium keeps beside its blocks: a namespace has metadata only where it does.
    fn beside(&self) -> Result<&dyn BlockMetadata, Status> {
        self.media.metadata().ok_or_else(|| self.failed(MediaError::Unreadable))
    }

    /// Blocks of the medium and their metadata, as they are now.
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

    /// Takes a piece of a command's blocks in and compares what the command says, for commands that send
    /// nothing. Gives the number of its first block within the command.
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

    /// Writes blocks and their metadata; no other command finds one without the other.
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

    /// A read: as one without metadata, but for the check before anything is sent.
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
        let slot = &self.slots[usize::from(number)];
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
        self.count(&self.counters.reads, &self.counters.blocks_read, extent);
        Ok(())
    }

    /// A write: metadata come first, or are made here; they are checked before a piece is written.
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
        let slot = &self.slots[usize::from(number)];
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
        self.count(&self.counters.writes, &self.counters.blocks_written, extent);
        Ok(())
    }

    /// A compare: of the data, then what protects those on the medium; metadata that are none of that are
    /// compared as well.
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
        let slot = &self.slots[usize::from(number)];
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
        self.count(&self.counters.reads, &self.counters.blocks_read, extent);
        Ok(())
    }

    /// A verify: what is to be compared is, and nothing moves.
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
        let slot = &self.slots[usize::from(number)];
        let (mut buffer, mut tuples) = (Scratch::from(&slot.data), Scratch::from(&slot.tuples));
        for (offset, at) in self.pieces(extent) {
            self.checked(ns, &with_pi, (offset, at), &mut buffer, &mut tuples).await?;
        }
        self.count(&self.counters.reads, &self.counters.blocks_read, extent);
        Ok(())
    }

    /// Zeros with their metadata: protection information if the controller is to make it, else zeros too.
    pub(super) async fn zeroes_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
    ) -> Result<(), Status> {
        let extent = ns.extent(access.lba.0, access.blocks)?;
        let with_pi = self.of_access(ns, access)?;
        let slot = &self.slots[usize::from(number)];
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

    /// Whether a copy may say this of its destination. What is taken away at the source has to be made there.
    pub(super) fn with_pi_copy(&self, ns: Namespace, copy: &CopyTo) -> Result<(), Status> {
        let Some(with_pi) = self.with_pi(ns, copy.protection, copy.to)? else { return Ok(()) };
        let source = Protection::of_range(copy.source, 0, 0, 0);
        if with_pi.kind.is_some() && source.act != copy.protection.act {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok(())
    }

    /// The same of one source range.
    pub(super) fn with_pi_source(
        &self,
        ns: Namespace,
        copy: &CopyTo,
        range: &CopyRange,
    ) -> Result<Option<WithPi>, Status> {
        let (reference, tag, mask) = (range.eilbrt.get(), range.elbat.get(), range.elbatm.get());
        let says = Protection::of_range(copy.source, reference, tag, mask);
        self.with_pi(ns, says, Lba(range.lba.get()))
    }

    /// A range of a copy, to a block of the medium behind so many blocks that were copied before: checked as
    /// its source says, and then as the destination does, unless protection information is made anew.
    pub(super) async fn copy_with_pi(
        &self,
        number: u16,
        ns: Namespace,
        (from, source): (Extent, &WithPi),
        (to, done, copy): (u64, u32, &CopyTo),
    ) -> Result<(), Status> {
        let target = WithPi { says: copy.protection, ..*source };
        let slot = &self.slots[usize::from(number)];
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
