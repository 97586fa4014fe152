//! The interfaces that there are: for each, which device front end answers which driver.
//!
//! To add one, write its modules in `wire`, `device` and `host`, and its row here.

mod array;
mod block;
mod collections;
mod dcx;
mod fastpath;
#[cfg(feature = "rtl")]
mod fastpath_rtl;
mod host_collector;
mod host_flash;
mod scsi;
mod shared;
mod stages;

use std::future::Future;
use std::rc::Rc;

use bus::sim::SimSpec;
use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::flash::Chips;
use device::nvme as front;
use ftl::Stats;
use host::nvme as driver;
use host::{BlockDevice, InitError};
use runtime::Span;
use wire::nvme::admin::Priority;
use wire::nvme::features::{Arbitration, InterruptCoalescing};

use crate::function;
use crate::medium::{Footing, Store};
use crate::plan::{self, Doorbell, Plan};
use stages::{ASKED, COMMAND, joined};

pub use array::{Array, ArrayDriver};
pub(crate) use array::{JOURNEYS, of_member};
pub use block::{Block, BlockDriver, block_options};
pub use collections::Collector;
pub use dcx::{Dcx, DcxDriver};
pub(crate) use fastpath::engine_options;
pub use fastpath::{Fastpath, FastpathDriver};
#[cfg(feature = "rtl")]
pub use fastpath_rtl::{FastpathRtl, FastpathRtlDriver};
pub use host_collector::{HostCollector, HostCollectorDriver};
pub use host_flash::{HostFlash, HostFlashDriver};
pub use scsi::{Scsi, ScsiDriver, spread_options};
pub use shared::Shared;

/// One host interface, both ends of it.
pub trait Interface: 'static {
    /// Its name on the command line.
    const NAME: &'static str;
    /// What its breakdown consists of, in the order of a request's life. Every stage that the bus, the
    /// medium, the front end or the driver marks is among them.
    const STAGES: &'static [&'static str];
    /// Commands of one queue in flight, at most.
    const DEPTH_MAX: u32 = 1024;
    /// Its driver.
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

    /// The PCI function that its device is to a host in another process; none, if it is none.
    fn function(plan: &Plan) -> Option<Function> {
        let _ = plan;
        None
    }

    /// The queue numbers that its driver's journeys have, for a host with so many queues.
    fn journey_queues(queues: u32) -> u32 {
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

    /// Whether a plan's faults can strike its commands. Where they can't, a world with some is not built.
    const FAULTS: bool = false;

    /// Starts the device's end.
    fn start<P: DevicePort>(port: P, store: Store, plan: &Plan, faults: &Rc<Faults>);

    /// What several of its devices share that stand on one medium; none: there is one on each.
    fn share(store: Store, plan: &Plan, devices: u16) -> Option<Shared> {
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

/// A driver that runs.
pub trait Driver<P: HostPort> {
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

/// NVM Express: queues in host memory, doorbells, completion entries.
pub struct Nvme;

/// The NVMe driver and its queues.
pub struct NvmeDriver<P: HostPort> {
    controller: driver::Controller<P>,
    queues: Vec<Rc<driver::Queue<P>>>,
    /// The depth that the plan asks for.
    depth: u32,
}

impl Interface for Nvme {
    const NAME: &'static str = "nvme";
    const STAGES: &'static [&'static str] = joined!(ASKED, COMMAND);
    const DEPTH_MAX: u32 = driver::DEPTH_MAX as u32;
    const MASKS: Option<Masks> = Some(function::MASKS);
    type Driver<P: HostPort> = NvmeDriver<P>;

    fn register_bytes(plan: &Plan) -> u32 {
        options(plan).register_bytes()
    }

    fn function(plan: &Plan) -> Option<Function> {
        Some(function::nvme(plan, Nvme::register_bytes(plan)))
    }

    const FAULTS: bool = true;

    fn start<P: DevicePort>(port: P, store: Store, plan: &Plan, faults: &Rc<Faults>) {
        let medium = Rc::new(Footing::Plain(store));
        front::Controller::start_with(port, medium, options(plan), faults.clone());
    }

    fn share(store: Store, plan: &Plan, devices: u16) -> Option<Shared> {
        Some(Shared::new(store, plan, devices))
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<NvmeDriver<P>, InitError> {
        let wanted = controller_options(plan, ports.len() as u16);
        let controller = driver::Controller::start(ports[0].clone(), wanted).await?;
        let mut queues = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let queue = queue_options(plan, number as u16);
            queues.push(controller.queue_on(&port, queue).await?);
        }
        Ok(NvmeDriver { controller, queues, depth: plan.host.queue_depth })
    }
}

impl<P: HostPort> NvmeDriver<P> {
    /// The driver itself.
    pub fn controller(&self) -> &driver::Controller<P> {
        &self.controller
    }
}

impl<P: HostPort> Driver<P> for NvmeDriver<P> {
    type Disk = Rc<driver::Queue<P>>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.queues[number % self.queues.len()].clone()
    }

    async fn reset(&self) -> Result<(), String> {
        self.controller.reset().await.map_err(|error| error.to_string())
    }

    async fn stop(&self) -> Result<(), String> {
        self.controller.shutdown().await.map_err(|error| error.to_string())
    }

    fn notes(&self) -> Vec<String> {
        let all = self.queues.iter().map(|queue| queue.counters());
        let (written, saved) = all.fold((0, 0), |(written, saved), of| {
            (written + of.sq_doorbells + of.cq_doorbells, saved + of.saved_doorbells)
        });
        let shadows = saved > 0;
        let told = || format!("shadow doorbells: {written} writes of doorbells, {saved} saved");
        let mut notes: Vec<_> = shadows.then(told).into_iter().collect();
        notes.extend(
            self.queues.first().and_then(|queue| clamped(self.depth, queue.depth().into())),
        );
        notes
    }
}

/// What is said where a controller's queues are not as deep as the plan's.
pub(crate) fn clamped(asked: u32, found: u32) -> Option<String> {
    let note = || {
        format!(
            "host.queue_depth: {asked} was asked for, the controller's queues of {} entries hold {found} \
             (CAP.MQES)",
            found + 1
        )
    };
    (found < asked).then(note)
}

fn options(plan: &Plan) -> front::Options {
    let device = &plan.device;
    front::Options {
        pci_vendors: (function::VENDOR, function::VENDOR),
        slots: device.command_slots as u16,
        fetchers: device.fetchers as u16,
        fetch_max: device.fetch_max,
        io_queues: device.queues as u16,
        queue_entries_max: device.queue_entries,
        transfer_bytes_max: device.mdts_bytes as u32,
        arbitration_burst: device.arbitration_burst,
        controllers: 1,
        namespaces: plan.device.namespaces as u16,
        protection: plan.device.protection,
        urgent_burst_max: plan.arbitration.as_ref().and_then(|by| by.urgent_most),
        relaxed_ordering: plan.relaxed_ordering,
        power_states: plan.power.as_ref().map_or_else(Vec::new, |power| power.states.clone()),
    }
}

pub(crate) fn controller_options(plan: &Plan, queues: u16) -> driver::Options {
    driver::Options {
        queues,
        timeout: plan.host.timeout,
        retries: plan.host.retries,
        arbitration: arbitration(plan),
        coalescing: plan.host.coalescing.map(coalescing),
        shadow_doorbells: plan.host.shadow_doorbells,
        sgl: plan.host.sgl,
        protect: match plan.host.guard {
            None => driver::Protect::Device,
            Some(_) => driver::Protect::Host { application: 0 },
        },
        power_saving: plan.power.as_ref().and_then(|power| power.saving),
        admin_completion: plan.host.completion.by(0),
        ..driver::Options::default()
    }
}

pub(crate) fn queue_options(plan: &Plan, number: u16) -> driver::QueueOptions {
    driver::QueueOptions {
        depth: plan.host.queue_depth as u16,
        // Vector 0 is the admin queue's.
        completion: plan.host.completion.by(number + 1),
        doorbell: match plan.host.doorbell {
            Doorbell::Each => driver::Doorbell::Each,
            Doorbell::Batched => driver::Doorbell::Batched,
        },
        priority: plan
            .arbitration
            .as_ref()
            .map_or(Priority::Medium, |by| by.class(usize::from(number))),
    }
}

/// What the driver is to set, if completions share interrupts.
fn coalescing((completions, at_most): (u32, Span)) -> InterruptCoalescing {
    let time = at_most.0 / plan::COALESCING_UNIT.0;
    InterruptCoalescing::new().with_thr((completions - 1) as u8).with_time(time as u8)
}

/// What the driver is to set, if queues are served by weight.
fn arbitration(plan: &Plan) -> Option<Arbitration> {
    let [high, medium, low] = plan.arbitration.as_ref()?.weights;
    let weighted = Arbitration::weighted(high, medium, low);
    Some(weighted.with_burst(plan.device.arbitration_burst))
}
