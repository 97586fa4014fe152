//! FTL on the host: endpoints with raw flash, and a block device over their pages.

use std::rc::Rc;

use bus::sim::{Ports, SimSpec};
use bus::{DevicePort, HostPort};
use device::pages as front;
use flash::chips::Chips;
use ftl::{Cache, Stats};
use host::InitError;
use host_flash as driver;

use super::array::{self, Array, Member};
use super::array_gc::Collector;
use super::driver::{Boxed, Connected, Driver};
use super::row::{Cores, Devices, Ends, Front, Interface, Queues, Row};
use super::stages::{ABOVE_DRIVER, COMMAND, joined};
use crate::error::{CheckError, DriverError};
use crate::medium::software;
use plan::{Flash, PageAccess, Plan};

/// Physical page access over the bus; map, write buffer and collector are on the host.
pub struct HostFlash;

pub struct HostFlashDriver<P: HostPort>(driver::Driver<P>);

const NAME: &str = "host-flash";

const STAGES: &[&str] = joined!(
    ABOVE_DRIVER,
    &["operation wait", "map", "room wait"],
    COMMAND,
    &["collect", "copy", "hand over"]
);

const ALONE: Row = Row {
    check,
    // One trace queue for all operations; page commands are parts of them.
    queues: |queues| Queues { vectors: queues + 1, traces: 1 },
    cores: |plan| Cores {
        own: 0,
        reserved: plan.section().map_or(0, |pages: &PageAccess| pages.cores),
    },
    adjust,
    ..Row::new(
        NAME,
        "Physical page access, with the FTL on the host",
        STAGES,
        register_bytes,
        Ends::not_a_function::<HostFlash>(),
    )
};

pub(super) static ROW: Row = Row { devices: Devices::OneOr(&ARRAY), ..ALONE }.with_parts(&[
    driver::STAGES,
    driver::COSTS,
    device::pages::STAGES,
    flash::chips::STAGES,
    ftl::STAGES,
]);

pub(super) static ARRAY: Row = Row {
    stages: joined!(STAGES, &array::STAGES),
    ..array::row(ALONE, Ends::not_a_function::<Array<HostFlash>>())
}
.with_parts(&[&array::STAGES]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    plan.reject_hybrid_polling(NAME)?;
    plan.reject_host_protection(NAME)?;
    let pages = plan.require_section::<PageAccess>(NAME)?;
    let Some(flash) = &plan.medium.flash else {
        let expected = "flash: interface host-flash has its FTL";
        return Err(CheckError::key(plan, "medium.kind", expected));
    };
    if plan.medium.bridge.is_some() {
        let expected = "none: interface host-flash has its FTL on the host";
        return Err(CheckError::key(plan, "medium.bridge", expected));
    }
    if flash.software.cache == Cache::Protected {
        let expected = "volatile or through: host memory is lost at power loss";
        return Err(CheckError::found(plan, "medium.flash.cache", "protected", expected));
    }
    if flash.software.map_cache.is_some() {
        let expected = "none: interface host-flash has the whole map in host memory";
        return Err(CheckError::key(plan, "medium.flash.map_cache", expected));
    }
    if pages.cores >= plan.host.cores {
        let expected = format!("less than host.cores, which is {}", plan.host.cores);
        return Err(CheckError::found(plan, "pages.cores", pages.cores, expected));
    }
    let shape = flash.shape();
    front::check(&shape, pages.endpoints)
        .map_err(|why| CheckError::Endpoints { origin: plan.origin.clone(), why })?;
    check_ports(plan, pages)?;
    let options = options(plan, pages, flash);
    let needed = driver::arena_bytes(&shape, pages.endpoints, &options).map_err(|least| {
        let found = format!("{} bytes", pages.read_memory);
        CheckError::found(plan, "pages.read_memory", found, format!("at least {least}"))
    })?;
    let callers = u64::from(plan.host.queues * plan.host.queue_depth) * plan.device.mdts_bytes;
    if plan.host.memory_bytes < needed + callers {
        let found = format!("{} bytes", plan.host.memory_bytes);
        let expected = format!(
            "at least {} for host-flash: write buffer, read pages and callers' buffers",
            needed + callers
        );
        return Err(CheckError::found(plan, "host.memory", found, expected));
    }
    Ok(())
}

fn register_bytes(plan: &Plan) -> u32 {
    let endpoints = plan.section().map_or(1, |pages: &PageAccess| pages.endpoints);
    (endpoints * wire::pages::STRIDE).next_multiple_of(4096)
}

fn adjust(plan: &Plan, spec: &mut SimSpec) {
    let ports = plan.section().and_then(|pages: &PageAccess| {
        let (count, window) = (pages.endpoints, wire::pages::STRIDE);
        pages.port_lanes.map(|lanes| Ports { count, lanes, window })
    });
    spec.ports = ports;
}

impl Member for HostFlash {
    const ROW: &'static Row = &ROW;
}

impl Interface for HostFlash {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of_chips(|port, chips: Rc<Chips>, plan| {
            let pages = plan.required_section::<PageAccess>();
            let options = front::Options {
                endpoints: pages.endpoints,
                slots: pages.upstream_pages,
                rows: pages.downstream_rows,
                fetch_max: plan.device.fetch_max,
            };
            front::Endpoints::start(port, chips, options);
        })
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let flash = plan.medium.flash.as_ref().expect("checked before the world is built");
        let options = options(plan, plan.required_section(), flash);
        let number = ports.len();
        let driver = driver::Driver::start(ports, options).await?;
        let disks: Vec<_> = (0..number).map(|number| driver.disk(number)).collect();
        Ok(Connected::new(HostFlashDriver(driver), disks))
    }
}

/// A switch in the device is modelled by whole transfers, and not below another one.
fn check_ports(plan: &Plan, pages: &PageAccess) -> Result<(), CheckError> {
    let Some(lanes) = pages.port_lanes else { return Ok(()) };
    let link = &plan.link;
    let expected = if plan.array.is_some() {
        "none with [array], whose members are below a switch"
    } else if link.credits.is_some() || link.held_up.is_some() || link.coherent {
        "none with link.credits, link.held_up or link.coherent: below a switch the link is modelled by whole \
         transfers"
    } else {
        return Ok(());
    };
    Err(CheckError::found(plan, "pages.port_lanes", lanes, expected))
}

impl<P: HostPort> HostFlashDriver<P> {
    pub fn driver(&self) -> &driver::Driver<P> {
        &self.0
    }
}

impl<P: HostPort> Driver for HostFlashDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        let why = "interface host-flash: no reset under I/O: it would tear programs in progress";
        Box::pin(core::future::ready(Err(DriverError::Unsupported(why))))
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.0.stop().await?) })
    }

    fn collector(&self) -> Option<Collector> {
        let (slack, lead) = (self.0.software().clone(), self.0.software().clone());
        Some(Collector {
            superblock_units: i64::from(slack.superblock_units()),
            slack: Box::new(move || slack.slack()),
            control: Box::new(move |to| lead.lead(to)),
        })
    }

    fn software(&self) -> Option<Stats> {
        Some(self.0.stats())
    }

    fn notes(&self) -> Vec<String> {
        let memory = self.0.memory();
        let kib = |bytes: u64| bytes.div_ceil(1024);
        vec![format!(
            "host memory of the FTL: map {} KiB, tables {}, write buffer {}, pages that are read {}, \
             commands {}",
            kib(memory.map),
            kib(memory.tables),
            kib(memory.write_buffer),
            kib(memory.read_pages),
            kib(memory.commands)
        )]
    }

    fn memory_bytes(&self) -> u64 {
        let memory = self.0.memory();
        memory.bytes() - memory.reachable
    }

    fn memory(&self) -> Option<driver::Memory> {
        Some(self.0.memory())
    }
}

fn options(plan: &Plan, pages: &PageAccess, flash: &Flash) -> driver::Options {
    driver::Options {
        depth: pages.queue_depth as u16,
        die_commands: pages.die_commands.map(|most| most as u16),
        operations: (plan.host.queues * plan.host.queue_depth).min(1024) as u16,
        transfer_bytes_max: plan.device.mdts_bytes as u32,
        completion: plan.host.completion.by(0),
        read_memory: pages.read_memory,
        through_host: pages.through_host,
        own_ports: pages.cores as u16,
        timeout: plan.host.timeout,
        software: software(plan, flash, false),
    }
}
