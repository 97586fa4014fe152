//! Requests of 32 bytes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Refusal;
use crate::nvme::opcode::io::{FLUSH, READ, WRITE};

/// Maximum transfer of one request, bytes.
pub const SIZE_MAX: u32 = 1 << 20;

/// Returns true if `bytes` is a valid block size of an engine: each command then needs PRP1 and PRP2 only.
pub const fn is_block_size(bytes: u32) -> bool {
    matches!(bytes, 512 | 1024 | 2048 | 4096 | 8192)
}

/// A request as it is in memory, or in the registers of an engine in hardware.
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
    /// Reserved; zero.
    pub reserved: u8,
    /// Tag chosen by the caller; the response carries it back.
    pub tag: U16,
    /// Handle number.
    pub fp_id: U16,
    /// Generation of the handle: use count of its number.
    pub generation: U16,
    /// Offset in the handle's area, bytes: a multiple of the LBA size.
    pub offset: U64,
    /// Length in bytes: a multiple of `block_size`; zero for a flush.
    pub size: U32,
    /// Bytes moved by each NVMe command: see [`is_block_size`].
    pub block_size: U32,
    /// Offset in the handle's buffer, bytes: a multiple of the block size.
    pub buffer_offset: U64,
}

crate::nvme::layout!(Request, 32, {
    opcode @ 0, reserved @ 1, tag @ 2, fp_id @ 4, generation @ 6, offset @ 8, size @ 16, block_size @ 20,
    buffer_offset @ 24,
});

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the drive into the buffer.
    Read,
    /// From the buffer to the drive.
    Write,
}

/// A transfer by offsets; the table of handles holds the area and the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Direction.
    pub direction: Direction,
    /// Offset in the area, bytes.
    pub offset: u64,
    /// Length in bytes: a multiple of `block_size`, at most [`SIZE_MAX`].
    pub size: u32,
    /// Bytes of each NVMe command.
    pub block_size: u32,
    /// Offset in the buffer, bytes: a multiple of `block_size`.
    pub buffer_offset: u64,
}

impl Transfer {
    /// Number of NVMe commands.
    pub const fn commands(&self) -> u32 {
        self.size / self.block_size
    }
}

/// Operation of a request, as far as it is known without the table of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Makes written data durable.
    Flush,
    /// Moves data.
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

    /// Decodes the operation, for a drive with LBAs of `lba_bytes` bytes, or returns an error that does not
    /// depend on the table of handles. Of a flush, only the size is checked.
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
