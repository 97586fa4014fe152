//! The blocks that an I/O command accesses, and its flags (NVM command set 1.0, 3.2).

use bitfield_struct::bitfield;

use super::entry::Sqe;
use super::pi::Protection;
use crate::{BusAddr, Lba};

/// Blocks and flags of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First block.
    pub lba: Lba,
    /// Number of blocks: 1 to 65536.
    pub blocks: u32,
    /// FUA: the medium itself, not a volatile cache, must hold the data.
    pub fua: bool,
    /// LR: limits error recovery.
    pub limited_retry: bool,
    /// PI fields.
    pub protection: Protection,
    /// MPTR: address of separate metadata, if any.
    pub metadata: BusAddr,
}

/// Maximum number of blocks per command.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// Command dword 12 of Read, Write, Compare and Write Zeroes.
///
/// Storage tags (STC) and directives (DTYPE) are left out, as none of our controllers supports them.
#[bitfield(u32)]
pub(super) struct Dword12 {
    /// NLB, 0-based.
    nlb: u16,
    #[bits(9)]
    __: u16,
    /// DEAC, of Write Zeroes only.
    pub deac: bool,
    #[bits(4)]
    pub prinfo: u8,
    fua: bool,
    lr: bool,
}

impl Access {
    /// An access to `blocks` blocks, without flags.
    pub const fn of(lba: Lba, blocks: u32) -> Access {
        Access {
            lba,
            blocks,
            fua: false,
            limited_retry: false,
            protection: Protection::NONE,
            metadata: BusAddr(0),
        }
    }

    #[inline]
    pub(super) fn parse(sqe: &Sqe) -> Access {
        let dword12 = Dword12::from_bits(sqe.cdw12.get());
        Access {
            protection: protection(sqe, dword12.prinfo()),
            metadata: BusAddr(sqe.mptr.get()),
            lba: Lba(u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get())),
            blocks: u32::from(dword12.nlb()) + 1,
            fua: dword12.fua(),
            limited_retry: dword12.lr(),
        }
    }

    #[inline]
    pub(super) fn store(&self, sqe: &mut Sqe) {
        assert!((1..=BLOCKS_MAX).contains(&self.blocks), "{} blocks in one command", self.blocks);
        let dword12 = Dword12::new()
            .with_nlb((self.blocks - 1) as u16)
            .with_prinfo(self.protection.prinfo())
            .with_fua(self.fua)
            .with_lr(self.limited_retry);
        sqe.cdw10 = (self.lba.0 as u32).into();
        sqe.cdw11 = ((self.lba.0 >> 32) as u32).into();
        sqe.cdw12 = dword12.into_bits().into();
        sqe.mptr = self.metadata.0.into();
        store_tags(sqe, &self.protection);
    }
}

/// PI fields of a command: these bits of dword 12, and dwords 14 and 15.
#[inline]
pub(super) fn protection(sqe: &Sqe, prinfo: u8) -> Protection {
    Protection::from_bits(prinfo, sqe.cdw14.get(), sqe.cdw15.get())
}

/// Stores the tags of PI fields in dwords 14 and 15.
#[inline]
pub(super) fn store_tags(sqe: &mut Sqe, protection: &Protection) {
    sqe.cdw14 = protection.reference.into();
    sqe.cdw15 = protection.tags().into();
}
