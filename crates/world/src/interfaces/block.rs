//! Descriptor blocks: one ring for all callers.

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort};
use device::block as front;
use host::{InitError, block as driver};

use super::driver::{Boxed, Connected, Driver};
use super::row::{Ends, Front, Interface, Queues, Row};
use super::stages::{ABOVE_DRIVER, joined};
use crate::error::{CheckError, DriverError};
use crate::function;
use plan::{BlockSizing, Plan};

/// Descriptor blocks: one ring, exchanged block by block.
pub struct Block;

/// The driver of descriptor blocks.
pub struct BlockDriver<P: HostPort>(driver::Driver<P>);

const NAME: &str = "block";

pub(super) static ROW: Row = Row {
    check,
    // One trace queue by ring entry, and one by request.
    queues: |_| Queues { vectors: 1, traces: 2 },
    ..Row::new(
        NAME,
        "Descriptor blocks with a size that follows the load",
        joined!(
            ABOVE_DRIVER,
            &[
                "slot wait",
                "core wait",
                "submit",
                "block wait",
                "announce",
                "doorbell",
                "device processor wait",
                "take block",
                "fetch",
                "parse",
                "media wait",
                "media",
                "engine wait",
                "dma start",
                "host read",
                "link wait",
                "data transfer",
                "post completion",
                "block rest",
                "return",
                "give back",
                "completion",
                "poll",
                "interrupt",
                "order wait",
                "complete",
                "context switch",
            ],
        ),
        register_bytes,
        Ends::of::<Block>(served_function),
    )
}
.with_parts(&[driver::STAGES, driver::COSTS, front::STAGES, front::COSTS, media::STAGES]);

fn check(plan: &Plan) -> Result<(), CheckError> {
    plan.reject_hybrid_polling(NAME)?;
    plan.reject_host_protection(NAME)?;
    plan.require_section::<plan::Block>(NAME)?;
    let processors = plan.device.processors;
    if processors > 1 {
        let expected = "0 or 1: one processor serves the ring of descriptor blocks (block)";
        return Err(CheckError::found(plan, "device.processors", processors, expected));
    }
    Ok(())
}

fn served_function(plan: &Plan) -> Function {
    function::block(plan, register_bytes(plan))
}

fn register_bytes(_: &Plan) -> u32 {
    wire::block::registers::BLOCK_BYTES.next_multiple_of(4096)
}

impl Interface for Block {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of(|port, store, plan, _| {
            front::Front::start(port, store, block_options(plan));
        })
    }

    /// All callers share the ring; each runs on its own core.
    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let options = driver::Options {
            depth: plan.host.queue_depth,
            completion: plan.host.completion.by(0),
            sizing: match plan.required_section::<plan::Block>().sizing {
                BlockSizing::Fixed(size, linger) => driver::Sizing::fixed(size, linger),
                BlockSizing::Adaptive => driver::Sizing::adaptive(),
                BlockSizing::Gathering => driver::Sizing::gathering(),
            },
            timeout: plan.host.timeout,
            retries: plan.host.retries,
        };
        let driver = driver::Driver::start(&ports[0], options).await?;
        let disks: Vec<_> = ports.iter().map(|port| driver.disk(port)).collect();
        Ok(Connected::new(BlockDriver(driver), disks))
    }
}

impl<P: HostPort> BlockDriver<P> {
    pub fn counters(&self) -> driver::Counters {
        self.0.counters()
    }
}

impl<P: HostPort> Driver for BlockDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.0.reset().await?) })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.0.stop().await?) })
    }

    fn notes(&self) -> Vec<String> {
        let counters = self.0.counters();
        let why = match counters.violation {
            Some(violation) => format!("over the violation {violation:?}"),
            None => "not ready".to_owned(),
        };
        let note =
            || format!("the device had stopped {} times, the last time {why}", counters.stops);
        (counters.stops > 0).then(note).into_iter().collect()
    }
}

/// Options of the descriptor-block front end from a plan.
///
/// # Panics
/// If the plan does not have the table `[block]`.
pub fn block_options(plan: &Plan) -> front::Options {
    let block = plan.required_section::<plan::Block>();
    let (channels, read_ns, write_ns) = reported(plan);
    front::Options {
        entries_log2: block.ring.ilog2() as u8,
        block_max: block.largest as u8,
        group: block.group as u8,
        second_engine: block.second_engine,
        ahead: block.ahead as u8,
        channels: channels.min(255) as u8,
        technology: plan.medium.kind.technology,
        read_ns,
        write_ns,
    }
}

/// Channels of the medium, and its longest times to read and to write a page, ns; 0 of disks, whose times
/// are those of a rotation.
fn reported(plan: &Plan) -> (u32, u32, u32) {
    let ns = |span: runtime::Span| u32::try_from(span.as_ns()).unwrap_or(u32::MAX);
    if let Some(flash) = &plan.medium.flash {
        let longest = |of: [runtime::Span; 4]| of.into_iter().max().map_or(0, ns);
        let timing = &flash.timing;
        return (flash.spec.geometry.channels, longest(timing.read), longest(timing.program));
    }
    let Some(timing) = plan.medium.timing() else { return (0, 0, 0) };
    let first = ns(timing.first_byte);
    (timing.channels, first, first.saturating_mul(timing.write_factor.min(1 << 16) as u32))
}
