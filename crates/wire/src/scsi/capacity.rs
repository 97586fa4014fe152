//! Capacity and units: READ CAPACITY (SBC-3, 5.15 and 5.16) and REPORT LUNS (SPC-4, 6.33).

use super::data::Data;
use super::lun::Lun;

/// Contents of unmapped blocks: LBPME and LBPRZ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// The unit does not support UNMAP.
    Never,
    /// Read data are not specified.
    Unknown,
    /// Unmapped blocks read as zeros.
    Zeros,
}

/// Geometry of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Capacity in blocks: at least one.
    pub blocks: u64,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Contents of unmapped blocks.
    pub unmapped: Unmapped,
}

/// Bytes of READ CAPACITY(16) data.
pub const CAPACITY_16_BYTES: usize = 32;

/// Byte 14 of READ CAPACITY(16) data.
const LBPME: u8 = 1 << 7;
const LBPRZ: u8 = 1 << 6;

impl Shape {
    /// READ CAPACITY(10) data. All ones if the last LBA exceeds 32 bits.
    pub fn capacity_10(&self) -> Data {
        let mut data = Data::new();
        let last = u32::try_from(self.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
        data.put_u32(last).put_u32(self.block_bytes);
        data
    }

    /// READ CAPACITY(16) data: no protection, one logical block per physical block.
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

    /// Decodes READ CAPACITY(16) data; `None` if they are too short, or the number of blocks overflows.
    pub fn parse_16(bytes: &[u8]) -> Option<Shape> {
        let (last, rest) = bytes.split_first_chunk::<8>()?;
        let (block, _) = rest.split_first_chunk::<4>()?;
        let blocks = u64::from_be_bytes(*last).checked_add(1)?;
        // Shorter data are of an older standard, without provisioning bits.
        let unmapped = match bytes.get(14).map_or(0, |byte| byte & (LBPME | LBPRZ)) {
            byte if byte & LBPME == 0 => Unmapped::Never,
            byte if byte & LBPRZ == 0 => Unmapped::Unknown,
            _ => Unmapped::Zeros,
        };
        Some(Shape { blocks, block_bytes: u32::from_be_bytes(*block), unmapped })
    }
}

/// Selection of logical units in REPORT LUNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Logical units other than well known ones.
    Units,
    /// Well known logical units only: there are none.
    WellKnown,
    /// Both.
    All,
}

impl Select {
    /// Decodes SELECT REPORT; `None` for a reserved value.
    pub const fn of(value: u8) -> Option<Select> {
        match value {
            0 => Some(Select::Units),
            1 => Some(Select::WellKnown),
            2 => Some(Select::All),
            _ => None,
        }
    }
}

/// Maximum number of units in a list in [`Data`].
pub const LUNS_MAX: usize = (super::data::DATA_BYTES_MAX - 8) / 8;

/// REPORT LUNS data: a list of units, at most [`LUNS_MAX`].
pub fn luns(units: impl Iterator<Item = Lun>) -> Data {
    let mut data = Data::new();
    data.put_zeros(8);
    for unit in units.take(LUNS_MAX) {
        data.put_u64(unit.0);
    }
    data.set_u16(2, data.len() as u16 - 8);
    data
}
