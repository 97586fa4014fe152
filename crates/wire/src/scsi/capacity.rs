//! Capacity and units: READ CAPACITY (SBC-3, 5.15 and 5.16) and REPORT LUNS (SPC-4, 6.33).

use super::data::Data;
use super::lun::Lun;

/// What becomes of blocks that are taken back: LBPME and LBPRZ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// The unit takes none back.
    Never,
    /// What they read as is not said.
    Unknown,
    /// They read as zeros.
    Zeros,
}

/// The shape of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its capacity, in blocks: at least one.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// What becomes of blocks that UNMAP takes back.
    pub unmapped: Unmapped,
}

/// Bytes of READ CAPACITY(10) data.
pub const CAPACITY_10_BYTES: usize = 8;
/// Bytes of READ CAPACITY(16) data.
pub const CAPACITY_16_BYTES: usize = 32;

/// Byte 14 of READ CAPACITY(16) data.
const LBPME: u8 = 1 << 7;
const LBPRZ: u8 = 1 << 6;

impl Shape {
    /// READ CAPACITY(10) data. Where 32 bits do not hold the last LBA, all of them are set.
    pub fn capacity_10(&self) -> Data {
        let mut data = Data::new();
        let last = u32::try_from(self.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
        data.put_u32(last).put_u32(self.block_bytes);
        data
    }

    /// READ CAPACITY(16) data: no protection, one logical block a physical one.
    pub fn capacity_16(&self) -> Data {
        let mut data = Data::new();
        data.put_u64(self.blocks.saturating_sub(1)).put_u32(self.block_bytes).put_zeros(20);
        let provisioning = match self.unmapped {
            Unmapped::Never => 0,
            Unmapped::Unknown => LBPME,
            Unmapped::Zeros => LBPME | LBPRZ,
        };
        data.set(14, provisioning);
        data
    }

    /// Reads READ CAPACITY(16) data; none: too short, or of a unit of more blocks than can be counted.
    pub fn parse_16(bytes: &[u8]) -> Option<Shape> {
        let (last, rest) = bytes.split_first_chunk::<8>()?;
        let (block, _) = rest.split_first_chunk::<4>()?;
        let blocks = u64::from_be_bytes(*last).checked_add(1)?;
        // Shorter data are of an older standard, which had no word for it.
        let unmapped = match bytes.get(14).map_or(0, |byte| byte & (LBPME | LBPRZ)) {
            byte if byte & LBPME == 0 => Unmapped::Never,
            byte if byte & LBPRZ == 0 => Unmapped::Unknown,
            _ => Unmapped::Zeros,
        };
        Some(Shape { blocks, block_bytes: u32::from_be_bytes(*block), unmapped })
    }
}

/// Which list of units is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Those that have numbers of their own.
    Units,
    /// Well known units alone: there are none.
    WellKnown,
    /// Both.
    All,
}

impl Select {
    /// Of SELECT REPORT; none: a value that is reserved.
    pub const fn of(value: u8) -> Option<Select> {
        match value {
            0 => Some(Select::Units),
            1 => Some(Select::WellKnown),
            2 => Some(Select::All),
            _ => None,
        }
    }
}

/// The most units that fit a list in [`Data`].
pub const LUNS_MAX: usize = (super::data::DATA_BYTES_MAX - 8) / 8;

/// A list of units, at most [`LUNS_MAX`].
pub fn luns(units: impl Iterator<Item = Lun>) -> Data {
    let mut data = Data::new();
    data.put_zeros(8);
    for unit in units.take(LUNS_MAX) {
        data.put_u64(unit.0);
    }
    data.set_u16(2, data.len() as u16 - 8);
    data
}

/// The units of a list, as far as it goes.
pub fn parse_luns(bytes: &[u8]) -> impl Iterator<Item = Lun> + '_ {
    let length = bytes.first_chunk::<4>().map_or(0, |head| u32::from_be_bytes(*head)) as usize;
    let list = bytes.get(8..).unwrap_or(&[]);
    let list = &list[..list.len().min(length)];
    list.chunks_exact(8).map(|unit| Lun(unit.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))))
}
