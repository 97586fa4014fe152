//! Mailbox: a minimal second host interface.
//!
//! The host stores a request of 32 bytes at a fixed location in its memory and rings a doorbell register. The
//! device fetches the request, moves data between medium and buffer, and publishes one status word,
//! which the host polls. No queue, no list of pages, no interrupt.
//!
//! It has the parts of every interface: the wire format, the device side, the host side, and a row that joins
//! them.

pub mod device;
pub mod host;
pub mod wire;

use std::rc::Rc;

use ::device::faults::Faults;
use ::host::InitError;
use bus::{DevicePort, HostPort};
use plan::{Fields, Plan, Source};
use world::interfaces::{Interface, Lane, Lanes, Row, StageLane};
use world::medium::BackingStore;

/// Optional table `[mailbox]` of a plan.
#[derive(Debug)]
pub struct Table {
    pub used: u16,
}

impl plan::Table for Table {
    const NAME: &'static str = "mailbox";
    const EXAMPLE: &'static str = "none of ours";

    fn read(fields: Fields<'_>) -> Option<Table> {
        let used = fields.number("used", Source::Optional, 1..=wire::MAILBOXES.into());
        fields.done();
        Some(Table { used: used? as u16 })
    }
}

/// Marker type of the mailbox interface.
pub struct Mailbox;

static ROW: Row = Row::of::<Mailbox>();

impl Interface for Mailbox {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "mailbox";
    const SUMMARY: &'static str = "A mailbox: one request at a time";
    const STAGES: &'static [&'static str] = &[
        "queueing delay",
        "benchmark",
        "system call",
        "call entry",
        "file layer",
        "block layer",
        "block driver",
        "copy",
        "cache sync",
        "call exit",
        "mailbox wait",
        "core wait",
        "submit",
        "ring",
        "fetch request",
        "device processor wait",
        "parse",
        "host read",
        "media wait",
        "media",
        "link wait",
        "data transfer",
        "post completion",
        "answer",
        "poll",
        "interrupt",
        "context switch",
        "complete",
    ];
    const PARTS: &'static [&'static [&'static str]] =
        &[host::STAGES, device::STAGES, media::STAGES];
    const LANES: Lanes = &[
        (StageLane::In(Lane::Host), &["mailbox wait"]),
        (StageLane::In(Lane::LinkDown), &["ring", "fetch request"]),
        (StageLane::In(Lane::LinkUp), &["answer"]),
    ];
    type Driver<P: HostPort> = host::Driver<P>;

    fn register_bytes(_: &Plan) -> u32 {
        wire::REGISTER_BYTES
    }

    fn start<P: DevicePort>(port: P, store: BackingStore, _: &Plan, _: &Rc<Faults>) {
        device::start(port, store);
    }

    async fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<host::Driver<P>, InitError> {
        let used = plan.section().map_or(wire::MAILBOXES, |table: &Table| table.used);
        host::Driver::connect(ports, used).await
    }
}
