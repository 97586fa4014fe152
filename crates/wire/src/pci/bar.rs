//! Base address registers: type bits, and the window length that a driver determines by writing ones (PCI
//! local bus 3.0, 6.2.5.1).

use super::Space;

const IO: u32 = 1;
const MEMORY_KIND: u32 = 0b110;
const MEMORY_WIDE: u32 = 0b100;
const MEMORY_PREFETCHABLE: u32 = 1 << 3;

/// Type and length of the window that a register requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRequest {
    /// I/O, memory, or prefetchable memory.
    pub space: Space,
    /// The register has 64 bits: it takes the next register too, and may be above 4 GiB.
    pub wide: bool,
    /// Length of the window in bytes, a power of two.
    pub bytes: u64,
}

/// A register that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarError {
    /// Bits 2:1 are neither 00 nor 10.
    #[error("bits 2:1 are reserved, expected 00 or 10")]
    Kind,
    /// The value read after writing ones is not a length: its ones have gaps.
    #[error("it reads {found:#x} after ones, expected ones without a gap down to its length")]
    Length {
        /// Value read, both words together.
        found: u64,
    },
    /// It is the last, and claims the one behind it.
    #[error("the last register has no other for its upper half")]
    NoPair,
}

/// Whether a register, as it reads, takes the next one too.
pub fn is_wide(low: u32) -> bool {
    low & IO == 0 && low & MEMORY_KIND == MEMORY_WIDE
}

/// Type and length of a window, from the values of its register, and of the next if it has 64 bits, after
/// writing ones. `None` if the register is not implemented.
///
/// # Errors
/// The register is invalid.
pub fn size(low: u32, high: Option<u32>) -> Result<Option<BarRequest>, BarError> {
    let (space, wide, ones) = if low & IO != 0 {
        // The upper half of an I/O register may be missing: I/O addresses have 16 bits.
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
    // The lowest one is the length, and all bits above it must be ones.
    if !bytes.is_power_of_two() {
        return Err(BarError::Length { found: ones });
    }
    Ok(Some(BarRequest { space, wide, bytes }))
}

/// Address in a register, and in the next one if it has 64 bits.
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
    fn bar_length_from_sticky_ones() {
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
    fn unimplemented_bar_is_none() {
        assert_eq!(size(0, None), Ok(None));
        assert_eq!(size(0x0000_0001, None), Ok(None));
        assert_eq!(size(0x0000_0004, Some(0)), Ok(None));
    }

    #[test]
    fn invalid_bars_are_errors() {
        assert_eq!(size(0xffff_f002, None), Err(BarError::Kind));
        assert_eq!(size(0xffff_f006, None), Err(BarError::Kind));
        assert_eq!(size(0xffff_f004, None), Err(BarError::NoPair));
        assert_eq!(size(0xf0ff_f000, None), Err(BarError::Length { found: 0xf0ff_f000 }));
        // A 64-bit register without its upper half could only be a window at address 0.
        let half = size(0xffff_f004, Some(0));
        assert_eq!(half, Err(BarError::Length { found: 0xffff_f000 }));
    }

    #[test]
    fn bar_address_excludes_type_bits() {
        assert_eq!(address(0xfebf_0004, 0x12), 0x12_febf_0000);
        assert_eq!(address(0xfebf_0008, 0x12), 0xfebf_0000);
        assert_eq!(address(0x0000_c041, 0x12), 0xc040);
    }
}
