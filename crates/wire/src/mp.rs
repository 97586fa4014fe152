//! MultiProcessor tables, by which firmware describes processors, interrupt controllers, and the wires
//! between devices and them to an operating system (Intel MultiProcessor Specification 1.4, chapter 4).
//!
//! [`Pointer::find`] finds the floating pointer in memory, [`Table::parse`] validates the table that it
//! points to, and [`Builder`] writes one. Checksums, lengths and entry types are checked, and an entry of
//! an unknown type ends the table.

use crate::pci::Pin;

/// Bytes of the floating pointer.
pub const POINTER_BYTES: usize = 16;
/// Bytes of the table's header.
pub const HEADER_BYTES: usize = 44;
/// Version written: 1.4.
const VERSION: u8 = 4;
/// Address of the registers of the local interrupt controllers, the same for every processor.
pub const LOCAL_APIC_AT: u32 = 0xfee0_0000;

/// Why bytes are not a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpError {
    /// It does not begin as it must.
    #[error("the signature is wrong: expected _MP_ or PCMP")]
    Signature,
    /// It says it is longer than what is there, or shorter than its header.
    #[error("its length is {found} bytes, expected {} to {there}", HEADER_BYTES)]
    Length {
        /// Length field, bytes.
        found: usize,
        /// Bytes given.
        there: usize,
    },
    /// Its bytes do not add up to zero.
    #[error("its bytes add up to {found:#04x}, expected 0")]
    Checksum {
        /// Sum of its bytes.
        found: u8,
    },
    /// An entry of a kind that is not there.
    #[error("an entry is of kind {found}, expected 0 to 4")]
    Kind {
        /// First byte of the entry.
        found: u8,
    },
    /// The table ends within an entry.
    #[error("it ends within an entry")]
    Short,
    /// There is no room for what is to be written.
    #[error("no room is left for another entry")]
    Full,
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The floating pointer (4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Address of the table; 0: the machine is one of the default configurations, without a table.
    pub table: u32,
    /// Default configuration; 0: none, there is a table.
    pub default: u8,
    /// IMCRP: interrupts go to the legacy controllers until the IMCR register is changed.
    pub imcr: bool,
}

impl Pointer {
    /// Validates and decodes the floating pointer.
    pub fn parse(bytes: &[u8]) -> Result<Pointer, MpError> {
        let there = bytes.len();
        let Some(bytes) = bytes.get(..POINTER_BYTES) else {
            return Err(MpError::Length { found: POINTER_BYTES, there });
        };
        if &bytes[..4] != b"_MP_" {
            return Err(MpError::Signature);
        }
        if bytes[8] != 1 {
            return Err(MpError::Length { found: usize::from(bytes[8]) * 16, there });
        }
        match sum(bytes) {
            0 => Ok(Pointer {
                table: u32_at(bytes, 4),
                default: bytes[11],
                imcr: bytes[12] & 0x80 != 0,
            }),
            found => Err(MpError::Checksum { found }),
        }
    }

    /// Searches at every sixteenth byte. The caller restricts `memory` to ranges where firmware may put it.
    pub fn find(memory: &[u8]) -> Option<(usize, Pointer)> {
        let places = (0..memory.len()).step_by(POINTER_BYTES);
        places.into_iter().find_map(|at| Some((at, Pointer::parse(&memory[at..]).ok()?)))
    }

    /// Encodes the floating pointer.
    pub fn to_bytes(&self) -> [u8; POINTER_BYTES] {
        let mut bytes = [0; POINTER_BYTES];
        bytes[..4].copy_from_slice(b"_MP_");
        bytes[4..8].copy_from_slice(&self.table.to_le_bytes());
        (bytes[8], bytes[9]) = (1, VERSION);
        (bytes[11], bytes[12]) = (self.default, u8::from(self.imcr) << 7);
        bytes[10] = sum(&bytes).wrapping_neg();
        bytes
    }
}

/// Active level of an interrupt wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polarity {
    /// As specified by the bus: low on PCI.
    Bus,
    /// Active high.
    High,
    /// Active low.
    Low,
}

/// Trigger mode of an interrupt wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// As specified by the bus: level on PCI.
    Bus,
    /// Edge.
    Edge,
    /// Level.
    Level,
}

/// Type of interrupt (4.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With a vector from the controller's own table.
    Vectored,
    /// Non-maskable.
    Nmi,
    /// System management.
    Smi,
    /// With a vector from the legacy controllers.
    External,
}

/// A wire from a device to an interrupt controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Type of interrupt.
    pub kind: Kind,
    /// Active level.
    pub polarity: Polarity,
    /// Trigger mode.
    pub trigger: Trigger,
    /// Bus of the device, by its number in this table.
    pub bus: u8,
    /// Interrupt source on that bus: on PCI the device and its pin, see [`Wire::pci`].
    pub source: u8,
    /// Number of the controller. FFh: all.
    pub controller: u8,
    /// Input of the controller.
    pub input: u8,
}

impl Wire {
    /// A wire from this pin of a PCI device: level-triggered, active low.
    pub fn of_pci(bus: u8, device: u8, pin: Pin, controller: u8, input: u8) -> Wire {
        Wire {
            kind: Kind::Vectored,
            polarity: Polarity::Low,
            trigger: Trigger::Level,
            bus,
            source: device << 2 | pin.number(),
            controller,
            input,
        }
    }

    /// Device and pin, if the bus is a PCI bus (D.3).
    pub fn pci(&self) -> (u8, Pin) {
        (self.source >> 2 & 0x1f, Pin::of(self.source))
    }

    fn parse(bytes: &[u8]) -> Option<Wire> {
        let flags = u16_at(bytes, 2);
        Some(Wire {
            kind: match bytes[1] {
                0 => Kind::Vectored,
                1 => Kind::Nmi,
                2 => Kind::Smi,
                3 => Kind::External,
                _ => return None,
            },
            polarity: match flags & 3 {
                1 => Polarity::High,
                3 => Polarity::Low,
                _ => Polarity::Bus,
            },
            trigger: match flags >> 2 & 3 {
                1 => Trigger::Edge,
                3 => Trigger::Level,
                _ => Trigger::Bus,
            },
            bus: bytes[4],
            source: bytes[5],
            controller: bytes[6],
            input: bytes[7],
        })
    }

    fn put(&self, kind: u8) -> [u8; 8] {
        let polarity = match self.polarity {
            Polarity::Bus => 0,
            Polarity::High => 1,
            Polarity::Low => 3,
        };
        let trigger = match self.trigger {
            Trigger::Bus => 0,
            Trigger::Edge => 1,
            Trigger::Level => 3,
        };
        let flags = polarity | trigger << 2;
        [kind, self.kind as u8, flags, 0, self.bus, self.source, self.controller, self.input]
    }
}

/// An entry of the table (4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A processor.
    Processor {
        /// Number of its local interrupt controller.
        apic: u8,
        /// Usable.
        enabled: bool,
        /// The bootstrap processor.
        boots: bool,
    },
    /// A bus with a number in this table; for a PCI bus, its bus number.
    Bus {
        /// Bus number.
        number: u8,
        /// Bus type, padded with blanks.
        name: [u8; 6],
    },
    /// An I/O interrupt controller.
    IoApic {
        /// Controller number.
        number: u8,
        /// Usable.
        enabled: bool,
        /// Address of its registers.
        at: u32,
    },
    /// A wire to an I/O interrupt controller.
    Wire(Wire),
    /// A wire to local interrupt controllers.
    LocalWire(Wire),
}

/// Bus type of a PCI bus.
pub const PCI: [u8; 6] = *b"PCI   ";
/// Bus type of an ISA bus.
pub const ISA: [u8; 6] = *b"ISA   ";

/// A table with a valid header and checksum.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    entries: &'a [u8],
    count: u16,
    /// Address of the registers of the local interrupt controllers.
    pub local_apic: u32,
}

impl<'a> Table<'a> {
    /// Validates a table at the beginning of `bytes`, which may be longer.
    pub fn parse(bytes: &'a [u8]) -> Result<Table<'a>, MpError> {
        let there = bytes.len();
        if there < HEADER_BYTES {
            return Err(MpError::Length { found: HEADER_BYTES, there });
        }
        if &bytes[..4] != b"PCMP" {
            return Err(MpError::Signature);
        }
        let found = usize::from(u16_at(bytes, 4));
        if found < HEADER_BYTES || found > there {
            return Err(MpError::Length { found, there });
        }
        match sum(&bytes[..found]) {
            0 => Ok(Table {
                entries: &bytes[HEADER_BYTES..found],
                count: u16_at(bytes, 34),
                local_apic: u32_at(bytes, 36),
            }),
            found => Err(MpError::Checksum { found }),
        }
    }

    /// Entries of the table. An error is the last item, since the length of an unknown entry is unknown.
    pub fn entries(&self) -> Entries<'a> {
        Entries { left: self.entries, count: self.count }
    }
}

/// See [`Table::entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    left: &'a [u8],
    count: u16,
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry, MpError>;

    fn next(&mut self) -> Option<Result<Entry, MpError>> {
        self.count = self.count.checked_sub(1)?;
        let parsed = self.parse();
        if parsed.is_err() {
            self.count = 0;
        }
        Some(parsed)
    }
}

impl Entries<'_> {
    fn parse(&mut self) -> Result<Entry, MpError> {
        let Some(kind) = self.left.first().copied() else { return Err(MpError::Short) };
        let bytes = match kind {
            0 => 20,
            1..=4 => 8,
            found => return Err(MpError::Kind { found }),
        };
        let Some((entry, left)) = self.left.split_at_checked(bytes) else {
            return Err(MpError::Short);
        };
        self.left = left;
        let wire = || Wire::parse(entry).ok_or(MpError::Kind { found: entry[1] });
        Ok(match kind {
            0 => Entry::Processor {
                apic: entry[1],
                enabled: entry[3] & 1 != 0,
                boots: entry[3] & 2 != 0,
            },
            1 => {
                let mut name = [0; 6];
                name.copy_from_slice(&entry[2..8]);
                Entry::Bus { number: entry[1], name }
            }
            2 => {
                Entry::IoApic { number: entry[1], enabled: entry[3] & 1 != 0, at: u32_at(entry, 4) }
            }
            3 => Entry::Wire(wire()?),
            _ => Entry::LocalWire(wire()?),
        })
    }
}

/// Writes a table into a buffer.
#[derive(Debug)]
pub struct Builder<'a> {
    bytes: &'a mut [u8],
    length: usize,
    count: u16,
}

impl<'a> Builder<'a> {
    /// Begins a table with this manufacturer and product name, both padded with blanks.
    pub fn new(bytes: &'a mut [u8], oem: [u8; 8], product: [u8; 12]) -> Result<Self, MpError> {
        let header = bytes.get_mut(..HEADER_BYTES).ok_or(MpError::Full)?;
        header.fill(0);
        header[..4].copy_from_slice(b"PCMP");
        header[6] = VERSION;
        header[8..16].copy_from_slice(&oem);
        header[16..28].copy_from_slice(&product);
        header[36..40].copy_from_slice(&LOCAL_APIC_AT.to_le_bytes());
        Ok(Builder { bytes, length: HEADER_BYTES, count: 0 })
    }

    /// Adds an entry. Processors come first, then buses, controllers, and wires (4.3).
    pub fn put(&mut self, entry: &Entry) -> Result<(), MpError> {
        match *entry {
            Entry::Processor { apic, enabled, boots } => {
                let mut bytes = [0; 20];
                // Version of an integrated local controller.
                bytes[1..4].copy_from_slice(&[
                    apic,
                    0x14,
                    u8::from(enabled) | u8::from(boots) << 1,
                ]);
                self.push(&bytes)
            }
            Entry::Bus { number, name: [a, b, c, d, e, f] } => {
                self.push(&[1, number, a, b, c, d, e, f])
            }
            Entry::IoApic { number, enabled, at } => {
                let [a, b, c, d] = at.to_le_bytes();
                self.push(&[2, number, 0x11, u8::from(enabled), a, b, c, d])
            }
            Entry::Wire(wire) => self.push(&wire.put(3)),
            Entry::LocalWire(wire) => self.push(&wire.put(4)),
        }
    }

    fn push(&mut self, entry: &[u8]) -> Result<(), MpError> {
        let end = self.length + entry.len();
        if end > usize::from(u16::MAX) {
            return Err(MpError::Full);
        }
        self.bytes.get_mut(self.length..end).ok_or(MpError::Full)?.copy_from_slice(entry);
        (self.length, self.count) = (end, self.count + 1);
        Ok(())
    }

    /// Completes the table and returns its length in bytes.
    pub fn finish(self) -> usize {
        let table = &mut self.bytes[..self.length];
        table[4..6].copy_from_slice(&(self.length as u16).to_le_bytes());
        table[34..36].copy_from_slice(&self.count.to_le_bytes());
        table[7] = sum(table).wrapping_neg();
        self.length
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn entries() -> Vec<Entry> {
        let isa = Wire {
            kind: Kind::External,
            polarity: Polarity::Bus,
            trigger: Trigger::Edge,
            bus: 9,
            source: 4,
            controller: 2,
            input: 0,
        };
        vec![
            Entry::Processor { apic: 0, enabled: true, boots: true },
            Entry::Processor { apic: 3, enabled: true, boots: false },
            Entry::Bus { number: 0, name: PCI },
            Entry::Bus { number: 9, name: ISA },
            Entry::IoApic { number: 2, enabled: true, at: 0xfec0_0000 },
            Entry::Wire(Wire::of_pci(0, 31, Pin::D, 2, 19)),
            Entry::Wire(isa),
            Entry::LocalWire(Wire { kind: Kind::Nmi, controller: 0xff, input: 1, ..isa }),
        ]
    }

    fn table(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = vec![0xee; 512];
        let mut builder = Builder::new(&mut bytes, *b"DOORBELL", *b"TEST        ").unwrap();
        entries.iter().for_each(|entry| builder.put(entry).unwrap());
        let length = builder.finish();
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn mp_table_round_trip() {
        let written = entries();
        let bytes = table(&written);
        let read = Table::parse(&bytes).unwrap();
        assert_eq!(read.local_apic, LOCAL_APIC_AT);
        assert_eq!(read.entries().collect::<Result<Vec<_>, _>>().unwrap(), written);
        assert_eq!(bytes.len(), HEADER_BYTES + 2 * 20 + 6 * 8);
    }

    /// Example bytes of an interrupt entry, field by field (table 4-10).
    #[test]
    fn mp_interrupt_entry_layout() {
        let bytes = table(&[Entry::Wire(Wire::of_pci(5, 3, Pin::B, 2, 17))]);
        assert_eq!(bytes[HEADER_BYTES..], [3, 0, 0x0f, 0, 5, (3 << 2) | 1, 2, 17]);
        assert_eq!(Wire::of_pci(5, 3, Pin::B, 2, 17).pci(), (3, Pin::B));
    }

    #[test]
    fn mp_floating_pointer_is_found() {
        let pointer = Pointer { table: 0x000f_5a30, default: 0, imcr: true };
        let mut memory = vec![0; 1024];
        memory[40..56].copy_from_slice(&pointer.to_bytes());
        assert_eq!(Pointer::find(&memory), None, "it lies at no sixteenth byte");
        memory[48..64].copy_from_slice(&pointer.to_bytes());
        assert_eq!(Pointer::find(&memory), Some((48, pointer)));
        memory[60] ^= 1;
        assert!(matches!(Pointer::parse(&memory[48..]), Err(MpError::Checksum { .. })));
    }

    #[test]
    fn mp_parse_reports_each_error() {
        let good = table(&entries());
        let change = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[7] = bytes[7].wrapping_add(bytes[at]).wrapping_sub(to);
            bytes[at] = to;
            bytes
        };
        assert_eq!(Table::parse(&good[1..]).unwrap_err(), MpError::Signature);
        let there = good.len() - 1;
        let short = Table::parse(&good[..there]).unwrap_err();
        assert_eq!(short, MpError::Length { found: there + 1, there });
        assert!(matches!(Table::parse(&change(4, 10)), Err(MpError::Length { found: 10, .. })));
        let mut failed_sanitize = good.clone();
        failed_sanitize[50] = failed_sanitize[50].wrapping_add(1);
        assert_eq!(Table::parse(&failed_sanitize).unwrap_err(), MpError::Checksum { found: 1 });
        let last = |bytes: &[u8]| Table::parse(bytes).unwrap().entries().last().unwrap();
        assert_eq!(last(&change(HEADER_BYTES, 7)), Err(MpError::Kind { found: 7 }));
        assert_eq!(last(&change(34, 9)), Err(MpError::Short));
    }

    #[test]
    fn mp_builder_rejects_short_buffer() {
        let mut bytes = [0; HEADER_BYTES + 8];
        assert_eq!(Builder::new(&mut bytes[..40], [0; 8], [0; 12]).unwrap_err(), MpError::Full);
        let mut builder = Builder::new(&mut bytes, [0; 8], [0; 12]).unwrap();
        assert_eq!(builder.put(&entries()[0]), Err(MpError::Full));
        builder.put(&entries()[2]).unwrap();
        assert_eq!(builder.put(&entries()[2]), Err(MpError::Full));
        assert_eq!(builder.finish(), HEADER_BYTES + 8);
    }

    proptest! {
        /// Any bytes behind a valid header parse to entries or to one error.
        #[test]
        fn mp_parse_accepts_arbitrary_bytes(tail in prop::collection::vec(any::<u8>(), 0..400), count: u16) {
            let mut bytes = table(&[]);
            bytes.extend_from_slice(&tail);
            let length = bytes.len() as u16;
            bytes[4..6].copy_from_slice(&length.to_le_bytes());
            bytes[34..36].copy_from_slice(&count.to_le_bytes());
            bytes[7] = bytes[7].wrapping_sub(sum(&bytes));
            let seen: Vec<_> = Table::parse(&bytes).unwrap().entries().collect();
            prop_assert!(seen.len() <= 51);
            prop_assert!(seen.iter().rev().skip(1).all(Result::is_ok));
            let _ = Pointer::find(&bytes);
        }
    }
}
