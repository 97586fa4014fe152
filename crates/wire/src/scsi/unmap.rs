//! Parameter list of UNMAP (SBC-3, 5.28): ranges of blocks.

use super::data::Data;
use crate::Lba;

/// Maximum number of ranges per command: those that fit into a list in [`Data`].
pub const RANGES_MAX: usize = (super::data::DATA_BYTES_MAX - HEAD_BYTES) / RANGE_BYTES;
/// Maximum length of a list, bytes.
pub const LIST_BYTES_MAX: usize = HEAD_BYTES + RANGES_MAX * RANGE_BYTES;
/// Bytes before the first range.
pub const HEAD_BYTES: usize = 8;
const RANGE_BYTES: usize = 16;

/// A range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// UNMAP LOGICAL BLOCK ADDRESS.
    pub lba: Lba,
    /// NUMBER OF LOGICAL BLOCKS: 0 is not an error.
    pub blocks: u32,
}

/// Encodes a list of ranges, at most [`RANGES_MAX`].
pub fn list(ranges: impl Iterator<Item = Range>) -> Data {
    let mut data = Data::new();
    data.put_zeros(HEAD_BYTES);
    for range in ranges.take(RANGES_MAX) {
        data.put_u64(range.lba.0).put_u32(range.blocks).put_zeros(4);
    }
    let length = data.len() as u16;
    data.set_u16(0, length - 2).set_u16(2, length - HEAD_BYTES as u16);
    data
}

/// Whole ranges of a list, up to its length field or the end of the data; `None` if it is shorter than its
/// header.
pub fn parse(bytes: &[u8]) -> Option<impl Iterator<Item = Range> + Clone + '_> {
    let (head, list) = bytes.split_at_checked(HEAD_BYTES)?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    Some(list[..list.len().min(length)].chunks_exact(RANGE_BYTES).map(|range| {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Range { lba: Lba(number(&range[..8])), blocks: number(&range[8..12]) as u32 }
    }))
}
