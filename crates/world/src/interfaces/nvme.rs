//! NVM Express, and options from a plan for all interfaces based on it.

use std::rc::Rc;

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort};
use device::faults::Faults;
use device::nvme as front;
use flash::chips::Chips;
use flash::drive::Drive;
use host::InitError;
use host::nvme as driver;
use runtime::Span;
use wire::nvme::admin::Priority;
use wire::nvme::features::{Arbitration, InterruptCoalescing};

use super::array::{self, Array, Member};
use super::array_gc;
use super::clients::{OneThread, Shared};
use super::driver::{Boxed, Connected, Driver};
use super::row::{Devices, Ends, Front, Interface, Row};
use super::stages::{ABOVE_DRIVER, COMMAND, NVME_PARTS, joined};
use crate::error::DriverError;
use crate::function;
use crate::medium::{BackingStore, NvmeStore, Reach};
use plan::{Doorbell, Plan};

/// NVM Express: queues in host memory, doorbells, completion entries.
pub struct Nvme;

/// The NVMe driver and its queues.
pub struct NvmeDriver<P: HostPort> {
    controller: driver::Controller<P>,
    pub(super) queues: Vec<Rc<driver::Queue<P>>>,
    depth: u32,
}

pub(super) const STAGES: &[&str] = joined!(ABOVE_DRIVER, COMMAND);

/// Without arrays. Rows of drivers around this one begin with it.
pub(super) const ALONE: Row = Row {
    depth_max: driver::DEPTH_MAX as u32,
    masks: Some(function::MASKS),
    faults: true,
    ..Row::new("nvme", "NVM Express", STAGES, register_bytes, Ends::of::<Nvme>(served_function))
};

pub(super) static ROW: Row = Row {
    devices: Devices::OneOr(&ARRAY),
    share: Some(|store, plan, devices| Shared::new(store, options(plan), devices)),
    ..ALONE
}
.with_parts(NVME_PARTS);

pub(super) static ARRAY: Row = Row {
    stages: joined!(STAGES, &array::STAGES),
    ..array::row(ALONE, Ends::of::<Array<Nvme>>(served_function))
}
.with_parts(&[&array::STAGES]);

pub(super) fn register_bytes(plan: &Plan) -> u32 {
    options(plan).register_bytes()
}

impl Member for Nvme {
    const ROW: &'static Row = &ROW;
}

impl Interface for Nvme {
    fn front<P: DevicePort>() -> Front<P> {
        Front {
            divide: Some(|store, _, plan| {
                let options = options(plan);
                Box::new(move |port, faults| {
                    let store = Rc::new(NvmeStore::Plain(store.clone()));
                    let options = options.clone();
                    let controller = front::Controller::start_with(port, store, options, faults);
                    Box::new(move || controller.stop())
                })
            }),
            deal: Some(|port, store, plan, faults, thread| {
                let (store, faults) = (Rc::new(NvmeStore::Plain(store)), faults.clone());
                let controller =
                    front::Controller::start_on(port, store, options(plan), faults, thread);
                let (served, is_first) = (controller.clone(), thread.number() == 0);
                let serve = async move {
                    match is_first {
                        true => core::future::pending().await,
                        false => served.serve_queues().await,
                    }
                };
                OneThread { serve: Box::pin(serve), stop: Box::new(move || controller.stop()) }
            }),
            ..Front::of(|port, store, plan, faults| {
                array_gc::follow_windows(port.rt(), store.medium(), plan);
                let medium = Rc::new(NvmeStore::Plain(store));
                front::Controller::start_with(port, medium, options(plan), faults.clone());
            })
        }
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let driver = NvmeDriver::start(ports, plan).await?;
        let disks = driver.queues.clone();
        Ok(Connected::new(driver, disks))
    }
}

/// A controller over one drive of flash, and the drive. A plan of another medium was rejected before.
pub(super) fn over_flash<P: DevicePort>(
    port: P,
    store: BackingStore,
    plan: &Plan,
    faults: &Rc<Faults>,
) -> (Rc<front::Controller<P, NvmeStore>>, Rc<Drive<Chips>>) {
    let Reach::Flash(drive) = &**store.medium() else { panic!("one drive of flash") };
    let drive = drive.clone();
    let medium = Rc::new(NvmeStore::Plain(store));
    let started = front::Controller::start_with(port, medium, options(plan), faults.clone());
    (started, drive)
}

/// The PCI function of the plan's NVMe controller.
pub(super) fn served_function(plan: &Plan) -> Function {
    function::nvme(plan, register_bytes(plan))
}

impl<P: HostPort> NvmeDriver<P> {
    pub(super) async fn start(ports: Vec<P>, plan: &Plan) -> Result<NvmeDriver<P>, InitError> {
        let wanted = controller_options(plan, ports.len() as u16);
        let controller = driver::Controller::start(ports[0].clone(), wanted).await?;
        let mut queues = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let queue = queue_options(plan, number as u16);
            queues.push(controller.queue_on(&port, queue).await?);
        }
        Ok(NvmeDriver { controller, queues, depth: plan.host.queue_depth })
    }

    pub fn controller(&self) -> &driver::Controller<P> {
        &self.controller
    }
}

impl<P: HostPort> Driver for NvmeDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.controller.reset().await?) })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.controller.shutdown().await?) })
    }

    fn notes(&self) -> Vec<String> {
        let all = self.queues.iter().map(|queue| queue.counters());
        let (written, saved) = all.fold((0, 0), |(written, saved), of| {
            (written + of.sq_doorbells + of.cq_doorbells, saved + of.saved_doorbells)
        });
        let shadows = saved > 0;
        let note = || format!("shadow doorbells: {written} writes of doorbells, {saved} saved");
        let mut notes: Vec<_> = shadows.then(note).into_iter().collect();
        notes.extend(
            self.queues.first().and_then(|queue| clamped(self.depth, queue.depth().into())),
        );
        notes
    }
}

/// Note for a run whose queue depth is limited by the controller.
pub fn clamped(asked: u32, found: u32) -> Option<String> {
    let note = || {
        format!(
            "host.queue_depth: {asked} was asked for, the controller's queues of {} entries hold {found} \
             (CAP.MQES)",
            found + 1
        )
    };
    (found < asked).then(note)
}

pub(super) fn options(plan: &Plan) -> front::Options {
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
        queue_groups: device.queue_groups as u16,
        number: plan.device.before(),
        names: plan.device.names.clone(),
        life: plan.device.life.clone().unwrap_or_default(),
        controllers: 1,
        namespaces: plan.device.namespaces as u16,
        own_namespaces: plan.device.own_namespaces,
        protection: plan.device.protection,
        urgent_burst_max: plan.arbitration.as_ref().and_then(|by| by.urgent_most),
        relaxed_ordering: plan.relaxed_ordering,
        power_states: plan.power.as_ref().map_or_else(Vec::new, |power| power.states.clone()),
    }
}

/// Driver options of the controller from a plan, for `queues` I/O queues.
pub fn controller_options(plan: &Plan, queues: u16) -> driver::Options {
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

/// Driver options of an I/O queue from a plan; queues count from 0.
pub fn queue_options(plan: &Plan, number: u16) -> driver::QueueOptions {
    driver::QueueOptions {
        depth: plan.host.queue_depth as u16,
        // Vector 0 is the admin queue's, or the pin.
        completion: plan.host.completion.by(if plan.host.pin.is_some() { 0 } else { number + 1 }),
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

/// Feature value for interrupt coalescing.
fn coalescing((completions, at_most): (u32, Span)) -> InterruptCoalescing {
    let time = at_most.0 / plan::COALESCING_UNIT.0;
    InterruptCoalescing::new().with_thr((completions - 1) as u8).with_time(time as u8)
}

/// Feature value for weighted arbitration; none: round robin.
fn arbitration(plan: &Plan) -> Option<Arbitration> {
    let [high, medium, low] = plan.arbitration.as_ref()?.weights;
    let weighted = Arbitration::weighted(high, medium, low);
    Some(weighted.with_burst(plan.device.arbitration_burst))
}
