//! Content of spare bytes: tags of units, and the flag of uncommitted superpages.

use crate::pages::{LOST, META};

pub(crate) const CHUNK: u32 = META;
pub(crate) const TRIM: u32 = META | 1 << 28;
/// Part of the root of a checkpoint.
pub(crate) const ROOT: u32 = META | 2 << 28;
/// Unused unit.
pub(crate) const PAD: u32 = u32::MAX;
/// Mask of the number in a metadata tag.
pub(crate) const NUMBER: u32 = (1 << 28) - 1;

/// Content of a unit, decoded from its spare bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Data { logical: u32, lost: bool },
    Chunk(u32),
    Trim(u32),
    Other,
}

#[inline]
pub(crate) fn holds(logical: u32) -> Holds {
    match logical & !NUMBER {
        _ if logical & META == 0 => {
            Holds::Data { logical: logical & !LOST, lost: logical & LOST != 0 }
        }
        CHUNK => Holds::Chunk(logical & NUMBER),
        TRIM => Holds::Trim(logical & NUMBER),
        _ => Holds::Other,
    }
}

/// Flag in [`Header::erases`](crate::Header::erases): the superpage counts only if its superblock also holds
/// one without this flag.
pub(crate) const UNCOMMITTED: u32 = 1 << 31;

/// Greatest number that a superpage can have: what claims more was not written by this software.
pub(crate) const SEQUENCE_MAX: u64 = u64::MAX / 2;
