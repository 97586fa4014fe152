//! Where a function is, and which interrupt pin it has.

use core::fmt;

/// Buses that numbers can name.
pub const BUSES: usize = 256;
/// Devices of a bus.
pub const DEVICES: u8 = 32;
/// Functions of a device.
pub const FUNCTIONS: u8 = 8;

/// A function's place: bus, device and function number (PCI local bus 3.0, 3.2.2.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(u16);

impl Bdf {
    /// The function of this number, of this device, on this bus.
    ///
    /// # Panics
    /// If there are no such devices or functions.
    pub const fn new(bus: u8, device: u8, function: u8) -> Bdf {
        assert!(device < DEVICES && function < FUNCTIONS);
        Bdf((bus as u16) << 8 | (device as u16) << 3 | function as u16)
    }

    /// The bus.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The device, below [`DEVICES`].
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 % DEVICES
    }

    /// The function, below [`FUNCTIONS`].
    pub const fn function(self) -> u8 {
        self.0 as u8 % FUNCTIONS
    }

    /// Sixteen bits, as requester identifiers have them: bus, device, function from the top.
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

    /// As the interrupt pin register has it, counted from 1. None: the function has no pin, or says what
    /// makes no sense (PCI local bus 3.0, 6.2.4).
    pub fn from_register(value: u8) -> Option<Pin> {
        Pin::ALL.get(usize::from(value).checked_sub(1)?).copied()
    }

    /// Its number, counted from 0.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The pin of this number, modulo four.
    pub fn of(number: u8) -> Pin {
        Pin::ALL[usize::from(number % 4)]
    }

    /// The pin of a bridge's primary side that it is wired to, for a device of this number on the bridge's
    /// secondary side (PCI-to-PCI bridge 1.2, table 9-1).
    #[must_use]
    pub fn through_bridge(self, device: u8) -> Pin {
        Pin::of(self.number().wrapping_add(device))
    }
}

/// `INTA`.
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
    fn a_place_is_sixteen_bits_and_prints_as_lspci_does() {
        let place = Bdf::new(0x2a, 0x1f, 7);
        assert_eq!(place.bits(), 0x2aff);
        assert_eq!((place.bus(), place.device(), place.function()), (0x2a, 0x1f, 7));
        assert_eq!(place.to_string(), "2a:1f.7");
    }

    /// The table of the bridge specification, row by row: device 0, 4, 8 .. as they come, then shifted.
    #[test]
    fn a_bridge_is_wired_as_its_specification_says() {
        use Pin::{A, B, C, D};
        let table = [(0, [A, B, C, D]), (1, [B, C, D, A]), (2, [C, D, A, B]), (3, [D, A, B, C])];
        for (device, wired) in table {
            for again in (device..DEVICES).step_by(4) {
                assert_eq!(Pin::ALL.map(|pin| pin.through_bridge(again)), wired, "device {again}");
            }
        }
    }

    #[test]
    fn only_four_pins_make_sense() {
        let pins = (0..=255).filter_map(Pin::from_register);
        assert!(pins.eq(Pin::ALL));
    }
}
