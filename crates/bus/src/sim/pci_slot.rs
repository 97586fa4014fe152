//! Where the device sits: a function of a modelled hierarchy, whose registers, and those of the bridges
//! before it, say what reaches it and how far it reaches.

use core::cell::Cell;

use crate::pci::{Claim, NodeId, Topology};

/// A device's place in a hierarchy.
pub(super) struct PciSlot {
    topology: Topology,
    node: NodeId,
    /// Where the driver reaches for the registers; none: nowhere yet.
    registers: Cell<Option<u64>>,
    /// What follows from the hierarchy, and for which count of its changes.
    open: Cell<(Option<u64>, Open)>,
}

/// What is open between host and device.
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

    /// Follows the registers of the hierarchy. Seldom: they change while it is set up, or pulled apart.
    #[cold]
    fn look(&self, changes: Option<u64>) -> Open {
        let own = Claim { node: self.node, bar: 0, at: 0 };
        let claim = self.registers.get().and_then(|at| self.topology.claim(at, 4));
        let open = Open { down: claim == Some(own), up: self.topology.is_master(self.node) };
        self.open.set((changes, open));
        open
    }

    /// Whether the driver's accesses reach the registers.
    #[inline]
    pub fn is_reached(&self) -> bool {
        self.open().down
    }

    /// Whether the device's accesses reach memory.
    #[inline]
    pub fn reaches(&self) -> bool {
        self.open().up
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Where the registers lie for the driver.
    pub fn registers(&self) -> u64 {
        self.registers.get().unwrap_or(0)
    }

    /// Where this vector's message goes, and what it says.
    pub fn message(&self, vector: u16) -> Option<(u64, u32)> {
        self.topology.message(self.node, vector)
    }

    pub fn pull_out(&self) {
        self.topology.remove(self.node);
    }
}
