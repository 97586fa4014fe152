//! Descriptor blocks: one ring for all callers.

use std::rc::Rc;

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort};
use device::block as front;
use device::faults::Faults;
use host::{InitError, block as driver};

use super::stages::{ABOVE_DRIVER, joined};
use super::{Driver, Interface, Row};
use crate::error::{CheckError, DriverError};
use crate::function;
use crate::medium::BackingStore;
use plan::{BlockSizing, Plan};

/// Descriptor blocks: one ring, exchanged block by block.
pub struct Block;

/// The driver of descriptor blocks, and the ports of its callers.
pub struct BlockDriver<P: HostPort> {
    driver: driver::Driver<P>,
    ports: Vec<P>,
}

static ROW: Row = Row::of::<Block>();

impl Interface for Block {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "block";
    const SUMMARY: &'static str = "Descriptor blocks with a size that follows the load";
    const STAGES: &'static [&'static str] = joined!(
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
    );
    const PARTS: &'static [&'static [&'static str]] =
        &[driver::STAGES, driver::COSTS, front::STAGES, front::COSTS, media::STAGES];
    type Driver<P: HostPort> = BlockDriver<P>;

    fn check(plan: &Plan) -> Result<(), CheckError> {
        plan.reject_hybrid_polling(Block::NAME)?;
        plan.reject_host_protection(Block::NAME)?;
        plan.require_section::<plan::Block>(Block::NAME)?;
        let processors = plan.device.processors;
        if processors > 1 {
            let expected = "0 or 1: one processor serves the ring of descriptor blocks (block)";
            return Err(CheckError::found(plan, "device.processors", processors, expected));
        }
        Ok(())
    }

    const FUNCTION: Option<fn(&Plan) -> Function> =
        Some(|plan| function::block(plan, Block::register_bytes(plan)));

    fn register_bytes(_: &Plan) -> u32 {
        wire::block::registers::BLOCK_BYTES.next_multiple_of(4096)
    }

    fn vectors(_: u32) -> u32 {
        1
    }

    /// One trace queue by ring entry, and one by request.
    fn trace_queues(_: u32) -> u32 {
        2
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, _: &Rc<Faults>) {
        front::Front::start(port, store, block_options(plan));
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<BlockDriver<P>, InitError> {
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
        Ok(BlockDriver { driver, ports })
    }
}

impl<P: HostPort> BlockDriver<P> {
    pub fn counters(&self) -> driver::Counters {
        self.driver.counters()
    }
}

impl<P: HostPort> Driver<P> for BlockDriver<P> {
    type Disk = driver::Disk<P>;

    /// All callers share the ring; each runs on its own core.
    fn disk(&self, number: usize) -> Self::Disk {
        self.driver.disk(&self.ports[number % self.ports.len()])
    }

    async fn reset(&self) -> Result<(), DriverError> {
        Ok(self.driver.reset().await?)
    }

    async fn stop(&self) -> Result<(), DriverError> {
        Ok(self.driver.stop().await?)
    }

    fn notes(&self) -> Vec<String> {
        let counters = self.driver.counters();
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
