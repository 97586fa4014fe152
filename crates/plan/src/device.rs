//! The table `[device]`: the controller, its limits and its costs.

use std::sync::Arc;

use bus::sim::NamedCost;
use device::life::Life;
use device::nvme::{NAMESPACES_MAX, Names, QUEUE_GROUPS_MAX, SLOTS_MAX};
use runtime::{IdleSleep, Span};
use wire::nvme::pi::Kind;

use super::fields::{Fields, Source::Optional};
use super::host::costs;

/// Costs of the controller, by stage name. A plan gives all of them.
pub const DEVICE_COSTS: &[&str] = &["parse", "post completion"];

/// The largest queue: `CAP.MQES` is a 16-bit number of entries less one (NVMe base 2.0, 3.1.3.1).
const QUEUE_ENTRIES_MAX: u64 = 1 << 16;

/// The largest `device.number`: nine digits.
pub const NUMBER_MAX: u64 = 999_999_999;

#[derive(Clone, Debug)]
pub struct Device {
    /// Processors for which costs queue; zero: pipelined hardware without queueing.
    pub processors: u32,
    /// Maximum number of commands in progress.
    pub command_slots: u32,
    /// Maximum number of fetches of queue entries in flight.
    pub fetchers: u32,
    /// Maximum number of queue entries per fetch.
    pub fetch_max: u32,
    /// Maximum number of I/O queues.
    pub queues: u32,
    /// Maximum number of entries of a queue: `CAP.MQES` plus one.
    pub queue_entries: u32,
    /// The longest transfer of one command, bytes: a power of two.
    pub mdts_bytes: u64,
    /// Commands fetched from one queue before the next queue is served; none: no limit.
    pub arbitration_burst: Option<u32>,
    /// Groups of I/O queues, by number, that have equal shares of the device.
    pub queue_groups: u32,
    /// Number in the serial number, NQN and EUI-64, from 1; none: 1, and of a served drive one made from its
    /// address, or kept beside its file.
    pub number: Option<u64>,
    /// Serial number, model, EUI-64 and NGUID in place of those that follow from the number.
    pub names: Names,
    /// Life of a served drive. Not a key: its server sets it. None: each device begins a new one.
    pub life: Option<Arc<Life>>,
    /// Number of namespaces of equal size on a new medium.
    pub namespaces: u32,
    /// Each of them is attached to the controller of its number alone.
    pub own_namespaces: bool,
    /// Protection information type of the namespaces; none: blocks have no metadata.
    pub protection: Option<Kind>,
    /// Costs in the order of [`DEVICE_COSTS`].
    pub costs: Vec<NamedCost>,
    /// Time of a processor to copy 4 KiB of data; none: DMA engines move the data.
    pub copy: Option<Span>,
    /// When a live device's thread sleeps. Its client's doorbells are stores to memory and wake nothing.
    pub idle: IdleSleep,
}

/// When it sleeps without other keys, which is assumed: after a pause longer than those between the commands
/// of a load. Sleeps of 20 us cost some 20 us of processor time each in a guest, 1 ms is 2 % of it.
const IDLE: IdleSleep = IdleSleep { after: Some(Span::ms(10)), longest: Span::ms(1), woken: false };

pub(super) fn read(fields: Fields<'_>) -> Option<Device> {
    let processors = fields.number("processors", Optional, 0..=64);
    let command_slots = fields.number("command_slots", Optional, 1..=u64::from(SLOTS_MAX));
    let fetchers = fields.number("fetchers", Optional, 1..=64);
    let fetch_max = fields.number("fetch_max", Optional, 1..=64);
    let queues = fields.number("queues", Optional, 1..=63);
    let queue_entries = fields.number("queue_entries", Optional, 2..=QUEUE_ENTRIES_MAX);
    let sized = |bytes: u64| bytes.is_power_of_two() && (4096..=1 << 24).contains(&bytes);
    let expected = "a power of two from \"4 KiB\" to \"16 MiB\"";
    let mdts_bytes = fields.size("mdts", Optional, sized, expected);
    // A burst is a power of two, and the largest value of its field means no limit (NVMe base 2.0, 5.27.1.1).
    // A plan writes 0 for no limit.
    let bursts = |n: u64| n == 0 || (n.is_power_of_two() && n <= 64);
    let expected = "a power of two up to 64, or 0 for no limit";
    let burst = fields.number_where("arbitration_burst", Optional, bursts, expected);
    let queue_groups = fields.number_or("queue_groups", 1, 1..=QUEUE_GROUPS_MAX.into());
    let number = fields.given("number", |key| fields.number(key, Optional, 1..=NUMBER_MAX));
    let names = names(&fields);
    let namespaces = fields.number_or("namespaces", 1, 1..=u64::from(NAMESPACES_MAX));
    let own_namespaces = fields.boolean_or("own_namespaces", false);
    let protection = fields.number_or("protection", 0, 0..=3);
    let costs = costs(&fields, DEVICE_COSTS);
    let copy = fields.given("copy", |key| fields.cost(key));
    if fields.has("copy") && processors == Some(0) {
        fields.error("copy", "a copy cost without processors", "device.processors of at least 1");
    }
    let idle = idle(&fields);
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
        queue_groups: queue_groups? as u32,
        number: number?,
        names: names?,
        life: None,
        namespaces: namespaces? as u32,
        own_namespaces: own_namespaces?,
        protection: Kind::of(protection? as u8).expect("in its range"),
        costs: costs?,
        copy: copy?,
        idle: idle?,
    })
}

/// The names that the plan gives.
fn names(fields: &Fields<'_>) -> Option<Names> {
    let printable = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = |key, most: usize| {
        let expected = format!("1 to {most} printable ASCII characters");
        let text = fields.text(key, &expected)?;
        if text.len() <= most && printable(&text) {
            return Some(text);
        }
        fields.error(key, format!("{text:?}"), expected);
        None
    };
    let digits = |key, digits: usize| {
        let expected = format!("{digits} hexadecimal digits, not all of them 0");
        let text = fields.text(key, &expected)?;
        let name = u128::from_str_radix(&text, 16).ok().filter(|name| *name != 0);
        let is_whole = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let name = name.filter(|_| is_whole);
        if name.is_none() {
            fields.error(key, format!("{text:?}"), expected);
        }
        name
    };
    let serial = fields.given("serial", |key| text(key, 20));
    let model = fields.given("model", |key| text(key, 40));
    let eui64 = fields.given("eui64", |key| digits(key, 16));
    let nguid = fields.given("nguid", |key| digits(key, 32));
    let eui64 = eui64?.map(|name| u64::try_from(name).expect("of sixteen digits"));
    Some(Names { serial: serial?, model: model?, eui64, nguid: nguid? })
}

/// `sleep_after`, of which 0 means never, and `sleep_max`.
fn idle(fields: &Fields<'_>) -> Option<IdleSleep> {
    let default = IDLE.after.unwrap_or(Span::ZERO);
    let after = fields.span_or("sleep_after", default, Span::ZERO..=Span::s(3600));
    let longest = fields.span_or("sleep_max", IDLE.longest, Span::us(1)..=Span::s(1));
    Some(IdleSleep {
        after: Some(after?).filter(|after| *after > Span::ZERO),
        longest: longest?,
        woken: false,
    })
}

impl Device {
    /// The device of drive number `of` of several: its names count on from this one's.
    pub(super) fn numbered(&self, of: u64) -> Device {
        let number = Some(self.number.unwrap_or(1).wrapping_add(of));
        let mut names = self.names.clone();
        if of > 0 {
            names.serial = names.serial.map(|serial| {
                let end = format!("-{of}");
                let kept: String =
                    serial.chars().take(20_usize.saturating_sub(end.len())).collect();
                kept + &end
            });
            names.eui64 = names.eui64.map(|name| name.wrapping_add(of << 16));
            names.nguid = names.nguid.map(|name| name.wrapping_add(u128::from(of) << 16));
        }
        Device { number, names, life: None, ..self.clone() }
    }

    /// Gives the device what its drive keeps for life: its number, unless the plan has one.
    pub fn lives(&mut self, life: Arc<Life>) {
        self.number.get_or_insert(life.number());
        self.life = Some(life);
    }

    /// Drives before this one, by their numbers.
    pub fn before(&self) -> u64 {
        self.number.unwrap_or(1).wrapping_sub(1)
    }
}
