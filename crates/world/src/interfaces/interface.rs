//! What an interface is: a front end of the device, and a driver that speaks to it.

use std::future::Future;
use std::rc::Rc;

use bus::sim::SimSpec;
use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::flash::Chips;
use ftl::Stats;
use host::{BlockDevice, InitError};

use super::collections::Collector;
use super::row::Row;
use super::shared::Shared;
use crate::medium::BackingStore;
use plan::Plan;

/// One host interface, both ends of it.
pub trait Interface: Sized + 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// What it is, in a line of the command's help.
    const SUMMARY: &'static str;
    /// What its breakdown consists of, in the order of a request's life. Every stage that the bus, the
    /// medium, the front end or the driver marks is among them.
    const STAGES: &'static [&'static str];
    /// Commands of one queue in flight, at most.
    const DEPTH_MAX: u32 = 1024;
    type Driver<P: HostPort>: Driver<P>;

    /// Whether the plan's machine has it.
    ///
    /// # Errors
    /// What the plan lacks.
    fn check(_: &Plan) -> Result<(), String> {
        Ok(())
    }

    /// The register window that its device needs, bytes.
    fn register_bytes(plan: &Plan) -> u32;

    /// Two registers of its device that are one word, whose bits the host sets and clears; none: no such.
    const MASKS: Option<Masks> = None;

    /// Whether several such devices are one, below a switch, and how; none: there is one device.
    fn members(plan: &Plan) -> Option<&plan::Array> {
        let _ = plan;
        None
    }

    /// The PCI function that its device is to a host in another process; none, if it is none. Only the
    /// device of one that is can be served over vfio-user.
    const FUNCTION: Option<fn(&Plan) -> Function> = None;

    /// The queue numbers that its driver's journeys have, for a host with so many queues.
    fn trace_queues(queues: u32) -> u32 {
        queues + 1
    }

    /// Cores that its driver has to itself, beside those of the host: hardware that is no processor.
    fn own_cores(plan: &Plan) -> u32 {
        let _ = plan;
        0
    }

    /// What the modelled bus is for it alone.
    fn adjust(plan: &Plan, spec: &mut SimSpec) {
        let _ = (plan, spec);
    }

    /// It has a live world; without one it is simulated alone.
    const LIVE: bool = true;

    /// Its row for a plan with a table `[array]`, if several of its devices can be one.
    const ARRAY: Option<&'static Row> = None;

    /// Its row: what the world, the front ends and the command know of it. It refers to a static: a constant
    /// of this value would be compiled again, driver and device, in each crate that uses it.
    const ROW: &'static Row;

    /// Whether a plan's faults can strike its commands. Where they can't, a world with some is not built.
    const FAULTS: bool = false;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>);

    /// What several of its devices share that stand on one medium; none: there is one on each.
    fn share(store: BackingStore, plan: &Plan, devices: u16) -> Option<Shared> {
        let _ = (store, plan, devices);
        None
    }

    /// Whether its device has bare flash, and the flash software is its driver's.
    const BARE: bool = false;

    /// Starts the device's end on bare flash, where it is [so](Interface::BARE).
    ///
    /// # Panics
    /// Where it is not.
    fn start_bare<P: DevicePort>(port: P, chips: Rc<Chips>, plan: &Plan) {
        let _ = (port, chips, plan);
        panic!("{} stands on a medium", Self::NAME);
    }

    /// Starts the driver, with one queue for each of `ports`: each on its own core. The last of them are
    /// those on [cores of its own](Interface::own_cores). Of several [members](Interface::members) each has
    /// as many, one member's after the other's.
    fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> impl Future<Output = Result<Self::Driver<P>, InitError>>;
}

pub trait Driver<P: HostPort>: 'static {
    /// What a caller reads and writes.
    type Disk: BlockDevice + Clone + 'static;

    /// The disk, by its queue of this number; queues are used in turn.
    fn disk(&self, number: usize) -> Self::Disk;

    /// Resets the device, with whatever is in flight.
    fn reset(&self) -> impl Future<Output = Result<(), String>>;

    /// Leaves the device in order.
    fn stop(&self) -> impl Future<Output = Result<(), String>>;

    /// Makes right what a power cut of the device may have left wrong above it; how much that was.
    fn recover(&self) -> impl Future<Output = Result<u64, String>> {
        core::future::ready(Ok(0))
    }

    /// The disk as it is read when what may be lost of it is, as this number says: of an array with a parity
    /// one member. For who only reads.
    fn disk_without(&self, lost: u64) -> Self::Disk {
        let _ = lost;
        self.disk(0)
    }

    /// Lets somebody else say when its flash software's collector begins, if that is the driver's own.
    fn collector(&self) -> Option<Collector> {
        None
    }

    /// What it has to say of a run, beside what its callers measure: a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What flash software of the driver's own has done, if it has any.
    fn software(&self) -> Option<Stats> {
        None
    }

    /// Host memory that it takes beside what the device can reach, bytes.
    fn memory_bytes(&self) -> u64 {
        self.software().map_or(0, |software| software.memory_bytes)
    }
}
