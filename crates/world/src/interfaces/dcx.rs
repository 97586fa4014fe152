//! DC Express beside NVMe on one device.

use std::rc::Rc;

use bus::{DevicePort, HostPort};
use device::faults::Faults;
use device::{dcx as front, nvme as nvme_front};
use host::{InitError, dcx as dcx_driver};

use super::stages::{ASKED, MEDIUM, MOVED, SEEN, TAKEN, joined};
use host::nvme as driver;

use super::nvme::options;
use super::{Driver, Interface, Nvme, NvmeDriver, Row};
use crate::medium::{BackingStore, NvmeStore};
use plan::{DcxTags, Plan};

/// DC Express: polled queues and vanishing tags for reads; NVMe, on the same device, for all else.
pub struct Dcx;

/// The driver of DC Express and its queues, over those of NVMe.
pub struct DcxDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    dcx: dcx_driver::Driver<P>,
    queues: Vec<Rc<dcx_driver::Queue<P, Rc<driver::Queue<P>>>>>,
}

static ROW: Row = Row::of::<Dcx>();

impl Interface for Dcx {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "dcx";
    const SUMMARY: &'static str = "DC Express for reads, NVM Express for all else";
    const STAGES: &'static [&'static str] = joined!(
        ASKED,
        &["slot wait", "tag retry", "core wait", "mark", "submit", "pickup", "doorbell"],
        TAKEN,
        &["tag wait"],
        MEDIUM,
        MOVED,
        &["arrival"],
        SEEN,
    );
    type Driver<P: HostPort> = DcxDriver<P>;

    fn check(plan: &Plan) -> Result<(), String> {
        plan.must_not_sleep(Dcx::NAME)?;
        plan.must_not_guard(Dcx::NAME)?;
        plan.need::<plan::Dcx>(Dcx::NAME).map(drop)
    }

    fn register_bytes(plan: &Plan) -> u32 {
        let front = dcx_options(plan);
        (front.block + front.block_bytes()).next_multiple_of(4096)
    }

    /// Those of NVMe, and behind them its own.
    fn trace_queues(queues: u32) -> u32 {
        2 * queues + 1
    }

    const FAULTS: bool = true;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        let rt = port.rt().clone();
        let tagged = match plan.checked::<plan::Dcx>().tags {
            // A medium that cannot be read promises nothing; the driver's tags are random then.
            DcxTags::Device(grain) => front::Tagged::new(&rt, store.clone(), grain)
                .unwrap_or_else(|_| front::Tagged::without_tags(&rt, store)),
            DcxTags::Random(_) => front::Tagged::without_tags(&rt, store),
        };
        let tagged = Rc::new(tagged);
        let nvme_store = Rc::new(NvmeStore::Tagged(tagged.clone()));
        nvme_front::Controller::start_with(port.clone(), nvme_store, options(plan), faults.clone());
        front::Front::start_with(port, tagged, dcx_options(plan), faults.clone());
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<DcxDriver<P>, InitError> {
        let nvme = Nvme::connect(ports.clone(), plan).await?;
        let block = dcx_options(plan).block;
        let dcx = dcx_driver::Driver::start(&ports[0], block, &nvme.queues[0]).await?;
        let mut queues = Vec::new();
        for (number, port) in (0..).zip(&ports) {
            let options = dcx_queue_options(plan, number, ports.len() as u16);
            let beneath = nvme.queues[usize::from(number)].clone();
            queues.push(dcx.queue_on(port, beneath, options).await?);
        }
        Ok(DcxDriver { nvme, dcx, queues })
    }
}

impl<P: HostPort> Driver<P> for DcxDriver<P> {
    type Disk = Rc<dcx_driver::Queue<P, Rc<driver::Queue<P>>>>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.queues[number % self.queues.len()].clone()
    }

    async fn reset(&self) -> Result<(), String> {
        self.dcx.reset().await.map_err(|error| error.to_string())?;
        self.nvme.reset().await
    }

    async fn stop(&self) -> Result<(), String> {
        self.dcx.stop().await.map_err(|error| error.to_string())?;
        self.nvme.stop().await
    }
}

fn dcx_options(plan: &Plan) -> front::Options {
    let (device, dcx) = (&plan.device, plan.checked::<plan::Dcx>());
    front::Options {
        block: options(plan).register_bytes(),
        // Each has a poller of its own: no more than the host will use.
        queues: plan.host.queues as u16,
        entries_log2: (2 * plan.host.queue_depth + 1).ilog2() as u8,
        slots: device.command_slots.max(plan.host.queues) as u16,
        fetch_max: dcx.fetch_max,
        anticipate: dcx.anticipate,
        sleep_after: dcx.sleep_after.unwrap_or(u32::MAX),
        transfer_bytes_max: device.mdts_bytes as u32,
        relaxed_ordering: plan.relaxed_ordering,
        traces_from: plan.host.queues as u16 + 1,
    }
}

fn dcx_queue_options(plan: &Plan, number: u16, queues: u16) -> dcx_driver::QueueOptions {
    let dcx = plan.checked::<plan::Dcx>();
    dcx_driver::QueueOptions {
        depth: plan.host.queue_depth as u16,
        // Behind those of the admin queue and NVMe's queues.
        completion: plan.host.completion.by(queues + 1 + number),
        tags: match dcx.tags {
            DcxTags::Random(bits) => dcx_driver::Tags::Random { bits, seed: plan.run.seed },
            DcxTags::Device(_) => dcx_driver::Tags::Device { seed: plan.run.seed },
        },
        max_latency: dcx.max_latency,
        retries: plan.host.retries,
        timeout: plan.host.timeout,
        may_sleep: dcx.sleep_after.is_some(),
        writes: dcx.writes,
        traces: plan.host.queues as u16 + 1 + number,
    }
}
