//! Logical unit numbers (SAM-5, 4.7).

/// A logical unit number of one level, as eight bytes in the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(pub u64);

/// Numbers from here on are written by flat space addressing, those below by peripheral device addressing.
const FLAT_FROM: u16 = 256;
/// The address method of flat space.
const FLAT: u64 = 0b01 << 62;
/// The most that flat space can name, and one more.
const FLAT_END: u16 = 1 << 14;

impl Lun {
    /// The unit of this number.
    ///
    /// # Panics
    /// If it is 16384 or more, which one level cannot name.
    pub const fn of(number: u16) -> Lun {
        assert!(number < FLAT_END);
        let at = (number as u64) << 48;
        Lun(if number < FLAT_FROM { at } else { FLAT | at })
    }

    /// Its number, if it is of one level, by either way of addressing.
    pub const fn number(self) -> Option<u16> {
        let (method, rest) = (self.0 >> 62, self.0 & ((1 << 48) - 1));
        let number = ((self.0 >> 48) & 0x3fff) as u16;
        match method {
            // The byte before the number is a bus identifier: zero is this target itself.
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
    fn both_ways_of_addressing_name_the_same_unit() {
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
