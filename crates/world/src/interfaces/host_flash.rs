//! Flash software on the host: endpoints with bare flash, and a block device over their pages.

use std::rc::Rc;

use bus::{DevicePort, HostPort};
use device::faults::Faults;
use device::flash::Chips;
use device::pages as front;
use ftl::{Cache, Stats};
use host::InitError;
use host_flash as driver;

use super::stages::{ASKED, COMMAND, joined};
use super::{Array, Collector, Driver, Interface, Row};
use crate::device::software;
use crate::medium::BackingStore;
use plan::{Flash, PageAccess, Plan};

/// Physical pages over the bus; map, write buffer and collector on the host.
pub struct HostFlash;

/// The driver, and what resets are to say.
pub struct HostFlashDriver<P: HostPort>(driver::Driver<P>);

static ROW: Row = Row::of::<HostFlash>();
static ARRAY: Row = Row::of::<Array<HostFlash>>();

impl Interface for HostFlash {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "host-flash";
    const SUMMARY: &'static str = "Physical pages, with the flash software on the host";
    const STAGES: &'static [&'static str] =
        joined!(ASKED, &["operation wait", "map", "room wait"], COMMAND, &["collect", "copy"]);
    const BARE: bool = true;
    const ARRAY: Option<&'static Row> = Some(&ARRAY);
    type Driver<P: HostPort> = HostFlashDriver<P>;

    fn check(plan: &Plan) -> Result<(), String> {
        plan.must_not_sleep(HostFlash::NAME)?;
        plan.must_not_guard(HostFlash::NAME)?;
        let origin = &plan.origin;
        let pages = plan.need::<PageAccess>(HostFlash::NAME)?;
        let Some(flash) = &plan.medium.flash else {
            return Err(format!(
                "{origin}: medium.kind: expected flash: interface host-flash has its software"
            ));
        };
        if plan.medium.bridge.is_some() {
            return Err(format!(
                "{origin}: medium.bridge: expected none: by host-flash the flash is the host's"
            ));
        }
        if flash.software.cache == Cache::Protected {
            return Err(format!(
                "{origin}: medium.flash.cache: found protected, expected volatile or through: the host's \
                 memory is lost with the power"
            ));
        }
        if flash.software.map_cache.is_some() {
            return Err(format!(
                "{origin}: medium.flash.map_cache: expected none: by host-flash the map lies in the host's \
                 memory"
            ));
        }
        let shape = flash.shape();
        front::check(&shape, pages.endpoints)
            .map_err(|why| format!("{origin}: pages.endpoints: {why}"))?;
        let options = options(plan, pages, flash);
        let needed = driver::arena_bytes(&shape, pages.endpoints, &options).map_err(|least| {
            format!(
                "{origin}: pages.read_memory: found {} bytes, expected at least {least}",
                pages.read_memory
            )
        })?;
        let callers = u64::from(plan.host.queues * plan.host.queue_depth) * plan.device.mdts_bytes;
        if plan.host.memory_bytes < needed + callers {
            let (found, least) = (plan.host.memory_bytes, needed + callers);
            return Err(format!(
                "{origin}: host.memory: found {found} bytes, expected at least {least} for host-flash: its \
                 write buffer, pages that are read, and callers' buffers"
            ));
        }
        Ok(())
    }

    fn register_bytes(plan: &Plan) -> u32 {
        let endpoints = plan.section().map_or(1, |pages: &PageAccess| pages.endpoints);
        (endpoints * wire::pages::STRIDE).next_multiple_of(4096)
    }

    /// One for all operations: the commands for pages are parts of them.
    fn trace_queues(_: u32) -> u32 {
        1
    }

    /// # Panics
    /// Always: it stands on bare chips, by [`start_bare`](Interface::start_bare).
    fn start<P: DevicePort>(_: P, _: BackingStore, _: &Plan, _: &Rc<Faults>) {
        panic!("host-flash stands on no medium");
    }

    fn start_bare<P: DevicePort>(port: P, chips: Rc<Chips>, plan: &Plan) {
        let pages = plan.checked::<PageAccess>();
        let options = front::Options {
            endpoints: pages.endpoints,
            slots: pages.upstream_pages,
            rows: pages.downstream_rows,
            fetch_max: plan.device.fetch_max,
        };
        front::Endpoints::start(port, chips, options);
    }

    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<HostFlashDriver<P>, InitError> {
        let flash = plan.medium.flash.as_ref().expect("checked before the world is built");
        let options = options(plan, plan.checked(), flash);
        Ok(HostFlashDriver(driver::Driver::start(ports, options).await?))
    }
}

impl<P: HostPort> HostFlashDriver<P> {
    pub fn driver(&self) -> &driver::Driver<P> {
        &self.0
    }
}

impl<P: HostPort> Driver<P> for HostFlashDriver<P> {
    type Disk = driver::Disk<P>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.0.disk(number)
    }

    async fn reset(&self) -> Result<(), String> {
        Err("endpoints are not reset under work: what they program would be torn".into())
    }

    async fn stop(&self) -> Result<(), String> {
        self.0.stop().await.map_err(|error| error.to_string())
    }

    fn collector(&self) -> Option<Collector> {
        let (slack, lead) = (self.0.software().clone(), self.0.software().clone());
        Some(Collector {
            superblock_units: i64::from(slack.superblock_units()),
            slack: Box::new(move || slack.slack()),
            lead: Box::new(move |to| lead.lead(to)),
        })
    }

    fn software(&self) -> Option<Stats> {
        Some(self.0.stats())
    }
}

fn options(plan: &Plan, pages: &PageAccess, flash: &Flash) -> driver::Options {
    driver::Options {
        depth: pages.queue_depth as u16,
        operations: (plan.host.queues * plan.host.queue_depth).min(1024) as u16,
        transfer_bytes_max: plan.device.mdts_bytes as u32,
        completion: plan.host.completion.by(0),
        read_memory: pages.read_memory,
        through_host: pages.through_host,
        timeout: plan.host.timeout,
        software: software(plan, flash),
    }
}
