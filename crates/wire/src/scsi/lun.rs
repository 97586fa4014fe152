//! Logical unit numbers (SAM-5, 4.7).

/// A single-level logical unit number, as eight bytes in wire order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(pub u64);

/// Units from this number on use flat space addressing, those below peripheral device addressing.
const FLAT_FROM: u16 = 256;
/// Address method of flat space.
const FLAT: u64 = 0b01 << 62;
/// End of the range of flat space addressing, exclusive.
const FLAT_END: u16 = 1 << 14;

impl Lun {
    /// The unit with this number.
    ///
    /// # Panics
    /// If it is 16384 or more, the limit of a single level.
    pub const fn of(number: u16) -> Lun {
        assert!(number < FLAT_END);
        let at = (number as u64) << 48;
        Lun(if number < FLAT_FROM { at } else { FLAT | at })
    }

    /// Unit number; `None` unless it is a single level of a supported addressing method.
    pub const fn number(self) -> Option<u16> {
        let (method, rest) = (self.0 >> 62, self.0 & ((1 << 48) - 1));
        let number = ((self.0 >> 48) & 0x3fff) as u16;
        match method {
            // The byte before the number is a bus identifier: zero is the target itself.
            0 if rest == 0 && number < FLAT_FROM => Some(number),
            1 if rest == 0 => Some(number),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lun_addressing_methods_are_equivalent() {
        assert_eq!(Lun::of(0), Lun(0));
        assert_eq!(Lun::of(3), Lun(0x0003_0000_0000_0000));
        assert_eq!(Lun::of(300), Lun(0x412c_0000_0000_0000));
        for number in [0, 1, 255, 256, 16383] {
            assert_eq!(Lun::of(number).number(), Some(number));
        }
        assert_eq!(Lun(0x4003_0000_0000_0000).number(), Some(3));
        for none in [0x0103_0000_0000_0000, 0x0003_0001_0000_0000, 0x8000 << 48, 1] {
            assert_eq!(Lun(none).number(), None, "{none:#x}");
        }
    }
}
