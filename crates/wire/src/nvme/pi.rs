//! Protection information: eight bytes per block, by which any component on the data path can check that
//! the data are unchanged and belong to the block (NVM command set 1.0, 5.2; 16b guard).

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;
use super::status::Status;
use crate::Lba;

/// Bytes of protection information per block.
pub const BYTES: usize = 8;

/// The polynomial of the guard: x^16 + x^15 + x^11 + x^9 + x^8 + x^7 + x^5 + x^4 + x^2 + x + 1 (T10's, and
/// NVM command set 1.0, 5.2.1.3.2).
const POLYNOMIAL: u16 = 0x8bb7;

/// Guard of a byte followed by N zero bytes, so that eight bytes take one step.
static STEPS: [[u16; 256]; 8] = steps();

const fn steps() -> [[u16; 256]; 8] {
    let mut steps = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut guard = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            guard = if guard & 0x8000 != 0 { guard << 1 ^ POLYNOMIAL } else { guard << 1 };
            bit += 1;
        }
        steps[0][byte] = guard;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u16 = steps[zeros - 1][byte];
            steps[zeros][byte] = before << 8 ^ steps[0][(before >> 8) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    steps
}

/// The guard of a block's data.
pub fn guard(data: &[u8]) -> u16 {
    let mut guard = 0_u16;
    let (eights, rest) = data.as_chunks::<8>();
    for eight in eights {
        let [high, low] = guard.to_be_bytes();
        let first = [eight[0] ^ high, eight[1] ^ low];
        let step = |zeros: usize, byte: u8| STEPS[zeros][usize::from(byte)];
        guard = step(7, first[0]) ^ step(6, first[1]);
        for (place, byte) in eight[2..].iter().enumerate() {
            guard ^= step(5 - place, *byte);
        }
    }
    for byte in rest {
        guard = guard << 8 ^ STEPS[0][usize::from((guard >> 8) as u8 ^ byte)];
    }
    guard
}

/// Protection information type of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Type 1: the reference tag is the low half of the LBA.
    One = 1,
    /// Type 2: the reference tag starts at any value and is incremented per block.
    Two = 2,
    /// Type 3: the reference tag is defined by the application.
    Three = 3,
}

impl Kind {
    /// The type with this number, as in PI of Format NVM and bits 2:0 of DPS; `None` for 0.
    ///
    /// # Errors
    /// Invalid Format for an undefined type.
    pub const fn of(number: u8) -> Result<Option<Kind>, Status> {
        Ok(Some(match number {
            0 => return Ok(None),
            1 => Kind::One,
            2 => Kind::Two,
            3 => Kind::Three,
            _ => return Err(Status::INVALID_FORMAT),
        }))
    }
}

/// PI tuple of a block as it is in memory.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Tuple {
    /// CRC of the data.
    pub guard: U16,
    /// Application tag.
    pub application: U16,
    /// Reference tag.
    pub reference: U32,
}

layout!(Tuple, 8, { guard @ 0, application @ 2, reference @ 4 });

/// PRCHK: checks to perform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Bit 2: guard.
    pub guard: bool,
    /// Bit 1: application tag.
    pub application: bool,
    /// Bit 0: reference tag.
    pub reference: bool,
}

impl Checks {
    /// All checks.
    pub const ALL: Checks = Checks { guard: true, application: true, reference: true };
}

/// PI fields of a command. A namespace without PI ignores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// PRACT: the controller inserts or strips the PI.
    pub act: bool,
    /// PRCHK: checks to perform.
    pub checks: Checks,
    /// ILBRT or EILBRT: the reference tag of the first block.
    pub reference: u32,
    /// LBAT or ELBAT: the application tag.
    pub application: u16,
    /// LBATM or ELBATM: mask of the application tag bits to check.
    pub mask: u16,
}

/// A field of the PI tuple that failed its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Guard: the data differ.
    Guard,
    /// Application tag.
    Application,
    /// Reference tag: the data belong to another block.
    Reference,
}

impl core::fmt::Display for Tag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Tag::Guard => "guard",
            Tag::Application => "application tag",
            Tag::Reference => "reference tag",
        })
    }
}

/// A failed check of a PI tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field that failed.
    pub tag: Tag,
    /// Expected value.
    pub expected: u32,
    /// Value found.
    pub found: u32,
}

impl Mismatch {
    /// Status for the field that failed.
    pub const fn status(&self) -> Status {
        match self.tag {
            Tag::Guard => Status::GUARD_CHECK_ERROR,
            Tag::Application => Status::APPLICATION_TAG_CHECK_ERROR,
            Tag::Reference => Status::REFERENCE_TAG_CHECK_ERROR,
        }
    }
}

impl Protection {
    /// All fields zero: no action, no checks.
    pub const NONE: Protection = Protection::from_bits(0, 0, 0);

    /// PI fields of a source range of Copy: PRINFOR, and its tags.
    pub const fn of_range(prinfor: u8, reference: u32, application: u16, mask: u16) -> Protection {
        Protection::from_bits(prinfor, reference, (mask as u32) << 16 | application as u32)
    }

    /// Decodes PRINFO's four bits, and dwords 14 and 15.
    pub(super) const fn from_bits(prinfo: u8, reference: u32, tags: u32) -> Protection {
        let checks = Checks {
            guard: prinfo & 4 != 0,
            application: prinfo & 2 != 0,
            reference: prinfo & 1 != 0,
        };
        let (application, mask) = (tags as u16, (tags >> 16) as u16);
        Protection { act: prinfo & 8 != 0, checks, reference, application, mask }
    }

    #[inline]
    pub(super) const fn prinfo(&self) -> u8 {
        let Checks { guard, application, reference } = self.checks;
        (self.act as u8) << 3 | (guard as u8) << 2 | (application as u8) << 1 | reference as u8
    }

    /// Encodes the application tag and its mask.
    #[inline]
    pub(super) const fn tags(&self) -> u32 {
        (self.mask as u32) << 16 | self.application as u32
    }

    /// Validates the PI fields for blocks from `lba` on (NVM command set 1.0, 5.2.3).
    ///
    /// # Errors
    /// Invalid Protection Information, if the reference tag is to be checked and is not the low half of the
    /// LBA (type 1), or the type has no check for it (type 3).
    pub const fn validate(&self, kind: Kind, lba: Lba) -> Result<(), Status> {
        let sense = match kind {
            Kind::One => self.reference == lba.0 as u32,
            Kind::Two => true,
            Kind::Three => false,
        };
        if self.checks.reference && !sense {
            return Err(Status::INVALID_PROTECTION_INFORMATION);
        }
        Ok(())
    }

    /// Reference tag of the block with index `number` in the command, counted from 0.
    pub const fn reference_of(&self, kind: Kind, number: u32) -> u32 {
        match kind {
            Kind::One | Kind::Two => self.reference.wrapping_add(number),
            Kind::Three => self.reference,
        }
    }

    /// PI tuple of the block with index `number` in the command.
    pub fn tuple(&self, kind: Kind, number: u32, data: &[u8]) -> Tuple {
        Tuple {
            guard: guard(data).into(),
            application: self.application.into(),
            reference: self.reference_of(kind, number).into(),
        }
    }

    /// Performs the requested checks on the block with index `number` in the command. An application tag of
    /// all ones, as of an unwritten block, disables them; with type 3, only together with a reference tag
    /// of all ones.
    ///
    /// # Errors
    /// The first mismatch, in the order guard, application tag, reference tag.
    pub fn check(
        &self,
        kind: Kind,
        number: u32,
        tuple: &Tuple,
        data: &[u8],
    ) -> Result<(), Mismatch> {
        let escapes = tuple.application.get() == u16::MAX
            && (kind != Kind::Three || tuple.reference.get() == u32::MAX);
        if escapes {
            return Ok(());
        }
        let must_be = |wanted: bool, tag, expected: u32, found: u32| {
            if wanted && expected != found {
                Err(Mismatch { tag, expected, found })
            } else {
                Ok(())
            }
        };
        if self.checks.guard {
            must_be(true, Tag::Guard, guard(data).into(), tuple.guard.get().into())?;
        }
        let masked = |tag: u16| u32::from(tag & self.mask);
        let (expected, found) = (masked(self.application), masked(tuple.application.get()));
        must_be(self.checks.application, Tag::Application, expected, found)?;
        let expected = self.reference_of(kind, number);
        must_be(self.checks.reference, Tag::Reference, expected, tuple.reference.get())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    /// Reference implementation, bit by bit.
    fn slow(data: &[u8]) -> u16 {
        data.iter().fold(0, |guard, byte| {
            (0..8).fold(guard ^ u16::from(*byte) << 8, |guard: u16, _| {
                guard << 1 ^ if guard & 0x8000 != 0 { POLYNOMIAL } else { 0 }
            })
        })
    }

    #[test]
    fn crc16_guard_matches_known_vectors() {
        // The check value of CRC-16/T10-DIF, and two examples of T10's SBC-3, 4.22.4.
        assert_eq!(guard(b"123456789"), 0xd0db);
        assert_eq!(guard(&[0; 32]), 0);
        assert_eq!(guard(&[0xff; 32]), 0xa293);
        for length in [0, 1, 7, 8, 9, 63, 512, 4096] {
            let data: vec::Vec<u8> = (0..length).map(|at| (at * 37 + at / 7) as u8).collect();
            assert_eq!(guard(&data), slow(&data), "{length} bytes");
        }
    }

    fn all(reference: u32) -> Protection {
        let (application, mask) = (0x1234, 0xff00);
        Protection { act: false, checks: Checks::ALL, reference, application, mask }
    }

    #[test]
    fn pi_tuple_layout() {
        let tuple = all(0x0506_0708).tuple(Kind::One, 1, b"123456789");
        assert_eq!(tuple.as_bytes(), [0xd0, 0xdb, 0x12, 0x34, 5, 6, 7, 9]);
        assert_eq!(all(9).tuple(Kind::Three, 1, &[]).reference.get(), 9);
        assert_eq!(all(u32::MAX).tuple(Kind::Two, 1, &[]).reference.get(), 0);
    }

    #[test]
    fn prinfo_and_tags_layout() {
        for prinfo in 0..16 {
            let protection = Protection::from_bits(prinfo, 7, 0xabcd_1234);
            assert_eq!((protection.prinfo(), protection.tags()), (prinfo, 0xabcd_1234));
            assert_eq!((protection.application, protection.mask), (0x1234, 0xabcd));
        }
    }

    #[test]
    fn reference_tag_check_by_pi_type() {
        let refused = Err(Status::INVALID_PROTECTION_INFORMATION);
        let lba = Lba(0x7_0000_0005);
        assert_eq!(all(5).validate(Kind::One, lba), Ok(()));
        assert_eq!(all(6).validate(Kind::One, lba), refused);
        assert_eq!(all(6).validate(Kind::Two, lba), Ok(()));
        assert_eq!(all(5).validate(Kind::Three, lba), refused);
        let unchecked = Protection { checks: Checks::default(), ..all(6) };
        assert_eq!(unchecked.validate(Kind::One, lba), Ok(()));
        assert_eq!(unchecked.validate(Kind::Three, lba), Ok(()));
    }

    #[test]
    fn pi_check_reports_mismatched_field() {
        let (data, protection) = ([3; 512], all(40));
        let good = protection.tuple(Kind::Two, 2, &data);
        let check = |tuple: &Tuple| protection.check(Kind::Two, 2, tuple, &data);
        assert_eq!(check(&good), Ok(()));
        let bad = |tag, expected, found| Err(Mismatch { tag, expected, found });
        let found = u32::from(good.guard.get() ^ 1);
        let tuple = Tuple { guard: (found as u16).into(), ..good };
        assert_eq!(check(&tuple), bad(Tag::Guard, found ^ 1, found));
        assert_eq!(check(&Tuple { application: 0x12ff.into(), ..good }), Ok(()), "masked");
        let tuple = Tuple { application: 0x2234.into(), ..good };
        assert_eq!(check(&tuple), bad(Tag::Application, 0x1200, 0x2200));
        let tuple = Tuple { reference: 43.into(), ..good };
        assert_eq!(check(&tuple), bad(Tag::Reference, 42, 43));
        assert_eq!(protection.check(Kind::Two, 3, &tuple, &data), Ok(()));
        let off = Protection { checks: Checks::default(), ..protection };
        let nonsense = Tuple { guard: 0.into(), application: 0.into(), reference: 0.into() };
        assert_eq!(off.check(Kind::Two, 2, &nonsense, &data), Ok(()));
    }

    #[test]
    fn pi_checks_disabled_by_app_tag_ffff() {
        let escapes = Tuple { guard: 9.into(), application: u16::MAX.into(), reference: 8.into() };
        for kind in [Kind::One, Kind::Two] {
            assert_eq!(all(1).check(kind, 0, &escapes, &[1]), Ok(()));
        }
        let three = Protection { checks: Checks { reference: false, ..Checks::ALL }, ..all(1) };
        assert!(three.check(Kind::Three, 0, &escapes, &[1]).is_err());
        let never_written = Tuple { reference: u32::MAX.into(), ..escapes };
        assert_eq!(three.check(Kind::Three, 0, &never_written, &[1]), Ok(()));
    }
}
