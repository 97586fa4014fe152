//! Functions on the data path: CRC-32C seal, encryption, filter. The plan key `fastpath.function` and
//! [`named`] name them.
//!
//! ```text
//!    caller's memory ─ copy ─► outward ─► staging memory ─ DMA ─► drive
//!                    ◄─ copy ─ inward  ◄─                ◄─ DMA ─
//! ```
//!
//! This crate has no plan, no thread and no I/O: `host::fastpath` calls the functions, block by block.
//!
//! ```
//! use host::fastpath::Function;
//!
//! let mut seal = functions::named("crc32c")?.expect("a function");
//! let mut block = [7; 512];
//! seal.outward(0, &mut block).expect("the seal rejects no write");
//! seal.written(0, 512, true);
//! assert!(seal.inward(0, &mut block).is_ok());
//! block[100] ^= 1; // the drive returns other data
//! assert!(seal.inward(0, &mut block).is_err());
//! # Ok::<(), functions::NoSuchFunction>(())
//! ```

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::rc::Rc;

use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};
use host::fastpath::{Function, Refused, Shared};
use xts_mode::{Xts128, get_tweak_default};

/// Unit of seals and of XTS, bytes. It is the smallest block size, so that data written with one block size
/// can be read with another.
const UNIT: usize = 512;

/// A function that may be moved to another thread.
pub type Named = Box<dyn Function + Send>;

/// Error: the name of no function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchFunction(String);

/// Valid names, for error messages.
pub const EXPECTED: &str = "none, crc32c, aes-xts:KEY (of 64 or 128 hexadecimal digits, the halves \
    different) or filter:RECORD:AT:LEAST:MOST (bytes of a record; where in it a number of 8 bytes lies, \
    the lowest last; and which numbers pass)";

impl fmt::Display for NoSuchFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no function: expected {EXPECTED}", self.0)
    }
}

impl std::error::Error for NoSuchFunction {}

impl NoSuchFunction {
    /// The rejected name, up to its first colon.
    pub fn word(&self) -> &str {
        &self.0
    }
}

/// Returns the function of the given name; `None` for `none`.
///
/// # Errors
/// The name is unknown, or its arguments are invalid.
pub fn named(word: &str) -> Result<Option<Named>, NoSuchFunction> {
    let (name, rest) = word.split_once(':').unwrap_or((word, ""));
    let function: Option<Named> = match (name, rest) {
        ("none", "") => return Ok(None),
        ("crc32c", "") => Some(Box::new(Seal::default())),
        ("aes-xts", key) => {
            bytes(key).and_then(|key| AesXts::new(&key)).map(|xts| Box::new(xts) as Named)
        }
        ("filter", numbers) => {
            let numbers: Option<Vec<u64>> = numbers.split(':').map(|n| n.parse().ok()).collect();
            let filter = match numbers.as_deref() {
                Some(&[record, at, least, most]) => Filter::new(record, at, least..=most),
                _ => None,
            };
            filter.map(|filter| Box::new(filter) as Named)
        }
        _ => None,
    };
    // The rest of the word may hold a key, so the error has only the name.
    function.map(Some).ok_or_else(|| NoSuchFunction(name.into()))
}

/// Wraps a function for sharing between the tasks of a thread.
pub fn shared(function: Named) -> Shared {
    Rc::new(RefCell::new(function))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}

mod seal;

pub use seal::Seal;

/// XTS-AES encryption (IEEE Std 1619) of the data on the drive. Data units have 512 bytes and are numbered
/// from the beginning of the drive. A unit of zeros on the drive, which data become once in 2^4096, was never
/// written: it is read as zeros.
pub enum AesXts {
    /// Two 128-bit keys.
    Aes128(Box<Xts128<Aes128>>),
    /// Two 256-bit keys.
    Aes256(Box<Xts128<Aes256>>),
}

impl AesXts {
    /// Takes a key of 32 or 64 bytes: the data key, then a tweak key that must differ from it. `None` for
    /// any other key.
    pub fn new(key: &[u8]) -> Option<AesXts> {
        let (data, tweak) = key.split_at(key.len() / 2);
        if data == tweak {
            return None;
        }
        match key.len() {
            32 => Some(AesXts::Aes128(Box::new(Xts128::new(
                Aes128::new_from_slice(data).ok()?,
                Aes128::new_from_slice(tweak).ok()?,
            )))),
            64 => Some(AesXts::Aes256(Box::new(Xts128::new(
                Aes256::new_from_slice(data).ok()?,
                Aes256::new_from_slice(tweak).ok()?,
            )))),
            _ => None,
        }
    }
}

impl Function for AesXts {
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        let first = u128::from(place / UNIT as u64);
        match self {
            AesXts::Aes128(xts) => xts.encrypt_area(block, UNIT, first, get_tweak_default),
            AesXts::Aes256(xts) => xts.encrypt_area(block, UNIT, first, get_tweak_default),
        }
        Ok(())
    }

    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        for (number, unit) in (place / UNIT as u64..).zip(block.chunks_exact_mut(UNIT)) {
            if unit.iter().all(|byte| *byte == 0) {
                continue;
            }
            let tweak = get_tweak_default(number.into());
            match self {
                AesXts::Aes128(xts) => xts.decrypt_sector(unit, tweak),
                AesXts::Aes256(xts) => xts.decrypt_sector(unit, tweak),
            }
        }
        Ok(())
    }
}

/// Passes records whose key field is in range and zeroes the others, on reads. Writes pass.
#[derive(Clone, Debug)]
pub struct Filter {
    record: usize,
    at: usize,
    passes: RangeInclusive<u64>,
}

impl Filter {
    /// Filters records of `record` bytes, a power of two from 8 to 512, by the 8-byte big-endian number at
    /// offset `at`. `None` if the number does not lie inside the record.
    pub fn new(record: u64, at: u64, passes: RangeInclusive<u64>) -> Option<Filter> {
        let sense = record.is_power_of_two() && (8..=UNIT as u64).contains(&record);
        let fits = at.checked_add(8).is_some_and(|end| end <= record);
        (sense && fits).then_some(Filter { record: record as usize, at: at as usize, passes })
    }
}

impl Function for Filter {
    fn outward(&mut self, _: u64, _: &mut [u8]) -> Result<(), Refused> {
        Ok(())
    }

    fn inward(&mut self, _: u64, block: &mut [u8]) -> Result<(), Refused> {
        for record in block.chunks_exact_mut(self.record) {
            let number = &record[self.at..self.at + 8];
            let number = u64::from_be_bytes(number.try_into().expect("8 bytes"));
            if !self.passes.contains(&number) {
                record.fill(0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "2718281828459045235360287471352631415926535897932384626433832795";

    fn block(seed: u8) -> Vec<u8> {
        (0..4096_u32).map(|n| ((n * 31) >> 3) as u8 ^ seed).collect()
    }

    /// IEEE Std 1619, annex B, vector 4: the bytes 0 to 255 twice, data unit 0.
    #[test]
    fn aes_xts_matches_ieee_1619_vector_4() {
        let mut data: Vec<u8> = (0..512).map(|n| n as u8).collect();
        let mut xts = named(&format!("aes-xts:{KEY}")).unwrap().unwrap();
        xts.outward(0, &mut data).unwrap();
        assert_eq!(bytes("27a7479befa1d476489f308cd4cfa6e2").unwrap(), data[..16]);
        assert_eq!(bytes("0a282df920147beabe421ee5319d0568").unwrap(), data[496..]);
        xts.inward(0, &mut data).unwrap();
        assert_eq!(data, (0..512).map(|n| n as u8).collect::<Vec<_>>());
    }

    #[test]
    fn aes_xts_depends_on_place_not_on_block_size() {
        let mut xts = named(&format!("aes-xts:{KEY}")).unwrap().unwrap();
        let (plain, mut data) = (block(0), block(0));
        xts.outward(8192, &mut data).unwrap();
        assert!(data.chunks(16).zip(plain.chunks(16)).all(|(there, here)| there != here));
        let mut elsewhere = data.clone();
        for (n, part) in data.chunks_mut(512).enumerate() {
            xts.inward(8192 + 512 * n as u64, part).unwrap();
        }
        assert_eq!(data, plain);
        xts.inward(0, &mut elsewhere).unwrap();
        assert_ne!(elsewhere, plain);
    }

    #[test]
    fn aes_xts_reads_unwritten_units_as_zeros() {
        let mut xts = named(&format!("aes-xts:{KEY}")).unwrap().unwrap();
        let (plain, mut data) = (block(0), block(0));
        xts.outward(0, &mut data).unwrap();
        data[1024..2048].fill(0);
        xts.inward(0, &mut data).unwrap();
        assert!(data[1024..2048].iter().all(|byte| *byte == 0), "never written");
        assert_eq!((&data[..1024], &data[2048..]), (&plain[..1024], &plain[2048..]));
        // Zeros that were written are not zeros on the drive.
        let mut zeros = vec![0; 512];
        xts.outward(0, &mut zeros).unwrap();
        assert!(zeros.iter().any(|byte| *byte != 0));
        xts.inward(0, &mut zeros).unwrap();
        assert!(zeros.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn filter_zeroes_records_outside_range() {
        let mut filter = named("filter:64:8:100:199").unwrap().unwrap();
        let mut data = vec![0xAA; 512];
        for (n, record) in data.chunks_mut(64).enumerate() {
            record[8..16].copy_from_slice(&(60 * n as u64).to_be_bytes());
        }
        let before = data.clone();
        filter.inward(0, &mut data).unwrap();
        for (n, (after, before)) in data.chunks(64).zip(before.chunks(64)).enumerate() {
            match n {
                2 | 3 => assert_eq!(after, before),
                _ => assert!(after.iter().all(|byte| *byte == 0), "record {n}"),
            }
        }
    }

    #[test]
    fn invalid_function_is_rejected_without_leaking_key() {
        assert!(named("none").unwrap().is_none());
        let same = format!("aes-xts:{}{}", &KEY[..32], &KEY[..32]);
        for word in [
            "",
            "md5",
            "crc32c:1",
            "aes-xts",
            "aes-xts:0g",
            &same,
            "filter:64:57:0:1",
            "filter:48:0:0:1",
        ] {
            let error = named(word).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("expected none, crc32c"), "{word}");
            assert!(!error.contains(&KEY[..32]), "{error}");
        }
    }
}
