//! SCSI class driver: a logical unit as a block device.

use alloc::rc::Rc;
use core::future::Future;

use bus::{Buffer, OutOfMemory};
use wire::Lba;
use wire::scsi::capacity::{CAPACITY_16_BYTES, Shape, Unmapped};
use wire::scsi::cdb::{Access, Command, Form, ModeSense, PageControl, Synchronize};
use wire::scsi::inquiry::{self, Limits, StandardInquiry, page};
use wire::scsi::lun::Lun;
use wire::scsi::mode;
use wire::scsi::sense::{Key, Sense};
use wire::scsi::status::Status;
use wire::scsi::unmap;

use super::sense::to_error;
use super::{Reply, Transport};
use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};

/// Retries after UNIT ATTENTION.
const ATTENTIONS_MAX: u32 = 4;
/// Longest transfer in bytes for units without a limit.
const TRANSFER_BYTES: u32 = 1 << 20;
/// Buffer for the answers of a unit, in bytes.
const ANSWER_BYTES: usize = 256;

/// A disk behind a transport.
pub struct Disk<T> {
    transport: Rc<T>,
    lun: Lun,
    geometry: Geometry,
    seen: StandardInquiry,
    deallocated: Deallocated,
    /// Most blocks of one UNMAP.
    unmap_max: u32,
}

/// Why a unit could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// A command was refused.
    #[error("{command}: {status:?}: {sense}")]
    Refused {
        /// Name of the command.
        command: &'static str,
        /// Status of the command.
        status: Status,
        /// Sense data.
        sense: Sense,
    },
    /// An answer is not one that this driver serves.
    #[error("{what} is {found}, expected {expected}")]
    Unsupported {
        /// Property.
        what: &'static str,
        /// Value found.
        found: u64,
        /// Supported values.
        expected: &'static str,
    },
    /// No memory is left that the target could reach.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

impl<T: Transport> Disk<T> {
    /// Probes a unit: readiness, identity, geometry and limits.
    pub async fn attach(transport: Rc<T>, lun: Lun) -> Result<Disk<T>, AttachError> {
        let probe = Probe { transport: &transport, lun };
        probe.ask("TEST UNIT READY", Command::TestUnitReady).await?;
        let standard = Command::Inquiry { page: None, allocation: 96 };
        let answer = probe.ask("INQUIRY", standard).await?;
        let seen = inquiry::parse_standard(answer.bytes());
        let Some(seen) = seen.filter(|seen| seen.is_disk) else {
            let found = u64::from(answer.bytes().first().copied().unwrap_or(0xff));
            let expected = "0: a direct-access block device";
            let what = "the peripheral qualifier and device type";
            return Err(AttachError::Unsupported { what, found, expected });
        };
        let allocation = CAPACITY_16_BYTES as u32;
        let answer = probe.ask("READ CAPACITY(16)", Command::ReadCapacity16 { allocation }).await?;
        let shape = validate(Shape::parse_16(answer.bytes()))?;
        let limits = probe.limits().await;
        let unmap_max = limits
            .filter(|limits| limits.unmap_ranges_max > 0)
            .map_or(0, |limits| limits.unmap_max);
        let deallocated = match shape.unmapped {
            _ if unmap_max == 0 => Deallocated::Unsupported,
            Unmapped::Never => Deallocated::Unsupported,
            Unmapped::Unknown => Deallocated::Unknown,
            Unmapped::Zeros => Deallocated::Zeros,
        };
        let geometry = Geometry {
            blocks: shape.blocks,
            block_bytes: shape.block_bytes,
            transfer_bytes_max: transfer_max(&shape, limits.as_ref()),
            buffer_align: 4,
            volatile_cache: probe.write_cache().await,
        };
        Ok(Disk { transport, lun, geometry, seen, deallocated, unmap_max })
    }

    /// Standard INQUIRY data of the unit.
    pub fn seen(&self) -> &StandardInquiry {
        &self.seen
    }

    async fn perform(
        &self,
        command: Command,
        lba: Option<Lba>,
        buffer: Option<Buffer>,
    ) -> (Option<Buffer>, Result<(), IoError>) {
        let wanted = buffer.as_ref().map_or(0, Buffer::bytes);
        let Reply { buffer, status, sense, moved } =
            self.transport.execute(self.lun, &command.cdb(), buffer).await;
        let result = match status {
            Status::Good if moved == wanted => Ok(()),
            // A short transfer without an error: the data is not valid.
            Status::Good => Err(IoError::of(host::Kind::DeviceFailed, lba)),
            status => Err(to_error(status, sense, lba)),
        };
        (buffer, result)
    }
}

/// Validates a unit's capacity.
fn validate(shape: Option<Shape>) -> Result<Shape, AttachError> {
    let unsupported = |what, found, expected| AttachError::Unsupported { what, found, expected };
    let shape = shape.ok_or(unsupported("the last LBA", u64::MAX, "less than 2^64 - 1"))?;
    let bytes = shape.block_bytes;
    if !bytes.is_power_of_two() || !(512..=4096).contains(&bytes) {
        let expected = "a power of two from 512 to 4096 bytes";
        return Err(unsupported("the length of a block", u64::from(bytes), expected));
    }
    Ok(shape)
}

/// Longest transfer of one command in bytes. Units without the Block Limits page set none.
fn transfer_max(shape: &Shape, limits: Option<&Limits>) -> u32 {
    let blocks = limits.map_or(0, |limits| limits.transfer_max);
    match blocks.checked_mul(shape.block_bytes).filter(|bytes| *bytes > 0) {
        Some(bytes) => bytes,
        None => TRANSFER_BYTES,
    }
}

/// Copy of a unit's answer.
struct Answer {
    bytes: [u8; ANSWER_BYTES],
    length: usize,
}

impl Answer {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

struct Probe<'a, T> {
    transport: &'a Rc<T>,
    lun: Lun,
}

impl<T: Transport> Probe<'_, T> {
    /// Sends a command; repeats it after UNIT ATTENTION.
    async fn ask(&self, name: &'static str, command: Command) -> Result<Answer, AttachError> {
        let mut attentions = 0;
        loop {
            let buffer = self.transport.buffer(ANSWER_BYTES)?;
            let reply = self.transport.execute(self.lun, &command.cdb(), Some(buffer)).await;
            let Reply { buffer, status, sense, moved } = reply;
            if status == Status::Good {
                let mut answer =
                    Answer { bytes: [0; ANSWER_BYTES], length: moved.min(ANSWER_BYTES) };
                if let Some(buffer) = buffer.filter(|buffer| buffer.bytes() >= answer.length) {
                    buffer.copy_out(0, &mut answer.bytes[..answer.length]);
                }
                return Ok(answer);
            }
            attentions += 1;
            if sense.key != Key::UnitAttention || attentions > ATTENTIONS_MAX {
                return Err(AttachError::Refused { command: name, status, sense });
            }
        }
    }

    /// Block Limits page, if the unit has it.
    async fn limits(&self) -> Option<Limits> {
        let command = Command::Inquiry { page: Some(page::BLOCK_LIMITS), allocation: 64 };
        let answer = self.ask("INQUIRY, block limits", command).await.ok()?;
        inquiry::parse_limits(answer.bytes())
    }

    /// Returns true if writes may stay in a cache, also if the unit does not report it.
    async fn write_cache(&self) -> bool {
        let command = Command::ModeSense(ModeSense {
            ten: false,
            long_lba: false,
            no_descriptor: true,
            control: PageControl::Current,
            page: mode::page::CACHING,
            subpage: 0,
            allocation: 192,
        });
        match self.ask("MODE SENSE(6)", command).await {
            Ok(answer) => mode::parse_write_cache(answer.bytes()).unwrap_or(true),
            Err(_) => true,
        }
    }
}

impl<T: Transport> BlockDevice for Disk<T> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.transport.buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.geometry.validate(lba, &into) {
            Ok(blocks) => blocks,
            Err(error) => return (into, Err(error)),
        };
        let command = Command::Read(Access::sixteen(lba, blocks, false));
        let (buffer, result) = self.perform(command, Some(lba), Some(into)).await;
        (buffer.expect("a transport gives buffers back"), result)
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.geometry.validate(lba, &from) {
            Ok(blocks) => blocks,
            Err(error) => return (from, Err(error)),
        };
        let command = Command::Write(Access::sixteen(lba, blocks, fua));
        let (buffer, result) = self.perform(command, Some(lba), Some(from)).await;
        (buffer.expect("a transport gives buffers back"), result)
    }

    fn flush(&self) -> impl Future<Output = Result<(), IoError>> {
        let all = Synchronize { form: Form::Sixteen, lba: Lba(0), blocks: 0 };
        async move { self.perform(Command::SynchronizeCache(all), None, None).await.1 }
    }

    fn deallocated(&self) -> Deallocated {
        self.deallocated
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        if self.deallocated == Deallocated::Unsupported {
            let why = "a unit that says it serves UNMAP";
            return Err(IoError::refused(Kind::Unsupported, lba, why));
        }
        self.geometry.validate_range(lba, u64::from(blocks))?;
        let (mut at, mut left) = (lba, blocks);
        while left > 0 {
            let blocks = left.min(self.unmap_max);
            let list = unmap::list(core::iter::once(unmap::Range { lba: at, blocks }));
            let buffer = self.transport.buffer(list.len());
            let buffer = buffer.map_err(|_| IoError::of(Kind::OutOfMemory, Some(at)))?;
            buffer.copy_in(0, list.as_slice());
            let command = Command::Unmap { list: list.len() as u16 };
            self.perform(command, Some(at), Some(buffer)).await.1?;
            (at, left) = (Lba(at.0 + u64::from(blocks)), left - blocks);
        }
        Ok(())
    }
}
