//! FastPath: NVMe to the device; to its callers an engine that forms the commands.

use std::rc::Rc;

use bus::sim::SimSpec;
use bus::vfio_user::Function;
use bus::{DevicePort, HostPort};
use device::faults::Faults;
use host::InitError;
use host::fastpath::{Disk, Engine, Options};
use host::nvme as driver;
use wire::Lba;

use super::stages::{ASKED, COMMAND, joined};
use super::{Driver, Interface, Nvme, Row, controller_options, queue_options};
use crate::medium::BackingStore;
use plan::Plan;

/// An engine between its callers and an NVMe drive, of which it has one queue pair or several.
pub struct Fastpath;

/// The engine, and the ports of those who use it.
pub struct FastpathDriver<P: HostPort> {
    controller: driver::Controller<P>,
    engine: Engine<P>,
    disks: Vec<Disk<P>>,
}

/// Queue pairs of engines are 1 to 8, and 0 is the admin queue's: requests have the next number.
const TRACE_QUEUES: u16 = 9;

/// The smallest MDTS with which an engine's largest block is one command, bytes.
const MDTS_MIN: u64 = 8192;

static ROW: Row = Row::of::<Fastpath>();

impl Interface for Fastpath {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "fastpath";
    const FUNCTION: Option<fn(&Plan) -> Function> = Nvme::FUNCTION;
    const SUMMARY: &'static str = "NVM Express, through an engine that forms the commands";
    const STAGES: &'static [&'static str] = joined!(
        ASKED,
        &["request wait", "request", "control", "turn wait", "function"],
        COMMAND,
        &["count down", "respond", "take response"],
    );
    type Driver<P: HostPort> = FastpathDriver<P>;

    fn check(plan: &Plan) -> Result<(), String> {
        let origin = &plan.origin;
        let fastpath = plan.need::<plan::Fastpath>(Fastpath::NAME)?;
        if fastpath.engines > plan.device.queues {
            let (found, most) = (fastpath.engines, plan.device.queues);
            return Err(format!(
                "{origin}: fastpath.engines: found {found}, expected at most device.queues, which is {most}"
            ));
        }
        if plan.device.mdts_bytes < MDTS_MIN {
            let found = plan.device.mdts_bytes;
            return Err(format!(
                "{origin}: device.mdts: found {found} bytes, expected at least {MDTS_MIN} for fastpath"
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

    fn own_cores(plan: &Plan) -> u32 {
        plan.section().map_or(0, |fastpath: &plan::Fastpath| fastpath.engines)
    }

    /// The engine's own time, in the place of that of a driver on the host's cores.
    fn adjust(plan: &Plan, spec: &mut SimSpec) {
        let fastpath = plan.checked::<plan::Fastpath>();
        spec.poll = fastpath.poll;
        for cost in &mut spec.host_costs {
            match cost.name {
                "submit" => cost.span = fastpath.submit,
                "complete" => cost.span = fastpath.complete,
                _ => {}
            }
        }
    }

    const FAULTS: bool = true;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        Nvme::start(port, store, plan, faults);
    }

    async fn connect<P: HostPort>(
        mut ports: Vec<P>,
        plan: &Plan,
    ) -> Result<FastpathDriver<P>, InitError> {
        let fastpath = plan.checked::<plan::Fastpath>();
        let callers = ports.len().saturating_sub(fastpath.engines as usize).max(1);
        let mut own = ports.split_off(callers);
        if own.is_empty() {
            own.push(ports[0].clone());
        }
        let wanted = controller_options(plan, fastpath.engines as u16);
        let controller = driver::Controller::start(own[0].clone(), wanted).await?;
        let options = engine_options(plan);
        let engine = Engine::start(&own, &controller, options).await?;
        let disk = |port| Disk::new(&engine, port, fastpath.block_bytes);
        let disks = ports.iter().map(disk).collect::<Result<_, _>>();
        let disks: Vec<_> = disks.map_err(|_| InitError::Unsupported {
            what: "the number of callers",
            found: ports.len() as u64,
            expected: "no more than there are handles",
        })?;
        if let Some(function) = functions::named(&fastpath.function).expect("checked with the plan")
        {
            // One for all: they have the same blocks.
            let function = functions::shared(function);
            let passed = disks.iter().try_for_each(|disk| disk.pass_through(function.clone()));
            passed.map_err(|_| InitError::Unsupported {
                what: "host.memory, for blocks that pass fastpath.function",
                found: plan.host.memory_bytes,
                expected: "8 KiB more for each entry of the engines' queues",
            })?;
        }
        Ok(FastpathDriver { controller, engine, disks })
    }
}

impl<P: HostPort> FastpathDriver<P> {
    pub fn engine(&self) -> &Engine<P> {
        &self.engine
    }
}

impl<P: HostPort> Driver<P> for FastpathDriver<P> {
    type Disk = Disk<P>;

    fn disk(&self, number: usize) -> Disk<P> {
        self.disks[number % self.disks.len()].clone()
    }

    async fn reset(&self) -> Result<(), String> {
        self.controller.reset().await.map_err(|error| error.to_string())
    }

    async fn stop(&self) -> Result<(), String> {
        let stopped = self.controller.shutdown().await.map_err(|error| error.to_string());
        self.engine.stop();
        stopped
    }
}

/// An engine as the plan has it, with areas from the first block on.
pub fn engine_options(plan: &Plan) -> Options {
    Options {
        engines: plan.checked::<plan::Fastpath>().engines as u16,
        queue: queue_options(plan, 0),
        requests: plan.host.queue_depth.min(1 << runtime::SLOT_BITS) as u16,
        from: Lba(0),
        traces: TRACE_QUEUES,
    }
}
