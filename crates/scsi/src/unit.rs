//! Logical unit: commands on a block device.

use core::cell::Cell;

use bus::Buffer;
use wire::Lba;
use wire::scsi::capacity::{Shape, Unmapped};
use wire::scsi::cdb::{Access, Command, Synchronize};
use wire::scsi::data::Data;
use wire::scsi::inquiry::{self, Identity, Limits};
use wire::scsi::mode;
use wire::scsi::sense::{Additional, Field, Key, Sense};
use wire::scsi::unmap::{self, LIST_BYTES_MAX, RANGES_MAX};

use super::Reply;
use super::sense::of_error;
use host::{BlockDevice, Deallocated};

/// A block device as a SCSI disk.
pub struct Unit<D> {
    device: D,
    identity: Identity,
    /// True after START STOP UNIT has stopped it: its blocks cannot be accessed.
    stopped: Cell<bool>,
}

/// Sense for an LBA beyond the capacity.
const OUT_OF_RANGE: Sense = Sense::new(Key::IllegalRequest, Additional::LBA_OUT_OF_RANGE);

impl<D: BlockDevice> Unit<D> {
    /// Creates a unit of this device and this identity.
    pub fn new(device: D, identity: Identity) -> Unit<D> {
        Unit { device, identity, stopped: Cell::new(false) }
    }

    /// Underlying device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Executes a command other than REPORT LUNS, which belongs to the target.
    pub async fn execute(&self, command: &Command, buffer: Option<Buffer>) -> Reply {
        match *command {
            Command::TestUnitReady => match self.ready() {
                Ok(()) => Reply::good(buffer, 0),
                Err(sense) => Reply::check(buffer, sense),
            },
            Command::RequestSense { descriptors, allocation } => {
                // Errors of commands came with their status; only the state of the unit is left.
                let sense = self.ready().err().unwrap_or(Sense::NONE);
                give(buffer, sense_data(&sense, descriptors).as_slice(), allocation.into())
            }
            Command::Inquiry { page, allocation } => self.inquiry(page, allocation, buffer),
            Command::ModeSense(asked) => {
                let cache = self.device.geometry().volatile_cache;
                match mode::sense(&asked, &self.shape(), cache) {
                    Ok(data) => give(buffer, data.as_slice(), asked.allocation.into()),
                    Err(sense) => Reply::check(buffer, sense),
                }
            }
            Command::StartStop { start, no_flush } => {
                self.start_stop(start, no_flush, buffer).await
            }
            Command::ReadCapacity10 => {
                let shape = self.shape();
                self.when_ready(buffer, |buffer| give(buffer, shape.capacity_10().as_slice(), 8))
            }
            Command::ReadCapacity16 { allocation } => {
                let shape = self.shape();
                self.when_ready(buffer, |buffer| {
                    give(buffer, shape.capacity_16().as_slice(), allocation)
                })
            }
            Command::Read(access) => self.access(&access, false, buffer).await,
            Command::Write(access) => self.access(&access, true, buffer).await,
            Command::SynchronizeCache(what) => self.synchronize(&what, buffer).await,
            Command::Unmap { list } => self.unmap(usize::from(list), buffer).await,
            Command::ReportLuns { .. } => {
                let sense = Sense::new(Key::IllegalRequest, Additional::INVALID_OPCODE);
                Reply::check(buffer, sense)
            }
        }
    }

    fn shape(&self) -> Shape {
        let geometry = self.device.geometry();
        let unmapped = match self.device.deallocated() {
            Deallocated::Unsupported => Unmapped::Never,
            Deallocated::Unknown => Unmapped::Unknown,
            Deallocated::Zeros => Unmapped::Zeros,
        };
        Shape { blocks: geometry.blocks, block_bytes: geometry.block_bytes, unmapped }
    }

    fn limits(&self) -> Limits {
        let geometry = self.device.geometry();
        let most = geometry.transfer_bytes_max / geometry.block_bytes;
        let (unmap_max, unmap_ranges_max) = match self.device.deallocated() {
            Deallocated::Unsupported => (0, 0),
            // All ones: no limit on the number of blocks (SBC-3, 6.6.4).
            _ => (u32::MAX, RANGES_MAX as u32),
        };
        Limits { transfer_max: most, transfer_optimal: most, unmap_max, unmap_ranges_max }
    }

    /// Fails if its blocks cannot be accessed.
    fn ready(&self) -> Result<(), Sense> {
        match self.stopped.get() {
            false => Ok(()),
            true => Err(Sense::new(Key::NotReady, Additional::START_REQUIRED)),
        }
    }

    fn when_ready(
        &self,
        buffer: Option<Buffer>,
        answer: impl FnOnce(Option<Buffer>) -> Reply,
    ) -> Reply {
        match self.ready() {
            Ok(()) => answer(buffer),
            Err(sense) => Reply::check(buffer, sense),
        }
    }

    fn inquiry(&self, page: Option<u8>, allocation: u16, buffer: Option<Buffer>) -> Reply {
        let data = match page {
            None => Some(inquiry::standard(&self.identity)),
            Some(page) => {
                let unmapped = self.shape().unmapped;
                inquiry::vital(page, &self.identity, &self.limits(), unmapped)
            }
        };
        match data {
            Some(data) => give(buffer, data.as_slice(), allocation.into()),
            None => Reply::check(buffer, Sense::invalid_field(Field::byte(2))),
        }
    }

    /// Starts or stops the unit. Stopping flushes the cache first, unless NO_FLUSH is set.
    async fn start_stop(&self, start: bool, no_flush: bool, buffer: Option<Buffer>) -> Reply {
        if !start
            && !no_flush
            && self.device.geometry().volatile_cache
            && let Err(error) = self.device.flush().await
        {
            let (status, sense) = of_error(&error, 0, true);
            return Reply { buffer, status, sense, moved: 0 };
        }
        self.stopped.set(!start);
        Reply::good(buffer, 0)
    }

    /// Checks that these blocks exist.
    fn validate_range(&self, lba: Lba, blocks: u32) -> Result<(), Sense> {
        let end = lba.0.checked_add(u64::from(blocks));
        match end.is_some_and(|end| end <= self.device.geometry().blocks) {
            true => Ok(()),
            false => Err(OUT_OF_RANGE),
        }
    }

    /// Validates a read or write; returns its length in bytes.
    fn validate(&self, access: &Access, room: usize) -> Result<usize, Sense> {
        self.ready()?;
        self.validate_range(access.lba, access.blocks)?;
        let geometry = self.device.geometry();
        // Longer than the limit in the Block Limits page (SBC-3, 6.6.4, MAXIMUM TRANSFER LENGTH).
        let bytes = u64::from(access.blocks) * u64::from(geometry.block_bytes);
        if bytes > u64::from(geometry.transfer_bytes_max) {
            return Err(Sense::invalid_field(access.length_field()));
        }
        if (room as u64) < bytes {
            let unit = Additional::INVALID_INFORMATION_UNIT;
            return Err(Sense::new(Key::IllegalRequest, unit));
        }
        Ok(bytes as usize)
    }

    async fn access(&self, access: &Access, write: bool, buffer: Option<Buffer>) -> Reply {
        let room = buffer.as_ref().map_or(0, Buffer::bytes);
        let bytes = match self.validate(access, room) {
            Ok(bytes) => bytes,
            Err(sense) => return Reply::check(buffer, sense),
        };
        if bytes == 0 {
            return Reply::good(buffer, 0);
        }
        let Some(buffer) = buffer else { return Reply::good(None, 0) };
        // Bytes after the transfer are unchanged.
        let (whole, part) = match buffer.bytes() == bytes {
            true => (None, buffer),
            false => {
                let part = buffer.part(0, bytes);
                (Some(buffer), part)
            }
        };
        let (part, result) = match write {
            true => self.device.write(access.lba, part, access.fua).await,
            false => self.read(access, part).await,
        };
        let buffer = Some(whole.unwrap_or(part));
        match result {
            Ok(()) => Reply::good(buffer, bytes),
            Err(error) => {
                let (status, sense) = of_error(&error, access.blocks, write);
                Reply { buffer, status, sense, moved: 0 }
            }
        }
    }

    /// Read with FUA: cached data of these blocks is made durable first (SBC-3, 5.12).
    async fn read(&self, access: &Access, into: Buffer) -> (Buffer, Result<(), host::IoError>) {
        if access.fua
            && self.device.geometry().volatile_cache
            && let Err(error) = self.device.flush().await
        {
            return (into, Err(error));
        }
        self.device.read(access.lba, into).await
    }

    /// Executes UNMAP: validates all ranges before it deallocates the first.
    async fn unmap(&self, length: usize, buffer: Option<Buffer>) -> Reply {
        let mut bytes = [0; LIST_BYTES_MAX];
        let ranges = match self.unmap_list(length, &buffer, &mut bytes) {
            Ok(ranges) => ranges,
            Err(sense) => return Reply::check(buffer, sense),
        };
        for range in ranges.filter(|range| range.blocks > 0) {
            if let Err(error) = self.device.deallocate(range.lba, range.blocks).await {
                let (status, sense) = of_error(&error, range.blocks, true);
                return Reply { buffer, status, sense, moved: 0 };
            }
        }
        Reply::good(buffer, length)
    }

    /// Copies the list in the buffer once and returns its ranges (SBC-3, 5.28).
    fn unmap_list<'a>(
        &self,
        length: usize,
        buffer: &Option<Buffer>,
        bytes: &'a mut [u8; LIST_BYTES_MAX],
    ) -> Result<impl Iterator<Item = unmap::Range> + Clone + 'a, Sense> {
        let refuse = |additional| Err(Sense::new(Key::IllegalRequest, additional));
        self.ready()?;
        if self.device.deallocated() == Deallocated::Unsupported {
            return refuse(Additional::INVALID_OPCODE);
        }
        if length > buffer.as_ref().map_or(0, Buffer::bytes) {
            return refuse(Additional::INVALID_INFORMATION_UNIT);
        }
        let taken = length.min(LIST_BYTES_MAX);
        if let Some(buffer) = buffer {
            buffer.copy_out(0, &mut bytes[..taken]);
        }
        // An empty list is valid; a partial header is not.
        if (1..unmap::HEAD_BYTES).contains(&length) {
            return refuse(Additional::LIST_LENGTH_ERROR);
        }
        // More ranges than allowed, among those present in the list.
        let said = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if said.min(length.saturating_sub(unmap::HEAD_BYTES)) > LIST_BYTES_MAX - unmap::HEAD_BYTES {
            return refuse(Additional::INVALID_FIELD_IN_LIST);
        }
        let ranges = unmap::parse(&bytes[..taken.max(unmap::HEAD_BYTES)]).expect("a whole head");
        for range in ranges.clone() {
            self.validate_range(range.lba, range.blocks)?;
        }
        Ok(ranges)
    }

    async fn synchronize(&self, what: &Synchronize, buffer: Option<Buffer>) -> Reply {
        // Zero blocks stand for the whole unit, but the LBA must still be valid.
        let validated = self.ready().and_then(|()| self.validate_range(what.lba, what.blocks));
        if let Err(sense) = validated {
            return Reply::check(buffer, sense);
        }
        match self.device.flush().await {
            Ok(()) => Reply::good(buffer, 0),
            Err(error) => {
                let (status, sense) = of_error(&error, 0, true);
                Reply { buffer, status, sense, moved: 0 }
            }
        }
    }
}

/// Sense data in the requested format.
pub(super) fn sense_data(sense: &Sense, descriptors: bool) -> Data {
    match descriptors {
        true => sense.descriptors(),
        false => {
            let mut data = Data::new();
            data.put(&sense.fixed());
            data
        }
    }
}

/// Returns data of the unit, limited to the allocation length and to the buffer.
pub(super) fn give(buffer: Option<Buffer>, data: &[u8], allocation: u32) -> Reply {
    let room = buffer.as_ref().map_or(0, Buffer::bytes);
    let moved = data.len().min(room).min(allocation as usize);
    if let Some(buffer) = &buffer {
        buffer.copy_in(0, &data[..moved]);
    }
    Reply::good(buffer, moved)
}
