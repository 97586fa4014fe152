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

use ::host::InitError;
use bus::{DevicePort, HostPort};
use plan::{Fields, Plan, Source};
use world::interfaces::stages::{ABOVE_DRIVER, joined};
use world::interfaces::{Connected, Ends, Front, Interface, Lane, Row, StageLane};

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

/// The ends of the mailbox interface.
struct Mailbox;

pub static MAILBOX: &Row = &ROW;

static ROW: Row = Row {
    lanes: &[
        (StageLane::In(Lane::Host), &["mailbox wait"]),
        (StageLane::In(Lane::LinkDown), &["ring", "fetch request"]),
        (StageLane::In(Lane::LinkUp), &["answer"]),
    ],
    ..Row::new(
        "mailbox",
        "A mailbox: one request at a time",
        joined!(
            ABOVE_DRIVER,
            &["mailbox wait", "core wait", "submit", "ring", "fetch request"],
            &["device processor wait", "parse", "host read", "media wait", "media"],
            &["link wait", "data transfer", "post completion", "answer"],
            &["poll", "interrupt", "context switch", "complete"],
        ),
        |_| wire::REGISTER_BYTES,
        Ends::not_a_function::<Mailbox>(),
    )
}
.with_parts(&[host::STAGES, device::STAGES, media::STAGES]);

impl Interface for Mailbox {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of(|port, store, _, _| device::start(port, store))
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
        let used = plan.section().map_or(wire::MAILBOXES, |table: &Table| table.used);
        let driver = host::Driver::connect(ports, used).await?;
        let disks: Vec<_> = driver.disks().collect();
        Ok(Connected::new(driver, disks))
    }
}
