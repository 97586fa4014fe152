//! Flash software that is split: map, write buffer, placement and copies on the device, by NVMe; which
//! superblock is collected, when and how fast, on the host.

use std::rc::Rc;

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::nvme as front;
use host::InitError;
use host::nvme as driver;

use super::nvme::options;
use super::stages::joined;
use super::{Driver, Interface, Nvme, NvmeDriver, Row};
use crate::medium::{BackingStore, Medium, NvmeStore};
use plan::{HostDirectedGc, Plan};

/// NVM Express, and the device's collector led by the host.
pub struct HostCollector;

/// The driver, and what leads.
pub struct HostCollectorDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    collector: driver::Collector<P>,
}

static ROW: Row = Row::of::<HostCollector>();

impl Interface for HostCollector {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "host-collector";
    const FUNCTION: Option<fn(&Plan) -> Function> = Nvme::FUNCTION;
    const SUMMARY: &'static str =
        "NVM Express, with the flash software's collector led by the host";
    const STAGES: &'static [&'static str] = joined!(Nvme::STAGES, driver::COLLECTOR_COSTS);
    const DEPTH_MAX: u32 = Nvme::DEPTH_MAX;
    const MASKS: Option<Masks> = Nvme::MASKS;
    const FAULTS: bool = Nvme::FAULTS;
    type Driver<P: HostPort> = HostCollectorDriver<P>;

    fn check(plan: &Plan) -> Result<(), String> {
        let origin = &plan.origin;
        plan.need::<HostDirectedGc>(HostCollector::NAME)?;
        if plan.medium.flash.is_none() {
            return Err(format!(
                "{origin}: medium.kind: expected flash: interface host-collector leads its collector"
            ));
        }
        if plan.medium.bridge.is_some() {
            return Err(format!(
                "{origin}: medium.bridge: expected none: by host-collector one collector is led"
            ));
        }
        Ok(())
    }

    fn register_bytes(plan: &Plan) -> u32 {
        Nvme::register_bytes(plan)
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        let collections = match &**store.medium() {
            Medium::Flash { drive, .. } => drive.clone(),
            _ => panic!("checked before the world is built: one drive of flash"),
        };
        let medium = Rc::new(NvmeStore::Plain(store));
        let started = front::Controller::start_with(port, medium, options(plan), faults.clone());
        started.offer_collections(collections);
    }

    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<HostCollectorDriver<P>, InitError> {
        let port = ports[0].clone();
        let nvme = Nvme::connect(ports, plan).await?;
        let options = collector_options(plan);
        let collector = nvme.controller().direct_gc(&port, options).await?;
        Ok(HostCollectorDriver { nvme, collector })
    }
}

impl<P: HostPort> HostCollectorDriver<P> {
    pub fn collector(&self) -> &driver::Collector<P> {
        &self.collector
    }
}

impl<P: HostPort> Driver<P> for HostCollectorDriver<P> {
    type Disk = <NvmeDriver<P> as Driver<P>>::Disk;

    fn disk(&self, number: usize) -> Self::Disk {
        self.nvme.disk(number)
    }

    async fn reset(&self) -> Result<(), String> {
        self.nvme.reset().await
    }

    async fn stop(&self) -> Result<(), String> {
        self.nvme.stop().await
    }

    fn notes(&self) -> Vec<String> {
        let driver::CollectorCounts { calls, read_bytes, collected, valid, refused } =
            self.collector.counts();
        let mut notes = self.nvme.notes();
        notes.push(format!(
            "collector on the host: called {calls} times, {collected} superblocks named with {valid} units \
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
    let HostDirectedGc { early, .. } = plan.checked();
    let flash = plan.medium.flash.as_ref().expect("checked before the world is built");
    driver::CollectorOptions { choice: flash.software.choice, early: *early, seed: plan.run.seed }
}
