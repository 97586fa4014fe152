//! What is on the wire: registers, the request, the status word.

use ::wire::{BusAddr, Lba};

/// Mailboxes that a device has.
pub const MAILBOXES: u16 = 8;
/// The longest transfer of one request, bytes.
pub const TRANSFER_BYTES_MAX: u32 = 128 * 1024;

/// Capacity in blocks, two words; set by the device.
pub const BLOCKS: u32 = 0x00;
/// Bytes of a block; set by the device.
pub const BLOCK_BYTES: u32 = 0x08;
/// Where the mailboxes lie in host memory, two words; set by the host.
pub const BASE: u32 = 0x10;
/// The first mailbox's bell; the others follow. The host rings with the number of its request.
pub const BELLS: u32 = 0x20;
/// The register window, bytes.
pub const REGISTER_BYTES: u32 = 4096;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 32;
/// Where in its mailbox the status word is: apart from what the host writes.
pub const STATUS_AT: u64 = 64;
/// From one mailbox to the next, bytes.
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

    /// None if the direction is none.
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

/// The status word: which request, and how it ended.
pub fn status_word(number: u32, status: Status) -> u32 {
    number << 2 | status as u32
}

/// What a status word says of this request; none if it is about another.
pub fn status_of(word: u32, number: u32) -> Option<Status> {
    let here = word >> 2 == number & (u32::MAX >> 2);
    here.then_some(match word & 3 {
        0 => Status::Done,
        1 => Status::Refused,
        _ => Status::Failed,
    })
}
