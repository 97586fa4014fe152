//! Flash whose collector the host leads: a vendor's own log page, admin command, feature and event.
//!
//! The controller maps, buffers and places what is written, as ever. The host reads how many units of each
//! superblock are valid ([`Survey`], and a [`SuperblockRow`] for each behind it), and says which is to be
//! collected ([`Collect`]), when it wants to be told that space is short ([`HostCollection`]), and no more.
//! NVMe leaves opcodes, log pages and features from C0h on to vendors (NVMe base 2.0, 5, 5.16 and 5.27).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::Sqe;
use super::layout;

/// The beginning of the log page [`SUPERBLOCKS`](super::log::lid::SUPERBLOCKS). Space is counted in units.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Survey {
    /// What can be written before anything else is collected.
    pub left: U64,
    /// Below this the host's writes wait.
    pub hold: U64,
    /// Below this the controller would begin by itself, if nobody led it.
    pub start: U64,
    /// How many rows follow.
    pub superblocks: U32,
    /// Units of a superblock.
    pub superblock_units: U32,
    /// Rows of the collector that may be under way at the same time.
    pub gc_parallelism: U32,
    /// Reserved.
    pub reserved: [u8; 28],
}

layout!(Survey, 64, {
    left @ 0, hold @ 8, start @ 16, superblocks @ 24, superblock_units @ 28, gc_parallelism @ 32, reserved @ 36
});

/// A superblock, as whoever chooses sees it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct SuperblockRow {
    /// Units that must be moved.
    pub valid: U32,
    /// Units that erasing it frees; 0: it can't be collected now.
    pub units: U32,
    /// How often it has been erased.
    pub erases: U32,
    /// Rows that were begun anywhere since it was filled, at most ffffffffh.
    pub age: U32,
}

layout!(SuperblockRow, 16, { valid @ 0, units @ 4, erases @ 8, age @ 12 });

/// Goes over a superblock: moves what is valid, and erases it. Completes when all of it has been gone over,
/// with how many units were valid; as Command Sequence Error if it can't be collected, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collect {
    /// Dword 10: which.
    pub superblock: u32,
    /// Dword 11: how often it had been erased when it was chosen. What was written there since is not what
    /// was meant.
    pub erases: u32,
    /// Dword 12: rows that may be under way for it, at least one whatever it says.
    pub rows: u32,
}

impl Collect {
    pub(super) fn parse(sqe: &Sqe) -> Collect {
        Collect { superblock: sqe.cdw10.get(), erases: sqe.cdw11.get(), rows: sqe.cdw12.get() }
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        sqe.cdw10 = self.superblock.into();
        sqe.cdw11 = self.erases.into();
        sqe.cdw12 = self.rows.into();
    }
}

/// The value of the feature [`HOST_COLLECTION`](super::features::fid::HOST_COLLECTION): who leads the
/// collector. A reset makes it the controller.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostCollection {
    /// The host leads, and is told when fewer units than this are left; 0: the controller leads itself. Where
    /// writes would have to wait it collects, whoever leads.
    pub below: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_byte_for_byte() {
        let row = SuperblockRow {
            valid: 0x0102.into(),
            units: 0x0304.into(),
            erases: 5.into(),
            age: u32::MAX.into(),
        };
        let golden = [2, 1, 0, 0, 4, 3, 0, 0, 5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(row.as_bytes(), golden);
        assert_eq!(SuperblockRow::read_from_bytes(&golden).expect("a row"), row);
    }
}
