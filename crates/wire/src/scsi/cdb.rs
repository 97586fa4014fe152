//! Command descriptor blocks.

use super::sense::Field;
use crate::Lba;

/// Maximum length of a command descriptor block supported here, bytes.
pub const CDB_BYTES_MAX: usize = 16;

/// Operation codes (SPC-4, annex E).
pub mod opcode {
    /// TEST UNIT READY.
    pub const TEST_UNIT_READY: u8 = 0x00;
    /// REQUEST SENSE.
    pub const REQUEST_SENSE: u8 = 0x03;
    /// READ(6).
    pub const READ_6: u8 = 0x08;
    /// WRITE(6).
    pub const WRITE_6: u8 = 0x0a;
    /// INQUIRY.
    pub const INQUIRY: u8 = 0x12;
    /// MODE SENSE(6).
    pub const MODE_SENSE_6: u8 = 0x1a;
    /// START STOP UNIT.
    pub const START_STOP_UNIT: u8 = 0x1b;
    /// READ CAPACITY(10).
    pub const READ_CAPACITY_10: u8 = 0x25;
    /// READ(10).
    pub const READ_10: u8 = 0x28;
    /// WRITE(10).
    pub const WRITE_10: u8 = 0x2a;
    /// SYNCHRONIZE CACHE(10).
    pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    /// UNMAP.
    pub const UNMAP: u8 = 0x42;
    /// MODE SENSE(10).
    pub const MODE_SENSE_10: u8 = 0x5a;
    /// READ(16).
    pub const READ_16: u8 = 0x88;
    /// WRITE(16).
    pub const WRITE_16: u8 = 0x8a;
    /// SYNCHRONIZE CACHE(16).
    pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    /// SERVICE ACTION IN(16), which includes READ CAPACITY(16).
    pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
    /// REPORT LUNS.
    pub const REPORT_LUNS: u8 = 0xa0;
    /// READ(12).
    pub const READ_12: u8 = 0xa8;
    /// WRITE(12).
    pub const WRITE_12: u8 = 0xaa;
}

/// Service action of READ CAPACITY(16).
pub(super) const READ_CAPACITY_16: u8 = 0x10;

/// A valid command; the existence of its blocks and pages is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Checks that the unit can be read and written.
    TestUnitReady,
    /// Returns sense data, in descriptor or fixed format.
    RequestSense {
        /// DESC: descriptor format.
        descriptors: bool,
        /// ALLOCATION LENGTH, bytes.
        allocation: u8,
    },
    /// Returns standard INQUIRY data, or a page of vital product data.
    Inquiry {
        /// PAGE CODE, if EVPD is set.
        page: Option<u8>,
        /// ALLOCATION LENGTH, bytes.
        allocation: u16,
    },
    /// Returns mode pages.
    ModeSense(ModeSense),
    /// Starts or stops the unit.
    StartStop {
        /// START: the unit becomes ready.
        start: bool,
        /// NO_FLUSH: the cache is not flushed first.
        no_flush: bool,
    },
    /// Returns the last LBA and the block length, 32 bits each.
    ReadCapacity10,
    /// Returns the last LBA in 64 bits, the block length, and provisioning bits.
    ReadCapacity16 {
        /// ALLOCATION LENGTH, bytes.
        allocation: u32,
    },
    /// Reads blocks.
    Read(Access),
    /// Writes blocks.
    Write(Access),
    /// Makes data written to these blocks durable.
    SynchronizeCache(Synchronize),
    /// Unmaps ranges of blocks given in a list in the buffer.
    Unmap {
        /// PARAMETER LIST LENGTH, bytes.
        list: u16,
    },
    /// Returns the list of logical units.
    ReportLuns {
        /// SELECT REPORT.
        select: u8,
        /// ALLOCATION LENGTH, bytes.
        allocation: u32,
    },
}

/// Length of a command descriptor block, which determines its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 6 bytes: LBA of 21 bits, length of 8 bits, 0 for 256.
    Six,
    /// 10 bytes: LBA of 32 bits, length of 16 bits.
    Ten,
    /// 12 bytes: LBA of 32 bits, length of 32 bits.
    Twelve,
    /// 16 bytes: LBA of 64 bits, length of 32 bits.
    Sixteen,
}

/// Blocks of a read or a write (SBC-3, 5.11 to 5.14 and 5.37 to 5.40).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Length of the CDB.
    pub form: Form,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: Lba,
    /// TRANSFER LENGTH in blocks: 0 transfers no data, and is not an error.
    pub blocks: u32,
    /// DPO: disable page out, a hint not to cache these blocks.
    pub dpo: bool,
    /// FUA: force unit access.
    pub fua: bool,
}

/// Blocks of SYNCHRONIZE CACHE (SBC-3, 5.20 and 5.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synchronize {
    /// Length of the CDB: 10 or 16 bytes.
    pub form: Form,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: Lba,
    /// NUMBER OF LOGICAL BLOCKS; 0: up to the last one.
    pub blocks: u32,
}

/// Parameters of MODE SENSE (SPC-4, 6.13 and 6.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSense {
    /// True for MODE SENSE(10), whose header is longer.
    pub ten: bool,
    /// LLBAA: a block descriptor with 64-bit LBAs is accepted.
    pub long_lba: bool,
    /// DBD: disable block descriptors.
    pub no_descriptor: bool,
    /// PC: page control.
    pub control: PageControl,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// ALLOCATION LENGTH, bytes.
    pub allocation: u16,
}

/// PC: values of a mode page to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// Current values.
    Current,
    /// Mask of changeable bits.
    Changeable,
    /// Default values.
    Default,
    /// Saved values.
    Saved,
}

/// Error in a command descriptor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Unsupported operation code.
    Opcode,
    /// A field with an unsupported value, by its position.
    Field(Field),
    /// The block is shorter than its command.
    Short,
}

impl Access {
    /// An access by a command of 16 bytes, which can address all blocks.
    pub const fn sixteen(lba: Lba, blocks: u32, fua: bool) -> Access {
        Access { form: Form::Sixteen, lba, blocks, dpo: false, fua }
    }

    /// Position of the LBA in the block.
    pub const fn lba_field(&self) -> Field {
        lba_field(self.form)
    }

    /// Position of the length in the block.
    pub const fn length_field(&self) -> Field {
        Field::byte(match self.form {
            Form::Six => 4,
            Form::Ten => 7,
            Form::Twelve => 6,
            Form::Sixteen => 10,
        })
    }
}

impl Synchronize {
    /// Position of the LBA in the block.
    pub const fn lba_field(&self) -> Field {
        lba_field(self.form)
    }
}

const fn lba_field(form: Form) -> Field {
    match form {
        Form::Six => Field::bit(1, 4),
        _ => Field::byte(2),
    }
}

/// CDB length of an operation code (SPC-4, 4.3.4.1); `None` for a reserved or variable-length group.
const fn length(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}

/// CONTROL: normal ACA, which is not supported.
const NACA: u8 = 1 << 2;
/// Byte 1 of reads and writes from ten bytes on: RDPROTECT or WRPROTECT.
const PROTECT: u8 = 0b111 << 5;
const DPO: u8 = 1 << 4;
const FUA: u8 = 1 << 3;
/// Byte 1 of SYNCHRONIZE CACHE and START STOP UNIT.
const IMMED: u8 = 1 << 1;

/// Parses a command descriptor block; bytes beyond its end are ignored.
///
/// # Errors
/// The first invalid field.
pub fn parse(cdb: &[u8]) -> Result<Command, Invalid> {
    let opcode = *cdb.first().ok_or(Invalid::Short)?;
    let known = matches!(
        opcode,
        opcode::TEST_UNIT_READY
            | opcode::REQUEST_SENSE
            | opcode::READ_6
            | opcode::WRITE_6
            | opcode::INQUIRY
            | opcode::MODE_SENSE_6
            | opcode::START_STOP_UNIT
            | opcode::READ_CAPACITY_10
            | opcode::READ_10
            | opcode::WRITE_10
            | opcode::SYNCHRONIZE_CACHE_10
            | opcode::UNMAP
            | opcode::MODE_SENSE_10
            | opcode::READ_16
            | opcode::WRITE_16
            | opcode::SYNCHRONIZE_CACHE_16
            | opcode::SERVICE_ACTION_IN_16
            | opcode::REPORT_LUNS
            | opcode::READ_12
            | opcode::WRITE_12
    );
    let Some(length) = length(opcode).filter(|_| known) else { return Err(Invalid::Opcode) };
    let mut block = [0; CDB_BYTES_MAX];
    block[..length].copy_from_slice(cdb.get(..length).ok_or(Invalid::Short)?);
    if block[length - 1] & NACA != 0 {
        return Err(Invalid::Field(Field::bit(length as u8 - 1, 2)));
    }
    command(&block)
}

/// Decodes a block with a supported operation code, padded with zeros.
fn command(b: &[u8; CDB_BYTES_MAX]) -> Result<Command, Invalid> {
    let invalid = |field| Err(Invalid::Field(field));
    Ok(match b[0] {
        opcode::TEST_UNIT_READY => Command::TestUnitReady,
        opcode::REQUEST_SENSE => {
            Command::RequestSense { descriptors: b[1] & 1 != 0, allocation: b[4] }
        }
        opcode::INQUIRY => {
            let vital = b[1] & 1 != 0;
            // CMDDT is obsolete; a page code without EVPD is an error (SPC-4, 6.6.1).
            if b[1] & 2 != 0 {
                return invalid(Field::bit(1, 1));
            }
            if !vital && b[2] != 0 {
                return invalid(Field::byte(2));
            }
            Command::Inquiry { page: vital.then_some(b[2]), allocation: u16_at(b, 3) }
        }
        opcode::MODE_SENSE_6 => Command::ModeSense(mode_sense(b, u16::from(b[4]))),
        opcode::MODE_SENSE_10 => Command::ModeSense(mode_sense(b, u16_at(b, 7))),
        opcode::START_STOP_UNIT => return start_stop(b),
        opcode::READ_CAPACITY_10 => {
            // PMI is obsolete, and without it the LBA must be zero (translation, READ CAPACITY).
            if b[8] & 1 != 0 {
                return invalid(Field::bit(8, 0));
            }
            if u32_at(b, 2) != 0 {
                return invalid(Field::byte(2));
            }
            Command::ReadCapacity10
        }
        opcode::SERVICE_ACTION_IN_16 => {
            if b[1] & 0x1f != READ_CAPACITY_16 {
                return invalid(Field::bit(1, 4));
            }
            Command::ReadCapacity16 { allocation: u32_at(b, 10) }
        }
        opcode::SYNCHRONIZE_CACHE_10 => {
            synchronize(b, Form::Ten, u64::from(u32_at(b, 2)), u32::from(u16_at(b, 7)))?
        }
        opcode::SYNCHRONIZE_CACHE_16 => synchronize(b, Form::Sixteen, u64_at(b, 2), u32_at(b, 10))?,
        opcode::UNMAP => {
            // ANCHOR: no unit here supports anchored blocks (SBC-3, 4.7.4.5).
            if b[1] & 1 != 0 {
                return invalid(Field::bit(1, 0));
            }
            Command::Unmap { list: u16_at(b, 7) }
        }
        opcode::REPORT_LUNS => Command::ReportLuns { select: b[2], allocation: u32_at(b, 6) },
        opcode::READ_6 | opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => {
            Command::Read(access(b)?)
        }
        _ => Command::Write(access(b)?),
    })
}

fn access(b: &[u8; CDB_BYTES_MAX]) -> Result<Access, Invalid> {
    let (form, lba, blocks) = match b[0] >> 5 {
        0 => {
            let lba = u32_at(b, 0) & 0x001f_ffff;
            // The 6-byte form has neither protection nor caching bits.
            let blocks = if b[4] == 0 { 256 } else { u32::from(b[4]) };
            let lba = Lba(u64::from(lba));
            return Ok(Access { form: Form::Six, lba, blocks, dpo: false, fua: false });
        }
        1 => (Form::Ten, u64::from(u32_at(b, 2)), u32::from(u16_at(b, 7))),
        5 => (Form::Twelve, u64::from(u32_at(b, 2)), u32_at(b, 6)),
        _ => (Form::Sixteen, u64_at(b, 2), u32_at(b, 10)),
    };
    // No unit here has protection information (SBC-3, 4.21).
    if b[1] & PROTECT != 0 {
        return Err(Invalid::Field(Field::bit(1, 7)));
    }
    let (dpo, fua) = (b[1] & DPO != 0, b[1] & FUA != 0);
    Ok(Access { form, lba: Lba(lba), blocks, dpo, fua })
}

/// IMMED is rejected: with status before the cache is flushed, a later error could not be reported.
fn synchronize(b: &[u8], form: Form, lba: u64, blocks: u32) -> Result<Command, Invalid> {
    if b[1] & IMMED != 0 {
        return Err(Invalid::Field(Field::bit(1, 1)));
    }
    Ok(Command::SynchronizeCache(Synchronize { form, lba: Lba(lba), blocks }))
}

/// POWER CONDITION and LOEJ are rejected: no unit here supports them.
fn start_stop(b: &[u8]) -> Result<Command, Invalid> {
    if b[4] & 0xf0 != 0 {
        return Err(Invalid::Field(Field::bit(4, 7)));
    }
    if b[4] & 2 != 0 {
        return Err(Invalid::Field(Field::bit(4, 1)));
    }
    // Both are complete before status is sent: IMMED only permits earlier status, and may be ignored.
    Ok(Command::StartStop { start: b[4] & 1 != 0, no_flush: b[4] & 4 != 0 })
}

fn mode_sense(b: &[u8], allocation: u16) -> ModeSense {
    let control = match b[2] >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => PageControl::Saved,
    };
    let ten = b[0] == opcode::MODE_SENSE_10;
    ModeSense {
        ten,
        long_lba: ten && b[1] & 0x10 != 0,
        no_descriptor: b[1] & 8 != 0,
        control,
        page: b[2] & 0x3f,
        subpage: b[3],
        allocation,
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}

/// An encoded command descriptor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; CDB_BYTES_MAX],
    length: u8,
}

impl Cdb {
    fn new(opcode: u8) -> Cdb {
        let mut bytes = [0; CDB_BYTES_MAX];
        bytes[0] = opcode;
        Cdb { bytes, length: length(opcode).unwrap_or(CDB_BYTES_MAX) as u8 }
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Cdb {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Bytes of the block.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Command {
    /// Encodes the command. Bits that do not fit into its form are cut off.
    pub fn cdb(&self) -> Cdb {
        match *self {
            Command::TestUnitReady => Cdb::new(opcode::TEST_UNIT_READY),
            Command::RequestSense { descriptors, allocation } => Cdb::new(opcode::REQUEST_SENSE)
                .with(1, &[u8::from(descriptors)])
                .with(4, &[allocation]),
            Command::Inquiry { page, allocation } => Cdb::new(opcode::INQUIRY)
                .with(1, &[u8::from(page.is_some()), page.unwrap_or(0)])
                .with(3, &allocation.to_be_bytes()),
            Command::ModeSense(asked) => asked.cdb(),
            Command::StartStop { start, no_flush } => Cdb::new(opcode::START_STOP_UNIT)
                .with(4, &[u8::from(start) | u8::from(no_flush) << 2]),
            Command::ReadCapacity10 => Cdb::new(opcode::READ_CAPACITY_10),
            Command::ReadCapacity16 { allocation } => Cdb::new(opcode::SERVICE_ACTION_IN_16)
                .with(1, &[READ_CAPACITY_16])
                .with(10, &allocation.to_be_bytes()),
            Command::Read(access) => access.cdb(0),
            // Operation codes of writes are those of reads plus two.
            Command::Write(access) => access.cdb(2),
            Command::SynchronizeCache(Synchronize { form, lba, blocks }) => {
                if form == Form::Sixteen {
                    let cdb = Cdb::new(opcode::SYNCHRONIZE_CACHE_16);
                    cdb.with(2, &lba.0.to_be_bytes()).with(10, &blocks.to_be_bytes())
                } else {
                    let cdb = Cdb::new(opcode::SYNCHRONIZE_CACHE_10);
                    cdb.with(2, &(lba.0 as u32).to_be_bytes())
                        .with(7, &(blocks as u16).to_be_bytes())
                }
            }
            Command::Unmap { list } => Cdb::new(opcode::UNMAP).with(7, &list.to_be_bytes()),
            Command::ReportLuns { select, allocation } => {
                Cdb::new(opcode::REPORT_LUNS).with(2, &[select]).with(6, &allocation.to_be_bytes())
            }
        }
    }
}

impl ModeSense {
    fn cdb(&self) -> Cdb {
        let flags = u8::from(self.no_descriptor) << 3 | u8::from(self.long_lba) << 4;
        let pages = [flags, (self.control as u8) << 6 | self.page, self.subpage];
        match self.ten {
            false => {
                Cdb::new(opcode::MODE_SENSE_6).with(1, &pages).with(4, &[self.allocation as u8])
            }
            true => Cdb::new(opcode::MODE_SENSE_10)
                .with(1, &pages)
                .with(7, &self.allocation.to_be_bytes()),
        }
    }
}

impl Access {
    fn cdb(&self, code: u8) -> Cdb {
        let (lba, blocks) = (self.lba.0, self.blocks);
        let flags = u8::from(self.dpo) << 4 | u8::from(self.fua) << 3;
        match self.form {
            Form::Six => {
                let [_, top, rest @ ..] = (lba as u32).to_be_bytes();
                Cdb::new(opcode::READ_6 + code)
                    .with(1, &[top & 0x1f, rest[0], rest[1], blocks as u8])
            }
            Form::Ten => Cdb::new(opcode::READ_10 + code)
                .with(1, &[flags])
                .with(2, &(lba as u32).to_be_bytes())
                .with(7, &(blocks as u16).to_be_bytes()),
            Form::Twelve => Cdb::new(opcode::READ_12 + code)
                .with(1, &[flags])
                .with(2, &(lba as u32).to_be_bytes())
                .with(6, &blocks.to_be_bytes()),
            Form::Sixteen => Cdb::new(opcode::READ_16 + code)
                .with(1, &[flags])
                .with(2, &lba.to_be_bytes())
                .with(10, &blocks.to_be_bytes()),
        }
    }
}
