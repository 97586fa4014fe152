//! Wire format: registers, request, status word.

use ::wire::{BusAddr, Lba};

/// Number of mailboxes of a device.
pub const MAILBOXES: u16 = 8;
/// Maximum transfer of one request, bytes.
pub const TRANSFER_BYTES_MAX: u32 = 128 * 1024;

/// Register: capacity in blocks, two words, set by the device.
pub const BLOCKS: u32 = 0x00;
/// Register: block size in bytes, set by the device.
pub const BLOCK_BYTES: u32 = 0x08;
/// Register: bus address of the mailboxes in host memory, two words, set by the host.
pub const BASE: u32 = 0x10;
/// Doorbell register of the first mailbox; the others follow at 4-byte steps. The host writes its request
/// number.
pub const BELLS: u32 = 0x20;
/// Size of the register window, bytes.
pub const REGISTER_BYTES: u32 = 4096;

/// Size of a request, bytes.
pub const REQUEST_BYTES: usize = 32;
/// Offset of the status word in its mailbox, bytes: in another cache line than the request.
pub const STATUS_AT: u64 = 64;
/// Distance between mailboxes, bytes.
pub const STRIDE: u64 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub direction: Direction,
    pub lba: Lba,
    pub blocks: u32,
    pub buffer: BusAddr,
}

impl Request {
    pub fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..8].copy_from_slice(&self.lba.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.buffer.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.direction as u32).to_le_bytes());
        bytes
    }

    /// `None` if the direction is invalid.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a word"));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let direction = match word(20) {
            0 => Direction::Read,
            1 => Direction::Write,
            2 => Direction::Flush,
            _ => return None,
        };
        let (lba, buffer) = (Lba(long(0)), BusAddr(long(8)));
        Some(Request { direction, lba, blocks: word(16), buffer })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Done = 0,
    Refused = 1,
    Failed = 2,
}

/// Encodes a status word: request number and status.
pub fn status_word(number: u32, status: Status) -> u32 {
    number << 2 | status as u32
}

/// Decodes the status of request `number`; `None` if the word is of another request.
pub fn status_of(word: u32, number: u32) -> Option<Status> {
    let here = word >> 2 == number & (u32::MAX >> 2);
    here.then_some(match word & 3 {
        0 => Status::Done,
        1 => Status::Refused,
        _ => Status::Failed,
    })
}
