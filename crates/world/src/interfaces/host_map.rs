//! The map of flash on the host: write buffer, placement, garbage collection and wear levelling are on the
//! device, which keeps its own map on flash and a small part of it in memory.

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
use crate::error::{CheckError, DriverError};
use crate::medium::{BackingStore, NvmeStore, Reach};
use plan::{MapOnHost, Plan};

/// NVM Express with the map of flash on the host.
pub struct HostMap;

/// The NVMe driver, and the map over its queues.
pub struct HostMapDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    map: driver::HostMapping<P>,
    disks: Vec<driver::PlacedDisk<P>>,
}

static ROW: Row = Row::of::<HostMap>();

impl Interface for HostMap {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "host-map";
    const FUNCTION: Option<fn(&Plan) -> Function> = Nvme::FUNCTION;
    const SUMMARY: &'static str = "NVM Express with the map of flash on the host";
    const STAGES: &'static [&'static str] =
        joined!(Nvme::STAGES, driver::MAP_STAGES, driver::MAP_COSTS);
    const PARTS: &'static [&'static [&'static str]] = &[driver::MAP_STAGES, driver::MAP_COSTS];
    const DEPTH_MAX: u32 = Nvme::DEPTH_MAX;
    const MASKS: Option<Masks> = Nvme::MASKS;
    const FAULTS: bool = Nvme::FAULTS;
    type Driver<P: HostPort> = HostMapDriver<P>;

    fn check(plan: &Plan) -> Result<(), CheckError> {
        plan.require_section::<MapOnHost>(HostMap::NAME)?;
        let Some(flash) = &plan.medium.flash else {
            let expected = "flash: interface host-map keeps its map";
            return Err(CheckError::key(plan, "medium.kind", expected));
        };
        if plan.medium.bridge.is_some() {
            let expected = "none: host-map keeps the map of one controller";
            return Err(CheckError::key(plan, "medium.bridge", expected));
        }
        if flash.software.map_cache.is_none() {
            let expected = "the device's memory for what of the map it needs itself: without it the \
                device has the whole map";
            return Err(CheckError::key(plan, "medium.flash.map_cache", expected));
        }
        if plan.device.namespaces > 1 {
            let (found, expected) = (plan.device.namespaces, "1: the map is of one namespace");
            return Err(CheckError::found(plan, "device.namespaces", found, expected.to_owned()));
        }
        Ok(())
    }

    fn register_bytes(plan: &Plan) -> u32 {
        Nvme::register_bytes(plan)
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        let map = match &**store.medium() {
            Reach::Flash(drive) => drive.clone(),
            _ => panic!("checked before the world is built: one drive of flash"),
        };
        let medium = Rc::new(NvmeStore::Plain(store));
        let started = front::Controller::start_with(port, medium, options(plan), faults.clone());
        started.offer_map(map);
    }

    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<HostMapDriver<P>, InitError> {
        let port = ports[0].clone();
        let nvme = Nvme::connect(ports, plan).await?;
        let MapOnHost { moves, .. } = plan.required_section();
        let map = nvme.controller().map_on_host(&port, *moves).await?;
        let disks = nvme.queues.iter().map(|queue| map.disk(queue)).collect::<Result<_, _>>()?;
        Ok(HostMapDriver { nvme, map, disks })
    }
}

impl<P: HostPort> HostMapDriver<P> {
    /// The map over the queues, with its statistics.
    pub fn map(&self) -> &driver::HostMapping<P> {
        &self.map
    }
}

impl<P: HostPort> Driver<P> for HostMapDriver<P> {
    type Disk = driver::PlacedDisk<P>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.disks[number % self.disks.len()].clone()
    }

    async fn reset(&self) -> Result<(), DriverError> {
        self.nvme.reset().await
    }

    async fn stop(&self) -> Result<(), DriverError> {
        self.nvme.stop().await
    }

    fn notes(&self) -> Vec<String> {
        let counts = self.map.counts();
        let driver::MapCounts { reads, places, parts, stale, given_up, moves, dropped } = counts;
        let mut notes = self.nvme.notes();
        notes.push(format!(
            "map on the host: {reads} reads sent {places} places, {stale} times stale, {given_up} left to \
             the device; {parts} parts read, {moves} moves, {dropped} of them dropped"
        ));
        notes
    }

    fn memory_bytes(&self) -> u64 {
        self.map.memory_bytes()
    }
}
