//! Contents of a block: a stamp of LBA and version, and a body derived from it.
//!
//! The stamp is the pair (LBA, 40 bits; version, 24 bits) under a keyed Feistel network, so it
//! decodes without a table. The rest is a Weyl sequence from the stamp under another key, each term
//! multiplied and folded once: one multiplication per eight bytes. The first word after the stamp
//! also distinguishes a true stamp from arbitrary 64 bits, which decode to some LBA and version too.

use super::{Mismatch, Versions};
use crate::limits::{STAMP_LBA_BITS, STAMP_LBAS};

/// Generates and decodes the contents of one run.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    keys: [u32; 4],
    body_key: u64,
}

/// Classification of a block by its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A stamp of this run.
    Stamp {
        /// LBA that the block was written to.
        lba: u64,
        /// The low 24 bits of its version.
        version: u32,
    },
    /// Zeroes, like a block that was never written.
    Zeroes,
    Foreign {
        /// Its first eight bytes.
        word: u64,
    },
}

const WORD: usize = 8;
const VERSION_BITS: u32 = 64 - STAMP_LBA_BITS;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

impl Stamps {
    /// Contents of the run with this seed.
    pub fn new(seed: u64) -> Stamps {
        let mut rng = runtime::Rng::for_part(seed, "stamps");
        let keys = std::array::from_fn(|_| rng.next_u64() as u32);
        Stamps { keys, body_key: rng.next_u64() }
    }

    pub fn encode(&self, lba: u64, version: u32) -> u64 {
        let pair = lba << VERSION_BITS | u64::from(version) & VERSION_MASK;
        let (mut left, mut right) = ((pair >> 32) as u32, pair as u32);
        for key in self.keys {
            (left, right) = (right, left ^ mix(right, key));
        }
        u64::from(left) << 32 | u64::from(right)
    }

    /// The LBA and the low 24 bits of the version in a stamp. Every word decodes to some pair.
    pub fn decode(&self, stamp: u64) -> (u64, u32) {
        let (mut left, mut right) = ((stamp >> 32) as u32, stamp as u32);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ mix(left, key), left);
        }
        let pair = u64::from(left) << 32 | u64::from(right);
        (pair >> VERSION_BITS, (pair & VERSION_MASK) as u32)
    }

    /// Fills the buffer with this version of the blocks from `lba` on.
    ///
    /// # Panics
    /// If the buffer is not whole blocks of at least 16 bytes, or the last LBA does not fit a stamp.
    pub fn fill(&self, buffer: &mut [u8], lba: u64, block_bytes: u32, version: u32) {
        assert_whole(buffer.len(), lba, block_bytes);
        for (lba, block) in (lba..).zip(buffer.chunks_exact_mut(block_bytes as usize)) {
            let stamp = self.encode(lba, version);
            let (head, body) = block.split_at_mut(WORD);
            head.copy_from_slice(&stamp.to_le_bytes());
            let mut weyl = stamp ^ self.body_key;
            for word in body.chunks_exact_mut(WORD) {
                weyl = weyl.wrapping_add(STEP);
                word.copy_from_slice(&fold(weyl).to_le_bytes());
            }
        }
    }

    /// Classifies a block. With `stamps_only`, any word that decodes to an LBA below `lbas` counts as a
    /// stamp; else the next word must be the one derived from it.
    pub fn identify(&self, block: &[u8], lbas: u64, stamps_only: bool) -> Found {
        let word = |at: usize| {
            let bytes = block.get(at * WORD..(at + 1) * WORD)?;
            Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        };
        let Some(first) = word(0) else { return Found::Foreign { word: 0 } };
        if first == 0 {
            return Found::Zeroes;
        }
        let (lba, version) = self.decode(first);
        let follows =
            stamps_only || word(1) == Some(fold((first ^ self.body_key).wrapping_add(STEP)));
        if lba < lbas && version != 0 && follows {
            return Found::Stamp { lba, version };
        }
        Found::Foreign { word: first }
    }

    /// Checks the blocks from `lba` on. `expected` returns the versions allowed for an LBA;
    /// `stamps_only` checks only the stamps.
    ///
    /// # Errors
    /// The first block with other contents.
    ///
    /// # Panics
    /// As [`Stamps::fill`].
    pub fn check<'a>(
        &self,
        buffer: &[u8],
        lba: u64,
        block_bytes: u32,
        mut expected: impl FnMut(u64) -> &'a Versions,
        stamps_only: bool,
    ) -> Result<(), Mismatch> {
        assert_whole(buffer.len(), lba, block_bytes);
        for (lba, block) in (lba..).zip(buffer.chunks_exact(block_bytes as usize)) {
            let versions = expected(lba);
            let allow = |version| versions.allow(version);
            let wrong = self.wrong_byte(block, lba, allow, versions.allow_unwritten(), stamps_only);
            if let Some(byte) = wrong {
                let expected = versions.clone();
                return Err(self.mismatch(block, lba, STAMP_LBAS, expected, byte, stamps_only));
            }
        }
        Ok(())
    }

    /// Index of the first wrong byte, if any.
    pub(super) fn wrong_byte(
        &self,
        block: &[u8],
        lba: u64,
        allow: impl Fn(u32) -> bool,
        allow_zeroes: bool,
        stamps_only: bool,
    ) -> Option<u32> {
        let (head, body) = block.split_at(WORD);
        let stamp = u64::from_le_bytes(head.try_into().expect("eight bytes"));
        let (named, version) = self.decode(stamp);
        if named != lba || version == 0 || !allow(version) {
            if stamp != 0 || !allow_zeroes {
                return Some(0);
            }
            let odd = if stamps_only { None } else { body.iter().position(|&byte| byte != 0) };
            return odd.map(|at| (WORD + at) as u32);
        }
        if stamps_only {
            return None;
        }
        let mut weyl = stamp ^ self.body_key;
        for (at, word) in body.chunks_exact(WORD).enumerate() {
            weyl = weyl.wrapping_add(STEP);
            let want = fold(weyl).to_le_bytes();
            if word != want {
                let within = word.iter().zip(want).take_while(|(is, want)| *is == want).count();
                return Some(((at + 1) * WORD + within) as u32);
            }
        }
        None
    }

    pub(super) fn mismatch(
        &self,
        block: &[u8],
        lba: u64,
        lbas: u64,
        expected: Versions,
        byte: u32,
        stamps_only: bool,
    ) -> Mismatch {
        // An accepted stamp identifies its block, even if it is torn right after the stamp.
        let found = self.identify(block, lbas, stamps_only || byte > 0);
        Mismatch { lba, found, expected, byte }
    }
}

fn assert_whole(bytes: usize, lba: u64, block_bytes: u32) {
    let block = block_bytes as usize;
    assert!(block >= 2 * WORD && block.is_multiple_of(WORD), "blocks of {block} bytes");
    assert!(bytes.is_multiple_of(block), "{bytes} bytes are not whole blocks of {block}");
    let end = lba.checked_add((bytes / block) as u64);
    assert!(end.is_some_and(|end| end <= STAMP_LBAS), "a stamp cannot name an LBA past {lba}");
}

/// The step of the Weyl sequence: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One multiplication and one fold: enough to decorrelate the bits of neighbouring words.
const fn fold(weyl: u64) -> u64 {
    let product = (weyl ^ (weyl >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    product ^ (product >> 32)
}

/// A round of the Feistel network: murmur3's finaliser (Appleby) of the keyed half.
const fn mix(half: u32, key: u32) -> u32 {
    let mut x = half ^ key;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u32 = 512;

    fn blocks(lba: u64, count: usize, version: u32) -> Vec<u8> {
        let mut buffer = vec![0xee; count * BLOCK as usize];
        Stamps::new(1).fill(&mut buffer, lba, BLOCK, version);
        buffer
    }

    fn check(buffer: &[u8], lba: u64, version: u32, stamps_only: bool) -> Result<(), Mismatch> {
        let versions = Versions::one(version);
        Stamps::new(1).check(buffer, lba, BLOCK, |_| &versions, stamps_only)
    }

    fn said(result: Result<(), Mismatch>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn stamp_contents_match_golden_checksum() {
        let words: Vec<u64> = blocks(5, 1, 3)
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let sum = words.iter().fold(0_u64, |sum, word| sum.rotate_left(7) ^ word);
        assert_eq!((words[0], sum), (16_894_915_847_344_231_079, 14_988_268_756_789_401_221));
    }

    #[test]
    fn misdirected_write_is_reported() {
        let mut buffer = blocks(100, 4, 7);
        assert_eq!(check(&buffer, 100, 7, false), Ok(()));
        let (one, other) = buffer.split_at_mut(2 * BLOCK as usize);
        one[..BLOCK as usize].copy_from_slice(&other[..BLOCK as usize]);
        let want = "LBA 100: misdirected: holds LBA 102 version 7: expected version 7";
        assert_eq!(said(check(&buffer, 100, 7, false)), want);
        assert_eq!(said(check(&buffer, 100, 7, true)), want);
    }

    #[test]
    fn stale_data_is_reported() {
        let buffer = blocks(100, 1, 6);
        let want = "LBA 100: stale or early: holds version 6: expected version 7";
        assert_eq!(said(check(&buffer, 100, 7, false)), want);
        assert_eq!(said(check(&buffer, 100, 7, true)), want);
    }

    #[test]
    fn torn_block_is_reported_at_first_wrong_byte() {
        let (new, old) = (blocks(100, 1, 7), blocks(100, 1, 6));
        for at in [8, 9, 255, 256, 504] {
            let torn = [&new[..at], &old[at..]].concat();
            let mismatch = check(&torn, 100, 7, false).unwrap_err();
            let differs = (at..512).find(|&byte| new[byte] != old[byte]).unwrap();
            assert_eq!(mismatch.byte as usize, differs);
            assert_eq!(mismatch.found, Found::Stamp { lba: 100, version: 7 });
            assert_eq!(check(&torn, 100, 7, true), Ok(()), "stamps alone cannot show it");
        }
    }

    #[test]
    fn zeroes_and_foreign_contents_are_distinguished() {
        let zeroes = vec![0; 512];
        let want = "LBA 9: holds zeroes: expected version 1";
        assert_eq!(said(check(&zeroes, 9, 1, false)), want);
        assert_eq!(check(&zeroes, 9, 0, false), Ok(()));
        let mut spotted = zeroes.clone();
        spotted[77] = 1;
        assert_eq!(check(&spotted, 9, 0, false).unwrap_err().byte, 77);
        let mut foreign = vec![0; 512];
        Stamps::new(2).fill(&mut foreign, 9, BLOCK, 1);
        let said = said(check(&foreign, 9, 1, false));
        assert!(said.contains("which is no stamp of this run: expected version 1"), "{said}");
    }

    #[test]
    #[should_panic(expected = "not whole blocks")]
    fn fill_of_partial_block_panics() {
        Stamps::new(1).fill(&mut [0; 700], 0, BLOCK, 1);
    }

    proptest! {
        #[test]
        fn stamp_decodes_to_encoded_lba_and_version(
            seed: u64,
            lba in 0..STAMP_LBAS,
            version in 0_u32..1 << 24,
        ) {
            let stamps = Stamps::new(seed);
            prop_assert_eq!(stamps.decode(stamps.encode(lba, version)), (lba, version));
        }

        #[test]
        fn any_changed_byte_is_detected(
            lba in 0..STAMP_LBAS,
            version in 1_u32..1 << 24,
            at in 0_usize..512,
            flip in 1_u8..,
        ) {
            // Odd, because versions that are multiples of 16 are deallocations.
            let version = version | 1;
            let mut buffer = blocks(lba, 1, version);
            buffer[at] ^= flip;
            let mismatch = check(&buffer, lba, version, false).unwrap_err();
            prop_assert_eq!(mismatch.byte as usize, if at < 8 { 0 } else { at });
        }
    }
}
