//! Host-directed garbage collection: map, write buffer, placement and copies are on the device; the host
//! chooses the superblock, the time and the rate of collection.

use std::rc::Rc;

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::nvme as front;
use host::InitError;
use host::nvme as driver;

use super::array::Array;
use super::nvme::options;
use super::stages::joined;
use super::{Driver, Interface, Nvme, NvmeDriver, Row};
use crate::error::{CheckError, DriverError};
use crate::medium::{BackingStore, NvmeStore, Reach};
use plan::{HostDirectedGc, Plan};

/// NVM Express with garbage collection directed by the host.
pub struct HostGc;

/// The NVMe driver, and the host's collector.
pub struct HostGcDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    collector: driver::Collector<P>,
}

static ROW: Row = Row::of::<HostGc>();
static ARRAY: Row = Row::of::<Array<HostGc>>();

impl Interface for HostGc {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "host-gc";
    const FUNCTION: Option<fn(&Plan) -> Function> = Nvme::FUNCTION;
    const ARRAY: Option<&'static Row> = Some(&ARRAY);
    const SUMMARY: &'static str = "NVM Express with garbage collection directed by the host";
    const STAGES: &'static [&'static str] = joined!(Nvme::STAGES, driver::COLLECTOR_COSTS);
    const PARTS: &'static [&'static [&'static str]] = &[driver::COLLECTOR_COSTS];
    const DEPTH_MAX: u32 = Nvme::DEPTH_MAX;
    const MASKS: Option<Masks> = Nvme::MASKS;
    const FAULTS: bool = Nvme::FAULTS;
    type Driver<P: HostPort> = HostGcDriver<P>;

    fn check(plan: &Plan) -> Result<(), CheckError> {
        plan.require_section::<HostDirectedGc>(HostGc::NAME)?;
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

    fn register_bytes(plan: &Plan) -> u32 {
        Nvme::register_bytes(plan)
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        let collections = match &**store.medium() {
            Reach::Flash(drive) => drive.clone(),
            _ => panic!("checked before the world is built: one drive of flash"),
        };
        let medium = Rc::new(NvmeStore::Plain(store));
        let started = front::Controller::start_with(port, medium, options(plan), faults.clone());
        started.offer_collections(collections);
    }

    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<HostGcDriver<P>, InitError> {
        let port = ports[0].clone();
        let nvme = Nvme::connect(ports, plan).await?;
        let options = collector_options(plan);
        let collector = nvme.controller().direct_gc(&port, options).await?;
        Ok(HostGcDriver { nvme, collector })
    }
}

impl<P: HostPort> HostGcDriver<P> {
    pub fn collector(&self) -> &driver::Collector<P> {
        &self.collector
    }
}

impl<P: HostPort> Driver<P> for HostGcDriver<P> {
    type Disk = <NvmeDriver<P> as Driver<P>>::Disk;

    fn disk(&self, number: usize) -> Self::Disk {
        self.nvme.disk(number)
    }

    async fn reset(&self) -> Result<(), DriverError> {
        self.nvme.reset().await
    }

    async fn stop(&self) -> Result<(), DriverError> {
        self.nvme.stop().await
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
