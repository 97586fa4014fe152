//! Address and interrupt pin of a PCI function.

use core::fmt;

/// Number of bus numbers.
pub const BUSES: usize = 256;
/// Devices of a bus.
pub const DEVICES: u8 = 32;
/// Functions of a device.
pub const FUNCTIONS: u8 = 8;

/// Address of a function: bus, device and function number (PCI local bus 3.0, 3.2.2.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(u16);

impl Bdf {
    /// The address of a function.
    ///
    /// # Panics
    /// If the device or function number is out of range.
    pub const fn new(bus: u8, device: u8, function: u8) -> Bdf {
        assert!(device < DEVICES && function < FUNCTIONS);
        Bdf((bus as u16) << 8 | (device as u16) << 3 | function as u16)
    }

    /// Bus number.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Device number, below [`DEVICES`].
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 % DEVICES
    }

    /// Function number, below [`FUNCTIONS`].
    pub const fn function(self) -> u8 {
        self.0 as u8 % FUNCTIONS
    }

    /// Sixteen bits, as in requester identifiers: bus, device, function from the top.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// `02:1f.3`, in hexadecimal digits.
impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus(), self.device(), self.function())
    }
}

impl fmt::Debug for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An interrupt pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// INTA#.
    A,
    /// INTB#.
    B,
    /// INTC#.
    C,
    /// INTD#.
    D,
}

impl Pin {
    /// All four, in order.
    pub const ALL: [Pin; 4] = [Pin::A, Pin::B, Pin::C, Pin::D];

    /// Decodes the interrupt pin register, which counts from 1. `None` if the function has no pin or the
    /// value is invalid (PCI local bus 3.0, 6.2.4).
    pub fn from_register(value: u8) -> Option<Pin> {
        Pin::ALL.get(usize::from(value).checked_sub(1)?).copied()
    }

    /// Index of the pin, counted from 0.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The pin with this index, modulo four.
    pub fn of(number: u8) -> Pin {
        Pin::ALL[usize::from(number % 4)]
    }

    /// The primary-side pin of a bridge that this pin of the given secondary-side device is routed to
    /// (PCI-to-PCI bridge 1.2, table 9-1).
    #[must_use]
    pub fn through_bridge(self, device: u8) -> Pin {
        Pin::of(self.number().wrapping_add(device))
    }
}

/// Example: `INTA`.
impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "INT{self:?}")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn bdf_bits_and_display_match_lspci() {
        let place = Bdf::new(0x2a, 0x1f, 7);
        assert_eq!(place.bits(), 0x2aff);
        assert_eq!((place.bus(), place.device(), place.function()), (0x2a, 0x1f, 7));
        assert_eq!(place.to_string(), "2a:1f.7");
    }

    /// The table of the bridge specification, row by row: devices 0, 4, 8 .. unchanged, then rotated.
    #[test]
    fn bridge_pin_routing_matches_spec() {
        use Pin::{A, B, C, D};
        let table = [(0, [A, B, C, D]), (1, [B, C, D, A]), (2, [C, D, A, B]), (3, [D, A, B, C])];
        for (device, wired) in table {
            for again in (device..DEVICES).step_by(4) {
                assert_eq!(Pin::ALL.map(|pin| pin.through_bridge(again)), wired, "device {again}");
            }
        }
    }

    #[test]
    fn interrupt_pin_register_accepts_1_to_4() {
        let pins = (0..=255).filter_map(Pin::from_register);
        assert!(pins.eq(Pin::ALL));
    }
}
