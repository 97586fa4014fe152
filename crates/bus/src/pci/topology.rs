//! A modelled PCI hierarchy: root buses, bridges, functions. Accesses are routed by the registers of the
//! bridges alone; interrupt pins are swizzled as bridges do.
//!
//! Interrupt pins follow wires by device numbers, not by a routing table, so that a prediction from the MP
//! table can be compared with the model.
//!
//! It has no notion of time. [`Topology`] answers at once; a modelled bus in front of it looks up the
//! target ([`Topology::claim`]) and accounts for the time.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use wire::pci::{
    Bdf, BridgeIdentity, Buses, ConfigSpace, Effects, Identity, Layout, MSIX_ENTRY_BYTES, Pin,
    Space, Window, Words, bar, command, offset,
};

use super::{ConfigAccess, MemoryAccess};

/// Index of a function or a bridge in a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(usize);

/// A bus to which a node can be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// A root bus, by its fixed number.
    Root(u8),
    /// The secondary bus of a bridge.
    Behind(NodeId),
}

/// Attachment point of a node: bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The bus.
    pub on: Fabric,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

/// Register model of a function's BARs.
pub trait Registers {
    /// Reads the word at offset `at` of BAR `bar`.
    fn read(&self, bar: u8, at: u64) -> u32;
    /// Writes that word.
    fn write(&self, bar: u8, at: u64, value: u32);
}

/// Target of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The function that claims the access.
    pub node: NodeId,
    /// Number of its BAR.
    pub bar: u8,
    /// Offset in the BAR, bytes.
    pub at: u64,
}

struct Node {
    place: Place,
    space: ConfigSpace,
    kind: Kind,
    /// False if the node was removed by surprise.
    there: bool,
    /// True while the function asserts its interrupt pin.
    asserts: bool,
}

enum Kind {
    Bridge,
    Function { identity: Identity, vectors: Vec<[u32; 4]>, registers: Option<Rc<dyn Registers>> },
}

/// A PCI hierarchy. Cheap to clone.
#[derive(Clone, Default)]
pub struct Topology(Rc<Inner>);

#[derive(Default)]
struct Inner {
    nodes: RefCell<Vec<Node>>,
    changes: Cell<u64>,
}

/// Size of an MSI-X table entry, bytes.
const ENTRY: u64 = MSIX_ENTRY_BYTES as u64;
/// Vector control of an MSI-X entry: masked. All are masked after a reset.
const MASKED: u32 = 1;

impl Topology {
    /// An empty hierarchy.
    pub fn new() -> Topology {
        Topology::default()
    }

    /// Attaches a bridge.
    ///
    /// # Panics
    /// If the place is taken, or its bus is not behind a bridge.
    pub fn bridge(&self, place: Place, identity: BridgeIdentity) -> NodeId {
        self.put(place, ConfigSpace::bridge(identity), Kind::Bridge)
    }

    /// Attaches a function; `registers` answers accesses outside the MSI-X table.
    ///
    /// # Panics
    /// If the place is taken, or its bus is not behind a bridge.
    pub fn function(
        &self,
        place: Place,
        identity: &Identity,
        registers: Option<Rc<dyn Registers>>,
    ) -> NodeId {
        let vectors = alloc::vec![[0, 0, 0, MASKED]; identity.msix.vectors.into()];
        let kind = Kind::Function { identity: identity.clone(), vectors, registers };
        self.put(place, ConfigSpace::new(identity), kind)
    }

    fn put(&self, place: Place, mut space: ConfigSpace, kind: Kind) -> NodeId {
        let mut nodes = self.0.nodes.borrow_mut();
        if let Fabric::Behind(NodeId(bridge)) = place.on {
            assert!(matches!(nodes[bridge].kind, Kind::Bridge), "{place:?}: there is no bus");
        }
        assert!(nodes.iter().all(|node| node.place != place), "{place:?} is taken");
        let same_device = |other: &Place| other.on == place.on && other.device == place.device;
        let mut alone = true;
        for node in nodes.iter_mut().filter(|node| same_device(&node.place)) {
            node.space.set_multifunction();
            alone = false;
        }
        if !alone {
            space.set_multifunction();
        }
        nodes.push(Node { place, space, kind, there: true, asserts: false });
        NodeId(nodes.len() - 1)
    }

    /// Number of changes that may affect routing.
    pub fn changes(&self) -> u64 {
        self.0.changes.get()
    }

    fn changed(&self) {
        self.0.changes.set(self.changes() + 1);
    }

    /// Removes a node and everything behind it, without notice: it does not answer any more.
    pub fn remove(&self, NodeId(node): NodeId) {
        self.0.nodes.borrow_mut()[node].there = false;
        self.changed();
    }

    /// Returns true if the node and every bridge above it are still present.
    pub fn is_there(&self, node: NodeId) -> bool {
        let nodes = self.0.nodes.borrow();
        nodes[node.0].there && path(&nodes, node).all(|bridge| nodes[bridge].there)
    }

    /// Target of a memory access of `bytes` bytes at `at`.
    pub fn claim(&self, at: u64, bytes: u64) -> Option<Claim> {
        let nodes = self.0.nodes.borrow();
        let roots =
            nodes.iter().map(|node| node.place.on).filter(|on| matches!(on, Fabric::Root(_)));
        let mut on = roots.collect::<Vec<_>>();
        on.dedup();
        on.into_iter().find_map(|root| claim_on(&nodes, root, at, bytes))
    }

    /// Returns true if the function can access memory: it and every bridge above it are present, with bus
    /// mastering enabled.
    pub fn is_master(&self, node: NodeId) -> bool {
        let nodes = self.0.nodes.borrow();
        nodes[node.0].masters() && path(&nodes, node).all(|bridge| nodes[bridge].masters())
    }

    /// Address and data of the MSI-X message of this vector. `None` if the function sends no message: MSI-X
    /// is disabled, the vector is masked or does not exist, or the function [is no bus
    /// master](Self::is_master).
    pub fn message(&self, node: NodeId, vector: u16) -> Option<(u64, u32)> {
        if !self.is_master(node) {
            return None;
        }
        let nodes = self.0.nodes.borrow();
        let Kind::Function { vectors, .. } = &nodes[node.0].kind else { return None };
        let [low, high, data, control] = *vectors.get(usize::from(vector))?;
        let sends = nodes[node.0].space.msix_unmasked() && control & MASKED == 0;
        sends.then_some((u64::from(high) << 32 | u64::from(low), data))
    }

    /// Asserts or deasserts a function's interrupt pin.
    pub fn set_pin(&self, NodeId(node): NodeId, asserts: bool) {
        self.0.nodes.borrow_mut()[node].asserts = asserts;
    }

    /// The asserted pins of root buses: bus, device, pin. In the order in which their functions were
    /// attached.
    pub fn held(&self) -> Vec<(u8, u8, Pin)> {
        let nodes = self.0.nodes.borrow();
        let holding = (0..nodes.len()).map(NodeId).filter(|node| {
            let node = &nodes[node.0];
            node.there && node.asserts && node.space.intx_enabled()
        });
        holding.filter_map(|node| wire(&nodes, node)).collect()
    }

    fn find(nodes: &[Node], of: Bdf) -> Option<usize> {
        let is_root = |node: &Node| node.place.on == Fabric::Root(of.bus());
        let mut on = nodes.iter().any(is_root).then_some(Fabric::Root(of.bus()));
        if on.is_none() {
            // Down from the root buses, through each bridge whose bus range contains the bus.
            let mut at = nodes.iter().position(|node| {
                matches!(node.place.on, Fabric::Root(_)) && node.reaches(of.bus())
            })?;
            while nodes[at].buses().secondary != of.bus() {
                let behind = Fabric::Behind(NodeId(at));
                at = nodes
                    .iter()
                    .position(|node| node.place.on == behind && node.reaches(of.bus()))?;
            }
            on = Some(Fabric::Behind(NodeId(at)));
        }
        let place = Place { on: on?, device: of.device(), function: of.function() };
        nodes.iter().position(|node| node.there && node.place == place)
    }
}

impl Node {
    fn buses(&self) -> Buses {
        Buses::from_word(self.space.word(offset::PRIMARY))
    }

    fn reaches(&self, bus: u8) -> bool {
        self.there && matches!(self.kind, Kind::Bridge) && self.buses().reach(bus)
    }

    fn command(&self) -> u16 {
        self.space.word(offset::COMMAND as u16) as u16
    }

    fn masters(&self) -> bool {
        self.there && self.command() & command::BUS_MASTER != 0
    }

    /// Returns true if a bridge forwards a memory access.
    fn passes(&self, at: u64, bytes: u64) -> bool {
        let windows = [Space::Memory, Space::Prefetchable];
        matches!(self.kind, Kind::Bridge)
            && windows.iter().any(|space| Window::read(&self.space, *space).holds(at, bytes))
    }

    /// The BAR of a function that holds these bytes, and their offset in it.
    fn window(&self, at: u64, bytes: u64) -> Option<(u8, u64)> {
        let Kind::Function { identity, .. } = &self.kind else { return None };
        identity.bars.iter().flatten().find_map(|bar| {
            let register = offset::BARS as u16 + 4 * bar.number as u16;
            let high = if bar.wide { self.space.word(register + 4) } else { 0 };
            let base = bar::address(self.space.word(register), high);
            let inside = Window::of(base, bar.bytes.into()).holds(at, bytes);
            // A BAR that was never written claims nothing.
            (inside && base != 0).then(|| (bar.number as u8, at - base))
        })
    }
}

/// The bridges between a node and its root bus, the nearest first.
fn path(nodes: &[Node], NodeId(node): NodeId) -> impl Iterator<Item = usize> + '_ {
    let mut on = nodes[node].place.on;
    core::iter::from_fn(move || match on {
        Fabric::Root(_) => None,
        Fabric::Behind(NodeId(bridge)) => {
            on = nodes[bridge].place.on;
            Some(bridge)
        }
    })
}

/// The pin on the root bus to which a function's pin is wired.
fn wire(nodes: &[Node], node: NodeId) -> Option<(u8, u8, Pin)> {
    let own = &nodes[node.0];
    let header = wire::pci::Header::read(&own.space).filter(|h| h.layout == Layout::Device)?;
    let (mut pin, mut place) = (header.pin?, own.place);
    for bridge in path(nodes, node) {
        if !nodes[bridge].there {
            return None;
        }
        pin = pin.through_bridge(place.device);
        place = nodes[bridge].place;
    }
    let Fabric::Root(bus) = place.on else { return None };
    Some((bus, place.device, pin))
}

fn claim_on(nodes: &[Node], mut on: Fabric, at: u64, bytes: u64) -> Option<Claim> {
    loop {
        let answers = |node: &&(usize, &Node)| {
            node.1.there && node.1.place.on == on && node.1.command() & command::MEMORY != 0
        };
        let here = || nodes.iter().enumerate();
        let own = here().filter(|node| answers(&node));
        for (index, node) in own {
            if let Some((bar, at)) = node.window(at, bytes) {
                return Some(Claim { node: NodeId(index), bar, at });
            }
        }
        let (bridge, _) =
            here().filter(|node| answers(&node)).find(|(_, node)| node.passes(at, bytes))?;
        on = Fabric::Behind(NodeId(bridge));
    }
}

impl ConfigAccess for Topology {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        let nodes = self.0.nodes.borrow();
        Topology::find(&nodes, of).map_or(u32::MAX, |node| nodes[node].space.word(at))
    }

    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        let mut nodes = self.0.nodes.borrow_mut();
        if let Some(node) = Topology::find(&nodes, of) {
            let effects = nodes[node].space.write((at & !3).into(), &value.to_le_bytes());
            if effects == Some(Effects { reset: true }) {
                nodes[node].reset();
            }
            self.changed();
        }
    }
}

impl Node {
    /// Function-level reset: all state returns to its power-on value.
    fn reset(&mut self) {
        if let Kind::Function { identity, vectors, .. } = &mut self.kind {
            let many = wire::pci::Header::read(&self.space).is_some_and(|h| h.multifunction);
            self.space = ConfigSpace::new(identity);
            if many {
                self.space.set_multifunction();
            }
            vectors.fill([0, 0, 0, MASKED]);
        }
    }

    fn entry(&mut self, claim: Claim) -> Option<&mut u32> {
        let Kind::Function { identity, vectors, .. } = &mut self.kind else { return None };
        let table = identity.msix;
        let at = claim.at.checked_sub(table.table.into()).filter(|_| claim.bar == table.bar)?;
        vectors.get_mut((at / ENTRY) as usize).map(|entry| &mut entry[(at % ENTRY) as usize / 4])
    }

    fn registers(&self) -> Option<Rc<dyn Registers>> {
        match &self.kind {
            Kind::Function { registers, .. } => registers.clone(),
            Kind::Bridge => None,
        }
    }
}

impl Topology {
    /// Reads a word of a BAR: the MSI-X table, or the function's registers. Zero if it has none.
    pub fn load(&self, claim: Claim) -> u32 {
        let mut nodes = self.0.nodes.borrow_mut();
        let node = &mut nodes[claim.node.0];
        if let Some(word) = node.entry(claim) {
            return *word;
        }
        let registers = node.registers();
        drop(nodes);
        registers.map_or(0, |registers| registers.read(claim.bar, claim.at))
    }

    /// Writes a word of a BAR.
    pub fn store(&self, claim: Claim, value: u32) {
        let mut nodes = self.0.nodes.borrow_mut();
        let node = &mut nodes[claim.node.0];
        if let Some(word) = node.entry(claim) {
            *word = value;
            return;
        }
        let registers = node.registers();
        drop(nodes);
        if let Some(registers) = registers {
            registers.write(claim.bar, claim.at, value);
        }
    }
}

impl MemoryAccess for Topology {
    async fn memory_read(&self, at: u64) -> u32 {
        self.claim(at, 4).map_or(u32::MAX, |claim| self.load(claim))
    }

    fn memory_write(&self, at: u64, value: u32) {
        if let Some(claim) = self.claim(at, 4) {
            self.store(claim, value);
        }
    }
}
