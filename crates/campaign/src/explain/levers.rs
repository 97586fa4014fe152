//! Levers: changes that relax one resource, or one cost, by a factor of two.
//!
//! A lever is computed from the plan that it changes, so that it halves a cost that another change has set.

use plan::units::{parse_span, rate_text, scaled, size_text, span_text};
use plan::{Plan, Sourced};
use wire::pcie::Generation;

use super::case::{Case, Change, JobChange, is_paced, without_collection};
use super::resource::Resource;

/// A change that relaxes a resource, or one key of it.
#[derive(Clone, Debug)]
pub(super) struct Lever {
    pub resource: Resource,
    pub title: String,
    pub change: Change,
}

/// Of the run as it is: parts that decide which levers there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Tables of the plan whose costs take no part in the run.
    pub unused: Vec<String>,
    /// Superblocks collected, and units written by the host.
    pub collected: u64,
    pub written: u64,
}

/// Blocks of a plane from which on half of them leave room for the reserve of the flash software.
const BLOCKS_LEAST: u32 = 64;

/// Times in plans that are limits and not costs: how long memory stays quarantined.
const LIMITS: [&str; 1] = ["max_latency"];

/// Tables of the machine that every interface has.
const EVERYWHERE: [&str; 7] = ["link", "host", "device", "medium", "array", "arbitration", "power"];

/// The table of a key.
fn table(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// Tables with costs that belong to single interfaces.
pub(super) fn sections(plan: &Plan) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for cost in plan.sources.iter().filter(|cost| relaxed_value(cost).is_some()) {
        let table = table(&cost.key);
        if !EVERYWHERE.contains(&table) && !all.iter().any(|known| known == table) {
            all.push(table.to_owned());
        }
    }
    all
}

/// All costs of one table at half.
pub(super) fn of_section(plan: &Plan, section: &str) -> Change {
    let costs = plan.sources.iter().filter(|cost| table(&cost.key) == section);
    Change { sets: costs.filter_map(halved).collect(), ..Change::default() }
}

/// A time at half, a rate at twice its value. None: not a cost.
fn relaxed_value(cost: &Sourced) -> Option<String> {
    let last = cost.key.rsplit('.').next().unwrap_or(&cost.key);
    if LIMITS.contains(&last) {
        return None;
    }
    match parse_span(&cost.value) {
        Ok(_) => scaled(&cost.value, 1, 2),
        Err(_) => scaled(&cost.value, 2, 1),
    }
}

fn halved(cost: &Sourced) -> Option<(String, String)> {
    relaxed_value(cost).map(|value| (cost.key.clone(), value))
}

/// The resource of a cost, by its table.
fn resource_of(plan: &Plan, key: &str) -> Resource {
    let last = key.rsplit('.').next().unwrap_or(key);
    let of_device = |name: &str| plan.sim_spec().device_costs.iter().any(|cost| cost.name == name);
    match table(key) {
        "link" => Resource::LinkLatency,
        "device" | "power" => Resource::Controller,
        "medium" => Resource::Medium,
        "host" | "array" => Resource::HostCore,
        _ if of_device(last) => Resource::Controller,
        _ => Resource::HostCore,
    }
}

/// The costs of the plan that take part in the run, each with its resource.
pub(super) fn costs<'c>(
    plan: &'c Plan,
    known: &'c Known,
) -> impl Iterator<Item = (&'c Sourced, Resource)> {
    let parts = |cost: &&Sourced| !known.unused.iter().any(|unused| table(&cost.key) == unused);
    let costs = plan.sources.iter().filter(parts);
    costs
        .filter(|cost| relaxed_value(cost).is_some())
        .map(|cost| (cost, resource_of(plan, &cost.key)))
}

fn set(key: &str, value: impl ToString) -> (String, String) {
    (key.to_owned(), value.to_string())
}

fn of_sets(sets: Vec<(String, String)>) -> Option<Change> {
    (!sets.is_empty()).then(|| Change { sets, ..Change::default() })
}

fn of_job(job: JobChange) -> Option<Change> {
    Some(Change { job: Some(job), ..Change::default() })
}

/// The lever that relaxes a whole resource. None: the run has no such resource.
pub(super) fn relaxed(case: &Case, known: &Known, resource: Resource) -> Option<Lever> {
    let (plan, jobs) = (&case.plan, &case.work.jobs);
    let lever = |title: String, change: Change| Some(Lever { resource, title, change });
    match resource {
        Resource::Arrivals => {
            jobs.iter().any(is_paced).then_some(())?;
            lever("arrivals twice as often".to_owned(), of_job(JobChange::TwiceTheRate)?)
        }
        Resource::ThinkTime => {
            jobs.iter().any(|job| job.thinktime > runtime::Span::ZERO).then_some(())?;
            lever("half the think time".to_owned(), of_job(JobChange::HalfTheThinkTime)?)
        }
        Resource::QueueDepth => {
            let depth = jobs.first()?.iodepth.max(1);
            let same = jobs.iter().all(|job| job.iodepth.max(1) == depth);
            let title = match same {
                true => format!("iodepth {depth} -> {}", 2 * depth),
                false => "iodepth of each job twice".to_owned(),
            };
            lever(title, of_job(JobChange::TwiceTheDepth)?)
        }
        Resource::HostQueue => {
            let (depth, entries) = (plan.host.queue_depth, plan.device.queue_entries);
            let mut sets = vec![set("host.queue_depth", 2 * depth)];
            if 2 * depth + 1 > entries {
                sets.push(set("device.queue_entries", 2 * entries));
            }
            lever(format!("queue_depth {depth} -> {}", 2 * depth), of_sets(sets)?)
        }
        Resource::CommandSlots => {
            let slots = plan.device.command_slots;
            let sets = vec![set("device.command_slots", 2 * slots)];
            lever(format!("command_slots {slots} -> {}", 2 * slots), of_sets(sets)?)
        }
        Resource::CommandFetch => {
            let (fetchers, most) = (plan.device.fetchers, plan.device.fetch_max);
            let (twice, more) = ((2 * fetchers).min(64), (2 * most).min(64));
            let sets = vec![set("device.fetchers", twice), set("device.fetch_max", more)];
            lever(
                format!("fetchers {fetchers} -> {twice}, fetch_max {most} -> {more}"),
                of_sets(sets)?,
            )
        }
        Resource::LinkRate => {
            let (title, sets) = twice_the_link(plan)?;
            lever(title, of_sets(sets)?)
        }
        Resource::Collector => {
            (known.collected > 0).then_some(())?;
            let change = without_collection(plan, &case.work, known.written)?;
            lever("nothing to collect".to_owned(), change)
        }
        Resource::HostCore => {
            lever("host costs at half".to_owned(), of_costs(case, known, resource)?)
        }
        Resource::LinkLatency => {
            lever("link latencies at half".to_owned(), of_costs(case, known, resource)?)
        }
        Resource::Controller => {
            lever("device costs at half".to_owned(), of_costs(case, known, resource)?)
        }
        Resource::Medium => lever("medium twice as fast".to_owned(), of_medium(case, known)?),
    }
}

/// All costs of a resource at half.
fn of_costs(case: &Case, known: &Known, resource: Resource) -> Option<Change> {
    let costs = costs(&case.plan, known).filter(|(_, of)| *of == resource);
    of_sets(costs.filter_map(|(cost, _)| halved(cost)).collect())
}

fn of_medium(case: &Case, known: &Known) -> Option<Change> {
    let plan = &case.plan;
    let mut change = of_costs(case, known, Resource::Medium).unwrap_or_default();
    if let Some(rpm) = number(plan, "medium.disks.rpm") {
        change.sets.push(set("medium.disks.rpm", 2 * rpm));
    }
    (change != Change::default()).then_some(change)
}

/// The value of a key with a source, if it is a whole number.
fn number(plan: &Plan, key: &str) -> Option<u64> {
    let sourced = plan.sources.iter().find(|sourced| sourced.key == key)?;
    sourced.value.replace('_', "").parse().ok()
}

/// Twice the lanes, or the next generation if there are no more lanes.
fn twice_the_link(plan: &Plan) -> Option<(String, Vec<(String, String)>)> {
    let (lanes, generation) = (plan.link.lanes, plan.link.generation);
    if plan.link.coherent {
        return None;
    }
    if lanes < 32 {
        let sets = vec![set("link.lanes", 2 * lanes)];
        return Some((format!("link.lanes {lanes} -> {}", 2 * lanes), sets));
    }
    let next = match generation {
        Generation::Gen1 => "gen2",
        Generation::Gen2 => "gen3",
        Generation::Gen3 => "gen4",
        Generation::Gen4 => "gen5",
        Generation::Gen5 => return None,
    };
    Some((format!("link.generation {next}"), vec![set("link.generation", next)]))
}

/// Levers of single keys: each cost at half, each count at twice its value.
pub(super) fn details(case: &Case, known: &Known) -> Vec<Lever> {
    let plan = &case.plan;
    let costs = costs(plan, known).filter_map(|(cost, resource)| {
        let (key, value) = halved(cost)?;
        let title = format!("{key} {} -> {}", cost.value, plain(&value));
        Some(Lever { resource, title, change: of_sets(vec![(key, value)])? })
    });
    let mut all: Vec<Lever> = costs.collect();
    all.extend(counts(case).into_iter().map(|(resource, key, value)| {
        let title = format!("{key} {value} -> {}", 2 * value);
        let mut sets = vec![set(key, 2 * value)];
        if let (true, Some(flash)) = (key.starts_with("medium.flash."), &plan.medium.flash) {
            // The same capacity: half the blocks on twice the dies.
            sets.push(set("medium.flash.blocks", flash.spec.geometry.blocks / 2));
        }
        Lever { resource, title, change: Change { sets, ..Change::default() } }
    }));
    for (key, bytes) in [("link.mps", plan.link.mps), ("link.mrrs", plan.link.mrrs)] {
        let (now, twice) = (size_text(bytes.into()), size_text(2 * u64::from(bytes)));
        let change = Change { sets: vec![set(key, &twice)], ..Change::default() };
        let title = format!("{key} {now} -> {twice}");
        all.push(Lever { resource: Resource::LinkRate, title, change });
    }
    all.extend(spare(plan).filter(|_| known.collected > 0));
    all
}

/// A value of `scaled` as it is shown: `72.5 ns`.
fn plain(quoted: &str) -> String {
    let text = quoted.trim_matches('"');
    match parse_span(text) {
        Ok(span) => span_text(span),
        Err(_) => plan::units::parse_rate(text).map_or_else(|_| text.to_owned(), rate_text),
    }
}

/// Numbers of parts that work at the same time.
fn counts(case: &Case) -> Vec<(Resource, &'static str, u64)> {
    let (plan, clones) = (&case.plan, case.work.clones_at_once() as u64);
    let mut all = Vec::new();
    let mut add = |resource, key, value: u64| all.push((resource, key, value));
    if plan.device.processors > 0 {
        add(Resource::Controller, "device.processors", plan.device.processors.into());
    }
    if clones > u64::from(plan.host.cores) {
        add(Resource::HostCore, "host.cores", plan.host.cores.into());
    }
    if clones > u64::from(plan.host.queues) {
        add(Resource::HostQueue, "host.queues", plan.host.queues.into());
    }
    if let Some(timing) = plan.medium.timing() {
        add(Resource::Medium, "medium.timing.channels", timing.channels.into());
        add(Resource::Medium, "medium.timing.banks", timing.banks.into());
    }
    if let Some(disks) = number(plan, "medium.disks.number") {
        add(Resource::Medium, "medium.disks.number", disks);
    }
    if let Some(flash) = &plan.medium.flash {
        let geometry = &flash.spec.geometry;
        if geometry.blocks >= BLOCKS_LEAST {
            add(Resource::Medium, "medium.flash.channels", geometry.channels.into());
            add(Resource::Medium, "medium.flash.dies", geometry.dies.into());
        }
    }
    all
}

/// Twice the spare space at about the same capacity.
fn spare(plan: &Plan) -> Option<Lever> {
    let flash = plan.medium.flash.as_ref()?;
    let (geometry, units) = (&flash.spec.geometry, u64::from(flash.software.units));
    let all = geometry.bytes() / u64::from(geometry.unit_bytes);
    let spare = 1000 * all.saturating_sub(units) / units.max(1);
    let blocks = u64::from(geometry.blocks) * (1000 + 2 * spare) / (1000 + spare);
    let sets = vec![
        set("medium.flash.blocks", blocks),
        set("medium.flash.spare_per_mille", (2 * spare).clamp(1, 1000)),
    ];
    let title = format!("spare space {} % -> {} %", spare / 10, 2 * spare / 10);
    let change = Change { sets, ..Change::default() };
    Some(Lever { resource: Resource::Collector, title, change })
}
