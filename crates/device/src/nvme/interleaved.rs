//! Inline metadata, which follow each block's data in host memory (FLBAS, bit 4; NVM command set 1.0, 5.2):
//! interleaved on reads, separated on writes. On the medium they are stored as separate metadata are.

use bus::{Payload, Unreadable};
use wire::nvme::pi;

/// Blocks of `lba_bytes` bytes, each followed by its metadata.
pub(super) struct Interleaved<'a> {
    pub data: &'a [u8],
    pub tuples: &'a [u8],
    pub lba_bytes: usize,
}

impl Payload for Interleaved<'_> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        let blocks = self.data.chunks_exact(self.lba_bytes);
        for (number, (block, tuple)) in blocks.zip(self.tuples.chunks_exact(pi::BYTES)).enumerate()
        {
            let offset = number * (self.lba_bytes + pi::BYTES);
            put(offset as u32, block);
            put((offset + self.lba_bytes) as u32, tuple);
        }
        Ok(())
    }
}

/// Separates inline metadata: leaves the data in `all`, and moves the metadata to `tuples`.
pub(super) fn take_apart(all: &mut Vec<u8>, tuples: &mut [u8], lba_bytes: usize) {
    let whole = lba_bytes + pi::BYTES;
    for (number, tuple) in tuples.chunks_exact_mut(pi::BYTES).enumerate() {
        let from = number * whole;
        tuple.copy_from_slice(&all[from + lba_bytes..][..pi::BYTES]);
        all.copy_within(from..from + lba_bytes, number * lba_bytes);
    }
    all.truncate(all.len() / whole * lba_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_metadata_interleave_and_separate_roundtrip() {
        let (data, tuples): (Vec<u8>, Vec<u8>) = ((0..96).collect(), (100..124).collect());
        let interleaved = Interleaved { data: &data, tuples: &tuples, lba_bytes: 32 };
        let mut all = vec![0; 120];
        let put = &mut |at: u32, run: &[u8]| all[at as usize..][..run.len()].copy_from_slice(run);
        interleaved.runs(put).unwrap();
        assert_eq!(
            (&all[..32], &all[32..40], &all[40..72]),
            (&data[..32], &tuples[..8], &data[32..64])
        );
        let mut beside = vec![0; 24];
        take_apart(&mut all, &mut beside, 32);
        assert_eq!((all, beside), (data, tuples));
    }
}
