//! Contents of which only each block's stamp is kept, so that a device far larger than this
//! machine's memory can be simulated and its data still be checked.

use super::STAMP_BYTES;
use super::sparse::Sparse;

const STAMP: u64 = STAMP_BYTES as u64;

/// A sparse array of stamps, one for each block. Offsets and lengths are those of the medium, and
/// are trusted to be whole blocks inside it.
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

    /// Lends the stamp of each block of the range, with the block's distance from `at`.
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

    /// Lends the stamps as [`Stamps::runs`] does, to be overwritten.
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

    /// Bytes kept of a whole number of blocks.
    #[inline]
    fn kept(&self, bytes: u64) -> u64 {
        // A block is 512 or 4096 bytes: shifts, where a division would cost most of an access.
        (bytes >> self.block_bytes.trailing_zeros()) * STAMP
    }
}
