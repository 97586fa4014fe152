//! The device's place in a modelled PCI hierarchy: its registers and those of the bridges above it decide
//! which accesses reach it and whether it reaches memory.
//!
//! `world` puts an NVMe controller behind a root port: it is enumerated, enabled and given its vectors by
//! `host::pci`, the code for real machines, before the driver uses it. From then on the registers decide. A
//! doorbell arrives if the port's window and the function's own contain it; a completion lands if both may
//! master the bus; a vector sends the message of its table entry. The results are cached until a register
//! changes, so a command pays one comparison. A removed function reads all ones without notice to the driver,
//! whose watchdog detects it. Accesses to configuration space take no virtual time and add no event, because
//! enumeration ends before any measurement.

use core::cell::Cell;

use crate::pci::{Claim, NodeId, Topology};

/// The device's function in a hierarchy.
pub(super) struct PciSlot {
    topology: Topology,
    node: NodeId,
    /// Address at which the driver accesses the registers. `None` before it is set.
    registers: Cell<Option<u64>>,
    /// Cached reachability, and the change count of the hierarchy at which it was computed.
    open: Cell<(Option<u64>, Open)>,
}

/// Reachability between host and device.
#[derive(Clone, Copy, Default)]
struct Open {
    /// The driver's accesses reach the registers.
    down: bool,
    /// The device's accesses reach memory.
    up: bool,
}

impl PciSlot {
    pub fn new(topology: Topology, node: NodeId) -> PciSlot {
        let open = Cell::new((None, Open::default()));
        PciSlot { topology, node, registers: Cell::new(None), open }
    }

    pub fn map(&self, registers: u64) {
        self.registers.set(Some(registers));
        self.open.set((None, Open::default()));
    }

    #[inline]
    fn open(&self) -> Open {
        let changes = Some(self.topology.changes());
        match self.open.get() {
            (at, open) if at == changes => open,
            _ => self.look(changes),
        }
    }

    /// Computes reachability from the registers of the hierarchy. Rare: they change during set-up and
    /// removal.
    #[cold]
    fn look(&self, changes: Option<u64>) -> Open {
        let own = Claim { node: self.node, bar: 0, at: 0 };
        let claim = self.registers.get().and_then(|at| self.topology.claim(at, 4));
        let open = Open { down: claim == Some(own), up: self.topology.is_master(self.node) };
        self.open.set((changes, open));
        open
    }

    /// Returns true if the driver's accesses reach the registers.
    #[inline]
    pub fn is_reached(&self) -> bool {
        self.open().down
    }

    /// Returns true if the device's accesses reach memory.
    #[inline]
    pub fn reaches(&self) -> bool {
        self.open().up
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Address of the registers for the driver.
    pub fn registers(&self) -> u64 {
        self.registers.get().unwrap_or(0)
    }

    /// Address and data of this vector's message.
    pub fn message(&self, vector: u16) -> Option<(u64, u32)> {
        self.topology.message(self.node, vector)
    }

    pub fn pull_out(&self) {
        self.topology.remove(self.node);
    }
}
