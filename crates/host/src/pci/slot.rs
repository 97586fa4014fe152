//! Slot of a port, with power control (PCIe base 5.0, 6.7 and 7.5.3.9 to 7.5.3.11).

use bus::pci::ConfigAccess;
use wire::pci::Bdf;
use wire::pci::capability::PortType;

use super::Function;

/// Bit of the capability's first dword: a slot is implemented.
const SLOT_IMPLEMENTED: u32 = 1 << 24;
/// Slot Capabilities, relative to the capability, and its power controller bit.
const CAPABILITIES: u16 = 0x14;
const POWER_CONTROLLER: u32 = 1 << 1;
/// Slot Control and, in the same dword, Slot Status, which is write-one-to-clear.
const CONTROL: u16 = 0x18;
const CONTROL_MASK: u32 = 0xffff;
/// Power indicator control and its values.
const INDICATOR: u32 = 3 << 8;
const INDICATOR_ON: u32 = 1 << 8;
const INDICATOR_OFF: u32 = 3 << 8;
const POWER_OFF: u32 = 1 << 10;

/// Slot with a power controller.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    port: Bdf,
    express: u16,
}

impl Slot {
    /// Slot of a port. `None` if it has none, or no power controller.
    pub async fn of(bus: &impl ConfigAccess, port: &Function) -> Option<Slot> {
        let express = port.express.filter(|express| {
            matches!(express.port, PortType::Root | PortType::SwitchDownstream)
        })?;
        let first = bus.config_read(port.at, express.at).await;
        let capabilities = bus.config_read(port.at, express.at + CAPABILITIES).await;
        let there = first & SLOT_IMPLEMENTED != 0 && capabilities & POWER_CONTROLLER != 0;
        there.then_some(Slot { port: port.at, express: express.at })
    }

    /// Switches its power and its indicator. The device is removed at once, without notice to its driver.
    pub async fn power(&self, bus: &impl ConfigAccess, on: bool) {
        let word = bus.config_read(self.port, self.express + CONTROL).await & CONTROL_MASK;
        let word = word & !(INDICATOR | POWER_OFF);
        let word = word | if on { INDICATOR_ON } else { INDICATOR_OFF | POWER_OFF };
        bus.config_write(self.port, self.express + CONTROL, word).await;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use alloc::vec::Vec;
    use core::cell::RefCell;
    use runtime::{Log, Rt};
    use wire::pci::capability::Express;
    use wire::pci::{Header, Layout};

    /// Capability of a port, at 40h, with the values written.
    struct Port(RefCell<Vec<u32>>);

    impl ConfigAccess for Port {
        async fn config_read(&self, _: Bdf, at: u16) -> u32 {
            self.0.borrow()[usize::from(at - 0x40) / 4]
        }

        async fn config_write(&self, _: Bdf, at: u16, value: u32) {
            self.0.borrow_mut()[usize::from(at - 0x40) / 4] = value;
        }
    }

    fn port(kind: PortType) -> Function {
        let header = Header {
            vendor: 0x1b36,
            device: 12,
            status: 0x10,
            class: 0x06_0400,
            revision: 0,
            layout: Layout::Bridge,
            multifunction: false,
            pin: None,
        };
        Function {
            at: Bdf::new(0, 2, 0),
            header,
            parent: None,
            buses: None,
            bars: Vec::new(),
            windows: [None; 3],
            wide: false,
            msi: None,
            msix: None,
            express: Some(Express { at: 0x40, port: kind, generation: 1, lanes: 1 }),
        }
    }

    #[test]
    fn slot_power_write_clears_no_status_bits() {
        let words = alloc::vec![SLOT_IMPLEMENTED, 0, 0, 0, 0, POWER_CONTROLLER, 0x0059_01c0];
        let bus = Port(RefCell::new(words));
        Rt::simulated(None, Log::Off).block_on(async {
            assert!(Slot::of(&bus, &port(PortType::SwitchUpstream)).await.is_none());
            let slot = Slot::of(&bus, &port(PortType::Root)).await.unwrap();
            slot.power(&bus, false).await;
            assert_eq!(bus.0.borrow()[6], 0x07c0);
            slot.power(&bus, true).await;
            assert_eq!(bus.0.borrow()[6], 0x01c0);
            bus.0.borrow_mut()[5] = 0;
            assert!(Slot::of(&bus, &port(PortType::Root)).await.is_none());
        });
    }
}
