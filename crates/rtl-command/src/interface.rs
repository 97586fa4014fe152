//! FastPath in hardware: the RTL block of `rtl/` between callers and an NVMe device, simulated cycle by
//! cycle.

use bus::{DevicePort, HostPort};
use host::InitError;
use host::nvme as driver;
use rtl::{Disk, Engine, Setup, Timing, Verilated};
use runtime::Span;

use plan::Plan;
use world::interfaces::stages::{ABOVE_DRIVER, COMMAND, joined};
use world::interfaces::{
    Boxed, Connected, Driver, Ends, FASTPATH, Front, Interface, NVME, Nvme, Queues, Row,
    controller_options,
};
use world::{CheckError, DriverError};

/// The RTL block between its callers and an NVMe drive, with one queue pair. Only in virtual time.
struct FastpathRtl;

/// The controller behind the RTL block.
struct FastpathRtlDriver<P: HostPort> {
    controller: driver::Controller<P>,
    /// The memory of the block's queues.
    _queues: driver::ExternalPair<P>,
}

/// Trace queue of requests: 0 is the admin queue, 1 the queue pair of the block.
const TRACE_QUEUES: u16 = 2;

/// Entries of its queues, a parameter of the RTL.
const ENTRIES: u32 = 64;

/// Completions per write of the head doorbell.
const BATCH: u16 = 8;

/// One cycle at 125 MHz.
const CYCLE: Span = Span::ns(8);

const NAME: &str = "fastpath-rtl";

/// The row of the interface.
pub static ROW: Row = Row {
    faults: true,
    check,
    queues: |queues| Queues { vectors: queues + 1, traces: u32::from(TRACE_QUEUES) + 1 },
    passed: FASTPATH.passed,
    ..Row::new(
        NAME,
        "FastPath with the engine in RTL, cycle by cycle; simulated runs only",
        joined!(
            ABOVE_DRIVER,
            &["request", "request wait", "post request", "hardware", "take response"],
            COMMAND,
        ),
        NVME.register_bytes,
        // Driver costs occur only during initialisation, so nothing is replaced.
        Ends::simulated::<FastpathRtl>(),
    )
}
.with_parts(&[rtl::STAGES, device::nvme::STAGES, device::nvme::COSTS, media::STAGES]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    (FASTPATH.check)(plan)?;
    let found = plan.device.queue_entries;
    if found < ENTRIES {
        let expected = format!("at least {ENTRIES} for fastpath-rtl");
        return Err(CheckError::found(plan, "device.queue_entries", found, expected));
    }
    let function = &plan.require_section::<plan::Fastpath>(NAME)?.function;
    if function != "none" {
        let name = function.split(':').next().unwrap_or(function);
        let (key, found) = ("fastpath.function", format!("{name:?}"));
        let expected = "\"none\": the RTL block does not support data functions";
        return Err(CheckError::found(plan, key, found, expected));
    }
    Ok(())
}

impl Interface for FastpathRtl {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of_one(Nvme::front())
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
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
        // The block reads host memory with the same latency as the drive.
        let memory = plan.link.host_read.0.div_ceil(CYCLE.0) as u32;
        let timing = Timing { write: memory, read: memory };
        let refused = |error: rtl::BusError| InitError::Unsupported {
            what: "the register of the FastPath block",
            found: u64::from(error.0),
            expected: "a valid configuration",
        };
        let engine = Engine::start(ports[0].clone(), Verilated::new(), &setup, timing).await;
        let engine = engine.map_err(refused)?;
        let block = plan.required_section::<plan::Fastpath>().block_bytes;
        let mut disks = Vec::new();
        for port in &ports {
            let disk = Disk::new(&engine, port, geometry, block, TRACE_QUEUES).await;
            disks.push(disk.map_err(refused)?);
        }
        Ok(Connected::new(FastpathRtlDriver { controller, _queues: queues }, disks))
    }
}

impl<P: HostPort> Driver for FastpathRtlDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        let why = "interface fastpath-rtl: no reset: the block would lose its commands in flight";
        Box::pin(async move { Err(DriverError::Unsupported(why)) })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.controller.shutdown().await?) })
    }
}
