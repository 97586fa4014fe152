//! A plan: a TOML file that says what a machine is made of, every number with its source.
//!
//! ```toml
//! version = 1
//! name = "dc-express"
//! about = "..."
//!
//! [link]
//! generation = "gen2"
//! mps = "128 B"                                     # how something is configured: plain
//! latency = { value = "150 ns", source = "..." }    # what something costs: with its source
//! ```
//!
//! What costs time says where the number comes from; a source that begins with `assumed` is one
//! that nobody measured, and [`Plan::report`] lists them all. Quantities carry their units. A plan
//! is read in one pass that tells everything that is wrong with it, or is all sense.

mod arbitration;
mod array;
mod block;
mod built_in;
mod collector;
mod dcx;
mod declared;
mod device;
mod document;
mod errors;
mod fastpath;
mod faults;
mod fields;
mod figures;
mod host;
mod link;
mod medium;
mod pages;
mod power;
#[cfg(test)]
mod refusals;
mod report;
mod section;
pub mod units;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ::device::faults::Fault;
use ::host::nvme::GUARD_COST;
use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimSpec};
use wire::nvme::registers::DOORBELLS;

pub use arbitration::Arbitration;
pub use array::{Array, Collections};
pub use block::{Block, BlockSizing};
pub use built_in::built_in;
pub use collector::HostDirectedGc;
pub use dcx::{Dcx, DcxTags};
pub use device::{DEVICE_COSTS, Device};
use document::{Document, TEXT_MAX};
pub use errors::{Place, PlanError, PlanErrors};
pub use fastpath::Fastpath;
pub use fields::{Fields, Source};
use fields::{Reader, Source::Welcome};
pub use figures::{Figures, memory_needed_bytes};
pub use host::{
    COALESCING_UNIT, Completion, Doorbell, HOST_COSTS, Host, Kernel, MEMORY_BASE, POLICIES,
    Sharing, costs,
};
pub use medium::bridge::BridgeOf;
pub use medium::flash::{Flash, Start};
pub use medium::{KeepRule, Medium, MediumKind, MediumPace};
pub use pages::PageAccess;
pub use power::Power;
pub use section::{Section, Table, add_sections};

/// The version of the format that this program reads.
const VERSION: u64 = 1;

/// A machine: link, host, device, medium.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    /// What it is, in a sentence or two.
    pub about: String,
    /// The link between host and device; the latencies of its hops are in its own.
    pub link: LinkSpec,
    /// Data writes carry the relaxed-ordering attribute.
    pub relaxed_ordering: bool,
    pub host: Host,
    pub device: Device,
    pub medium: Medium,
    /// What its interfaces need, each in a table of its own: see [`Plan::section`].
    sections: Vec<section::Held>,
    /// How the device chooses among queues, if not round robin.
    pub arbitration: Option<Arbitration>,
    /// The controller's power states, if there are several.
    pub power: Option<Power>,
    /// How several such devices are one, if they are.
    pub array: Option<Array>,
    pub run: Run,
    /// What goes wrong on purpose.
    pub faults: Vec<Fault>,
    /// Every value that came with a source, in the order in which they are read.
    pub sources: Vec<Sourced>,
    /// Where the plan came from, as errors name it.
    pub origin: String,
}

/// How a world is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The seed of all chance.
    pub seed: u64,
    /// One command in so many is followed for the latency breakdown: a power of two.
    pub breakdown_sample: u32,
}

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sourced {
    /// Its key: `medium.timing.first_byte`.
    pub key: String,
    /// The value as it was written: `110 ns`.
    pub value: String,
    pub source: String,
    /// Nobody measured it: the source is `assumed`, or begins with `assumed:`.
    pub assumed: bool,
}

impl Plan {
    /// The built-in plan of this name, or else the plan in this file, with some values set beside
    /// it: `("link.lanes", "8")`.
    ///
    /// # Errors
    /// All that is wrong with it, or that there is no such plan.
    pub fn open(name_or_path: &str, sets: &[(&str, &str)]) -> Result<Plan, PlanErrors> {
        let known = built_in();
        if let Some((name, text)) = known.iter().find(|(name, _)| *name == name_or_path) {
            return Plan::parse_with(text, &format!("plans/{name}.toml"), sets);
        }
        let path = Path::new(name_or_path);
        let bare = !name_or_path.contains(['/', '.']);
        if bare && !path.exists() {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            let expected = format!("a file, or one of the built-in plans {}", names.join(", "));
            return Err(PlanErrors::whole(name_or_path, "nothing".to_owned(), &expected));
        }
        Plan::load_with(path, sets)
    }

    /// The plan in this file.
    ///
    /// # Errors
    /// All that is wrong with it, or why it cannot be read.
    pub fn load(path: &Path) -> Result<Plan, PlanErrors> {
        Plan::load_with(path, &[])
    }

    /// The plan in this file, with some values set beside it.
    ///
    /// # Errors
    /// As for [`Plan::load`].
    pub fn load_with(path: &Path, sets: &[(&str, &str)]) -> Result<Plan, PlanErrors> {
        let origin = path.display().to_string();
        let unread = |found: String| PlanErrors::whole(&origin, found, "the text of a plan");
        let file = File::open(path).map_err(|error| unread(error.to_string()))?;
        let length = file.metadata().map_err(|error| unread(error.to_string()))?.len();
        // Not every file says how long it is.
        let mut text = String::new();
        let read = match length > TEXT_MAX as u64 {
            true => Ok(0),
            false => file.take(TEXT_MAX as u64 + 1).read_to_string(&mut text),
        };
        let length = length.max(read.map_err(|error| unread(error.to_string()))? as u64);
        if length > TEXT_MAX as u64 {
            return Err(PlanErrors::whole(
                &origin,
                format!("{length} bytes or more"),
                &format!("the text of a plan, of at most {TEXT_MAX} bytes"),
            ));
        }
        Plan::parse_with(&text, &origin, sets)
    }

    /// The plan in this text. Errors name `origin` as the file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str, origin: &str) -> Result<Plan, PlanErrors> {
        Plan::parse_with(text, origin, &[])
    }

    /// The plan in this text, with some values set beside it before it is judged:
    /// `("link.lanes", "8")`. A path may go on into an array, by number: `link.hops.0.latency`. A
    /// value is TOML, or a text that needs no quotes. What is set without a source is assumed.
    ///
    /// # Errors
    /// All that is wrong with it; a setting is named as `--set`.
    pub fn parse_with(text: &str, origin: &str, sets: &[(&str, &str)]) -> Result<Plan, PlanErrors> {
        let reader = Reader::new(Document::parse(text, origin, sets)?);
        let root = reader.root();
        let expected = "1, the version of the format that this program reads";
        // Of another version, nothing else is known.
        let version = root.number_where("version", Welcome, |n| n == VERSION, expected);
        let plan = version.and_then(|_| read(&reader, root, origin));
        let sources = reader.finish(origin)?;
        let plan = plan.expect("what a plan lacks has been told");
        Ok(Plan { sources, ..plan })
    }

    /// What the modelled bus is to be.
    ///
    /// The register window holds a doorbell pair for each queue of the device and the admin queue.
    pub fn sim_spec(&self) -> SimSpec {
        let doorbells = 8 * (self.device.queues + 1);
        let mut host_costs = self.host.costs.clone();
        let guard = self.host.guard;
        host_costs.extend(guard.map(|span| NamedCost { name: GUARD_COST, span }));
        if let Some(kernel) = self.host.kernel {
            host_costs.push(NamedCost { name: "copy", span: kernel.copy });
        }
        if let Some(Sharing { lock, transfer, .. }) = self.host.sharing {
            host_costs.push(NamedCost { name: "lock", span: lock });
            host_costs.push(NamedCost { name: "lock transfer", span: transfer });
        }
        let mut device_costs = self.device.costs.clone();
        for section in &self.sections {
            host_costs.extend(section.host_costs.iter().cloned());
            device_costs.extend(section.device_costs.iter().cloned());
        }
        host_costs.extend(self.array.iter().flat_map(|array| array.costs.iter().cloned()));
        SimSpec {
            link: self.link.clone(),
            memory_base: self.host.memory_base,
            memory_bytes: usize::try_from(self.host.memory_bytes).unwrap_or(usize::MAX),
            register_bytes: (DOORBELLS + doorbells).next_power_of_two(),
            masks: None,
            relaxed_ordering: self.relaxed_ordering,
            cores: self.host.cores,
            poll: self.host.poll,
            interrupt: self.host.interrupt,
            host_costs,
            device_costs,
            device_processors: self.device.processors,
            device_copy: self.device.copy,
            seed: self.run.seed,
        }
    }

    /// The plan for a drive whose clients write what they like and read it back: its medium keeps every byte.
    /// Every front end serves this one.
    ///
    /// # Errors
    /// The plan says `medium.keep = "stamps"`: clients would be told success and read other bytes.
    pub fn for_clients(&self) -> Result<Plan, PlanErrors> {
        let mut plan = self.clone();
        if plan.medium.keep_everything() {
            return Ok(plan);
        }
        Err(self.lacks(
            "medium.keep",
            "\"stamps\", the first 8 bytes of each block",
            "\"everything\" for a drive that is served, whose clients read back every byte they wrote: \
             --set medium.keep=everything",
        ))
    }

    fn lacks(&self, key: &str, found: &str, expected: &str) -> PlanErrors {
        let (key, found, expected) = (key.to_owned(), found.to_owned(), expected.to_owned());
        let error = PlanError { place: Place::Whole, key, found, expected };
        PlanErrors { origin: self.origin.clone(), errors: vec![error] }
    }
}

/// All but the version and the sources.
fn read(reader: &Reader, root: Fields<'_>, origin: &str) -> Option<Plan> {
    let name = root.text("name", "the plan's name");
    let about = root.text("about", "what the plan is, in a sentence or two");
    let link = root.table("link").and_then(link::read);
    let host = root.table("host").and_then(host::read);
    let device = root.table("device").and_then(device::read);
    let medium = root.table("medium").and_then(medium::read);
    let sections = section::read(&root);
    let arbitration = root.table_if("arbitration", arbitration::read);
    let power = root.table_if("power", power::read);
    let block_bytes = medium.as_ref().map(|medium| medium.contents.block_bytes.into());
    let array = root.table_if("array", |table| array::read(table, block_bytes));
    let run = root.table("run").and_then(read_run);
    let faults = faults::read(&root);
    root.done();
    if let Some(host) = &host {
        host::check_place(reader, host);
    }
    if let (Some(host), Some(device)) = (&host, &device) {
        check_queues(reader, host, device);
    }
    if let (Some(device), Some(medium)) = (&device, &medium) {
        check_protection(reader, device, medium);
    }
    let (link, relaxed_ordering) = link?;
    Some(Plan {
        name: name?,
        about: about?,
        link,
        relaxed_ordering,
        host: host?,
        device: device?,
        medium: medium?,
        sections: sections?,
        arbitration: arbitration?,
        power: power?,
        array: array?,
        run: run?,
        faults: faults?,
        sources: Vec::new(),
        origin: origin.to_owned(),
    })
}

fn read_run(fields: Fields<'_>) -> Option<Run> {
    // TOML's integers are signed; a seed has 63 bits then.
    let seed = fields.number("seed", Welcome, 0..=i64::MAX as u64);
    let sampled = |n: u64| n.is_power_of_two() && n <= 1 << 20;
    let expected = "a power of two from 1, which follows every command, to 1048576";
    let sample = fields.number_where("breakdown_sample", Welcome, sampled, expected);
    fields.done();
    Some(Run { seed: seed?, breakdown_sample: sample? as u32 })
}

/// Where blocks are to be protected, the medium has room for it.
fn check_protection(reader: &Reader, device: &Device, medium: &Medium) {
    if let Some(kind) = device.protection
        && !medium.keeps_metadata()
    {
        let expected = "0, or DRAM or PCM with medium.keep = \"everything\" and no medium.file: \
                        other media have no room for metadata";
        reader.error("device.protection", (kind as u8).to_string(), expected);
    }
}

/// The device has the queues that the host wants, and memory holds what they need.
fn check_queues(reader: &Reader, host: &Host, device: &Device) {
    if host.queues > device.queues {
        let expected = format!("at most device.queues, which is {}", device.queues);
        reader.error("host.queues", host.queues.to_string(), expected);
    }
    // A queue with as many commands as entries would look empty (NVMe base 2.0, 3.3.1).
    if host.queue_depth >= device.queue_entries {
        let expected = format!("less than device.queue_entries, which is {}", device.queue_entries);
        reader.error("host.queue_depth", host.queue_depth.to_string(), expected);
    }
    let needed = memory_needed_bytes(host, device);
    if host.memory_bytes < needed {
        let mdts = units::size_text(device.mdts_bytes);
        reader.error(
            "host.memory",
            units::size_text(host.memory_bytes),
            format!(
                "at least {}: for host.queues ({}) of host.queue_depth ({}) commands with \
                 transfers of device.mdts ({mdts})",
                units::size_text(needed),
                host.queues,
                host.queue_depth,
            ),
        );
    }
}
