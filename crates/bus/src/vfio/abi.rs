//! Parser of VFIO's answers: fixed parts, followed by chains of capabilities.
//!
//! The answers come from the kernel and are validated nevertheless: a capability chain that leaves its
//! answer or forms a loop is an error, not a panic.

use std::vec::Vec;

/// Error in an answer of VFIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The answer does not fit the largest buffer.
    #[error("an answer of VFIO has {bytes} bytes")]
    TooLong {
        /// Length of the answer.
        bytes: usize,
    },
    /// A part of the answer is missing.
    #[error("an answer of VFIO ends before byte {at}")]
    TooShort {
        /// Offset of the missing part, bytes.
        at: usize,
    },
    /// A capability does not begin at a word.
    #[error("a capability of VFIO at byte {at}: expected a word")]
    Unaligned {
        /// Offset of the capability, bytes.
        at: usize,
    },
    /// The chain of capabilities forms a loop.
    #[error("a chain of VFIO capabilities without an end")]
    Endless,
}

/// A region of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Offset in the device's file, bytes.
    pub offset: u64,
    /// Length, bytes; 0 if the region does not exist.
    pub bytes: u64,
    /// The parts that can be mapped: offset in the region and length, bytes.
    pub mappable: Vec<(u64, u64)>,
}

/// Region flags: it can be mapped; its answer has capabilities.
const REGION_MMAP: u32 = 1 << 2;
const REGION_CAPS: u32 = 1 << 3;
const CAP_SPARSE_MMAP: u16 = 1;

/// IOMMU info flag: the answer has capabilities; and the ID of the one that is read here.
const IOMMU_CAPS: u32 = 1 << 1;
const CAP_IOVA_RANGES: u16 = 1;

/// Maximum number of capabilities in an answer.
const CAPS_MAX: usize = 32;

pub(super) struct Answer<'a>(pub &'a [u32]);

impl Answer<'_> {
    fn word(&self, at: usize) -> Result<u32, AnswerError> {
        let word = self.0.get(at / 4).copied();
        word.ok_or(AnswerError::TooShort { at })
    }

    fn long(&self, at: usize) -> Result<u64, AnswerError> {
        Ok(u64::from(self.word(at + 4)?) << 32 | u64::from(self.word(at)?))
    }

    /// Offset of the first capability of this kind in a chain that begins at `first`.
    fn capability(&self, first: usize, kind: u16) -> Result<Option<usize>, AnswerError> {
        let mut at = first;
        for _ in 0..CAPS_MAX {
            if at == 0 {
                return Ok(None);
            }
            if !at.is_multiple_of(4) {
                return Err(AnswerError::Unaligned { at });
            }
            if self.word(at)? as u16 == kind {
                return Ok(Some(at));
            }
            at = self.word(at + 4)? as usize;
        }
        Err(AnswerError::Endless)
    }

    /// Pairs of 64-bit words after a capability's count.
    fn pairs(&self, capability: usize) -> Result<Vec<(u64, u64)>, AnswerError> {
        let count = self.word(capability + 8)? as usize;
        // A count beyond the end of the answer fails at the first missing pair.
        (0..count.min(self.0.len()))
            .map(|number| {
                let at = capability + 16 + 16 * number;
                Ok((self.long(at)?, self.long(at + 8)?))
            })
            .collect()
    }

    /// Parses the answer of `VFIO_DEVICE_GET_REGION_INFO`.
    pub fn region(&self) -> Result<Region, AnswerError> {
        let flags = self.word(4)?;
        let (bytes, offset) = (self.long(16)?, self.long(24)?);
        let sparse = match flags & REGION_CAPS != 0 {
            true => self.capability(self.word(12)? as usize, CAP_SPARSE_MMAP)?,
            false => None,
        };
        let mappable = match sparse {
            _ if flags & REGION_MMAP == 0 => Vec::new(),
            Some(at) => self.pairs(at)?,
            None => std::vec![(0, bytes)],
        };
        Ok(Region { offset, bytes, mappable })
    }

    /// Bus addresses that the IOMMU translates: first and last address of each range. Empty if unknown.
    pub fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, AnswerError> {
        if self.word(4)? & IOMMU_CAPS == 0 {
            return Ok(Vec::new());
        }
        match self.capability(self.word(16)? as usize, CAP_IOVA_RANGES)? {
            Some(at) => self.pairs(at),
            None => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A region of 16 KiB at 0; its first two pages can be mapped.
    const SPARSE: [u32; 16] = [64, 0xf, 0, 32, 0x4000, 0, 0, 0, 0x1_0001, 0, 1, 0, 0, 0, 0x2000, 0];

    #[test]
    fn region_mappable_whole_or_by_sparse_areas() {
        let region = Answer(&SPARSE).region().unwrap();
        let mappable = std::vec![(0, 0x2000)];
        assert_eq!(region, Region { offset: 0, bytes: 0x4000, mappable });
        let mut plain = SPARSE;
        plain[1] = 0x7;
        assert_eq!(Answer(&plain).region().unwrap().mappable, [(0, 0x4000)]);
        plain[1] = 0x3;
        assert_eq!(Answer(&plain).region().unwrap().mappable, []);
    }

    #[test]
    fn iova_ranges_found_behind_other_capabilities() {
        let words = [
            88,
            3,
            0,
            0x1000,
            24,
            0, // fixed part
            0x1_0003,
            40,
            0,
            0, // another
            0x1_0001,
            0,
            2,
            0,
            0,
            0,
            0xfedf_ffff,
            0,
            0xfef0_0000,
            0,
            0xffff_ffff,
            0x7f,
        ];
        let ranges = Answer(&words).iova_ranges().unwrap();
        assert_eq!(ranges, [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]);
    }

    #[test]
    fn malformed_capability_chain_is_an_error() {
        let mut circle = SPARSE;
        (circle[8], circle[9]) = (9, 32);
        let error = Answer(&circle).region().unwrap_err();
        assert_eq!(error, AnswerError::Endless);
        let mut outside = SPARSE;
        outside[3] = 4096;
        let error = Answer(&outside).region().unwrap_err();
        assert_eq!(error, AnswerError::TooShort { at: 4096 });
    }

    proptest! {
        #[test]
        fn random_answers_do_not_panic(words in prop::collection::vec(any::<u32>(), 0..40)) {
            let _ = Answer(&words).region();
            let _ = Answer(&words).iova_ranges();
        }

        #[test]
        fn answers_with_one_random_word_do_not_panic(at in 0_usize..16, word in any::<u32>()) {
            let mut words = SPARSE;
            words[at] = word;
            let _ = Answer(&words).region();
            let _ = Answer(&words).iova_ranges();
        }
    }
}
