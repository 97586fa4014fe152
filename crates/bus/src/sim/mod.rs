//! The modelled bus: a host with cores and memory, a PCIe link, a device's registers.
//!
//! A core ([`runtime::Processor`]) does one thing at a time. `spend(cost)` stands in protocol code where the
//! work stands, and occupies the core for the plan's span: `submit` before the doorbell, `complete` after the
//! completion. The workload engine spends the costs of software above the driver (benchmark, system call,
//! block layer). A plan gives every cost with its source, even if it is 0 ns.
//!
//! A polling loop is not simulated iteration by iteration. The driver waits until the bytes land, then pays
//! the rest of the iteration in which they did: `poll` less the time into it, counted from the beginning of
//! the wait. An interrupt takes the core ahead of tasks, at the next boundary, for `interrupt`; a context
//! switch follows before the caller continues. A core's polling time is the time in which a task there waits
//! for memory and none works (`poll_accounting.rs`).
//!
//! Not modelled: caches, memory bandwidth, SMT, frequency. They are part of the costs.

mod device;
mod host;
mod landing;
mod pci_slot;
mod pin;
mod poll_accounting;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell, RefCell};

use runtime::{Parked, Processor, Rt, Signal, Span, Stage, StageName, Time, Waits, stage};
use wire::BusAddr;

use crate::link::{Link, LinkSpec, Packets, Way};
use crate::pci::{NodeId, Topology};
use crate::switch::{Switch, SwitchSpec};
use crate::{Arena, Cost, Masks, Memory};
pub use device::SimDevice;
pub use host::{INTERRUPTS_AT, SimHost};
use landing::Landings;
use pci_slot::PciSlot;
use pin::Pin;
use poll_accounting::PollAccounting;

/// Stages recorded by this bus, besides one for each named cost. A transfer ends with "media" if the medium
/// delivers its last byte later than the link alone would have taken it.
pub const STAGES: &[&str] = &[
    "core wait",
    "poll",
    "interrupt",
    "link wait",
    "data transfer",
    "media",
    "host read",
    "device processor wait",
];

/// A cost of the plan: its name, which is also its stage, and its time.
#[derive(Clone, Debug)]
pub struct NamedCost {
    /// Name in the plan and in the latency breakdown.
    pub name: &'static str,
    /// Time per use.
    pub span: Span,
}

/// Parameters of the modelled host and of the device's processors.
#[derive(Clone, Debug)]
pub struct SimSpec {
    /// The link between them.
    pub link: LinkSpec,
    /// Bus address of host memory: above 4 GiB a TLP header is one word longer.
    pub memory_base: BusAddr,
    /// Host memory that the device can access, bytes.
    pub memory_bytes: usize,
    /// Length of the device's register window, bytes.
    pub register_bytes: u32,
    /// Two registers that are one mask word whose bits the host sets and clears. `None` if the device has
    /// no such pair.
    pub masks: Option<Masks>,
    /// True if the root complex lets relaxed writes overtake one another, and devices use it.
    pub relaxed_ordering: bool,
    /// Number of host cores.
    pub cores: u32,
    /// Time of one iteration of a polling loop.
    pub poll: Span,
    /// Interrupt cost, from its arrival to the driver's handler.
    pub interrupt: Span,
    /// Software costs on a host core.
    pub host_costs: Vec<NamedCost>,
    /// Costs of the device.
    pub device_costs: Vec<NamedCost>,
    /// Number of processors of the device. Zero: its costs are pipelined hardware and never queue.
    pub device_processors: u32,
    /// Time for which a processor of the device copies [`COPY_BYTES`] of data. `None` if DMA engines do.
    /// Requires a processor.
    pub device_copy: Option<Span>,
    /// Seed of the packets that are delayed.
    pub seed: u64,
    /// Ports of a switch in the device. `None`: all of the device is at the end of the link.
    pub ports: Option<Ports>,
}

/// A switch in the device: each port has a link of its own below it, and a window of the registers. The link
/// of [`SimSpec`] is above the switch, and its latency is that of the whole way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Number of ports, at least one.
    pub count: u32,
    /// Lanes of each port's link, whose generation is that of the link above.
    pub lanes: u8,
    /// Length of each port's window of the registers, bytes, in order from the first register on. Registers
    /// behind the last window are the last port's.
    pub window: u32,
}

/// Unit of [`SimSpec::device_copy`], bytes.
pub const COPY_BYTES: u64 = 4096;

/// Maximum number of interrupt vectors of a function.
pub(crate) const VECTORS: usize = 64;

/// The host, shared by all devices below a switch.
struct HostSide {
    memory: Memory,
    arena: Arena,
    watches: RefCell<Vec<Option<Watch>>>,
    cores: Vec<Processor>,
    /// Idle polling time of each core.
    poll_accountings: Vec<PollAccounting>,
    costs: Vec<(NamedCost, Stage)>,
}

/// State shared by both ports.
pub(crate) struct Bus {
    rt: Rt,
    spec: SimSpec,
    /// One, or one for each port of the device's switch.
    links: Box<[Link]>,
    host: Rc<HostSide>,
    switch: Option<Rc<Switch>>,
    registers: RefCell<Box<[u32]>>,
    registers_written: Signal,
    interrupts: Box<[Cell<u32>]>,
    interrupted: Signal,
    processors: Vec<Processor>,
    next_processor: Cell<usize>,
    device_costs: Vec<(NamedCost, Stage)>,
    landings: Landings,
    stages: Stages,
    /// Set if the device is a function of a PCI hierarchy; otherwise it is directly at the end of the link.
    pci_slot: OnceCell<PciSlot>,
    /// Set if the device interrupts by its pin; otherwise by messages.
    pin: OnceCell<Pin>,
    /// True if the link is down: reads return all ones, nothing lands.
    down: Cell<bool>,
}

struct Stages {
    core: Stage,
    poll: Stage,
    interrupt: Stage,
    transfer: Waits,
    media: Stage,
    host_read: Stage,
    processor: Stage,
}

/// A wait for a change of these bytes of host memory.
struct Watch {
    begin: u64,
    end: u64,
    parked: Option<Parked>,
}

/// A modelled bus: creates the two ports.
#[derive(Clone)]
pub struct SimBus(Rc<Bus>);

impl SimBus {
    /// An idle bus with the link up.
    ///
    /// # Panics
    /// If the links of ports cannot be [below](Link::below) a switch, or there is no port.
    pub fn new(rt: &Rt, spec: SimSpec) -> SimBus {
        let host = Rc::new(HostSide::new(rt, &spec));
        let Some(ports) = spec.ports else {
            let link = Link::new(spec.link.clone(), spec.seed);
            return SimBus::of(rt, spec, host, [link].into(), None);
        };
        let LinkSpec { generation, lanes, .. } = spec.link;
        let switch = Rc::new(Switch::new(SwitchSpec { generation, lanes }));
        let below = LinkSpec { lanes: ports.lanes, ..spec.link.clone() };
        let link = |number| Link::below(below.clone(), spec.seed + number, switch.clone());
        let links = (0..u64::from(ports.count)).map(link).collect();
        SimBus::of(rt, spec, host, links, Some(switch))
    }

    /// Creates one bus per executor in `rts`, below one switch. They share the host's memory and cores and
    /// the link above the switch; each has a link and registers of its own.
    ///
    /// # Panics
    /// If their links cannot be [below](Link::below) a switch, or a device has a switch of its own.
    pub fn below_switch(rts: &[Rt], spec: &SimSpec, above: SwitchSpec) -> Vec<SimBus> {
        assert!(spec.ports.is_none(), "a switch below a switch");
        let (host, switch) = (Rc::new(HostSide::new(&rts[0], spec)), Rc::new(Switch::new(above)));
        let each = |(number, rt)| {
            let seed = spec.seed + number;
            let link = Link::below(spec.link.clone(), seed, switch.clone());
            SimBus::of(rt, spec.clone(), host.clone(), [link].into(), Some(switch.clone()))
        };
        (0..).zip(rts).map(each).collect()
    }

    fn of(
        rt: &Rt,
        spec: SimSpec,
        host: Rc<HostSide>,
        links: Box<[Link]>,
        switch: Option<Rc<Switch>>,
    ) -> SimBus {
        assert!(!links.is_empty(), "a device has a link");
        let stages = Stages {
            core: stage!(rt, STAGES, "core wait"),
            poll: stage!(rt, STAGES, "poll"),
            interrupt: stage!(rt, STAGES, "interrupt"),
            transfer: Waits {
                turn: stage!(rt, STAGES, "link wait"),
                service: stage!(rt, STAGES, "data transfer"),
            },
            media: stage!(rt, STAGES, "media"),
            host_read: stage!(rt, STAGES, "host read"),
            processor: stage!(rt, STAGES, "device processor wait"),
        };
        let bus = Rc::new(Bus {
            rt: rt.clone(),
            links,
            host,
            switch,
            registers: RefCell::new(alloc::vec![0; spec.register_bytes as usize / 4].into()),
            registers_written: Signal::default(),
            interrupts: (0..VECTORS).map(|_| Cell::new(0)).collect(),
            interrupted: Signal::default(),
            processors: (0..spec.device_processors).map(|_| Processor::default()).collect(),
            next_processor: Cell::new(0),
            device_costs: staged(rt, &spec.device_costs),
            landings: Landings::new(),
            stages,
            pci_slot: OnceCell::new(),
            pin: OnceCell::new(),
            down: Cell::new(false),
            spec,
        });
        landing::start(&bus);
        SimBus(bus)
    }

    /// Host port on this core.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn host(&self, core: u32) -> SimHost {
        SimHost::new(self.0.clone(), core)
    }

    /// Device port.
    pub fn device(&self) -> SimDevice {
        SimDevice::new(self.0.clone(), 0)
    }

    /// Total time that this direction of the link has been busy: of the one above a device's switch.
    pub fn link_busy(&self, way: Way) -> Span {
        match (self.0.spec.ports, &self.0.switch) {
            (Some(_), Some(switch)) => switch.busy(way),
            _ => self.0.links[0].busy(way),
        }
    }

    /// Total time that this direction of each port's link has been busy; of the only link, if the device has
    /// no switch.
    pub fn ports_busy(&self, way: Way) -> Vec<Span> {
        self.0.links.iter().map(|link| link.busy(way)).collect()
    }

    /// Total time that this direction of the link above the switch has been busy. `None` if there is no
    /// switch.
    pub fn switch_busy(&self, way: Way) -> Option<Span> {
        self.0.switch.as_ref().map(|switch| switch.busy(way))
    }

    /// Packets sent in this direction.
    pub fn link_packets(&self, way: Way) -> Packets {
        let all = self.0.links.iter().map(|link| link.packets(way));
        all.fold(Packets::default(), |sum, packets| sum.and(&packets))
    }

    /// Total time that this host core has been busy.
    pub fn core_busy(&self, core: u32) -> Span {
        self.0.host.cores[core as usize].busy()
    }

    /// Total time that this host core has polled memory without a change: the cost of polling in addition
    /// to its [work](Self::core_busy).
    pub fn core_polling(&self, core: u32) -> Span {
        let core = core as usize;
        self.0.host.poll_accountings[core].idle_polling(self.0.rt.now(), &self.0.host.cores[core])
    }

    /// Makes the device a function of a PCI hierarchy: bridges and its own registers decide whether
    /// accesses reach it and whether it reaches memory, and its MSI-X vectors give its messages. Accesses
    /// to configuration space and to the vectors take no time.
    ///
    /// # Panics
    /// If it is a function already.
    pub fn pci_slot(&self, topology: &Topology, node: NodeId) {
        let seated = self.0.pci_slot.set(PciSlot::new(topology.clone(), node));
        assert!(seated.is_ok(), "the device has its place");
    }

    /// The hierarchy of which the device is a function, if any.
    pub fn topology(&self) -> Option<&Topology> {
        self.0.pci_slot.get().map(PciSlot::topology)
    }

    /// Sets the address at which the driver accesses the registers.
    pub fn map(&self, registers: u64) {
        if let Some(pci_slot) = self.0.pci_slot.get() {
            pci_slot.map(registers);
        }
    }

    /// Removes the function by surprise: reads return all ones, nothing lands, and the driver gets no
    /// notice. No effect on a device outside a hierarchy.
    pub fn pull_out(&self) {
        if let Some(pci_slot) = self.0.pci_slot.get() {
            pci_slot.pull_out();
            self.0.rt.log("bus", "pulled-out", 0, 0);
        }
    }

    /// Takes the link down: nothing lands any more, and reads return all ones.
    pub fn take_link_down(&self) {
        let bus = &self.0;
        bus.down.set(true);
        bus.rt.log("bus", "link-down", 0, 0);
        // Wake all waits, so that they can detect the dead link.
        bus.registers_written.notify(&bus.rt);
        bus.interrupted.notify(&bus.rt);
        bus.host.changed(&bus.rt, 0, u64::MAX);
    }
}

/// Costs with the stages of their names.
fn staged(rt: &Rt, costs: &[NamedCost]) -> Vec<(NamedCost, Stage)> {
    costs.iter().map(|cost| (cost.clone(), rt.stage(StageName::of_cost(cost.name)))).collect()
}

impl HostSide {
    fn new(rt: &Rt, spec: &SimSpec) -> HostSide {
        let memory = Memory::private(spec.memory_bytes, spec.memory_base);
        HostSide {
            arena: Arena::new(memory.clone()),
            memory,
            watches: RefCell::default(),
            cores: (0..spec.cores).map(|_| Processor::default()).collect(),
            poll_accountings: (0..spec.cores).map(|_| PollAccounting::default()).collect(),
            costs: staged(rt, &spec.host_costs),
        }
    }

    fn watch(&self, begin: BusAddr, bytes: u32, parked: Parked) -> usize {
        let watch = Watch { begin: begin.0, end: begin.0 + u64::from(bytes), parked: Some(parked) };
        let mut watches = self.watches.borrow_mut();
        match watches.iter().position(Option::is_none) {
            Some(free) => {
                watches[free] = Some(watch);
                free
            }
            None => {
                watches.push(Some(watch));
                watches.len() - 1
            }
        }
    }

    /// Wakes the waits for these bytes of host memory.
    // Forced, as the compiler leaves it out at times; it is called for every packet.
    #[inline(always)]
    fn changed(&self, rt: &Rt, at: u64, bytes: u64) {
        for watch in self.watches.borrow_mut().iter_mut().flatten() {
            if watch.begin < at + bytes
                && at < watch.end
                && let Some(parked) = watch.parked.take()
            {
                rt.unpark(parked);
            }
        }
    }
}

impl Bus {
    /// Returns true if the driver's accesses reach the registers.
    #[inline]
    fn is_reached(&self) -> bool {
        !self.down.get() && self.pci_slot.get().is_none_or(PciSlot::is_reached)
    }

    /// Returns true if the device's accesses reach memory.
    #[inline]
    fn reaches_memory(&self) -> bool {
        !self.down.get() && self.pci_slot.get().is_none_or(PciSlot::reaches)
    }

    /// The link by which the host reaches this register.
    #[inline]
    fn link_to(&self, register: u32) -> &Link {
        let port =
            self.spec.ports.map_or(0, |ports| (register / ports.window).min(ports.count - 1));
        &self.links[port as usize]
    }

    /// Bus address of the registers.
    fn registers_at(&self) -> u64 {
        self.pci_slot.get().map_or(host::REGISTERS_AT, PciSlot::registers)
    }

    fn cost(table: &[(NamedCost, Stage)], name: &str) -> Cost {
        match table.iter().position(|(cost, _)| cost.name == name) {
            Some(index) => Cost(index as u8),
            None => panic!("the plan gives no cost named {name:?}"),
        }
    }

    /// Next processor of the device, round robin.
    fn processor(&self) -> &Processor {
        let next = self.next_processor.get();
        self.next_processor.set((next + 1) % self.processors.len());
        &self.processors[next]
    }

    /// Remaining time of the current iteration of a polling loop that began at `since`.
    fn poll_rest(&self, since: Time) -> Span {
        let period = self.spec.poll.0;
        match self.rt.now().since(since).0.checked_rem(period) {
            None | Some(0) => Span(period),
            Some(into) => Span(period - into),
        }
    }
}
