//! FastPath in hardware: NVMe to the device; to its callers the block of `rtl/`, clock by clock.

use std::rc::Rc;

use bus::sim::SimSpec;
use bus::{DevicePort, HostPort};
use device::faults::Faults;
use host::InitError;
use host::nvme as driver;
use rtl::{Disk, Engine, Setup, Timing, Verilated};
use runtime::Span;

use super::stages::{ASKED, COMMAND, joined};
use super::{Driver, Fastpath, Interface, Nvme, Row, controller_options};
use crate::medium::BackingStore;
use plan::Plan;

/// The block between its callers and an NVMe drive, of which it has one queue pair. In virtual time
/// alone.
pub struct FastpathRtl;

/// The block, and the ports of those who use it.
pub struct FastpathRtlDriver<P: HostPort> {
    controller: driver::Controller<P>,
    /// The memory of the block's queues.
    _queues: driver::ExternalPair<P>,
    disks: Vec<Disk<P>>,
}

/// The block's queue pair is 1, and 0 is the admin queue's: requests have the next number.
const TRACE_QUEUES: u16 = 2;

/// The entries of its queues: as many as the block was made for.
const ENTRIES: u32 = 64;

/// Completions for one head doorbell.
const BATCH: u16 = 8;

/// One cycle at 125 MHz.
const CYCLE: Span = Span::ns(8);

static ROW: Row = Row::of::<FastpathRtl>();

impl Interface for FastpathRtl {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "fastpath-rtl";
    const SUMMARY: &'static str =
        "The same as fastpath with the engine in hardware, clock by clock: simulated runs alone";
    const STAGES: &'static [&'static str] = joined!(
        ASKED,
        &["request", "request wait", "post request", "hardware", "take response"],
        COMMAND,
    );
    type Driver<P: HostPort> = FastpathRtlDriver<P>;

    fn check(plan: &Plan) -> Result<(), String> {
        Fastpath::check(plan)?;
        let (origin, found) = (&plan.origin, plan.device.queue_entries);
        if found < ENTRIES {
            return Err(format!(
                "{origin}: device.queue_entries: found {found}, expected at least {ENTRIES} for fastpath-rtl"
            ));
        }
        let function = &plan.need::<plan::Fastpath>(FastpathRtl::NAME)?.function;
        if function != "none" {
            let name = function.split(':').next().unwrap_or(function);
            return Err(format!(
                "{origin}: fastpath.function: found {name:?}, expected \"none\": the block in hardware has \
                 none in its way"
            ));
        }
        Ok(())
    }

    fn register_bytes(plan: &Plan) -> u32 {
        Nvme::register_bytes(plan)
    }

    fn trace_queues(_: u32) -> u32 {
        u32::from(TRACE_QUEUES) + 1
    }

    /// The driver's own costs are those of bringing the drive up.
    fn adjust(_: &Plan, _: &mut SimSpec) {}

    const FAULTS: bool = true;
    const LIVE: bool = false;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        Nvme::start(port, store, plan, faults);
    }

    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<FastpathRtlDriver<P>, InitError> {
        let wanted = controller_options(plan, 1);
        let controller = driver::Controller::start(ports[0].clone(), wanted).await?;
        let queues = controller.lend(ENTRIES).await?;
        let identity = controller.identity();
        let geometry = identity.geometry;
        let setup = Setup {
            submission_queue: queues.submission().at(),
            completion_queue: queues.completion().at(),
            depth: ENTRIES as u16,
            queue_id: queues.qid().0,
            tail_doorbell: queues.tail_doorbell(),
            head_doorbell: queues.head_doorbell(),
            namespace: identity.nsid.0,
            lba_shift: geometry.block_bytes.ilog2() as u8,
            batch: BATCH,
            poll_interval: 0,
            timeout: plan.host.timeout,
        };
        // Memory answers the block as it answers the drive.
        let memory = plan.link.host_read.0.div_ceil(CYCLE.0) as u32;
        let timing = Timing { write: memory, read: memory };
        let refused = |error: rtl::BusError| InitError::Unsupported {
            what: "the register of the FastPath block",
            found: u64::from(error.0),
            expected: "a set-up of sense",
        };
        let engine = Engine::start(ports[0].clone(), Verilated::new(), &setup, timing).await;
        let engine = engine.map_err(refused)?;
        let block = plan.checked::<plan::Fastpath>().block_bytes;
        let mut disks = Vec::new();
        for port in &ports {
            let disk = Disk::new(&engine, port, geometry, block, TRACE_QUEUES).await;
            disks.push(disk.map_err(refused)?);
        }
        Ok(FastpathRtlDriver { controller, _queues: queues, disks })
    }
}

impl<P: HostPort> Driver<P> for FastpathRtlDriver<P> {
    type Disk = Disk<P>;

    fn disk(&self, number: usize) -> Disk<P> {
        self.disks[number % self.disks.len()].clone()
    }

    async fn reset(&self) -> Result<(), String> {
        Err("interface fastpath-rtl: a reset would forget what the block has in flight".to_string())
    }

    async fn stop(&self) -> Result<(), String> {
        self.controller.shutdown().await.map_err(|error| error.to_string())
    }
}
