//! Set and clear registers of one mask word. Ones written to the first register set bits, ones written to the
//! second clear them, and both read as the word. A write takes effect on the word at its arrival, so no two
//! writes are merged, however late the device polls. The interrupt mask of NVMe (INTMS, INTMC) is such a
//! pair.
//!
//! The port that takes a write in (the vfio-user session, the modelled device side, the host end of shared
//! memory) computes the word: these are the only registers for which two equal writes differ from one, so a
//! device that polls words later could not tell. The interrupt pin obeys bit 0. MSI-X vectors have masks of
//! their own.

/// Offsets of such a pair in a register window. A device that stores the word stores it in both registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    /// Offset of the register whose ones set bits.
    pub set: u32,
    /// Offset of the register whose ones clear bits.
    pub clear: u32,
}

impl Masks {
    /// Returns true if this register is one of the two.
    #[inline]
    pub(crate) fn has(self, register: u32) -> bool {
        register == self.set || register == self.clear
    }

    /// The word after a write of `value` to one of the two registers.
    pub(crate) fn written(self, register: u32, word: u32, value: u32) -> u32 {
        if register == self.set { word | value } else { word & !value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn mask_writes_ignore_zero_bits() {
        let masks = Masks { set: 0xc, clear: 0x10 };
        assert!(masks.has(0xc) && masks.has(0x10) && !masks.has(0x14) && !masks.has(8));
        let writes =
            [(0xc, 1), (0xc, 6), (0xc, 0), (0x10, 2), (0x10, 0), (0xc, 1), (0x10, u32::MAX)];
        let words: Vec<u32> = writes
            .iter()
            .scan(0, |word, (register, value)| {
                *word = masks.written(*register, *word, *value);
                Some(*word)
            })
            .collect();
        assert_eq!(words, [1, 7, 7, 5, 5, 5, 0]);
    }
}
