//! Contents that store only each block's stamp, so that a device far larger than this machine's memory can be
//! simulated and its data still be verified.

use super::STAMP_BYTES;
use super::sparse::Sparse;

const STAMP: u64 = STAMP_BYTES as u64;

/// A sparse array of stamps, one per block. Offsets and lengths are those of the medium; the caller has
/// checked that they are whole blocks inside it.
pub(super) struct Stamps {
    sparse: Sparse,
    block_bytes: u64,
}

impl Stamps {
    pub(super) fn new(capacity_bytes: u64, block_bytes: u32) -> Stamps {
        let block_bytes = u64::from(block_bytes);
        Stamps { sparse: Sparse::new(capacity_bytes / block_bytes * STAMP), block_bytes }
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.sparse.allocated_bytes()
    }

    /// Passes the stamp of each block of the range to `f`, with the block's distance from `at`.
    #[inline]
    pub(super) fn runs(&self, at: u64, bytes: u64, f: &mut impl FnMut(u64, &[u8])) {
        let block_bytes = self.block_bytes;
        let mut distance = 0;
        self.sparse.runs(self.kept(at), self.kept(bytes), &mut |_, run| {
            for stamp in run.chunks_exact(STAMP_BYTES) {
                f(distance, stamp);
                distance += block_bytes;
            }
        });
    }

    /// As [`Stamps::runs`], for writing.
    #[inline]
    pub(super) fn runs_mut(&mut self, at: u64, bytes: u64, f: &mut impl FnMut(u64, &mut [u8])) {
        let block_bytes = self.block_bytes;
        let mut distance = 0;
        self.sparse.runs_mut(self.kept(at), self.kept(bytes), &mut |_, run| {
            for stamp in run.chunks_exact_mut(STAMP_BYTES) {
                f(distance, stamp);
                distance += block_bytes;
            }
        });
    }

    pub(super) fn discard(&mut self, at: u64, bytes: u64) {
        self.sparse.discard(self.kept(at), self.kept(bytes));
    }

    /// Bytes stored for `bytes` bytes of whole blocks.
    #[inline]
    fn kept(&self, bytes: u64) -> u64 {
        // A block is 512 or 4096 bytes: shifts, because a division would cost most of an access.
        (bytes >> self.block_bytes.trailing_zeros()) * STAMP
    }
}
