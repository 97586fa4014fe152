//! Registers of an endpoint: geometry of its flash, addresses of its rings, and the host's tail.

use bitfield_struct::bitfield;

/// The word at [`ID`]: the ASCII letters `DPG1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"DPG1");

/// Stride of the registers of endpoints, bytes: endpoints behind one switch share a window.
pub const STRIDE: u32 = 0x100;

/// Offset of the word that holds [`MAGIC`].
pub const ID: u32 = 0x00;
/// Offset of [`Limits`].
pub const LIMITS: u32 = 0x04;
/// Offset of [`Endpoint`].
pub const ENDPOINT: u32 = 0x08;
/// Offset of [`Shape::dies`], over all endpoints.
pub const DIES: u32 = 0x10;
/// Offset of [`Shape::planes`].
pub const PLANES: u32 = 0x14;
/// Offset of [`Shape::blocks`].
pub const BLOCKS: u32 = 0x18;
/// Offset of [`Shape::pages`].
pub const PAGES: u32 = 0x1c;
/// Offset of [`Shape::group`].
pub const GROUP: u32 = 0x20;
/// Offset of [`Shape::units`].
pub const UNITS: u32 = 0x24;
/// Offset of [`Shape::unit_bytes`].
pub const UNIT_BYTES: u32 = 0x28;
/// Offset of [`Shape::reach`].
pub const REACH: u32 = 0x2c;
/// Offset of the address of the command ring, low word first. Host: before enabling.
pub const RING: u32 = 0x30;
/// Offset of the address of the answer ring, low word first. Host: before enabling.
pub const ANSWERS: u32 = 0x38;
/// Offset of the number of entries of each ring, as a power of two. Host: before enabling.
pub const RINGS: u32 = 0x40;
/// Offset of [`Control`]. Host.
pub const CONTROL: u32 = 0x44;
/// Offset of [`State`]. Written by the endpoint only.
pub const STATUS: u32 = 0x48;
/// Offset of the number of commands written so far, which wraps. Host: a write submits them.
pub const TAIL: u32 = 0x50;
/// Bytes of an endpoint's registers in use.
pub const ROW: u32 = 0x54;

/// Maximum number of endpoints behind one switch: one interrupt vector each.
pub const ENDPOINTS_MAX: u32 = 16;
/// Maximum number of dies.
pub const DIES_MAX: u32 = 1 << 16;
/// Maximum number of entries in a ring, as a power of two.
pub const ENTRIES_LOG2_MAX: u8 = 10;

/// Limits of an endpoint.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries in a ring, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    #[bits(24)]
    __: u32,
}

/// Identity of an endpoint.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Endpoint {
    /// Endpoint number: it has the dies whose number modulo `of` is this.
    #[bits(8)]
    pub number: u8,
    /// Number of endpoints.
    #[bits(8)]
    pub of: u8,
    #[bits(16)]
    __: u16,
}

/// Control register, written by the host.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Enables the rings.
    pub enable: bool,
    /// Enables interrupts: the endpoint signals the vector of its own number after each answer.
    pub signals: bool,
    #[bits(30)]
    __: u32,
}

/// State register, written by the endpoint.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct State {
    /// The rings are in use. When this is cleared after [`Control::enable`], no write for the rings reaches
    /// host memory any more.
    pub ready: bool,
    /// The host has violated the protocol: invalid registers, a count past the ring, or rings or answers
    /// outside its memory. The endpoint is stopped until the host disables it.
    pub broken: bool,
    #[bits(30)]
    __: u32,
}

/// Flash geometry as the flash software sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Dies, over all endpoints. Dies with adjacent numbers share as little as possible: numbering goes
    /// round the channels first.
    pub dies: u32,
    /// Planes per die, at most 32.
    pub planes: u32,
    /// Blocks per plane, good and bad.
    pub blocks: u32,
    /// Pages per block, a multiple of `group`.
    pub pages: u32,
    /// Pages per block that one operation programs.
    pub group: u32,
    /// Mapping units per page, at most 32.
    pub units: u32,
    /// Bytes per mapping unit, a power of two.
    pub unit_bytes: u32,
    /// Number of later rows of a block whose interrupted program may damage a row, as when the pages of a
    /// word line are programmed one by one. 0: a row is safe once programmed.
    pub reach: u32,
}

impl Shape {
    /// True if the values are valid.
    pub fn is_sense(&self) -> bool {
        let Shape { dies, planes, blocks, pages, group, units, unit_bytes, reach } = *self;
        (1..=DIES_MAX).contains(&dies)
            && (1..=32).contains(&planes)
            && (1..=1 << 20).contains(&blocks)
            && (1..=1 << 20).contains(&pages)
            && (1..=64).contains(&group)
            && pages.is_multiple_of(group)
            && reach <= pages
            && (1..=32).contains(&units)
            && unit_bytes.is_power_of_two()
            && (512..=1 << 16).contains(&unit_bytes)
            // The item list of a program fits into a page's buffer.
            && planes * group * 16 <= unit_bytes
    }

    /// Rows per block.
    pub fn rows(&self) -> u32 {
        self.pages / self.group
    }

    /// Number of mapping units, good and bad.
    pub fn all_units(&self) -> u64 {
        u64::from(self.dies * self.planes)
            * u64::from(self.blocks)
            * u64::from(self.pages * self.units)
    }

    /// Mapping units of a row over these planes.
    pub fn row_units(&self, planes: u32) -> u32 {
        planes.count_ones() * self.group * self.units
    }

    /// Mask of all planes.
    pub fn all_planes(&self) -> u32 {
        u32::MAX >> (32 - self.planes)
    }
}
