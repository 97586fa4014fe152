//! The NVM command set: read, write, flush, compare, verify. Range commands are in `ranges`.

use bus::{DevicePort, Direct};
use media::{Extent, Media};
use runtime::Time;
use wire::Nsid;
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io::{self, Access, Command};
use wire::nvme::opcode::io as opcode;
use wire::nvme::sgl::Flow;
use wire::nvme::status::Status;

use super::access::Door;
use super::data::{of_dma, of_media};
use super::namespace::Namespace;
use super::reservations::Touch;
use super::slot::Slot;
use super::{Controller, PIECE_BYTES};
use crate::scratch_guard::Scratch;

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Executes one I/O command. Returns its status and dword 0 of the completion.
    pub(super) async fn io(&self, number: u16, sqe: &Sqe) -> (Status, u32) {
        // Accessed by reference, here and below: moving a value just written in parts is slow.
        let parsed = io::parse(sqe);
        let request = match &parsed {
            Ok(request) => request,
            Err(status) => {
                let known = self.shared.place.is_none() || self.has_io(sqe.opcode);
                let status = if known { *status } else { Status::INVALID_OPCODE };
                return (status.with_dnr(), 0);
            }
        };
        if request.command == Command::Flush && request.nsid == Nsid::BROADCAST {
            return (self.flush_all().await.err().unwrap_or(Status::SUCCESS), 0);
        }
        let ns = match self.enter(number, request.nsid, || Touch::of(&request.command)) {
            Ok(namespace) => namespace,
            // 8.21: Flush is the only I/O command that is not aborted.
            Err(Status::SANITIZE_IN_PROGRESS) if request.command == Command::Flush => {
                return (Status::SUCCESS, 0);
            }
            Err(status) => return (status, 0),
        };
        let done = match &request.command {
            Command::Read(access) if ns.metadata.is_none() => {
                self.read(number, ns, access, &request.data).await
            }
            Command::Write(access) => self.write(number, ns, access, &request.data).await,
            Command::Flush => self.flush().await,
            Command::Compare(access) => self.compare(number, ns, access, &request.data).await,
            Command::Read(access) => {
                Box::pin(self.read_with_pi(number, ns, access, &request.data)).await
            }
            Command::ReadPlaced(read) => {
                Box::pin(self.read_placed(number, ns, read, &request.data)).await
            }
            Command::ReadMap(access) => {
                Box::pin(self.read_map(number, ns, access, &request.data)).await
            }
            Command::Verify(access) => self.verify(number, ns, access).await,
            Command::WriteUncorrectable(access) => {
                Box::pin(self.write_uncorrectable(number, ns, access)).await
            }
            Command::WriteZeroes(zeroes) => self.write_zeroes(number, ns, *zeroes).await,
            Command::DatasetManagement(dsm) => self.manage(number, ns, *dsm, &request.data).await,
            Command::Copy(copy) => {
                return match self.copy(number, ns, *copy, &request.data).await {
                    Ok(()) => (Status::SUCCESS, 0),
                    Err((status, range)) => (status, range),
                };
            }
            Command::ReservationRegister(_)
            | Command::ReservationReport(_)
            | Command::ReservationAcquire(_)
            | Command::ReservationRelease(_) => {
                if !self.has_io(opcode::RESERVATION_REPORT) {
                    return (Status::INVALID_OPCODE.with_dnr(), 0);
                }
                let done = Box::pin(self.reservation(number, request)).await;
                done.map_err(Status::with_dnr)
            }
        };
        (done.err().unwrap_or(Status::SUCCESS), 0)
    }

    /// A Flush of every namespace.
    async fn flush_all(&self) -> Result<(), Status> {
        match self.shared.namespaces.sanitizing.door().refusal() {
            None => {
                self.pass_all()?;
                self.flush().await
            }
            Some(Status::SANITIZE_IN_PROGRESS) => Ok(()),
            Some(status) => Err(status),
        }
    }

    /// Returns the command's namespace, if access (`touch`) is permitted.
    #[inline]
    pub(super) fn enter(
        &self,
        number: u16,
        nsid: Nsid,
        touch: impl FnOnce() -> Touch,
    ) -> Result<Namespace, Status> {
        let (place, namespace) = self.active_at(nsid).map_err(Status::with_dnr)?;
        if place.door.get() != Door::Open {
            self.pass(place, touch())?;
        }
        self.slots[number].io_namespace.set(Some(nsid));
        Ok(namespace)
    }

    /// A read: data pointer, medium, link. The medium returns the time of its last byte, and the transfer
    /// begins with the first.
    async fn read(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let (bytes, extent) = self.validate(ns, access)?;
        if let Some(lists) = self.locate_named(number, data, bytes)? {
            self.locate_listed(number, lists, bytes, Flow::ToHost).await?;
        }
        if access.fua {
            // NVM command set 1.0, 3.2.4: FUA requires the data to be on non-volatile media before they are
            // read.
            self.flush().await?;
        }
        let slot = &self.slots[number];
        let whole = slot.discarded.borrow().is_empty();
        for (offset, at) in self.pieces(extent) {
            let piece = (offset, at.blocks * self.block_bytes);
            self.must_be_readable(at)?;
            let ready = match self.media.is_immediate() {
                true => Time::ZERO,
                false => self.media.read(at).await.map_err(|error| self.failed(error))?,
            };
            let blocks = self.sent(number, extent, at);
            if !whole {
                Box::pin(self.write_around(number, piece, &blocks, ready)).await?;
                continue;
            }
            let to = self.part(slot, piece, bytes);
            self.port.write(&to, &blocks, self.posting(), ready).await.map_err(of_dma)?;
        }
        self.count_read(extent);
        Ok(())
    }

    /// A write: data pointer, link, medium.
    pub(super) async fn write(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        if ns.metadata.is_some() {
            return Box::pin(self.write_with_pi(number, ns, access, data)).await;
        }
        let (bytes, extent) = self.validate(ns, access)?;
        if let Some(lists) = self.locate_named(number, data, bytes)? {
            self.locate_listed(number, lists, bytes, Flow::FromHost).await?;
        }
        self.claim(number, extent).await;
        let slot = &self.slots[number];
        if !self.stored_at_once(slot, extent)? {
            let mut buffer = Scratch::with_room(&slot.data, bytes.min(PIECE_BYTES));
            for piece in self.pieces(extent) {
                let data = self.bring_piece(slot, piece, bytes, &mut buffer).await?;
                self.carried(number, extent, piece.1, data);
                self.store(piece.1, data).await?;
            }
        }
        self.make_durable(access.fua).await?;
        self.count_write(extent);
        Ok(())
    }

    /// Copies a command's data from the host into the medium, if neither takes time: the only copy. Returns
    /// false, with nothing written, if they must pass through a buffer.
    pub(super) fn stored_at_once(&self, slot: &Slot, at: Extent) -> Result<bool, Status> {
        if !self.media.is_immediate() || self.faults.is_on() {
            return Ok(false);
        }
        let Some(direct) = self.port.direct() else { return Ok(false) };
        let segments = slot.segments.borrow();
        if !direct.copies(&segments).map_err(of_dma)? {
            return Ok(false);
        }
        self.mark_dirty()?;
        let mut copied = Ok(());
        let done = self.media.write_at_once(at, &mut |offset, run| {
            if copied.is_ok() {
                copied = direct.copy(&segments, offset, run);
            }
        });
        let done = done.map_err(|error| self.failed(error))?;
        copied.map_err(of_dma)?;
        if done {
            self.shared.namespaces.marks.clear(at);
            self.rt.record(self.stages.transfer);
        }
        Ok(done)
    }

    /// Fetches a piece of a command's data, which has `all` bytes.
    async fn bring_piece<'a>(
        &self,
        slot: &Slot,
        (offset, at): (u32, Extent),
        all: u32,
        buffer: &'a mut [u8],
    ) -> Result<&'a mut [u8], Status> {
        let bytes = at.blocks * self.block_bytes;
        let (from, into) = (self.part(slot, (offset, bytes), all), &mut buffer[..bytes as usize]);
        self.port.read(&from, into, self.carry()).await.map_err(of_dma)?;
        self.rt.record(self.stages.transfer);
        Ok(into)
    }

    /// Writes blocks to the medium.
    pub(super) async fn store(&self, at: Extent, data: &[u8]) -> Result<(), Status> {
        self.mark_dirty()?;
        self.media.write(at, data).await.map_err(|error| self.failed(error))?;
        self.shared.namespaces.marks.clear(at);
        Ok(())
    }

    /// Copies blocks from the medium. Parts that it does not pass are zeros.
    pub(super) fn load(&self, at: Extent, data: &mut Vec<u8>) -> Result<(), Status> {
        data.clear();
        data.resize((at.blocks * self.block_bytes) as usize, 0);
        let scratch_guard = self.media.runs(at, &mut |offset, run| {
            data[offset as usize..][..run.len()].copy_from_slice(run);
        });
        scratch_guard.map_err(|error| self.failed(error))
    }

    /// Waits until the medium has sensed these blocks, for commands that do not transfer them.
    pub(super) async fn sensed(&self, at: Extent) -> Result<(), Status> {
        self.must_be_readable(at)?;
        let ready = self.media.read(at).await.map_err(|error| self.failed(error))?;
        if ready > Time::ZERO {
            self.rt.sleep_until(ready).await;
            self.rt.record(self.stages.media);
        }
        Ok(())
    }

    /// Makes a write durable before it completes, if requested by FUA or if the write cache is disabled.
    pub(super) async fn make_durable(&self, fua: bool) -> Result<(), Status> {
        if fua || !self.features.values.borrow().write_cache {
            self.flush().await?;
        }
        Ok(())
    }

    /// A compare: data pointer, link, medium, comparison. If the medium keeps only the heads of blocks, these
    /// are compared.
    pub(super) async fn compare(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        if ns.metadata.is_some() {
            return Box::pin(self.compare_with_pi(number, ns, access, data)).await;
        }
        let (bytes, extent) = self.validate(ns, access)?;
        self.locate(number, data, bytes, Flow::FromHost).await?;
        if access.fua {
            self.flush().await?;
        }
        let slot = &self.slots[number];
        let mut buffer = Scratch::with_room(&slot.data, bytes.min(PIECE_BYTES));
        for piece in self.pieces(extent) {
            let given = self.bring_piece(slot, piece, bytes, &mut buffer).await?;
            self.sensed(piece.1).await?;
            if !self.holds(piece.1, given)? {
                return Err(Status::COMPARE_FAILURE.with_dnr());
            }
        }
        // NVMe base 2.0, 5.16.1.3: compares and verifies count as reads.
        self.count_read(extent);
        Ok(())
    }

    /// A verify (NVM command set 1.0, 3.2.6): a read without a transfer, so that the transfer limit does not
    /// apply.
    async fn verify(&self, number: u16, ns: Namespace, access: &Access) -> Result<(), Status> {
        if ns.metadata.is_some() {
            return Box::pin(self.verify_with_pi(number, ns, access)).await;
        }
        let extent = ns.extent(access.lba.0, access.blocks)?;
        if access.fua {
            self.flush().await?;
        }
        for (_, at) in self.pieces(extent) {
            self.sensed(at).await?;
            self.media.runs(at, &mut |_, _| {}).map_err(|error| self.failed(error))?;
        }
        self.count_read(extent);
        Ok(())
    }

    /// Returns true if the medium holds these bytes. Parts that it does not pass are zeros.
    fn holds(&self, at: Extent, given: &[u8]) -> Result<bool, Status> {
        let whole = self.head.is_none();
        let (mut equal, mut seen) = (true, 0);
        let zeros = |part: &[u8]| !whole || part.iter().all(|byte| *byte == 0);
        let scratch_guard = self.media.runs(at, &mut |offset, run| {
            let offset = offset as usize;
            equal &= zeros(&given[seen..offset]) && given[offset..][..run.len()] == *run;
            seen = offset + run.len();
        });
        scratch_guard.map_err(|error| self.failed(error))?;
        Ok(equal && zeros(&given[seen..]))
    }

    /// Validates LBA range and transfer limit. Returns the length in bytes and the blocks.
    #[inline]
    pub(super) fn validate(&self, ns: Namespace, access: &Access) -> Result<(u32, Extent), Status> {
        let extent = ns.extent(access.lba.0, access.blocks)?;
        let bytes = u64::from(extent.blocks) * u64::from(self.block_bytes);
        if bytes > u64::from(self.options.transfer_bytes_max) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok((bytes as u32, extent))
    }

    /// Splits blocks into pieces: byte offset, and blocks.
    #[inline]
    pub(super) fn pieces(&self, of: Extent) -> impl Iterator<Item = (u32, Extent)> + use<P, M> {
        let (block_bytes, most) = (self.block_bytes, PIECE_BYTES >> self.block_bytes.ilog2());
        let mut done = 0;
        std::iter::from_fn(move || {
            let (first, blocks) = (done, most.min(of.blocks - done));
            done += blocks;
            let at = Extent { block: of.block + u64::from(first), blocks };
            (blocks > 0).then_some((first * block_bytes, at))
        })
    }

    pub(super) fn failed(&self, error: media::MediaError) -> Status {
        self.health.counters.media_errors.add(1);
        of_media(error)
    }

    #[inline]
    pub(super) fn count_read(&self, extent: Extent) {
        self.health.counters.reads.add(1);
        self.health.counters.blocks_read.add(extent.blocks.into());
    }

    #[inline]
    pub(super) fn count_write(&self, extent: Extent) {
        self.health.counters.writes.add(1);
        self.health.counters.blocks_written.add(extent.blocks.into());
    }
}
