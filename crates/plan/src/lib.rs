//! A plan: a TOML file that describes a machine, every number with its source.
//!
//! ```toml
//! version = 1
//! name = "dc-express"
//! about = "..."
//!
//! [link]
//! generation = "gen2"
//! mps = "128 B"                                     # a configured value
//! latency = { value = "150 ns", source = "..." }    # a cost, with its source
//! ```
//!
//! ```text
//!   TOML, --set KEY=VALUE ─► Plan ─┬─► a Plan ─► sim_spec, tables of interfaces, media ─► world
//!   or a built-in name             └─► PlanErrors: all errors of the plan, with their places
//! ```
//!
//! Every cost names the source of its number. A source that begins with `assumed` marks a value that was not
//! measured, one that begins with `fitted` one that was fitted to measurements of the plan's `drive`, and
//! [`Plan::report`] lists both. Quantities carry their units. One pass over a plan reports all
//! its errors; a plan without errors is valid.
//!
//! `base = "gen4"` takes every other value from that plan: a built-in name, or the path of a file.
//!
//! A plan does not run: it has no clock, no device and no jobs.
//!
//! ```
//! let plan = plan::Plan::open("dc-express", &[("link.lanes", "8")])?;
//! assert!(plan.report().to_string().contains("gen2"));
//! # Ok::<(), plan::PlanErrors>(())
//! ```

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
mod map;
mod medium;
mod pages;
mod power;
#[cfg(test)]
mod refusals;
mod report;
mod section;
mod table;
pub mod units;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ::device::faults::Fault;
use ::host::nvme::GUARD_COST;
use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimSpec};
use runtime::Span;
use wire::nvme::registers::DOORBELLS;

pub use arbitration::Arbitration;
pub use array::{Array, Collections};
pub use block::{Block, BlockSizing};
pub use built_in::built_in;
pub use collector::HostDirectedGc;
pub use dcx::{Dcx, DcxTags};
pub use device::{DEVICE_COSTS, Device, NUMBER_MAX};
use document::{Bases, Document, TEXT_MAX};
pub use errors::{Place, PlanError, PlanErrors, Unsupported};
pub use fastpath::Fastpath;
pub use fields::{Fields, Source};
use fields::{Reader, Source::Optional};
pub use figures::{Figures, memory_needed_bytes};
pub use host::{
    COALESCING_UNIT, Completion, Doorbell, HOST_COSTS, Host, Kernel, KernelPath, LINE_BYTES,
    LOCK_ORDERS, MEMORY_BASE, PATH_COSTS, POLICIES, Pin, Sharing, costs,
};
pub use map::MapOnHost;
pub use medium::bridge::BridgeOf;
pub use medium::flash::{Flash, Overwrites, Start};
pub use medium::{KeepRule, Medium, MediumKind, MediumPace};
pub use pages::PageAccess;
pub use power::Power;
pub use section::add_sections;
pub use table::{Section, Table};

/// The version of the format that this program reads.
const VERSION: u64 = 1;

/// A machine: link, host, device, medium.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    /// Description in a sentence or two.
    pub about: String,
    /// Table of measurements that the plan is fitted to: the name of a built-in one, or a path. Only a plan
    /// that has one may have fitted values, so that no plan of a paper has them.
    pub drive: Option<String>,
    /// The link between host and device. Its latency includes that of the hops.
    pub link: LinkSpec,
    /// Data writes carry the relaxed-ordering attribute.
    pub relaxed_ordering: bool,
    pub host: Host,
    pub device: Device,
    pub medium: Medium,
    /// Optional tables of interfaces: see [`Plan::section`].
    sections: Vec<table::Parsed>,
    /// Weighted arbitration between queues; none: round robin.
    pub arbitration: Option<Arbitration>,
    /// The controller's power states; none: one operational state.
    pub power: Option<Power>,
    /// Array of several such devices; none: one device.
    pub array: Option<Array>,
    pub run: Run,
    pub faults: Vec<Fault>,
    /// Every value with a source, in parse order.
    pub sources: Vec<Sourced>,
    /// Name of the plan's file in errors.
    pub origin: String,
    /// The plan as TOML, its bases merged in, before the settings: with these it parses to the same plan.
    pub text: String,
    /// Settings that were applied: key and value.
    pub sets: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Seed of all random number generators.
    pub seed: u64,
    /// One command in N is traced for the latency breakdown; N is a power of two.
    pub breakdown_sample: u32,
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sourced {
    /// Its key: `medium.timing.first_byte`.
    pub key: String,
    /// The value as it was written: `110 ns`.
    pub value: String,
    pub source: String,
    /// The value is not measured: the source is `assumed` or `fitted`, or begins with one and a colon.
    pub assumed: bool,
}

impl Sourced {
    /// The value is the one with which the plan agrees best with measurements of its drive.
    pub fn is_fitted(&self) -> bool {
        is_kind(&self.source, FITTED)
    }
}

const ASSUMED: &str = "assumed";
const FITTED: &str = "fitted";

/// Whether a source is this word, or begins with it and a colon.
fn is_kind(source: &str, word: &str) -> bool {
    source.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

impl Plan {
    /// The built-in plan of this name, or else the plan in this file, with settings: `("link.lanes", "8")`.
    ///
    /// # Errors
    /// All errors in the plan, or that there is no such plan.
    pub fn open(name_or_path: &str, sets: &[(&str, &str)]) -> Result<Plan, PlanErrors> {
        let known = built_in();
        if let Some((name, text)) = known.iter().find(|(name, _)| *name == name_or_path) {
            return Plan::parse_with(text, &format!("plans/{name}.toml"), sets);
        }
        let path = Path::new(name_or_path);
        if is_name(name_or_path) && !path.exists() {
            return Err(PlanErrors::whole(name_or_path, "nothing".to_owned(), &expected_name()));
        }
        Plan::load_with(path, sets)
    }

    /// Loads the plan from this file.
    ///
    /// # Errors
    /// All errors in the plan, or the I/O error.
    pub fn load(path: &Path) -> Result<Plan, PlanErrors> {
        Plan::load_with(path, &[])
    }

    /// Loads the plan from this file, with settings.
    ///
    /// # Errors
    /// As for [`Plan::load`].
    pub fn load_with(path: &Path, sets: &[(&str, &str)]) -> Result<Plan, PlanErrors> {
        let bases = |name: &str, from: &str| {
            if is_name(name) {
                return base_of_name(name, from);
            }
            let path = Path::new(from).parent().unwrap_or(Path::new("")).join(name);
            Ok((path.display().to_string(), text_of(&path)?))
        };
        Plan::of_document(&text_of(path)?, &path.display().to_string(), sets, &bases)
    }

    /// Parses a plan. Errors name `origin` as the file.
    ///
    /// # Errors
    /// All errors in the plan.
    pub fn parse(text: &str, origin: &str) -> Result<Plan, PlanErrors> {
        Plan::parse_with(text, origin, &[])
    }

    /// Parses a plan with settings, which are applied before validation: `("link.lanes", "8")`. A path may
    /// index an array: `link.hops.0.latency`. A value is TOML, or text without quotes. A setting without a
    /// source counts as assumed.
    ///
    /// # Errors
    /// All errors in the plan; an error in a setting names it as `--set`.
    pub fn parse_with(text: &str, origin: &str, sets: &[(&str, &str)]) -> Result<Plan, PlanErrors> {
        Plan::of_document(text, origin, sets, &base_of_name)
    }

    /// This plan with settings more, from the text that was read: its files may have changed since.
    ///
    /// # Errors
    /// All errors in the plan; an error in a setting names it as `--set`.
    pub fn with_sets<'a>(
        &'a self,
        more: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Plan, PlanErrors> {
        let sets = self.sets.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let sets: Vec<_> = sets.chain(more).collect();
        Plan::parse_with(&self.text, &self.origin, &sets)
    }

    fn of_document(
        text: &str,
        origin: &str,
        sets: &[(&str, &str)],
        bases: Bases<'_>,
    ) -> Result<Plan, PlanErrors> {
        let document = Document::parse(text, origin, sets, bases)?;
        let text = document.merged.clone();
        let reader = Reader::new(document);
        let root = reader.root();
        let expected = "1, the version of the format that this program reads";
        // The keys of another version are unknown, so nothing else is read.
        let version = root.number_where("version", Optional, |n| n == VERSION, expected);
        let plan = version.and_then(|_| read(&reader, root, origin));
        let sources = reader.finish(origin)?;
        let mut plan = plan.expect("a missing part has been reported as an error");
        if plan.section().is_some_and(|fastpath: &Fastpath| fastpath.function != "none") {
            // A function passes all bytes of a block. With `keep = "stamps"` its interface refuses.
            plan.medium.keep_everything();
        }
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Ok(Plan { sources, text, sets: sets.iter().map(owned).collect(), ..plan })
    }

    /// Configuration of the simulated bus.
    ///
    /// The register window has a doorbell pair for each I/O queue of the device and the admin queue.
    pub fn sim_spec(&self) -> SimSpec {
        let doorbells = 8 * (self.device.queues + 1);
        let mut host_costs = self.host.costs.clone();
        let guard = self.host.guard;
        host_costs.extend(guard.map(|span| NamedCost { name: GUARD_COST, span }));
        if let Some(kernel) = self.host.kernel {
            host_costs.push(NamedCost { name: "copy", span: kernel.copy });
        }
        host_costs.extend(self.host.path.iter().flat_map(|path| path.costs.iter().cloned()));
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
            ports: None,
        }
    }

    /// The plan for drive number `of` of several: its serial number, NQN, EUI-64 and NGUID count on from
    /// `device.number`, or from those that the plan gives.
    #[must_use]
    pub fn numbered(&self, of: u64) -> Plan {
        Plan { device: self.device.numbered(of), ..self.clone() }
    }

    /// The plan for software that reaches its device past the kernel, and polls: calls, the kernel's layers,
    /// its buffers, switches of context and interrupts cost nothing, as there are none.
    #[must_use]
    pub fn past_kernel(&self) -> Plan {
        let mut plan = self.clone();
        let host = &mut plan.host;
        (host.path, host.kernel) = (None, None);
        (host.completion, host.pin, host.coalescing) = (Completion::Polled, None, None);
        let kernel = ["context switch", "system call", "block driver"];
        let of_kernel = |cost: &&mut NamedCost| kernel.contains(&cost.name);
        host.costs.iter_mut().filter(of_kernel).for_each(|cost| cost.span = Span::ZERO);
        plan
    }

    /// The plan for a drive that serves clients: its medium stores every byte. All front ends use it.
    ///
    /// # Errors
    /// The plan has `medium.keep = "stamps"`, which does not return the data that clients wrote.
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

/// Parses everything except the version. The sources are filled in by the caller.
fn read(reader: &Reader, root: Fields<'_>, origin: &str) -> Option<Plan> {
    let name = root.text("name", "the plan's name");
    let about = root.text("about", "what the plan is, in a sentence or two");
    let drive = root.given("drive", |key| root.text(key, "a table of measurements of a drive"));
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
    if let (Some(device), Some(Some(_))) = (&device, &arbitration)
        && device.queue_groups > 1
    {
        let expected = "1, or no table arbitration: groups are of round robin";
        reader.error("device.queue_groups", device.queue_groups.to_string(), expected);
    }
    if let (Some(device), Some(medium)) = (&device, &medium) {
        check_protection(reader, device, medium);
    }
    let (link, relaxed_ordering) = link?;
    Some(Plan {
        name: name?,
        about: about?,
        drive: drive?,
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
        text: String::new(),
        sets: Vec::new(),
    })
}

/// Whether a plan is named, not given by the path of its file.
fn is_name(name_or_path: &str) -> bool {
    !name_or_path.contains(['/', '.'])
}

/// The built-in plan of this name, as a base of the plan `origin`.
fn base_of_name(name: &str, origin: &str) -> Result<(String, String), PlanErrors> {
    match built_in().iter().find(|(known, _)| *known == name) {
        Some((name, text)) => Ok((format!("plans/{name}.toml"), (*text).to_owned())),
        None => Err(PlanErrors::whole(origin, format!("base = {name:?}"), &expected_name())),
    }
}

fn expected_name() -> String {
    let names: Vec<_> = built_in().iter().map(|(name, _)| *name).collect();
    format!("a file, or one of the built-in plans {}", names.join(", "))
}

/// The text of a plan's file.
fn text_of(path: &Path) -> Result<String, PlanErrors> {
    let origin = path.display().to_string();
    let unread = |found: String| PlanErrors::whole(&origin, found, "the text of a plan");
    let file = File::open(path).map_err(|error| unread(error.to_string()))?;
    let length = file.metadata().map_err(|error| unread(error.to_string()))?.len();
    // The length of a pipe or a device is reported as 0, so the read is bounded as well.
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
    Ok(text)
}

fn read_run(fields: Fields<'_>) -> Option<Run> {
    // TOML's integers are signed, so a seed has 63 bits.
    let seed = fields.number("seed", Optional, 0..=i64::MAX as u64);
    let sampled = |n: u64| n.is_power_of_two() && n <= 1 << 20;
    let expected = "a power of two from 1, which traces every command, to 1048576";
    let sample = fields.number_where("breakdown_sample", Optional, sampled, expected);
    fields.done();
    Some(Run { seed: seed?, breakdown_sample: sample? as u32 })
}

/// Protection information needs a medium with room for metadata.
fn check_protection(reader: &Reader, device: &Device, medium: &Medium) {
    if let Some(kind) = device.protection
        && !medium.keeps_metadata()
    {
        let expected = "0, or DRAM or PCM with medium.keep = \"everything\" and no medium.file: \
                        other media have no room for metadata";
        reader.error("device.protection", (kind as u8).to_string(), expected);
    }
}

/// The device must have the host's queues, and host memory must have room for their transfers.
fn check_queues(reader: &Reader, host: &Host, device: &Device) {
    if host.queues > device.queues {
        let expected = format!("at most device.queues, which is {}", device.queues);
        reader.error("host.queues", host.queues.to_string(), expected);
    }
    // A queue with as many commands as entries is indistinguishable from an empty one (NVMe base 2.0, 3.3.1).
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
