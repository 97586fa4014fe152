//! The registers: what the device is, where the ring lies, and which block is the device's.

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
/// Offset of the time in which the medium yields the first byte of a page, ns.
pub const READ_NS: u32 = 0x14;
/// Offset of the time in which the medium takes a page, ns.
pub const WRITE_NS: u32 = 0x18;
/// Offset of the ring's address, low word first. Host: before it enables.
pub const RING: u32 = 0x20;
/// Offset of [`Shape`]. Host: before it enables.
pub const SHAPE: u32 = 0x28;
/// Offset of [`Control`]. Host.
pub const CONTROL: u32 = 0x2c;
/// Offset of [`Status`]. The device alone writes it.
pub const STATUS: u32 = 0x30;
/// Offset of the count of the first descriptor of the block that is announced. Host: before [`BLOCK`], and
/// for the first block before it enables.
pub const OFFSET: u32 = 0x38;
/// Offset of [`Block`]. Host: writing it announces a block.
pub const BLOCK: u32 = 0x3c;

/// The length of the register block, bytes.
pub const BLOCK_BYTES: u32 = 0x40;

/// What the device can hold.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Limits {
    /// The most descriptors of a ring, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    /// The most descriptors of a block, which is how many commands it works on at once.
    #[bits(8)]
    pub block_max: u8,
    /// Descriptors that are returned together, counted from the block's first: 1, each by itself; as many
    /// as a block may have, the whole block.
    #[bits(8)]
    pub group: u8,
    /// Descriptors behind the block in flight that it may take before they are announced.
    #[bits(8)]
    pub ahead: u8,
}

/// What its medium is.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Medium {
    /// The size of a block, as a power of two, bytes.
    #[bits(8)]
    pub block_log2: u8,
    /// Channels, 255 for that and more.
    #[bits(8)]
    pub channels: u8,
    /// What it is made of: 0, not said; 1, DRAM; 2, phase change memory; 3, NAND flash.
    #[bits(8)]
    pub technology: u8,
    #[bits(8)]
    __: u8,
}

/// What a ring is.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Shape {
    /// Its descriptors, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    #[bits(8)]
    __: u8,
    /// The interrupt vector.
    #[bits(16)]
    pub vector: u16,
}

/// What the host wants.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// The device works on the ring.
    pub enable: bool,
    /// The device signals the vector behind whatever it returns.
    pub signals: bool,
    #[bits(30)]
    __: u32,
}

/// How the device is.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// It works on the ring. When this is cleared after [`Control::enable`] was, nothing of the ring
    /// reaches host memory any more.
    pub ready: bool,
    #[bits(7)]
    __: u8,
    /// What the host has done wrong, if the device has stopped over it: a [`Violation`].
    #[bits(8)]
    pub violation: u8,
    /// The low half of the count of the descriptor that it is about.
    #[bits(16)]
    pub count: u16,
}

/// An announced block.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Block {
    /// Descriptors.
    #[bits(16)]
    pub size: u16,
    /// Which block it is, counted from 1 since the ring was enabled, so that two of one size differ.
    #[bits(16)]
    pub turn: u16,
}

/// What a host has done wrong. The number goes into [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The registers make no sense, or name memory that is not there.
    Registers = 1,
    /// No descriptors, more than a block may have, or more than are left of the ring.
    Size = 2,
    /// The block does not begin where the last one ended.
    Offset = 3,
    /// A block was announced while another was in flight, or one was left out.
    Turn = 4,
    /// A descriptor of the block is not the device's.
    Owner = 5,
    /// A descriptor of the block is of an earlier use of its place.
    Count = 6,
    /// The ring cannot be reached any more.
    Unreachable = 7,
}

impl Violation {
    /// The violation of this number.
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
    fn a_violation_is_its_number() {
        for bits in 0..=255 {
            let number = Violation::from_bits(bits).map(|violation| violation as u8);
            assert_eq!(number, (1..=7).contains(&bits).then_some(bits));
        }
        let block = Block::new().with_size(32).with_turn(0xffff);
        assert_eq!(block.into_bits(), 0xffff_0020);
    }
}
