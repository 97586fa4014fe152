//! Commands of 64 bytes, items of 16 bytes per mapping unit to program, and the spare bytes of a page.

use super::Shape;
use crate::BusAddr;

/// Bytes of a command.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of an item in a program's list.
pub const ITEM_BYTES: usize = 16;
/// Maximum spare bytes of a page: the header and 32 mapping units.
pub const SPARE_BYTES_MAX: usize = HEADER_BYTES + 4 * 32;

const HEADER_BYTES: usize = 12;

/// The command has no request trace.
pub const NO_TRACE: u32 = u32::MAX;

/// Address of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAt {
    /// Die, counted over all endpoints.
    pub die: u32,
    /// Plane of the die.
    pub plane: u32,
    /// Block of the plane.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
}

/// Pages programmed together, or, from page 0 on, blocks erased together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAt {
    /// Die, counted over all endpoints.
    pub die: u32,
    /// Block in each plane.
    pub block: u32,
    /// Planes, one bit each.
    pub planes: u32,
    /// First page of the group.
    pub page: u32,
}

/// A flash operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Senses a page. Its spare bytes go to `spare`, and each mapping unit in the mask to its own offset
    /// from `data`.
    Read {
        /// The page.
        page: PageAt,
        /// Mapping units, one bit each. Zero: only the spare bytes.
        units: u32,
        /// Address for the page's first mapping unit, even if it is not in the mask.
        data: BusAddr,
        /// Address for the spare bytes.
        spare: BusAddr,
        /// The read belongs to GC: waits for the die behind it are attributed to GC.
        collects: bool,
        /// The data stay in the endpoint, for a copy, and are not transferred to the host.
        stay: bool,
    },
    /// Programs a superpage from a list of [`Item`]s, plane by plane, page by page, mapping unit by mapping
    /// unit.
    Program {
        /// Pages to program.
        row: RowAt,
        /// Header of each page's spare bytes: sequence number of the superpage.
        sequence: u64,
        /// Header of each page's spare bytes: erase count of the blocks.
        erases: u32,
        /// Address of the list.
        list: BusAddr,
    },
    /// Erases blocks. An endpoint marks failed blocks bad.
    Erase(RowAt),
    /// Marks a block bad permanently.
    MarkBad(PageAt),
    /// Reports the bad blocks of a die: one bit each, plane by plane.
    ListBad {
        /// Die, counted over all endpoints.
        die: u32,
        /// Address for the bits.
        data: BusAddr,
    },
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Command number, repeated in the answer.
    pub id: u16,
    /// Row number of its request trace, valid at both ends; or [`NO_TRACE`].
    pub trace: u32,
    /// Operation.
    pub operation: Operation,
}

const READ: u8 = 1;
const PROGRAM: u8 = 2;
const ERASE: u8 = 3;
const MARK_BAD: u8 = 4;
const LIST_BAD: u8 = 5;

const COLLECTS: u8 = 1;
const STAY: u8 = 2;

/// Writes numbers at fixed offsets.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn row(&mut self, row: RowAt) {
        for (at, word) in [(8, row.die), (12, row.block), (16, row.page), (20, row.planes)] {
            self.put(at, &word.to_le_bytes());
        }
    }

    fn page(&mut self, page: PageAt) {
        let PageAt { die, plane, block, page } = page;
        self.row(RowAt { die, block, planes: 1 << (plane & 31), page });
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl Command {
    /// Encodes the command.
    pub fn to_bytes(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        let mut fields = Fields(&mut bytes);
        fields.put(2, &self.id.to_le_bytes());
        fields.put(4, &self.trace.to_le_bytes());
        let code = match self.operation {
            Operation::Read { page, units, data, spare, collects, stay } => {
                fields.page(page);
                let flags = if collects { COLLECTS } else { 0 } | if stay { STAY } else { 0 };
                fields.put(1, &[flags]);
                fields.put(24, &units.to_le_bytes());
                fields.put(40, &data.0.to_le_bytes());
                fields.put(48, &spare.0.to_le_bytes());
                READ
            }
            Operation::Program { row, sequence, erases, list } => {
                fields.row(row);
                fields.put(28, &erases.to_le_bytes());
                fields.put(32, &sequence.to_le_bytes());
                fields.put(40, &list.0.to_le_bytes());
                PROGRAM
            }
            Operation::Erase(row) => {
                fields.row(row);
                ERASE
            }
            Operation::MarkBad(page) => {
                fields.page(page);
                MARK_BAD
            }
            Operation::ListBad { die, data } => {
                fields.put(8, &die.to_le_bytes());
                fields.put(40, &data.0.to_le_bytes());
                LIST_BAD
            }
        };
        bytes[0] = code;
        bytes
    }

    /// Decodes a command whose fields are valid by themselves.
    ///
    /// # Errors
    /// The number of an invalid command, for its answer.
    pub fn parse(bytes: &[u8; COMMAND_BYTES], shape: &Shape) -> Result<Command, u16> {
        let id = u16::from_le_bytes([bytes[2], bytes[3]]);
        let row = RowAt {
            die: word(bytes, 8),
            block: word(bytes, 12),
            page: word(bytes, 16),
            planes: word(bytes, 20),
        };
        let page = PageAt {
            die: row.die,
            plane: row.planes.trailing_zeros(),
            block: row.block,
            page: row.page,
        };
        let data = BusAddr(long(bytes, 40));
        let operation = match bytes[0] {
            READ => Operation::Read {
                page,
                units: word(bytes, 24),
                data,
                spare: BusAddr(long(bytes, 48)),
                collects: bytes[1] & COLLECTS != 0,
                stay: bytes[1] & STAY != 0,
            },
            PROGRAM => Operation::Program {
                row,
                sequence: long(bytes, 32),
                erases: word(bytes, 28),
                list: data,
            },
            ERASE => Operation::Erase(row),
            MARK_BAD => Operation::MarkBad(page),
            LIST_BAD => Operation::ListBad { die: row.die, data },
            _ => return Err(id),
        };
        let one = row.planes.is_power_of_two();
        let sense = match operation {
            Operation::Read { page, units, data, .. } => {
                let all = if shape.units == 32 { u32::MAX } else { (1 << shape.units) - 1 };
                one && page.lies_in(shape) && units & !all == 0 && data.0.is_multiple_of(4)
            }
            Operation::Program { row, .. } => {
                row.lies_in(shape) && row.page.is_multiple_of(shape.group)
            }
            Operation::Erase(row) => row.lies_in(shape) && row.page == 0,
            Operation::MarkBad(page) => one && page.lies_in(shape),
            Operation::ListBad { die, .. } => die < shape.dies,
        };
        if sense { Ok(Command { id, trace: word(bytes, 4), operation }) } else { Err(id) }
    }
}

impl PageAt {
    fn lies_in(&self, shape: &Shape) -> bool {
        self.die < shape.dies
            && self.plane < shape.planes
            && self.block < shape.blocks
            && self.page < shape.pages
    }
}

impl RowAt {
    fn lies_in(&self, shape: &Shape) -> bool {
        self.die < shape.dies
            && self.planes != 0
            && self.planes & !shape.all_planes() == 0
            && self.block < shape.blocks
            && self.page < shape.pages
    }
}

/// Source of the data of a mapping unit to program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// None: the data are unused.
    Nothing,
    /// Host memory.
    Memory(BusAddr),
    /// A mapping unit of flash behind the same endpoint, which has been read there.
    Flash {
        /// Page of the mapping unit.
        page: PageAt,
        /// Index of the mapping unit in the page.
        unit: u32,
    },
}

/// A mapping unit to program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Source of the data.
    pub source: Source,
    /// Value for its spare bytes.
    pub logical: u32,
}

impl Item {
    /// Encodes the item.
    pub fn to_bytes(self) -> [u8; ITEM_BYTES] {
        let (kind, from) = match self.source {
            Source::Nothing => (0, 0),
            Source::Memory(at) => (1, at.0),
            Source::Flash { page, unit } => {
                let place = u64::from(page.page) | u64::from(page.block) << 24;
                let within = u64::from(page.plane) << 48 | u64::from(unit) << 56;
                (2 | page.die << 8, place | within)
            }
        };
        let mut bytes = [0; ITEM_BYTES];
        bytes[..8].copy_from_slice(&from.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.logical.to_le_bytes());
        bytes[12..].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// Decodes an item; `None` if it is invalid.
    pub fn parse(bytes: &[u8; ITEM_BYTES], shape: &Shape) -> Option<Item> {
        let (from, kind) = (long(bytes, 0), word(bytes, 12));
        let source = match kind & 0xff {
            0 if kind == 0 => Source::Nothing,
            1 if kind == 1 => Source::Memory(BusAddr(from)),
            2 => {
                let page = PageAt {
                    die: kind >> 8,
                    plane: (from >> 48 & 0xff) as u32,
                    block: (from >> 24 & 0xff_ffff) as u32,
                    page: (from & 0xff_ffff) as u32,
                };
                let unit = (from >> 56) as u32;
                if !page.lies_in(shape) || unit >= shape.units {
                    return None;
                }
                Source::Flash { page, unit }
            }
            _ => return None,
        };
        Some(Item { source, logical: word(bytes, 8) })
    }
}

/// Spare bytes of a page: header, and one value per mapping unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Sequence number of the superpage.
    pub sequence: u64,
    /// Erase count of the blocks.
    pub erases: u32,
    /// Value of each mapping unit.
    pub logicals: [u32; 32],
}

impl Spare {
    /// Number of spare bytes for a page of `units` mapping units.
    pub fn bytes(units: u32) -> usize {
        HEADER_BYTES + 4 * units as usize
    }

    /// Encodes the spare bytes; a page of fewer mapping units uses a prefix.
    pub fn to_bytes(&self) -> [u8; SPARE_BYTES_MAX] {
        let mut bytes = [0; SPARE_BYTES_MAX];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.erases.to_le_bytes());
        for (logical, out) in self.logicals.iter().zip(bytes[HEADER_BYTES..].chunks_exact_mut(4)) {
            out.copy_from_slice(&logical.to_le_bytes());
        }
        bytes
    }

    /// Decodes spare bytes; values beyond the end are 0.
    pub fn parse(bytes: &[u8]) -> Spare {
        let mut whole = [0; SPARE_BYTES_MAX];
        let held = bytes.len().min(SPARE_BYTES_MAX);
        whole[..held].copy_from_slice(&bytes[..held]);
        let logicals = core::array::from_fn(|unit| word(&whole, HEADER_BYTES + 4 * unit));
        Spare { sequence: long(&whole, 0), erases: word(&whole, 8), logicals }
    }
}
