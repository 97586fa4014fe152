//! Ranges of blocks in command data (NVM command set 1.0, 3.2.2 and 3.2.3).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::dsm::Context;
use super::layout;
use crate::Lba;

/// A range of Dataset Management.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// [`Context`] attributes: hints about access.
    pub context: U32,
    /// Number of blocks; may be 0.
    pub blocks: U32,
    /// First block.
    pub lba: U64,
}

layout!(DsmRange, 16, { context @ 0, blocks @ 4, lba @ 8 });

impl DsmRange {
    /// A range without hints.
    pub fn new(lba: Lba, blocks: u32) -> DsmRange {
        DsmRange::hinted(lba, blocks, Context::new())
    }

    /// A range with hints.
    pub fn hinted(lba: Lba, blocks: u32, context: Context) -> DsmRange {
        let context = context.into_bits().into();
        DsmRange { context, blocks: blocks.into(), lba: lba.0.into() }
    }

    /// Its hints.
    pub fn context(&self) -> Context {
        Context::from_bits(self.context.get())
    }
}

/// A source range of Copy, descriptor format 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CopyRange {
    /// Reserved.
    pub reserved0: [u8; 8],
    /// First block.
    pub lba: U64,
    /// Number of blocks, 0-based.
    pub nlb: U16,
    /// Reserved.
    pub reserved18: [u8; 6],
    /// Expected reference tag, with PI.
    pub eilbrt: U32,
    /// Expected application tag, with PI.
    pub elbat: U16,
    /// Mask of the application tag.
    pub elbatm: U16,
}

layout!(CopyRange, 32, {
    lba @ 8, nlb @ 16, reserved18 @ 18, eilbrt @ 24, elbat @ 28, elbatm @ 30,
});

impl CopyRange {
    /// A range of 1 to 65536 blocks.
    ///
    /// # Panics
    /// If `blocks` is out of range.
    pub fn new(lba: Lba, blocks: u32) -> CopyRange {
        assert!((1..=1 << 16).contains(&blocks), "{blocks} blocks in one range");
        let nlb = ((blocks - 1) as u16).into();
        CopyRange { lba: lba.0.into(), nlb, ..CopyRange::new_zeroed() }
    }

    /// Number of blocks, 1 to 65536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dsm_and_copy_range_layout() {
        let dsm = DsmRange::new(Lba(0x0102), 0x0304);
        assert_eq!(dsm.as_bytes(), [0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let mut copy = [0; 32];
        (copy[8], copy[9], copy[16], copy[17]) = (2, 1, 0xff, 0xff);
        assert_eq!(CopyRange::new(Lba(0x0102), 65_536).as_bytes(), copy);
        assert_eq!(CopyRange::read_from_bytes(&copy).unwrap().blocks(), 65_536);
    }
}
