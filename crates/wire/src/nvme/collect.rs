//! Host-directed GC: a vendor-specific log page, admin command, feature and event.
//!
//! The controller maps, buffers and places writes, as without it. The host reads the number of valid
//! mapping units in each superblock ([`Survey`], followed by a [`SuperblockRow`] each), selects superblocks
//! to collect ([`Collect`]), and sets the threshold of an event for low space ([`HostCollection`]). NVMe
//! leaves opcodes, log pages and features from C0h on to vendors (NVMe base 2.0, 5, 5.16 and 5.27).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::entry::Sqe;
use super::layout;

/// Header of the log page [`SUPERBLOCKS`](super::log::lid::SUPERBLOCKS). Space is counted in mapping units.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Survey {
    /// Space that can be written before another superblock must be collected.
    pub left: U64,
    /// Threshold below which host writes wait.
    pub hold: U64,
    /// Threshold below which the controller starts GC by itself, without host-directed GC.
    pub start: U64,
    /// Number of rows that follow.
    pub superblocks: U32,
    /// Mapping units per superblock.
    pub superblock_units: U32,
    /// GC parallelism: superpages that the collector may process concurrently.
    pub gc_parallelism: U32,
    /// Reserved.
    pub reserved: [u8; 28],
}

layout!(Survey, 64, {
    left @ 0, hold @ 8, start @ 16, superblocks @ 24, superblock_units @ 28,
    gc_parallelism @ 32, reserved @ 36
});

/// State of a superblock, for selection.
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
    /// Valid mapping units, which must be moved.
    pub valid: U32,
    /// Mapping units freed by its erase; 0 if it cannot be collected now.
    pub units: U32,
    /// Erase count.
    pub erases: U32,
    /// Superpages begun in all superblocks since it was filled, at most ffffffffh.
    pub age: U32,
}

layout!(SuperblockRow, 16, { valid @ 0, units @ 4, erases @ 8, age @ 12 });

/// Collects a superblock: moves valid mapping units and erases it. Completes when all have been processed,
/// with the number of units that were valid; fails with Command Sequence Error if the superblock cannot be
/// collected, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collect {
    /// Dword 10: superblock number.
    pub superblock: u32,
    /// Dword 11: erase count at selection. If it has changed, the superblock holds other data, and is not
    /// collected.
    pub erases: u32,
    /// Dword 12: maximum superpages in progress for it; 0 counts as 1.
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

/// Value of the feature [`HOST_COLLECTION`](super::features::fid::HOST_COLLECTION): controls host-directed
/// GC. A reset disables it.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostCollection {
    /// Enables host-directed GC, with an event when fewer mapping units than this are left; 0 disables it.
    /// If writes would have to wait, the controller collects in either case.
    pub below: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survey_row_layout() {
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
