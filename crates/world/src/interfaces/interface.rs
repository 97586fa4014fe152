//! The traits of an interface: a front end of the device, and its driver.

use std::borrow::Cow;
use std::future::Future;
use std::rc::Rc;

use bus::sim::SimSpec;
use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::nvme::DeviceThread;
use flash::chips::Chips;
use ftl::Stats;
use host::{BlockDevice, InitError};
use runtime::Rt;

use super::collections::Collector;
use super::dealt::Dealt;
use super::divided::Side;
use super::lanes::Lanes;
use super::row::Row;
use super::shared::Shared;
use crate::error::{CheckError, DriverError};
use crate::medium::BackingStore;
use plan::Plan;

/// A host interface with both sides, device and host.
pub trait Interface: Sized + 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// One-line description for the command's help.
    const SUMMARY: &'static str;
    /// The stages of the latency breakdown in request order.
    const STAGES: &'static [&'static str];
    /// The lists of stages and costs of its driver, its controller and the media that it accepts. A row whose
    /// [`STAGES`](Self::STAGES) lack one of them does not compile.
    const PARTS: &'static [&'static [&'static str]];
    /// Lanes, in a timeline, of stages that no interface of this crate has. A row does not compile if a stage
    /// is in no lane.
    const LANES: Lanes = &[];
    /// Maximum number of commands in flight per queue.
    const DEPTH_MAX: u32 = 1024;
    type Driver<P: HostPort>: Driver<P>;

    /// Checks that the interface supports the plan.
    ///
    /// # Errors
    /// The first requirement that is not met.
    fn check(_: &Plan) -> Result<(), CheckError> {
        Ok(())
    }

    /// Size of the device's register window, bytes.
    fn register_bytes(plan: &Plan) -> u32;

    /// A pair of device registers that set and clear bits of one word, as NVMe's INTMS and INTMC; none: no
    /// such pair.
    const MASKS: Option<Masks> = None;

    /// Array of several such devices below a switch; none: one device.
    fn members(plan: &Plan) -> Option<&plan::Array> {
        let _ = plan;
        None
    }

    /// PCI function of the device for a host in another process, which vfio-user requires; none: not a PCI
    /// function.
    const FUNCTION: Option<fn(&Plan) -> Function> = None;

    /// Number of interrupt vectors of its driver, for a host with `queues` queues. Vector 0 is the admin
    /// queue's.
    fn vectors(queues: u32) -> u32 {
        queues + 1
    }

    /// Number of trace queues of its driver, for a host with `queues` queues.
    fn trace_queues(queues: u32) -> u32 {
        queues + 1
    }

    /// Additional cores for the driver alone, which stand for hardware engines.
    fn own_cores(plan: &Plan) -> u32 {
        let _ = plan;
        0
    }

    /// Of the host's cores, the last ones, which run the driver alone.
    fn reserved_cores(plan: &Plan) -> u32 {
        let _ = plan;
        0
    }

    /// Adjusts the configuration of the simulated bus for this interface.
    fn adjust(plan: &Plan, spec: &mut SimSpec) {
        let _ = (plan, spec);
    }

    /// The plan without costs that no call by this interface has: a kernel that it does not pass.
    fn passed(plan: &Plan) -> Cow<'_, Plan> {
        Cow::Borrowed(plan)
    }

    /// The interface supports live worlds; otherwise only simulated ones.
    const LIVE: bool = true;

    /// Row for a plan with a table `[array]`, if the interface supports arrays.
    const ARRAY: Option<&'static Row> = None;

    /// The type-erased entry of the interface. It must refer to a static: a constant value would compile
    /// driver and device again in each crate that uses it.
    const ROW: &'static Row;

    /// Whether faults can be injected into its commands. If not, plans with faults are rejected.
    const FAULTS: bool = false;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>);

    /// Shared state of several devices on one medium; none: one device per medium.
    fn share(store: BackingStore, plan: &Plan, devices: u16) -> Option<Shared> {
        let _ = (store, plan, devices);
        None
    }

    /// The device side for one of several clients, each of which reaches its own `store` alone; none: one
    /// client per device.
    fn divide<P: DevicePort>(store: BackingStore, rt: &Rt, plan: &Plan) -> Option<Side<P>> {
        let _ = (store, rt, plan);
        None
    }

    /// The device side on one of several threads that share the controller's queues, each with a port and a
    /// `store` of its own; none: one thread serves all queues.
    fn deal<P: DevicePort>(
        port: P,
        store: BackingStore,
        plan: &Plan,
        faults: &Rc<Faults>,
        thread: &DeviceThread,
    ) -> Option<Dealt> {
        let _ = (port, store, plan, faults, thread);
        None
    }

    /// The device has raw flash, and the FTL is in the driver.
    const BARE: bool = false;

    /// Starts the front end on raw flash, if [`BARE`](Interface::BARE).
    ///
    /// # Panics
    /// If not [`BARE`](Interface::BARE).
    fn start_bare<P: DevicePort>(port: P, chips: Rc<Chips>, plan: &Plan) {
        let _ = (port, chips, plan);
        panic!("{} has a medium, not raw flash", Self::NAME);
    }

    /// Starts the driver with one queue for each of `ports`, each on its own core. The last ones are on the
    /// [driver's own cores](Interface::own_cores) and the [reserved](Interface::reserved_cores) ones. For an
    /// [array](Interface::members) the ports are ordered by member, with the same number for each.
    fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> impl Future<Output = Result<Self::Driver<P>, InitError>>;
}

pub trait Driver<P: HostPort>: 'static {
    /// The block device for callers.
    type Disk: BlockDevice + Clone + 'static;

    /// The disk on queue `number` modulo the number of queues.
    fn disk(&self, number: usize) -> Self::Disk;

    /// Resets the device; commands may be in flight.
    fn reset(&self) -> impl Future<Output = Result<(), DriverError>>;

    fn stop(&self) -> impl Future<Output = Result<(), DriverError>>;

    /// Repairs the host's state after a power cut of the device. Returns the number of repairs.
    fn recover(&self) -> impl Future<Output = Result<u64, DriverError>> {
        core::future::ready(Ok(0))
    }

    /// The disk in a degraded state selected by `lost`: an array with parity without one member. Only for
    /// reads.
    fn disk_without(&self, lost: u64) -> Self::Disk {
        let _ = lost;
        self.disk(0)
    }

    /// External control of the garbage collector, if the FTL is in the driver.
    fn collector(&self) -> Option<Collector> {
        None
    }

    /// Driver statistics of a run as lines of text.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Statistics of the FTL, if it is in the driver.
    fn software(&self) -> Option<Stats> {
        None
    }

    /// Host memory of the driver that the device cannot access, bytes.
    fn memory_bytes(&self) -> u64 {
        self.software().map_or(0, |software| software.memory_bytes)
    }

    /// Host memory of an FTL in the driver, by what it grows with; otherwise none.
    fn memory(&self) -> Option<host_flash::Memory> {
        None
    }
}
