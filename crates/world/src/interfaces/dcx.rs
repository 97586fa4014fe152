//! DC Express and NVMe on one device.

use std::rc::Rc;

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort};
use device::faults::Faults;
use device::{dcx as front, nvme as nvme_front};
use host::{InitError, dcx as dcx_driver};
use media::Faulty;
use runtime::Rt;

use super::divided::{DcxSide, Side};
use super::stages::{ABOVE_DRIVER, COMPLETE, FETCH, MEDIUM, TRANSFER, joined};
use host::nvme as driver;

use super::nvme::options;
use super::{Driver, Interface, Nvme, NvmeDriver, Row};
use crate::error::{CheckError, DriverError};
use crate::function;
use crate::medium::{BackingStore, NvmeStore, Reach};
use plan::{DcxTags, Plan};
use runtime::Span;

const PS_PER_S: u64 = 1_000_000_000_000;

/// DC Express with polled queues and vanishing tags for reads; NVMe on the same device for other commands.
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
    const SUMMARY: &'static str = "DC Express for reads, NVM Express for all other commands";
    const STAGES: &'static [&'static str] = joined!(
        ABOVE_DRIVER,
        &["slot wait", "tag retry", "core wait", "mark", "submit", "pickup", "doorbell"],
        FETCH,
        &["tag wait"],
        MEDIUM,
        TRANSFER,
        &["arrival"],
        COMPLETE,
    );
    const PARTS: &'static [&'static [&'static str]] = &[
        dcx_driver::STAGES,
        dcx_driver::COSTS,
        front::STAGES,
        front::COSTS,
        nvme_front::STAGES,
        media::STAGES,
    ];
    type Driver<P: HostPort> = DcxDriver<P>;

    fn check(plan: &Plan) -> Result<(), CheckError> {
        plan.reject_hybrid_polling(Dcx::NAME)?;
        plan.reject_host_protection(Dcx::NAME)?;
        plan.require_section::<plan::Dcx>(Dcx::NAME)?;
        Ok(())
    }

    const FUNCTION: Option<fn(&Plan) -> Function> = Some(|plan| {
        let front = dcx_options(plan);
        function::dcx(plan, front.block, front.queues, Dcx::register_bytes(plan))
    });

    fn register_bytes(plan: &Plan) -> u32 {
        let front = dcx_options(plan);
        (front.block + front.block_bytes()).next_multiple_of(4096)
    }

    /// Those of NVMe, followed by one per queue of DC Express.
    fn vectors(queues: u32) -> u32 {
        2 * queues + 1
    }

    /// Those of NVMe, followed by those of DC Express.
    fn trace_queues(queues: u32) -> u32 {
        2 * queues + 1
    }

    const FAULTS: bool = true;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        let tagged = tagged(port.rt(), store, plan);
        let nvme_store = Rc::new(NvmeStore::Tagged(tagged.clone()));
        nvme_front::Controller::start_with(port.clone(), nvme_store, options(plan), faults.clone());
        front::Front::start_with(port, tagged, dcx_options(plan), faults.clone());
    }

    fn divide<P: DevicePort>(store: BackingStore, rt: &Rt, plan: &Plan) -> Option<Side<P>> {
        let tagged = tagged(rt, store, plan);
        Some(Box::new(DcxSide { tagged, nvme: options(plan), options: dcx_options(plan) }))
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

    async fn reset(&self) -> Result<(), DriverError> {
        self.dcx.reset().await?;
        self.nvme.reset().await
    }

    async fn stop(&self) -> Result<(), DriverError> {
        self.dcx.stop().await?;
        self.nvme.stop().await
    }
}

/// The store with the tags of the plan.
fn tagged(rt: &Rt, store: BackingStore, plan: &Plan) -> Rc<front::Tagged<Faulty<Reach>>> {
    Rc::new(match plan.required_section::<plan::Dcx>().tags {
        // A medium that cannot be read promises nothing; the driver's tags are random then.
        DcxTags::Device { grain, bits, compared } => {
            let source = match compared {
                None => front::TagSource::Intervals,
                Some(values) => front::TagSource::Compared { values, seed: plan.run.seed },
            };
            let spec = front::TagSpec { grain, bits, source };
            front::Tagged::choosing(rt, store.clone(), spec)
                .unwrap_or_else(|_| front::Tagged::without_tags(rt, store))
        }
        DcxTags::Random(_) => front::Tagged::without_tags(rt, store),
    })
}

fn dcx_options(plan: &Plan) -> front::Options {
    let (device, dcx) = (&plan.device, plan.required_section::<plan::Dcx>());
    front::Options {
        block: options(plan).register_bytes(),
        // Each queue has its own poller, so there are no more than the host uses.
        queues: plan.host.queues as u16,
        entries_log2: (2 * plan.host.queue_depth + 1).ilog2() as u8,
        slots: device.command_slots.max(plan.host.queues) as u16,
        fetch_max: dcx.fetch_max,
        anticipate: dcx.anticipate,
        sleep_after: dcx.sleep_after.unwrap_or(u32::MAX),
        poll_gap_max: dcx.poll_above.map(|rate| Span(PS_PER_S / u64::from(rate))),
        transfer_bytes_max: device.mdts_bytes as u32,
        relaxed_ordering: plan.relaxed_ordering,
        traces_from: plan.host.queues as u16 + 1,
    }
}

fn dcx_queue_options(plan: &Plan, number: u16, queues: u16) -> dcx_driver::QueueOptions {
    let dcx = plan.required_section::<plan::Dcx>();
    dcx_driver::QueueOptions {
        depth: plan.host.queue_depth as u16,
        // Vectors follow those of the admin queue and the NVMe queues.
        completion: plan.host.completion.by(queues + 1 + number),
        tags: match dcx.tags {
            DcxTags::Random(bits) => dcx_driver::Tags::Random { bits, seed: plan.run.seed },
            DcxTags::Device { .. } => dcx_driver::Tags::Device { seed: plan.run.seed },
        },
        marks_last: dcx.marks_last,
        max_latency: dcx.max_latency,
        retries: plan.host.retries,
        timeout: plan.host.timeout,
        may_sleep: dcx.sleep_after.is_some() || dcx.poll_above.is_some(),
        writes: dcx.writes,
        traces: plan.host.queues as u16 + 1 + number,
    }
}
