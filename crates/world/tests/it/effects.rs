//! Every key of a plan and of a job file has an effect: set to another value it changes the event log or the
//! results of a tiny simulated run, or the run is refused. Keys without effect by design are listed with the
//! reason. Keys are found by the errors of the parser, so a new one is tried without being named here.

mod tables;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::rc::Rc;

use plan::Plan;
use runtime::Log;
use testing::Folder;
use workload::job::{KEYS, Kind};
use workload::pattern::OpKind;
use workload::trace::Mapping;
use world::interfaces::{Row, named};
use world::work::Work;
use world::{Options, simulate};

const MIXED: &str = "[a]\nrw=randrw\nsize=1m\nnumber_ios=24\niodepth=8\nfsync=4\n";
const CLONES: &str = "[a]\nrw=randrw\nsize=1m\nnumber_ios=24\niodepth=8\nnumjobs=4\n";
const LARGE: &str = "[a]\nrw=rw\nbs=256k\nsize=4m\nnumber_ios=8\niodepth=4\n";

type Sets = Vec<(String, String)>;

/// A run in which keys are tried.
struct Context {
    plan: &'static str,
    sets: &'static [(&'static str, &'static str)],
    job: &'static str,
    /// Only keys that begin so.
    keys: &'static str,
}

const fn of(
    keys: &'static str,
    plan: &'static str,
    sets: &'static [(&'static str, &'static str)],
    job: &'static str,
) -> Context {
    Context { plan, sets, job, keys }
}

/// Settings of a table that is empty in all plans, or whose keys need others.
const CREDITS: &[(&str, &str)] = &[
    ("link.credits.posted_headers", "16"),
    ("link.credits.posted_data", "32"),
    ("link.credits.return_after", "1 us"),
];
const HELD_UP: &[(&str, &str)] = &[("link.held_up.one_in", "3"), ("link.held_up.span", "1 us")];
const INTERRUPTS: &[(&str, &str)] = &[("host.completion", "interrupt")];
const COALESCED: &[(&str, &str)] = &[
    ("host.completion", "interrupt"),
    ("host.coalescing.completions", "200"),
    ("host.coalescing.at_most", "200 us"),
];
const QUEUES: &[(&str, &str)] = &[("host.cores", "4"), ("host.queues", "4")];
const CLASSES: &[(&str, &str)] = &[
    ("host.cores", "4"),
    ("host.queues", "4"),
    ("device.fetchers", "1"),
    ("device.processors", "1"),
    ("device.command_slots", "2"),
    ("arbitration.classes", "urgent high medium low"),
    ("arbitration.high", "8"),
    ("arbitration.medium", "4"),
    ("arbitration.low", "1"),
    ("arbitration.urgent_most", "4"),
];
const KERNEL: &[(&str, &str)] = &[
    ("host.path.piece", "4 KiB"),
    ("host.path.costs.call entry", "1 us"),
    ("host.path.costs.file layer", "1 us"),
    ("host.path.costs.block layer", "1 us"),
    ("host.path.costs.copy", "1 us"),
    ("host.path.costs.cache sync", "1 us"),
    ("host.path.costs.call exit", "1 us"),
];
const ARRAY: &[(&str, &str)] = &[
    ("array.devices", "3"),
    ("array.layout", "parity"),
    ("array.chunk", "16 KiB"),
    ("array.lanes", "4"),
    ("array.collections", "free"),
    ("array.costs.parity", "1 us"),
];
const BUSY: &[(&str, &str)] = &[("device.processors", "1"), ("device.command_slots", "2")];
const HANGS: &[(&str, &str)] = &[
    ("host.timeout", "100 us"),
    ("faults", "[{ name = \"lost\", what = \"drop\", command = \"read\", times = 3 }]"),
];

/// The runs of each interface, the cheapest first.
fn contexts(interface: &str) -> Vec<Context> {
    let plans: &[&'static str] = match interface {
        "nvme" => &["gen4"],
        "dcx" => &["dc-express"],
        "block" => &["descriptor-blocks"],
        _ => &["fastpath"],
    };
    let mut all = Vec::new();
    for plan in plans {
        all.push(of("", plan, &[], MIXED));
        all.push(of("", plan, &[], LARGE));
        all.push(of("device.", plan, BUSY, CLONES));
    }
    let plan = plans[0];
    all.extend([
        of("host.", plan, INTERRUPTS, CLONES),
        of("host.", plan, QUEUES, CLONES),
        of("device.", plan, QUEUES, CLONES),
        of("host.", plan, HANGS, MIXED),
        of("link.credits", plan, CREDITS, MIXED),
        of("link.held_up", plan, HELD_UP, MIXED),
        of("host.coalescing", plan, COALESCED, CLONES),
        of("arbitration", plan, CLASSES, CLONES),
        of("host.path", plan, KERNEL, MIXED),
        of("array", plan, ARRAY, CLONES),
    ]);
    all
}

/// Keys without effect in a simulated run, and why: of an interface, or of all.
const BY_DESIGN: &[(&str, &str, &str)] = &[
    ("", "version", "has one value"),
    ("", "name", "is text"),
    ("", "about", "is text"),
    ("", "drive", "names measurements: fitted values need it"),
    ("", "run.breakdown_sample", "live runs alone leave out request traces"),
    ("", "medium.pace", "live runs alone have another pace than the model's"),
    ("", "medium.keep", "says what is stored, which takes no time"),
    ("", "medium.file", "is a path: files are tested in media"),
    ("", "medium.resident", "bounds memory before a file: tested in media"),
    ("", "medium.flash.state", "is a path: states are tested in media"),
    ("", "host.memory_base", "is an address"),
    ("", "device.number", "is the drive's identity, which runs do not read"),
    ("", "device.serial", "is the drive's identity, which runs do not read"),
    ("", "device.model", "is the drive's identity, which runs do not read"),
    ("", "device.eui64", "is the drive's identity, which runs do not read"),
    ("", "device.nguid", "is the drive's identity, which runs do not read"),
    ("", "device.sleep_", "live devices alone sleep"),
    ("", "device.namespaces", "shows in Identify: a run uses the first namespace"),
    ("", "device.own_namespaces", "shows in Identify: a run uses the first namespace"),
    (
        "",
        "device.protection",
        "is the format of the metadata, which a run without it does not read",
    ),
    ("", "host.memory", "is a size that these runs do not fill"),
    ("", "host.kernel", "is of the SCSI layer, which diskhog drives"),
    ("", "host.sharing", "is of the SCSI layer, which diskhog drives"),
    ("", "power.", "runs change no power state"),
    ("", "medium.kind", "other kinds need other tables"),
    ("fastpath", "arbitration", "all queues of an engine have the class of the first"),
    ("fastpath", "host.coalescing", "an engine polls: fastpath.poll"),
    ("fastpath", "host.completion", "an engine polls: fastpath.poll"),
    ("fastpath", "host.interrupt", "an engine polls: fastpath.poll"),
    ("fastpath", "host.poll", "is fastpath.poll in an engine"),
    ("fastpath", "host.costs.submit", "is fastpath.submit in an engine"),
    ("fastpath", "host.costs.complete", "is fastpath.complete in an engine"),
    ("fastpath", "host.costs.block driver", "FastPath does not pass the kernel"),
    ("fastpath", "host.costs.context switch", "FastPath does not pass the kernel"),
    ("fastpath", "host.costs.system call", "FastPath does not pass the kernel"),
    ("fastpath", "host.path", "FastPath does not pass the kernel"),
    ("fastpath", "host.sgl", "an engine describes a block by PRPs"),
    ("block", "arbitration", "is of the queues of NVMe: descriptor blocks have one ring"),
    ("block", "device.arbitration_burst", "is of the queues of NVMe"),
    ("block", "device.command_slots", "is of the queues of NVMe: block.ring limits the slots"),
    ("block", "device.fetch", "is of the queues of NVMe: blocks say how much is fetched"),
    ("block", "device.mdts", "is of NVMe: a descriptor has its own limit"),
    ("block", "device.queue", "is of the queues of NVMe"),
    ("block", "host.coalescing", "is of the interrupts of NVMe"),
    ("block", "host.doorbell", "is of the queues of NVMe"),
    ("block", "host.sgl", "is of the commands of NVMe"),
    ("block", "host.shadow_doorbells", "is of the queues of NVMe"),
    ("block", "host.queues", "is of the queues of NVMe"),
    ("block", "host.interrupts", "is of the interrupts of NVMe"),
];

/// Keys whose effect these runs do not reach: their load or their other settings are not such that it shows.
/// An entry is a gap of this test, not a statement about the key.
const NOT_SHOWN: &[(&str, &str, &str)] = &[
    ("", "link.completion_bytes", "aligned reads are split alike"),
    ("", "link.rcb", "aligned reads are split alike"),
    ("", "link.relaxed_ordering", "nothing waits behind a held write"),
    ("", "host.protection", "needs metadata"),
    ("", "device.queue", "more than the host asks for"),
    ("", "medium.fill_seed", "contents are not compared"),
    ("dcx", "host.doorbell", "one write at a time is submitted"),
    ("dcx", "medium.block", "other sizes do not fit the job"),
    ("fastpath", "device.processors", "one engine does not use all of a processor"),
    ("fastpath", "medium.block", "other sizes do not fit the job"),
    ("fastpath", "medium.timing.next_row", "one row at a time"),
    ("block", "link.tlps_per_dllp", "the link is not busy"),
    ("block", "host.retries", "no fault can be injected"),
    ("block", "host.poll", "the plan waits for interrupts"),
    ("block", "medium.block", "other sizes do not fit the job"),
    ("block", "medium.timing.banks", "banks do not meet"),
    ("block", "medium.timing.next_row", "one row at a time"),
];

fn settings(sets: &[(&str, &str)], key: &str, value: &str) -> Sets {
    let more = [(key, value)];
    sets.iter().chain(&more).map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn open(plan: &str, sets: &Sets) -> Result<Plan, plan::PlanErrors> {
    let sets: Vec<_> = sets.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    Plan::open(plan, &sets)
}

/// The expectation of the parser for a key, by its error.
fn expected(context: &Context, key: &str, wrong: &str) -> Option<String> {
    let errors = open(context.plan, &settings(context.sets, key, wrong)).err()?;
    errors.errors.into_iter().find(|error| error.key == key).map(|error| error.expected)
}

/// Adds the keys of a table, and of the tables in it.
fn keys_of(context: &Context, table: &str, found: &mut Vec<String>) -> bool {
    let unknown = format!("{table}nonsense");
    let Some(expected) = expected(context, &unknown, "1") else { return false };
    let Some(names) = expected.strip_prefix("one of ") else { return false };
    let names = names.split(": ").next().unwrap_or_default();
    let names: Vec<_> = names.split(", ").collect();
    if names == ["value", "source"] {
        return false;
    }
    for name in names {
        let key = format!("{table}{name}");
        if !keys_of(context, &format!("{key}."), found) && !found.contains(&key) {
            found.push(key);
        }
    }
    true
}

/// Values to try, from what is expected.
fn values(context: &Context, key: &str) -> Vec<String> {
    const TABLES: &[(&str, &str)] = &[
        ("link.hops", "[{ name = \"h\", latency = { value = \"9 us\", source = \"assumed\" } }]"),
        ("faults", "[{ name = \"late\", what = \"delay\", span = \"9 us\" }]"),
        (
            "power.states",
            "[{ milliwatts = { value = 9, source = \"assumed\" }, idle = false, \
             enter = { value = \"1 us\", source = \"assumed\" }, \
             leave = { value = \"1 us\", source = \"assumed\" } }]",
        ),
        ("arbitration.classes", "low medium high urgent"),
        ("fastpath.function", "crc32c"),
        // Not the ends of their ranges, which are terabytes.
        ("medium.flash.blocks", "20"),
        ("medium.flash.word_lines", "5"),
    ];
    if let Some((_, value)) = TABLES.iter().find(|(table, _)| *table == key) {
        return vec![(*value).into()];
    }
    let text = expected(context, key, "\"?\"").unwrap_or_default();
    let fixed = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    if text.contains("span") {
        return fixed(&["40 us", "0 ps", "300 us", "1 us", "9 ms"]);
    }
    if text.contains("true or false") {
        return fixed(&["true", "false"]);
    }
    if text.contains("a rate") {
        return fixed(&["3 MB/s", "900 MB/s"]);
    }
    let mut all: Vec<String> = Vec::new();
    if text.contains(" or \"") || text.starts_with('"') {
        all.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
    }
    let digits = |c: char| !c.is_ascii_digit();
    all.extend(text.split(digits).filter(|word| !word.is_empty()).map(str::to_owned));
    all.extend(fixed(&["2", "0"]));
    let sizes = ["128 B", "512 B", "4 KiB", "32 KiB", "300 kB", "1 MiB", "256 MiB", "64 B"];
    if ["KiB", "MiB", "GiB", "blocks", " B\""].iter().any(|unit| text.contains(unit)) {
        all.extend(fixed(&sizes));
    }
    all
}

/// Digest of the event log and of the results, or the refusal.
fn answer(row: &'static Row, plan: &Plan, work: &Work) -> Result<u64, String> {
    let digest = Rc::new(RefCell::new(DefaultHasher::new()));
    let sink = digest.clone();
    let log = Log::To(Rc::new(move |entry| {
        let what = (entry.at.0, entry.component, entry.what, entry.a, entry.b);
        what.hash(&mut *sink.borrow_mut());
    }));
    let result = simulate(row, plan, work, Options { log, ..Options::default() });
    let result = result.map_err(|error| error.to_string())?;
    let mut digest = digest.borrow_mut();
    for (job, job_result) in &result.jobs {
        (&job.name, job_result.errors(), job_result.blocks_verified).hash(&mut *digest);
        (job_result.elapsed.0, job_result.measured.0).hash(&mut *digest);
        job_result.messages.hash(&mut *digest);
        for kind in OpKind::ALL {
            let stages = job_result.stats.breakdowns.get(&kind).map(|all| all.mean());
            format!("{stages:?}").hash(&mut *digest);
        }
    }
    (result.jobs.len(), work.notes.len()).hash(&mut *digest);
    Ok(digest.finish())
}

fn work(job: &str) -> Work {
    Work::parse(Path::new("a.fio"), job, Mapping::Concatenate).expect("a job")
}

/// Whether the key is of a table that one interface alone reads: [`tables`] has those.
fn is_of_interface(key: &str) -> bool {
    let tables = ["dcx.", "block.", "fastpath.", "pages.", "collector.", "map."];
    tables.iter().any(|table| key.starts_with(table))
}

/// Keys that have shown an effect, and those that have not yet.
#[derive(Default)]
struct Found {
    with: BTreeSet<String>,
    without: BTreeSet<String>,
}

impl Found {
    /// Sets each key of the context to other values, until one gives another answer.
    fn try_keys(
        &mut self,
        row: &'static Row,
        context: &Context,
        is_tried: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let work = work(context.job);
        let base = open(context.plan, &settings(context.sets, "run.seed", "1"));
        let base = base.map_err(|errors| errors.to_string())?;
        let base = answer(row, &base, &work)?;
        let mut keys = Vec::new();
        // Up to its last table: `host.` has keys, and `array` may be a part of a name.
        let table = context.keys.rfind('.').map_or("", |end| &context.keys[..=end]);
        keys_of(context, table, &mut keys);
        keys.retain(|key| {
            key.starts_with(context.keys) && !self.with.contains(key) && is_tried(key)
        });
        for key in keys {
            let has = values(context, &key).iter().any(|value| {
                let mut sets = settings(context.sets, &key, value);
                sets.insert(0, ("run.seed".into(), "1".into()));
                open(context.plan, &sets).is_ok_and(|plan| answer(row, &plan, &work) != Ok(base))
            });
            if has {
                self.without.remove(&key);
                self.with.insert(key);
            } else {
                self.without.insert(key);
            }
        }
        Ok(())
    }
}

/// The keys of the plans of an interface that have no effect in any of its contexts.
fn without_effect(interface: &str) -> BTreeSet<String> {
    let row = named(interface).expect("an interface");
    let mut found = Found::default();
    for context in contexts(interface) {
        let is_tried = |key: &str| {
            let listed = |(of, known, _): &&(&str, &str, &str)| {
                key.starts_with(known) && (of.is_empty() || *of == interface)
            };
            !is_of_interface(key) && BY_DESIGN.iter().chain(NOT_SHOWN).find(listed).is_none()
        };
        if found.try_keys(row, &context, is_tried).is_err() {
            // The interface refuses the table: for its keys that is the effect.
            let is_of_table = |(key, _): &(&str, &str)| key.starts_with(context.keys);
            if !context.keys.is_empty() && context.sets.iter().all(is_of_table) {
                found.without.retain(|key| !key.starts_with(context.keys));
            }
        }
    }
    let Found { with, without } = found;
    assert!(with.len() > 20, "{interface}: {} keys have an effect", with.len());
    without
}

#[test]
fn every_plan_key_has_an_effect_on_each_interface() {
    let names = ["nvme", "block", "dcx", "fastpath"];
    let only = std::env::var("DOORBELL_EFFECTS").ok();
    let names = names.into_iter().filter(|name| only.as_deref().is_none_or(|only| only == *name));
    let without: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            names.map(|name| (name, scope.spawn(move || without_effect(name)))).collect();
        threads.into_iter().map(|(name, thread)| (name, thread.join().expect(name))).collect()
    });
    let lines: Vec<_> = without
        .iter()
        .flat_map(|(name, keys)| keys.iter().map(move |key| format!("{name}: {key}")))
        .collect();
    assert_eq!(lines, [""; 0], "keys without effect");
}

#[test]
fn descriptor_blocks_reject_more_than_one_processor() {
    let row = named("block").expect("an interface");
    let run = |processors| {
        let sets = [("device.processors", processors)];
        let plan = Plan::open("descriptor-blocks", &sets).expect("a plan");
        answer(row, &plan, &work(MIXED))
    };
    assert_ne!(run("0"), run("1"));
    for more in ["2", "4"] {
        let error = run(more).expect_err("one task serves the ring");
        assert!(
            error.contains(&format!("device.processors: found {more}, expected 0 or 1")),
            "{error}"
        );
    }
}

/// For each supported key the job in which it shows, and its value there.
const JOBS: &[(&str, &str, &str)] = &[
    ("kb_base", "bs=8kb\n", "1000"),
    ("io_size", "", "64k"),
    ("offset", "", "3g"),
    ("offset_increment", "numjobs=2\n", "64k"),
    ("number_ios", "", "7"),
    ("rate_process", "rate_iops=100000\n", "poisson"),
    ("thinktime_blocks", "thinktime=10\n", "3"),
    ("runtime", "", "10us"),
    ("time_based", "runtime=3ms\nio_size=16k\n", "1"),
    ("fsync", "", "3"),
    ("fdatasync", "", "3"),
    ("do_verify", "verify=crc32c\nrw=randwrite\n", "0"),
    ("stonewall", "[b]\nsize=64k\n", "1"),
    ("replay_no_stall", "read_iolog=TRACE\n", "1"),
    ("replay_time_scale", "read_iolog=TRACE\n", "200"),
    ("read_iolog", "", "TRACE"),
];

/// Supported keys without effect on the operations of a run that is right, and why.
const JOBS_BY_DESIGN: &[(&str, &str)] = &[
    ("description", "is text"),
    (
        "sync",
        "is FUA, which takes no time on a medium without a buffer: shown by trace_sizes on flash",
    ),
    ("verify_fatal", "shows at a mismatch, which a right drive does not have"),
    ("group_reporting", "of the report"),
    ("new_group", "of the report"),
];

fn of_job(folder: &Folder, text: &str) -> Result<(u64, usize), String> {
    let trace = folder.path("t.log").display().to_string();
    let path = folder.file("a.fio", &text.replace("TRACE", &trace));
    let sets = [("medium.capacity", "2 GiB"), ("medium.block", "512 B"), ("host.queues", "4")];
    let plan = Plan::open("gen4", &sets).map_err(|errors| errors.to_string())?;
    let work = Work::load(&path, Mapping::Concatenate).map_err(|error| error.to_string())?;
    let row = named("nvme").expect("an interface");
    Ok((answer(row, &plan, &work)?, work.notes.len()))
}

#[test]
fn every_job_key_has_an_effect_or_a_note() {
    let folder = Folder::new("job-effects");
    let lines: String = (0..16)
        .map(|n| format!("{} /dev/x {} {} 4096\n", 9 + n * 5, ["read", "write"][n % 2], n * 8192))
        .collect();
    folder.file("t.log", &format!("fio version 3 iolog\n0 /dev/x add\n0 /dev/x open\n{lines}"));
    let mut without = Vec::new();
    for key in KEYS {
        let Kind::Supported { example, .. } = key.kind else { continue };
        let name = key.name;
        if JOBS_BY_DESIGN.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let (more, value) = JOBS
            .iter()
            .find(|(known, ..)| *known == name)
            .map_or(("", example), |(_, more, value)| (*more, *value));
        let pattern = "[a]\nrw=randrw\nbs=4k\nsize=1m\nnumber_ios=40\niodepth=4\n";
        let recorded = "[a]\nread_iolog=TRACE\niodepth=4\n";
        for base in [pattern, recorded] {
            // The factor of values that have no effect themselves; a second recording.
            let has_no_second = ["kb_base", "read_iolog"].contains(&name);
            if base == recorded && (has_no_second || more.contains("read_iolog")) {
                continue;
            }
            let before = of_job(&folder, &format!("{base}{more}"));
            let after = of_job(&folder, &format!("{base}{more}{name}={value}\n"));
            if before == after {
                let kind = if base == recorded { "beside read_iolog" } else { "of a pattern" };
                without.push(format!("{name}={value} {kind}"));
            }
        }
    }
    assert_eq!(without, [""; 0], "keys without effect and without note");
}
