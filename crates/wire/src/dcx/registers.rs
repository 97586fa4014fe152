//! Register block: capabilities of the device, and one group of registers for each queue.

use bitfield_struct::bitfield;

/// First word of the block: the ASCII letters `DCX1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"DCX1");

/// Offset of the word that holds [`MAGIC`].
pub const ID: u32 = 0x00;
/// Offset of [`Limits`].
pub const LIMITS: u32 = 0x04;
/// Offset of [`Grain`].
pub const GRAIN: u32 = 0x08;

/// Offset of the group of queue 0; a group has [`GROUP_BYTES`].
const GROUPS: u32 = 0x40;
/// Bytes of a queue's group.
const GROUP_BYTES: u32 = 0x40;

/// Length of a register block for `queues` queues, bytes.
pub const fn block_bytes(queues: u32) -> u32 {
    GROUPS + queues * GROUP_BYTES
}

/// Registers of one queue, as offsets in the block. An address takes two words, the low one first.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The command ring's address.
    pub commands: u32,
    /// The report ring's address.
    pub reports: u32,
    /// The notice's address.
    pub notice: u32,
    /// [`Shape`].
    pub shape: u32,
    /// [`Control`]. The host writes it last.
    pub control: u32,
    /// [`Status`]. Written by the device only.
    pub status: u32,
    /// The number of the newest command, for a device that sleeps.
    pub doorbell: u32,
}

impl Group {
    /// The register group of the given queue, in a register block at the offset `block`.
    pub const fn of(block: u32, queue: u32) -> Group {
        let at = block + GROUPS + queue * GROUP_BYTES;
        Group {
            commands: at,
            reports: at + 0x08,
            notice: at + 0x10,
            shape: at + 0x18,
            control: at + 0x1c,
            status: at + 0x20,
            doorbell: at + 0x24,
        }
    }
}

/// Limits of the device.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Limits {
    /// Queues.
    #[bits(8)]
    pub queues: u8,
    /// Maximum number of entries in a command ring, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    /// Maximum transfer of one command, as a power of two, bytes.
    #[bits(8)]
    pub transfer_log2: u8,
    /// The size of a block, as a power of two, bytes.
    #[bits(8)]
    pub block_log2: u8,
}

/// Granules and tags of the device.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Grain {
    /// Granule of the device's tag, bytes: no whole granule of its blocks ends with the tag. Zero: the device
    /// chooses no tags.
    #[bits(16)]
    pub bytes: u16,
    /// Bits of its tag above 32.
    #[bits(8)]
    pub more_bits: u8,
    /// The size of a packet, as a power of two, bytes, for a device whose writes may overtake one another on
    /// any link. Each piece of that size lands at once if the buffer begins at a multiple of it; else the
    /// device stores the last word of the transfer behind all others. Zero: as the link delivers them.
    /// Constant while the device lives.
    #[bits(8)]
    pub packet_log2: u8,
}

/// Packets that a device may ask for, as powers of two: those that [`crate::pcie::Pieces`] cuts.
pub const PACKET_LOG2: core::ops::RangeInclusive<u8> = 7..=12;

/// Shape of a queue.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Shape {
    /// Entries of the command ring, as a power of two; the report ring has as many.
    #[bits(8)]
    pub entries_log2: u8,
    /// The size of a packet, as a power of two, bytes: the device ends its writes to host memory where
    /// [`crate::pcie::Pieces`] cuts them, and the host has a tag at the end of each piece. Zero: there
    /// is one tag, at the end of the whole transfer, and the device's writes may not overtake one
    /// another.
    #[bits(8)]
    pub packet_log2: u8,
    /// The interrupt vector.
    #[bits(16)]
    pub vector: u16,
}

/// Control register of a queue, written by the host.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Enables the queue.
    pub enable: bool,
    /// Allows the device to stop polling while idle, which it reports in the notice.
    pub may_sleep: bool,
    /// Enables interrupts: the device signals the vector after each write that ends a command.
    pub signals: bool,
    #[bits(29)]
    __: u32,
}

/// Status register of a queue, written by the device.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// The queue is in use. When this is cleared after [`Control::enable`], no write for the queue reaches
    /// host memory any more.
    pub ready: bool,
    /// The registers are invalid, or name memory that does not exist.
    pub fault: bool,
    #[bits(30)]
    __: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dcx_register_groups_do_not_overlap() {
        let (first, second) = (Group::of(0x2000, 0), Group::of(0x2000, 1));
        assert_eq!(first.commands, 0x2040);
        assert!(first.doorbell + 4 <= second.commands);
        assert!(second.doorbell + 4 <= 0x2000 + block_bytes(2));
    }
}
