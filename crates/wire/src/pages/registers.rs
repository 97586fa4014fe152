//! The registers of an endpoint: what flash it has, where its rings lie, and how far the host has written.

use bitfield_struct::bitfield;

/// The word at [`ID`]: the ASCII letters `DPG1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"DPG1");

/// From one endpoint's registers to the next one's, bytes: endpoints behind one switch share a window.
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
/// Offset of the address of the ring of commands, low word first. Host: before it enables.
pub const RING: u32 = 0x30;
/// Offset of the address of the ring of answers, low word first. Host: before it enables.
pub const ANSWERS: u32 = 0x38;
/// Offset of the number of entries of either ring, as a power of two. Host: before it enables.
pub const RINGS: u32 = 0x40;
/// Offset of [`Control`]. Host.
pub const CONTROL: u32 = 0x44;
/// Offset of [`State`]. The endpoint alone writes it.
pub const STATUS: u32 = 0x48;
/// Offset of the number of commands that were ever written, which wraps. Host: writing it gives them away.
pub const TAIL: u32 = 0x50;
/// Bytes of an endpoint's registers that mean something.
pub const ROW: u32 = 0x54;

/// Endpoints behind one switch, at most: one interrupt vector each.
pub const ENDPOINTS_MAX: u32 = 16;
/// Dies that a command can name.
pub const DIES_MAX: u32 = 1 << 16;
/// The most entries of a ring, as a power of two.
pub const ENTRIES_LOG2_MAX: u8 = 10;

/// What an endpoint can hold.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Limits {
    /// The most entries of a ring, as a power of two.
    #[bits(8)]
    pub entries_log2: u8,
    #[bits(24)]
    __: u32,
}

/// Which endpoint this is.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Endpoint {
    /// Its number. It has those dies whose number, divided by how many endpoints there are, leaves this.
    #[bits(8)]
    pub number: u8,
    /// How many there are.
    #[bits(8)]
    pub of: u8,
    #[bits(16)]
    __: u16,
}

/// What the host wants.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// The endpoint works on its ring.
    pub enable: bool,
    /// It signals the vector of its own number behind each answer.
    pub signals: bool,
    #[bits(30)]
    __: u32,
}

/// How the endpoint is.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct State {
    /// It works on its ring. When this is cleared after [`Control::enable`] was, nothing of the ring reaches
    /// host memory any more.
    pub ready: bool,
    /// The host has broken the protocol: registers of no sense, a count past the ring, rings or answers
    /// outside its memory. Nothing is done until it disables.
    pub broken: bool,
    #[bits(30)]
    __: u32,
}

/// Flash, as its software sees it: how many there are of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Dies, over all endpoints. Neighbours in number share as little as can be: numbers go round the
    /// channels first.
    pub dies: u32,
    /// Planes of a die, at most 32.
    pub planes: u32,
    /// Blocks of a plane, good and bad.
    pub blocks: u32,
    /// Pages of a block, a multiple of `group`.
    pub pages: u32,
    /// Pages of a block that one operation programs.
    pub group: u32,
    /// Mapping units of a page, at most 32.
    pub units: u32,
    /// Bytes of a unit, a power of two.
    pub unit_bytes: u32,
    /// So many rows of a block behind a row may take it with them when they are torn, as where the pages of
    /// a word line are programmed one by one. 0: a row is safe once it has been programmed.
    pub reach: u32,
}

impl Shape {
    /// Whether numbers that an endpoint gives make sense.
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
            // The list of what a program writes fits into a page's buffer.
            && planes * group * 16 <= unit_bytes
    }

    /// Rows of a block.
    pub fn rows(&self) -> u32 {
        self.pages / self.group
    }

    /// Every unit there is, good and bad.
    pub fn all_units(&self) -> u64 {
        u64::from(self.dies * self.planes)
            * u64::from(self.blocks)
            * u64::from(self.pages * self.units)
    }

    /// Units of a row over these planes.
    pub fn row_units(&self, planes: u32) -> u32 {
        planes.count_ones() * self.group * self.units
    }

    /// All planes, as a mask.
    pub fn all_planes(&self) -> u32 {
        u32::MAX >> (32 - self.planes)
    }
}
