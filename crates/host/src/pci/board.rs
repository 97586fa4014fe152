//! Two boards with published wiring, for machines without firmware: Intel's 440FX with PIIX3 (QEMU's `pc`),
//! and Q35 with ICH9 (`q35`). Programs their interrupt routers, and builds the MP table that firmware would.

use alloc::vec::Vec;

use bus::pci::ConfigAccess;
use wire::mp::{Builder, Entry, ISA, MpError, PCI, Wire};
use wire::pci::{Bdf, DEVICES, Pin, Window};

use super::{Rooms, Root};

/// Supported board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Board {
    /// Intel 440FX and PIIX3.
    Pc,
    /// Intel Q35 and ICH9.
    Q35,
}

/// Vendor and device ID of the host bridges at 00:00.0.
const HOST_440FX: u32 = 0x1237_8086;
const HOST_Q35: u32 = 0x29c0_8086;
const HOST: Bdf = Bdf::new(0, 0, 0);

/// PIIX3: routing of its four wires PIRQA to PIRQD to ISA interrupts (82371SB, 2.2.8).
const PIIX3: Bdf = Bdf::new(0, 1, 0);
const PIRQ_ROUTES: u16 = 0x60;
/// Interrupts not used by timer, keyboard, serial ports and disks.
const PIIX3_LINES: [u8; 4] = [5, 7, 10, 11];

/// Q35: base and enable bit of mapped configuration space (Q35 datasheet, 5.1.18).
const PCIEXBAR: u16 = 0x60;
/// Address of mapped configuration space: 256 MiB below the window of devices.
const ECAM_AT: u32 = 0xb000_0000;
/// ICH9: I/O APIC input of PIRQA; PIRQB to PIRQH follow (ICH9 datasheet, 5.10).
const PIRQA_INPUT: u8 = 16;

/// I/O APIC for devices, on both boards.
const IO_APIC: u8 = 1;
const IO_APIC_AT: u32 = 0xfec0_0000;
/// Number of the ISA bus, not used by a PCI bus: see [`Board::table`].
const ISA_BUS: u8 = 0xff;

impl Board {
    /// Detects the board. `None` if it is another.
    pub async fn find(bus: &impl ConfigAccess) -> Option<Board> {
        match bus.config_read(HOST, 0).await {
            HOST_440FX => Some(Board::Pc),
            HOST_Q35 => Some(Board::Q35),
            _ => None,
        }
    }

    /// Programs the interrupt router. Maps configuration space if the board can, and returns its address.
    pub async fn set_up(self, bus: &impl ConfigAccess) -> Option<u64> {
        match self {
            Board::Pc => {
                bus.config_write(PIIX3, PIRQ_ROUTES, u32::from_le_bytes(PIIX3_LINES)).await;
                None
            }
            // The routes to its I/O APIC are hard-wired, in addition to the old ones.
            Board::Q35 => {
                bus.config_write(HOST, PCIEXBAR + 4, 0).await;
                bus.config_write(HOST, PCIEXBAR, ECAM_AT | 1).await;
                Some(ECAM_AT.into())
            }
        }
    }

    /// Address of configuration space as mapped by firmware, with all 256 buses. `None`: it is accessed
    /// through ports.
    pub async fn mapped(self, bus: &impl ConfigAccess) -> Option<u64> {
        match self {
            Board::Pc => None,
            Board::Q35 => {
                let low = bus.config_read(HOST, PCIEXBAR).await;
                let high = bus.config_read(HOST, PCIEXBAR + 4).await;
                // The two bits above the enable bit are the length: 0 is 256 buses.
                let at = u64::from(high) << 32 | u64::from(low & 0xf000_0000);
                (low & 7 == 1).then_some(at)
            }
        }
    }

    /// Address ranges free for windows, if memory ends below 2 GiB.
    pub fn rooms(self) -> Rooms {
        Rooms {
            // Lower ports belong to the board; power management of 440FX and ICH9 is relocatable.
            io: Window { base: 0x1000, limit: 0xffff },
            memory: Window { base: 0xc000_0000, limit: 0xfebf_ffff },
            wide: Window { base: 0x8_0000_0000, limit: 0xf_ffff_ffff },
        }
    }

    /// Interrupt input of a pin of a device on a root bus.
    fn input(self, root: u8, device: u8, pin: Pin) -> u8 {
        match self {
            // Rotated by one per device; device 0, which has no pin, would have PIRQD.
            Board::Pc => {
                PIIX3_LINES[usize::from(device.wrapping_add(pin.number()).wrapping_sub(1) % 4)]
            }
            // Chipset devices use PIRQA to PIRQD, the old bridge and slots PIRQE to PIRQH.
            Board::Q35 => match (root, device) {
                (0, 30) => PIRQA_INPUT + 4 + pin.number(),
                (0, 25..=31) => PIRQA_INPUT + pin.number(),
                _ => PIRQA_INPUT + 4 + pin.through_bridge(device).number(),
            },
        }
    }

    /// MP table of the board, with every pin of these root buses.
    ///
    /// # Errors
    /// The table does not fit.
    pub fn table(self, roots: &[Root]) -> Result<Vec<u8>, MpError> {
        let mut bytes = alloc::vec![0; usize::from(u16::MAX)];
        let mut table = Builder::new(&mut bytes, *b"DOORBELL", *b"BOARD       ")?;
        table.put(&Entry::Processor { apic: 0, enabled: true, boots: true })?;
        for root in roots {
            table.put(&Entry::Bus { number: root.bus, name: PCI })?;
        }
        if roots.iter().all(|root| root.bus != ISA_BUS) {
            table.put(&Entry::Bus { number: ISA_BUS, name: ISA })?;
        }
        table.put(&Entry::IoApic { number: IO_APIC, enabled: true, at: IO_APIC_AT })?;
        for root in roots {
            for device in 0..DEVICES {
                for pin in Pin::ALL {
                    let input = self.input(root.bus, device, pin);
                    let wire = Wire::of_pci(root.bus, device, pin, IO_APIC, input);
                    table.put(&Entry::Wire(wire))?;
                }
            }
        }
        let length = table.finish();
        bytes.truncate(length);
        Ok(bytes)
    }
}
