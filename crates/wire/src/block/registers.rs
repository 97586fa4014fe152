//! Registers: properties of the device, address of the ring, and the block owned by the device.

use bitfield_struct::bitfield;

/// The word at [`ID`]: the ASCII letters `ADB1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"ADB1");

/// Offset of the word that holds [`MAGIC`].
pub const ID: u32 = 0x00;
/// Offset of [`Limits`].
pub const LIMITS: u32 = 0x04;
/// Offset of the capacity in blocks of the medium, low word first.
pub const CAPACITY: u32 = 0x08;
/// Offset of [`Medium`].
pub const MEDIUM: u32 = 0x10;
/// Offset of the time from the start of a page read to its first byte, ns.
pub const READ_NS: u32 = 0x14;
/// Offset of the write time of a page, ns.
pub const WRITE_NS: u32 = 0x18;
/// Offset of the ring's address, low word first. Host: before it enables.
pub const RING: u32 = 0x20;
/// Offset of [`Shape`]. Host: before it enables.
pub const SHAPE: u32 = 0x28;
/// Offset of [`Control`]. Host.
pub const CONTROL: u32 = 0x2c;
/// Offset of [`Status`]. Written by the device only.
pub const STATUS: u32 = 0x30;
/// Offset of the count of the first descriptor of the announced block. Host: before [`BLOCK`], and for the
/// first block before enabling.
pub const OFFSET: u32 = ANNOUNCEMENT;
/// Offset of [`Block`]. Host: a write announces a block.
pub const BLOCK: u32 = ANNOUNCEMENT + 4;

/// Offset of the registers that announce blocks. They have a page of their own, which a host may map without
/// reaching the others.
pub const ANNOUNCEMENT: u32 = 0x1000;

/// The length of all registers, bytes.
pub const BLOCK_BYTES: u32 = ANNOUNCEMENT + 8;

/// Limits of the device.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of descriptors in a ring, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    /// Maximum number of descriptors in a block, all executed concurrently.
    #[bits(8)]
    pub block_max: u8,
    /// Number of descriptors returned together, counted from the first of the block: 1 returns each by
    /// itself, the maximum of a block the whole block.
    #[bits(8)]
    pub group: u8,
    /// Number of descriptors behind the block in flight that the device may fetch before they are
    /// announced.
    #[bits(8)]
    pub ahead: u8,
}

/// Properties of the medium.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Medium {
    /// The size of a block, as a power of two, bytes.
    #[bits(8)]
    pub block_log2: u8,
    /// Channels; 255 means 255 or more.
    #[bits(8)]
    pub channels: u8,
    /// Technology: 0, unspecified; 1, DRAM; 2, phase change memory; 3, NAND flash; 4, rotating disks.
    #[bits(8)]
    pub technology: u8,
    #[bits(8)]
    __: u8,
}

/// Shape of the ring.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Shape {
    /// Number of descriptors, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    #[bits(8)]
    __: u8,
    /// The interrupt vector.
    #[bits(16)]
    pub vector: u16,
}

/// Control register, written by the host.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Enables the ring.
    pub enable: bool,
    /// Enables interrupts: the device signals the vector after each return of descriptors.
    pub signals: bool,
    #[bits(30)]
    __: u32,
}

/// Status register, written by the device.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// The ring is in use. When this is cleared after [`Control::enable`], no write for the ring reaches
    /// host memory any more.
    pub ready: bool,
    #[bits(7)]
    __: u8,
    /// The [`Violation`] of the host over which the device has stopped; 0 if none.
    #[bits(8)]
    pub violation: u8,
    /// Low half of the count of the descriptor concerned.
    #[bits(16)]
    pub count: u16,
}

/// An announced block.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Block {
    /// Number of descriptors.
    #[bits(16)]
    pub size: u16,
    /// Block number, counted from 1 since the ring was enabled, so that two blocks of one size differ.
    #[bits(16)]
    pub turn: u16,
}

/// Protocol violation by the host, as numbered in [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Registers are invalid, or name memory that does not exist.
    Registers = 1,
    /// The block has no descriptors, more than the limit, or more than are left in the ring.
    Size = 2,
    /// The block does not begin where the last one ended.
    Offset = 3,
    /// A block was announced while another was in flight, or one was left out.
    Turn = 4,
    /// A descriptor of the block is not owned by the device.
    Owner = 5,
    /// A descriptor of the block has the count of an earlier use of its entry.
    Count = 6,
    /// The ring is no longer accessible.
    Unreachable = 7,
}

impl Violation {
    /// The violation with the given number.
    pub const fn from_bits(bits: u8) -> Option<Violation> {
        Some(match bits {
            1 => Violation::Registers,
            2 => Violation::Size,
            3 => Violation::Offset,
            4 => Violation::Turn,
            5 => Violation::Owner,
            6 => Violation::Count,
            7 => Violation::Unreachable,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_round_trips_through_number() {
        for bits in 0..=255 {
            let number = Violation::from_bits(bits).map(|violation| violation as u8);
            assert_eq!(number, (1..=7).contains(&bits).then_some(bits));
        }
        let block = Block::new().with_size(32).with_turn(0xffff);
        assert_eq!(block.into_bits(), 0xffff_0020);
    }
}
