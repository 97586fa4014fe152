//! The 32 bytes of a request.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Refusal;
use crate::nvme::opcode::io::{FLUSH, READ, WRITE};

/// The longest transfer of one request, in bytes.
pub const SIZE_MAX: u32 = 1 << 20;

/// Whether an engine cuts requests into commands of so many bytes: so that PRP1 and PRP2 suffice for each.
pub const fn is_block_size(bytes: u32) -> bool {
    matches!(bytes, 512 | 1024 | 2048 | 4096 | 8192)
}

/// A request as it lies in memory, or in the registers of an engine in hardware.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Request {
    /// The NVM command set's opcode: flush, write or read.
    pub opcode: u8,
    /// Zero.
    pub reserved: u8,
    /// The caller's number for it; the response carries it back.
    pub tag: U16,
    /// The handle.
    pub fp_id: U16,
    /// Which use of the handle's number is meant.
    pub generation: U16,
    /// Where in the handle's area, in bytes: whole LBAs.
    pub offset: U64,
    /// How many bytes: whole blocks, and zero for a flush.
    pub size: U32,
    /// How many bytes each NVMe command moves: see [`is_block_size`].
    pub block_size: U32,
    /// Where in the handle's buffer, in bytes: a multiple of the block size.
    pub buffer_offset: U64,
}

crate::nvme::layout!(Request, 32, {
    opcode @ 0, reserved @ 1, tag @ 2, fp_id @ 4, generation @ 6, offset @ 8, size @ 16, block_size @ 20,
    buffer_offset @ 24,
});

/// Which way data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the drive into the buffer.
    Read,
    /// From the buffer to the drive.
    Write,
}

/// Data to move. It lies nowhere yet: the table of handles says where its area and its buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Where in the area, bytes.
    pub offset: u64,
    /// Bytes: a multiple of `block_size`, at most [`SIZE_MAX`].
    pub size: u32,
    /// Bytes of each command.
    pub block_size: u32,
    /// Where in the buffer, bytes: a multiple of `block_size`.
    pub buffer_offset: u64,
}

impl Transfer {
    /// How many NVMe commands it is.
    pub const fn commands(&self) -> u32 {
        self.size / self.block_size
    }
}

/// What is asked for, as far as a request says it without a table of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Make durable what was written.
    Flush,
    /// Move data.
    Transfer(Transfer),
}

impl Request {
    /// A read or write.
    pub fn transfer(tag: u16, fp_id: u16, generation: u16, transfer: &Transfer) -> Request {
        Request {
            opcode: match transfer.direction {
                Direction::Read => READ,
                Direction::Write => WRITE,
            },
            tag: tag.into(),
            fp_id: fp_id.into(),
            generation: generation.into(),
            offset: transfer.offset.into(),
            size: transfer.size.into(),
            block_size: transfer.block_size.into(),
            buffer_offset: transfer.buffer_offset.into(),
            ..Request::default()
        }
    }

    /// A flush.
    pub fn flush(tag: u16, fp_id: u16, generation: u16) -> Request {
        Request {
            opcode: FLUSH,
            tag: tag.into(),
            fp_id: fp_id.into(),
            generation: generation.into(),
            ..Request::default()
        }
    }

    /// What it asks for on a drive with LBAs of `lba_bytes` bytes, or why it makes no sense whatever the
    /// table of handles says. Of a flush, only the size is looked at.
    ///
    /// # Errors
    /// [`Refusal::Opcode`] or [`Refusal::Size`].
    pub fn parse(&self, lba_bytes: u32) -> Result<Work, Refusal> {
        if self.reserved != 0 {
            return Err(Refusal::Opcode);
        }
        let direction = match self.opcode {
            FLUSH if self.size.get() == 0 => return Ok(Work::Flush),
            FLUSH => return Err(Refusal::Size),
            READ => Direction::Read,
            WRITE => Direction::Write,
            _ => return Err(Refusal::Opcode),
        };
        let transfer = Transfer {
            direction,
            offset: self.offset.get(),
            size: self.size.get(),
            block_size: self.block_size.get(),
            buffer_offset: self.buffer_offset.get(),
        };
        let block = transfer.block_size;
        let sense = is_block_size(block)
            && block.is_multiple_of(lba_bytes)
            && (1..=SIZE_MAX).contains(&transfer.size)
            && transfer.size.is_multiple_of(block)
            && transfer.offset.is_multiple_of(u64::from(lba_bytes))
            && transfer.buffer_offset.is_multiple_of(u64::from(block));
        if sense { Ok(Work::Transfer(transfer)) } else { Err(Refusal::Size) }
    }
}
