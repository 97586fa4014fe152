//! Base address registers: what their kind bits say, and how long the window is that a driver learns of by
//! writing ones (PCI local bus 3.0, 6.2.5.1).

use core::fmt;

use super::Space;

const IO: u32 = 1;
const MEMORY_KIND: u32 = 0b110;
const MEMORY_WIDE: u32 = 0b100;
const MEMORY_PREFETCHABLE: u32 = 1 << 3;

/// What a register asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRequest {
    /// Ports, memory, or memory that may be read ahead.
    pub space: Space,
    /// It takes the next register too, and may lie above 4 GiB.
    pub wide: bool,
    /// The window's length in bytes, a power of two.
    pub bytes: u64,
}

/// A register that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarError {
    /// Bits 2:1 are neither 00 nor 10.
    Kind,
    /// What it reads after ones were written is no length: its ones have gaps.
    Length {
        /// What it reads, both words together.
        found: u64,
    },
    /// It is the last, and claims the one behind it.
    NoPair,
}

impl fmt::Display for BarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BarError::Kind => f.write_str("bits 2:1 are reserved, expected 00 or 10"),
            BarError::Length { found } => {
                write!(
                    f,
                    "it reads {found:#x} after ones, expected ones without a gap down to its length"
                )
            }
            BarError::NoPair => f.write_str("the last register has no other for its upper half"),
        }
    }
}

impl core::error::Error for BarError {}

/// Whether a register, as it reads, takes the next one too.
pub fn is_wide(low: u32) -> bool {
    low & IO == 0 && low & MEMORY_KIND == MEMORY_WIDE
}

/// What a register asks for, by what it and, if it is wide, the next one read after ones were written.
/// None: it is not there.
///
/// # Errors
/// It makes no sense.
pub fn size(low: u32, high: Option<u32>) -> Result<Option<BarRequest>, BarError> {
    let (space, wide, ones) = if low & IO != 0 {
        // The upper half of a port's register may be missing: ports have 16 bits.
        let ones = low & !0b11;
        (
            Space::Io,
            false,
            u64::from(if ones >> 16 == 0 && ones != 0 { ones | 0xffff_0000 } else { ones }),
        )
    } else {
        let prefetchable = low & MEMORY_PREFETCHABLE != 0;
        let space = if prefetchable { Space::Prefetchable } else { Space::Memory };
        let low_ones = u64::from(low & !0xf);
        match low & MEMORY_KIND {
            0 => (space, false, low_ones),
            MEMORY_WIDE => {
                let high = high.ok_or(BarError::NoPair)?;
                (space, true, u64::from(high) << 32 | low_ones)
            }
            _ => return Err(BarError::Kind),
        }
    };
    if ones == 0 {
        return Ok(None);
    }
    let all = if wide { ones } else { ones | 0xffff_ffff_0000_0000 };
    let bytes = all.wrapping_neg();
    // The lowest one is the length, and all above it are ones.
    if !bytes.is_power_of_two() {
        return Err(BarError::Length { found: ones });
    }
    Ok(Some(BarRequest { space, wide, bytes }))
}

/// The address in a register, and in the next one if it is wide.
pub fn address(low: u32, high: u32) -> u64 {
    match (low & IO != 0, is_wide(low)) {
        (true, _) => u64::from(low & !0b11),
        (false, true) => u64::from(high) << 32 | u64::from(low & !0xf),
        (false, false) => u64::from(low & !0xf),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_ones_that_stay() {
        let request = |space, wide, bytes| Ok(Some(BarRequest { space, wide, bytes }));
        assert_eq!(size(0xffff_c004, Some(u32::MAX)), request(Space::Memory, true, 0x4000));
        assert_eq!(
            size(0x0000_000c, Some(0xffff_fff8)),
            request(Space::Prefetchable, true, 8 << 32)
        );
        assert_eq!(
            size(0x0000_000c, Some(0x8000_0000)),
            request(Space::Prefetchable, true, 1 << 63)
        );
        assert_eq!(size(0xffff_f000, None), request(Space::Memory, false, 4096));
        assert_eq!(size(0x8000_0000, None), request(Space::Memory, false, 1 << 31));
        assert_eq!(size(0xffff_ffe1, None), request(Space::Io, false, 32));
        assert_eq!(size(0x0000_ffe1, None), request(Space::Io, false, 32));
    }

    #[test]
    fn what_is_not_there_asks_for_nothing() {
        assert_eq!(size(0, None), Ok(None));
        assert_eq!(size(0x0000_0001, None), Ok(None));
        assert_eq!(size(0x0000_0004, Some(0)), Ok(None));
    }

    #[test]
    fn registers_without_sense_are_errors() {
        assert_eq!(size(0xffff_f002, None), Err(BarError::Kind));
        assert_eq!(size(0xffff_f006, None), Err(BarError::Kind));
        assert_eq!(size(0xffff_f004, None), Err(BarError::NoPair));
        assert_eq!(size(0xf0ff_f000, None), Err(BarError::Length { found: 0xf0ff_f000 }));
        // A 64-bit register whose upper half is not there could only be a window at address 0.
        let half = size(0xffff_f004, Some(0));
        assert_eq!(half, Err(BarError::Length { found: 0xffff_f000 }));
    }

    #[test]
    fn addresses_come_without_their_kind_bits() {
        assert_eq!(address(0xfebf_0004, 0x12), 0x12_febf_0000);
        assert_eq!(address(0xfebf_0008, 0x12), 0xfebf_0000);
        assert_eq!(address(0x0000_c041, 0x12), 0xc040);
    }
}
