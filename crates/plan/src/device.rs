//! The table `[device]`: the controller, what it can hold and what its work costs.

use bus::sim::NamedCost;
use device::nvme::{NAMESPACES_MAX, SLOTS_MAX};
use runtime::Span;
use wire::nvme::pi::Kind;

use super::fields::{Fields, Source::Welcome};
use super::host::costs;

/// What the controller's work may cost, by the names under which it is spent. A plan gives all.
pub const DEVICE_COSTS: &[&str] = &["parse", "post completion"];

/// The largest queue: `CAP.MQES` is a 16-bit number of entries less one (NVMe base 2.0, 3.1.3.1).
const QUEUE_ENTRIES_MAX: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub struct Device {
    /// Processors that its costs queue for; zero: pipelined hardware, for which nothing queues.
    pub processors: u32,
    /// Commands that it works on at once.
    pub command_slots: u32,
    /// Fetches of queue entries in flight at once.
    pub fetchers: u32,
    /// Entries that one fetch brings, at most.
    pub fetch_max: u32,
    /// Queues for reads and writes, at most.
    pub queues: u32,
    /// Entries of a queue, at most: `CAP.MQES` plus one.
    pub queue_entries: u32,
    /// The longest transfer of one command, bytes: a power of two.
    pub mdts_bytes: u64,
    /// Commands taken from one queue before the next has its turn; none: no limit.
    pub arbitration_burst: Option<u32>,
    /// Namespaces of one length that a new medium is divided into.
    pub namespaces: u32,
    /// The type of protection information of their blocks; none: they have no metadata.
    pub protection: Option<Kind>,
    /// What its work costs, in the order of [`DEVICE_COSTS`].
    pub costs: Vec<NamedCost>,
    /// What 4 KiB of data take a processor that moves them itself; none: engines do.
    pub copy: Option<Span>,
}

pub(super) fn read(fields: Fields<'_>) -> Option<Device> {
    let processors = fields.number("processors", Welcome, 0..=64);
    let command_slots = fields.number("command_slots", Welcome, 1..=u64::from(SLOTS_MAX));
    let fetchers = fields.number("fetchers", Welcome, 1..=64);
    let fetch_max = fields.number("fetch_max", Welcome, 1..=64);
    let queues = fields.number("queues", Welcome, 1..=63);
    let queue_entries = fields.number("queue_entries", Welcome, 2..=QUEUE_ENTRIES_MAX);
    let sized = |bytes: u64| bytes.is_power_of_two() && (4096..=1 << 24).contains(&bytes);
    let expected = "a power of two from \"4 KiB\" to \"16 MiB\"";
    let mdts_bytes = fields.size("mdts", Welcome, sized, expected);
    // A burst is a power of two, and the largest value of its field means none (NVMe base 2.0,
    // 5.27.1.1); none is written as 0 here.
    let bursts = |n: u64| n == 0 || (n.is_power_of_two() && n <= 64);
    let expected = "a power of two up to 64, or 0 for no limit";
    let burst = fields.number_where("arbitration_burst", Welcome, bursts, expected);
    let several = fields.has("namespaces");
    let most = u64::from(NAMESPACES_MAX);
    let namespaces = if several { fields.number("namespaces", Welcome, 1..=most) } else { Some(1) };
    let guards = fields.has("protection");
    let protection = if guards { fields.number("protection", Welcome, 0..=3) } else { Some(0) };
    let costs = costs(&fields, DEVICE_COSTS);
    let copies = fields.has("copy");
    let copy = if copies { fields.cost("copy") } else { None };
    if copies && processors == Some(0) {
        fields.error("copy", "a copy by no processor", "device.processors of 1 or more beside it");
    }
    fields.done();
    Some(Device {
        processors: processors? as u32,
        command_slots: command_slots? as u32,
        fetchers: fetchers? as u32,
        fetch_max: fetch_max? as u32,
        queues: queues? as u32,
        queue_entries: queue_entries? as u32,
        mdts_bytes: mdts_bytes?,
        arbitration_burst: Some(burst? as u32).filter(|burst| *burst > 0),
        namespaces: namespaces? as u32,
        protection: Kind::of(protection? as u8).expect("in its range"),
        costs: costs?,
        copy: if copies { Some(copy?) } else { None },
    })
}
