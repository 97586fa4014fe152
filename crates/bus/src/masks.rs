//! Two registers that are one word of bits: ones written to the first set bits of it, ones written to the
//! second clear them, and both read as the word. What a write does follows from the word as it is when the
//! write arrives, so that no two writes become one, however late the device looks.

/// Where a window has such a pair. The device may store the word, in both places; what it stores is kept as
/// it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    /// Offset of the register whose ones set bits.
    pub set: u32,
    /// Offset of the register whose ones clear bits.
    pub clear: u32,
}

impl Masks {
    /// Whether this register is one of the two.
    #[inline]
    pub(crate) fn has(self, register: u32) -> bool {
        register == self.set || register == self.clear
    }

    /// The word after a write of this value to one of the two.
    pub(crate) fn written(self, register: u32, word: u32, value: u32) -> u32 {
        if register == self.set { word | value } else { word & !value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn ones_count_and_zeros_do_not() {
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
