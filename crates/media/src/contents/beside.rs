//! Per-block metadata.

use super::METADATA_BYTES;
use super::sparse::Sparse;

/// Metadata of every block. All bytes are FFh for a block that was never written, or was written without
/// metadata: so they are stored inverted, because a sparse array reads as zeros.
pub(super) struct Beside(Sparse);

impl Beside {
    /// Metadata of this many blocks, all FFh.
    pub(super) fn new(blocks: u64) -> Beside {
        Beside(Sparse::new(blocks * METADATA_BYTES as u64))
    }

    pub(super) fn get(&self, block: u64) -> [u8; METADATA_BYTES] {
        let mut metadata = [0; METADATA_BYTES];
        let bytes = METADATA_BYTES as u64;
        self.0.runs(block * bytes, bytes, &mut |at, run| {
            metadata[at as usize..][..run.len()].copy_from_slice(run);
        });
        metadata.map(|byte| !byte)
    }

    pub(super) fn set(&mut self, block: u64, metadata: [u8; METADATA_BYTES]) {
        let bytes = METADATA_BYTES as u64;
        self.0.runs_mut(block * bytes, bytes, &mut |at, run| {
            let part = &metadata[at as usize..][..run.len()];
            run.iter_mut().zip(part).for_each(|(to, from)| *to = !from);
        });
    }

    /// Resets the metadata of these blocks to FFh.
    pub(super) fn forget(&mut self, block: u64, blocks: u64) {
        self.0.discard(block * METADATA_BYTES as u64, blocks * METADATA_BYTES as u64);
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes()
    }
}
