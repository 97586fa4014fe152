//! The map of flash on the host: write buffer, placement, garbage collection and wear levelling are on the
//! device, which keeps its own map on flash and a small part of it in memory.

use bus::{DevicePort, HostPort};
use host::InitError;
use host::nvme as driver;

use super::driver::{Boxed, Connected, Driver};
use super::nvme::{self, NvmeDriver, served_function};
use super::row::{Ends, Front, Interface, Row};
use super::stages::joined;
use crate::error::{CheckError, DriverError};
use plan::{MapOnHost, Plan};

/// NVM Express with the map of flash on the host.
pub struct HostMap;

/// The NVMe driver, and the map over its queues.
pub struct HostMapDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    map: driver::HostMapping<P>,
}

const NAME: &str = "host-map";

pub(super) static ROW: Row = Row {
    name: NAME,
    summary: "NVM Express with the map of flash on the host",
    stages: joined!(nvme::STAGES, driver::MAP_STAGES, driver::MAP_COSTS),
    check,
    ends: Ends::of::<HostMap>(served_function),
    ..nvme::ALONE
}
.with_parts(&[driver::MAP_STAGES, driver::MAP_COSTS]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    plan.require_section::<MapOnHost>(NAME)?;
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

impl Interface for HostMap {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of(|port, store, plan, faults| {
            let (controller, map) = nvme::over_flash(port, store, plan, faults);
            controller.offer_map(map);
        })
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let port = ports[0].clone();
        let nvme = NvmeDriver::start(ports, plan).await?;
        let MapOnHost { moves, .. } = plan.required_section();
        let map = nvme.controller().map_on_host(&port, *moves).await?;
        let disks = nvme.queues.iter().map(|queue| map.disk(queue));
        let disks: Vec<_> = disks.collect::<Result<_, _>>()?;
        Ok(Connected::new(HostMapDriver { nvme, map }, disks))
    }
}

impl<P: HostPort> HostMapDriver<P> {
    /// The map over the queues, with its statistics.
    pub fn map(&self) -> &driver::HostMapping<P> {
        &self.map
    }
}

impl<P: HostPort> Driver for HostMapDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        self.nvme.reset()
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        self.nvme.stop()
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
