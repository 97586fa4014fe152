//! FastPath: an engine between callers and an NVMe device that builds the commands.

use std::borrow::Cow;

use bus::sim::SimSpec;
use bus::{DevicePort, HostPort};
use host::InitError;
use host::fastpath::{Disk, Engine, Options, Schedule};
use host::nvme as driver;
use media::contents::Keep;
use wire::Lba;

use super::driver::{Boxed, Connected, Driver};
use super::nvme::{self, Nvme, controller_options, queue_options};
use super::row::{Cores, Ends, Front, Interface, Queues, Row};
use super::stages::{ABOVE_DRIVER, COMMAND, joined};
use crate::error::{CheckError, DriverError};
use plan::Plan;

/// An engine between its callers and an NVMe drive, with one or several queue pairs.
pub struct Fastpath;

/// The controller, and the engine.
pub struct FastpathDriver<P: HostPort> {
    controller: driver::Controller<P>,
    engine: Engine<P>,
}

/// Trace queue of requests: 0 is the admin queue, 1 to 8 are the queue pairs of the engines.
const TRACE_QUEUES: u16 = 9;

/// Minimum MDTS in bytes, so that an engine's largest block is one command.
const MDTS_MIN: u64 = 8192;

const NAME: &str = "fastpath";

pub(super) static ROW: Row = Row {
    faults: true,
    check,
    queues: |queues| Queues { vectors: queues + 1, traces: u32::from(TRACE_QUEUES) + 1 },
    cores: |plan| Cores {
        own: plan.section().map_or(0, |fastpath: &plan::Fastpath| fastpath.engines),
        reserved: 0,
    },
    adjust,
    // The only system call is the one that allocates memory, and the engine polls (Stratikopoulos et al.,
    // section III).
    passed: |plan| Cow::Owned(plan.past_kernel()),
    ..Row::new(
        NAME,
        "NVM Express through an engine that builds the commands",
        joined!(
            ABOVE_DRIVER,
            &["request wait", "request", "control", "turn wait", "function"],
            COMMAND,
            &["count down", "respond", "take response"],
        ),
        nvme::register_bytes,
        Ends::of::<Fastpath>(nvme::served_function),
    )
}
.with_parts(&[
    host::fastpath::STAGES,
    host::fastpath::COSTS,
    device::nvme::STAGES,
    device::nvme::COSTS,
    media::STAGES,
]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    let fastpath = plan.require_section::<plan::Fastpath>(NAME)?;
    if fastpath.engines > plan.device.queues {
        let (found, most) = (fastpath.engines, plan.device.queues);
        let expected = format!("at most device.queues, which is {most}");
        return Err(CheckError::found(plan, "fastpath.engines", found, expected));
    }
    if plan.device.mdts_bytes < MDTS_MIN {
        let found = format!("{} bytes", plan.device.mdts_bytes);
        let expected = format!("at least {MDTS_MIN} for fastpath");
        return Err(CheckError::found(plan, "device.mdts", found, expected));
    }
    if fastpath.function != "none" && plan.medium.contents.keep == Keep::Stamps {
        let expected = "\"everything\" or \"auto\": fastpath.function passes all bytes of a block";
        return Err(CheckError::found(plan, "medium.keep", "\"stamps\"", expected));
    }
    Ok(())
}

/// Replaces the driver's costs on host cores by those of the engine.
fn adjust(plan: &Plan, spec: &mut SimSpec) {
    let fastpath = plan.required_section::<plan::Fastpath>();
    spec.poll = fastpath.poll;
    for cost in &mut spec.host_costs {
        match cost.name {
            "submit" => cost.span = fastpath.submit,
            "complete" => cost.span = fastpath.complete,
            _ => {}
        }
    }
}

impl Interface for Fastpath {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of_one(Nvme::front())
    }

    async fn connect<P: HostPort>(
        mut ports: Vec<P>,
        plan: &Plan,
    ) -> Result<Connected<P>, InitError> {
        let fastpath = plan.required_section::<plan::Fastpath>();
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
            // One function for all disks: they have the same block size.
            let function = functions::shared(function);
            let passed = disks.iter().try_for_each(|disk| disk.pass_through(function.clone()));
            passed.map_err(|_| InitError::Unsupported {
                what: "host.memory, for blocks that pass fastpath.function",
                found: plan.host.memory_bytes,
                expected: "8 KiB more for each entry of the engines' queues",
            })?;
        }
        Ok(Connected::new(FastpathDriver { controller, engine }, disks))
    }
}

impl<P: HostPort> FastpathDriver<P> {
    pub fn engine(&self) -> &Engine<P> {
        &self.engine
    }
}

impl<P: HostPort> Driver for FastpathDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.controller.reset().await?) })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async {
            let stopped = self.controller.shutdown().await;
            self.engine.stop();
            Ok(stopped?)
        })
    }
}

/// Options of the engine from a plan; areas start at the first block.
pub fn engine_options(plan: &Plan) -> Options {
    Options {
        engines: plan.required_section::<plan::Fastpath>().engines as u16,
        queue: queue_options(plan, 0),
        requests: plan.host.queue_depth.min(1 << host::SLOT_BITS) as u16,
        from: Lba(0),
        traces: TRACE_QUEUES,
        schedule: Schedule::RoundRobin,
    }
}
