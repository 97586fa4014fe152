//! DC Express and NVMe on one device.

use std::rc::Rc;

use bus::sim::SimHost;
use bus::vfio_user::Function;
use bus::{Buffer, DevicePort, HostPort};
use device::{dcx as front, nvme as nvme_front};
use host::nvme as driver;
use host::{InitError, IoError, dcx as dcx_driver};
use media::Faulty;
use runtime::{Rt, Span};
use wire::Lba;

use super::driver::{Boxed, Connected, Driver};
use super::nvme::{NvmeDriver, options};
use super::row::{Ends, Front, Interface, Queues, Row};
use super::stages::{ABOVE_DRIVER, COMPLETE, FETCH, MEDIUM, TRANSFER, joined};
use crate::error::{CheckError, DriverError};
use crate::function;
use crate::medium::{BackingStore, NvmeStore, Reach};
use plan::{DcxTags, Plan};

const PS_PER_S: u64 = 1_000_000_000_000;

/// DC Express with polled queues and vanishing tags for reads; NVMe on the same device for other commands.
pub struct Dcx;

/// A queue of DC Express, over one of NVMe.
pub type DcxQueue<P> = Rc<dcx_driver::Queue<P, Rc<driver::Queue<P>>>>;

/// The driver of DC Express, over that of NVMe.
pub struct DcxDriver<P: HostPort> {
    nvme: NvmeDriver<P>,
    dcx: dcx_driver::Driver<P>,
    queues: Vec<DcxQueue<P>>,
}

/// Operations and counts of queue 0 that its disk does not have.
impl DcxDriver<SimHost> {
    /// Reads the first `into.bytes()` bytes of a block.
    ///
    /// # Errors
    /// As for [`read_head`](dcx_driver::Queue::read_head).
    pub fn read_head(&self, lba: Lba, into: Buffer) -> Boxed<'_, (Buffer, Result<(), IoError>)> {
        Box::pin(self.queues[0].read_head(lba, into))
    }

    /// Number of reads that timed out.
    pub fn timeouts(&self) -> u64 {
        self.queues[0].counters().timeouts
    }
}

const NAME: &str = "dcx";

pub(super) static ROW: Row = Row {
    faults: true,
    check,
    // Those of NVMe, followed by one per queue of DC Express.
    queues: |queues| Queues { vectors: 2 * queues + 1, traces: 2 * queues + 1 },
    ..Row::new(
        NAME,
        "DC Express for reads, NVM Express for all other commands",
        joined!(
            ABOVE_DRIVER,
            &["slot wait", "tag retry", "core wait", "mark", "submit", "pickup", "doorbell"],
            FETCH,
            &["tag wait"],
            MEDIUM,
            TRANSFER,
            &["arrival"],
            COMPLETE,
        ),
        register_bytes,
        Ends::of::<Dcx>(served_function),
    )
}
.with_parts(&[
    dcx_driver::STAGES,
    dcx_driver::COSTS,
    front::STAGES,
    front::COSTS,
    nvme_front::STAGES,
    media::STAGES,
]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    plan.reject_hybrid_polling(NAME)?;
    plan.reject_host_protection(NAME)?;
    plan.require_section::<plan::Dcx>(NAME)?;
    Ok(())
}

fn served_function(plan: &Plan) -> Function {
    let front = dcx_options(plan);
    function::dcx(plan, front.block, front.queues, register_bytes(plan))
}

fn register_bytes(plan: &Plan) -> u32 {
    let front = dcx_options(plan);
    (front.block + front.block_bytes()).next_multiple_of(4096)
}

impl Interface for Dcx {
    fn front<P: DevicePort>() -> Front<P> {
        Front {
            // The tag is absent from a client's part alone: what others write neither changes it nor waits
            // for this client's reads.
            divide: Some(|store, rt, plan| {
                let tagged = tagged(rt, store, plan);
                let (nvme, dcx) = (options(plan), dcx_options(plan));
                Box::new(move |port: P, faults| {
                    let store = Rc::new(NvmeStore::Tagged(tagged.clone()));
                    let (port_of_nvme, faults_of_nvme) = (port.clone(), faults.clone());
                    let nvme = nvme_front::Controller::start_with(
                        port_of_nvme,
                        store,
                        nvme.clone(),
                        faults_of_nvme,
                    );
                    let front = front::Front::start_with(port, tagged.clone(), dcx.clone(), faults);
                    Box::new(move || {
                        front.stop();
                        nvme.stop();
                    })
                })
            }),
            ..Front::of(|port: P, store, plan, faults| {
                let tagged = tagged(port.rt(), store, plan);
                let nvme_store = Rc::new(NvmeStore::Tagged(tagged.clone()));
                let (nvme_port, nvme) = (port.clone(), options(plan));
                nvme_front::Controller::start_with(nvme_port, nvme_store, nvme, faults.clone());
                front::Front::start_with(port, tagged, dcx_options(plan), faults.clone());
            })
        }
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let nvme = NvmeDriver::start(ports.clone(), plan).await?;
        let block = dcx_options(plan).block;
        let dcx = dcx_driver::Driver::start(&ports[0], block, &nvme.queues[0]).await?;
        let mut queues: Vec<DcxQueue<P>> = Vec::new();
        for (number, port) in (0..).zip(&ports) {
            let options = dcx_queue_options(plan, number, ports.len() as u16);
            let beneath = nvme.queues[usize::from(number)].clone();
            queues.push(dcx.queue_on(port, beneath, options).await?);
        }
        let disks = queues.clone();
        Ok(Connected::new(DcxDriver { nvme, dcx, queues }, disks))
    }
}

impl<P: HostPort> Driver for DcxDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async {
            self.dcx.reset().await?;
            self.nvme.reset().await
        })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async {
            self.dcx.stop().await?;
            self.nvme.stop().await
        })
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
