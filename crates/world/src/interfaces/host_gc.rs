//! Host-directed garbage collection: map, write buffer, placement and copies are on the device; the host
//! chooses the superblock, the time and the rate of collection.

use bus::{DevicePort, HostPort};
use host::InitError;
use host::nvme as driver;

use super::array::{self, Array, Member};
use super::driver::{Boxed, Connected, Driver};
use super::nvme::{self, NvmeDriver, served_function};
use super::row::{Devices, Ends, Front, Interface, Row};
use super::stages::joined;
use crate::error::{CheckError, DriverError};
use plan::{HostDirectedGc, Plan};

/// NVM Express with garbage collection directed by the host.
pub struct HostGc;

/// The NVMe driver, and the host's collector.
pub struct HostGcDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    collector: driver::Collector<P>,
}

const NAME: &str = "host-gc";

const STAGES: &[&str] = joined!(nvme::STAGES, driver::COLLECTOR_COSTS);

const ALONE: Row = Row {
    name: NAME,
    summary: "NVM Express with garbage collection directed by the host",
    stages: STAGES,
    check,
    ends: Ends::of::<HostGc>(served_function),
    ..nvme::ALONE
};

pub(super) static ROW: Row =
    Row { devices: Devices::OneOr(&ARRAY), ..ALONE }.with_parts(&[driver::COLLECTOR_COSTS]);

pub(super) static ARRAY: Row = Row {
    stages: joined!(STAGES, &array::STAGES),
    ..array::row(ALONE, Ends::of::<Array<HostGc>>(served_function))
}
.with_parts(&[&array::STAGES]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    plan.require_section::<HostDirectedGc>(NAME)?;
    if plan.medium.flash.is_none() {
        let expected = "flash: interface host-gc directs its garbage collection";
        return Err(CheckError::key(plan, "medium.kind", expected));
    }
    if plan.medium.bridge.is_some() {
        let expected = "none: host-gc directs one controller";
        return Err(CheckError::key(plan, "medium.bridge", expected));
    }
    Ok(())
}

impl Member for HostGc {
    const ROW: &'static Row = &ROW;
}

impl Interface for HostGc {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of(|port, store, plan, faults| {
            let (controller, collections) = nvme::over_flash(port, store, plan, faults);
            controller.offer_collections(collections);
        })
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let port = ports[0].clone();
        let nvme = NvmeDriver::start(ports, plan).await?;
        let collector = nvme.controller().direct_gc(&port, collector_options(plan)).await?;
        let disks = nvme.queues.clone();
        Ok(Connected::new(HostGcDriver { nvme, collector }, disks))
    }
}

impl<P: HostPort> HostGcDriver<P> {
    pub fn collector(&self) -> &driver::Collector<P> {
        &self.collector
    }
}

impl<P: HostPort> Driver for HostGcDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        self.nvme.reset()
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        self.nvme.stop()
    }

    fn notes(&self) -> Vec<String> {
        let driver::CollectorCounts { calls, read_bytes, collected, valid, refused } =
            self.collector.counts();
        let mut notes = self.nvme.notes();
        notes.push(format!(
            "host-directed GC: called {calls} times, {collected} superblocks named with {valid} units \
             valid, {refused} refused; {} KiB of tables read",
            read_bytes / 1024
        ));
        notes
    }

    fn memory_bytes(&self) -> u64 {
        self.collector.memory_bytes()
    }
}

fn collector_options(plan: &Plan) -> driver::CollectorOptions {
    let HostDirectedGc { early, .. } = plan.required_section();
    let flash = plan.medium.flash.as_ref().expect("checked before the world is built");
    driver::CollectorOptions {
        choice: flash.software.choice,
        early: *early,
        window: plan.array.as_ref().and_then(plan::Array::window),
        seed: plan.run.seed,
    }
}
