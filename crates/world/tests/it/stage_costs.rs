//! The law of stages: halving what a stage costs changes the latency by its share. It holds for every stage
//! of every interface, plan and medium, alone at depth 1. Time that is charged to the wrong stage breaks it:
//! that stage does not halve with its own keys, or changes with those of another.

use std::collections::BTreeSet;

use plan::Plan;
use plan::units::scaled;
use runtime::Span;
use testing::{plan, work};
use workload::pattern::OpKind;
use world::Options;
use world::interfaces::{Row, all, named};

/// Keys of the link: what its stages take is its latency, the host's and the device's, and its rate.
const LINK: &[&str] =
    &["link.latency", "link.hops.*", "link.host_read", "link.device_read", "link.lanes"];
const CHIPS: &[&str] = &[
    "medium.flash.times.read*",
    "medium.flash.times.program*",
    "medium.flash.times.command",
    "medium.flash.times.decode",
    "medium.flash.times.bus",
];

const PROCESSING: &[&str] = &[
    "medium.flash.processing.lookup",
    "medium.flash.processing.update",
    "medium.flash.processing.split_lookup",
];

/// Keys that set the cost of each stage, of which a plan may lack some.
const COSTS: &[(&[&str], &[&[&str]])] = &[
    (&["benchmark"], &[&["host.costs.benchmark"]]),
    (&["system call"], &[&["host.costs.system call"]]),
    (&["call entry"], &[&["host.path.costs.call entry"]]),
    (&["file layer"], &[&["host.path.costs.file layer"]]),
    (&["block layer"], &[&["host.path.costs.block layer"]]),
    (&["block driver"], &[&["host.costs.block driver"]]),
    (&["cache sync"], &[&["host.path.costs.cache sync"]]),
    (&["call exit"], &[&["host.path.costs.call exit"]]),
    (&["copy"], &[&["host.path.costs.copy", "host.kernel.copy", "pages.costs.copy"]]),
    (&["lock"], &[&["host.sharing.lock"]]),
    (&["guard"], &[&["host.guard"]]),
    (&["submit"], &[&["host.costs.submit", "fastpath.submit"]]),
    (&["complete"], &[&["host.costs.complete", "fastpath.complete"]]),
    (&["interrupt"], &[&["host.interrupt"]]),
    (&["context switch"], &[&["host.costs.context switch"]]),
    (&["mark"], &[&["dcx.mark"]]),
    (&["announce"], &[&["block.costs.announce"]]),
    (&["take block"], &[&["block.costs.take block"]]),
    (&["dma start"], &[&["block.costs.dma start"]]),
    (&["give back"], &[&["block.costs.return", "block.costs.dma start"]]),
    (&["request"], &[&["fastpath.costs.request"]]),
    (&["control"], &[&["fastpath.costs.control"]]),
    (&["function"], &[&["fastpath.costs.function"]]),
    (&["respond"], &[&["fastpath.costs.respond"]]),
    (&["take response"], &[&["fastpath.costs.take response"]]),
    (&["map"], &[&["pages.costs.map"]]),
    (&["hand over"], &[&["pages.costs.hand over"]]),
    (&["translate"], &[&["map.costs.translate"]]),
    (&["parity"], &[&["array.costs.parity"]]),
    (&["doorbell", "completion", "arrival", "host read", "data transfer"], &[LINK]),
    (&["prp list", "place list"], &[LINK]),
    // A command of its own.
    (&["map fetch"], &[LINK, CHIPS, &["device.costs.parse", "host.costs.submit"]]),
    (&["fetch"], &[LINK, &["block.costs.dma start"]]),
    (&["parse"], &[&["device.costs.parse"]]),
    (&["post completion"], &[&["device.costs.post completion"]]),
    (&["die"], &[&["medium.flash.times.read*", "medium.flash.times.command"]]),
    (&["channel"], &[&["medium.flash.times.bus"]]),
    (&["decode"], &[&["medium.flash.times.decode"]]),
    (&["flush", "buffer wait", "map read"], &[CHIPS]),
    (&["flash software"], &[PROCESSING]),
    (
        &["media"],
        &[
            &[
                "medium.timing.first_byte",
                "medium.timing.next_row",
                "medium.timing.bandwidth",
                "medium.timing.write_bandwidth",
            ],
            &["medium.disks.rpm", "medium.disks.overhead", "medium.disks.write_settle"],
            &["medium.disks.seek_one", "medium.disks.seek_average", "medium.disks.seek_full"],
            &["medium.bridge.command", "medium.bridge.conversion", "medium.bridge.link"],
        ],
    ),
];

/// Stages without a key, and why. Alone at depth 1 they have no time.
const NO_KEY: &[(&[&str], &str)] = &[
    (
        &["slot wait", "operation wait", "block wait", "tag wait", "tag retry", "room wait"],
        "waits for a place that commands before it have taken",
    ),
    (
        &["core wait", "device processor wait", "link wait", "die wait", "channel wait"],
        "waits for what others occupy",
    ),
    (&["flash software wait"], "waits for what others occupy"),
    (&["media wait", "engine wait", "request wait", "turn wait"], "waits for what others occupy"),
    (&["lock wait", "lock transfer"], "waits for a lock that another core has had"),
    (&["dispatch"], "waits for a slot to begin"),
    (&["stripe wait", "journal wait"], "waits for other writes of an array"),
    (&["order wait", "block rest"], "waits for other commands of a block"),
    (&["completion queue full"], "waits for the host, whose completions it has not taken"),
    (&["queueing delay"], "of the load: operations before it"),
    (
        &["collector at buffer", "collector at flush", "collector at die", "collect", "choose"],
        "the collector's work, and waits for it",
    ),
    (&["mount"], "passes before the first command"),
    (&["fault"], "time that a fault adds"),
    (&["count down"], "waits for the other commands of a request"),
    (&["return"], "spent once a block, beside the commands: in give back"),
    (&["power state"], "left in a time that the list power.states has: power.rs of the device"),
    (&["sgl segment"], "the driver's buffers lie in one piece, and need one descriptor"),
];

/// The rest of a polling loop's turn, less than the loop.
const POLL: &str = "poll";

/// Ends at a turn of a loop of fetches across the link, less than two of them after its beginning.
const PICKUP: &str = "pickup";

/// These pass at the same time: while the medium is slower than the link, what one saves the other takes.
const TRANSFER: &str = "data transfer";
const MEDIA: &str = "media";

fn keys_of(row: &Row, stage: &str) -> Option<BTreeSet<&'static str>> {
    let (_, keys) = COSTS.iter().find(|(stages, _)| stages.contains(&stage))?;
    let of_row = |key: &&str| row.name == "block" || !key.starts_with("block.");
    Some(keys.iter().copied().flatten().copied().filter(of_row).collect())
}

/// A run of one command at a time.
struct Case {
    row: &'static Row,
    plan: &'static str,
    sets: Vec<(String, String)>,
    job: String,
    kind: OpKind,
    /// Differences that are allowed, in thousandths of the latency: where a disk's arm is differs.
    slack: f64,
}

/// Mean latency of a run and its stages, picoseconds.
struct Found {
    total: f64,
    stages: Vec<f64>,
}

impl Case {
    fn plan(&self, more: &[(String, String)]) -> Plan {
        let sets: Vec<_> =
            self.sets.iter().chain(more).map(|(key, value)| (&**key, &**value)).collect();
        plan(self.plan, &sets)
    }

    fn name(&self) -> String {
        format!("{} {} {:?} {}", self.plan, self.row.name, self.sets, self.job.replace('\n', " "))
    }

    fn run(&self, plan: &Plan) -> Found {
        let run_result =
            world::simulate(self.row.of_plan(plan), plan, &work(&self.job), Options::default());
        let run_result =
            testing::clean(run_result.unwrap_or_else(|error| panic!("{}: {error}", self.name())));
        let mean = testing::shares(testing::only(&run_result), self.kind);
        Found { total: mean.total_ps, stages: mean.stages_ps.to_vec() }
    }

    /// These keys at half, rates at twice their value.
    fn halved(&self, plan: &Plan, keys: &BTreeSet<&str>) -> Vec<(String, String)> {
        let named = |key: &str| {
            keys.iter().any(|wanted| match wanted.strip_suffix('*') {
                Some(first) => key.starts_with(first),
                None => key == *wanted,
            })
        };
        let sources =
            plan.sources.iter().map(|sourced| (sourced.key.clone(), sourced.value.clone()));
        let chips = plan.medium.flash.iter().flat_map(|flash| flash.chip_times());
        // Not every plan gives a source for its lanes.
        let lanes = [("link.lanes".to_owned(), plan.link.lanes.to_string())];
        let all = chips.chain(sources.filter(|(key, _)| key != "link.lanes")).chain(lanes);
        let mut sets: Vec<_> = all.filter(|(key, _)| named(key)).collect();
        sets.retain_mut(|(key, value)| {
            let half = match (&**key, value.replace('_', "").parse::<u64>()) {
                ("link.lanes" | "medium.disks.rpm", Ok(number)) => Some((2 * number).to_string()),
                _ => scaled(value, 1, 2)
                    .filter(|_| plan::units::parse_span(value).is_ok())
                    .or_else(|| scaled(value, 2, 1)),
            };
            half.map(|half| *value = half).is_some()
        });
        sets
    }
}

/// Time within which a polled stage ends; `None` if a key sets the stage's cost.
fn bound(plan: &Plan, stage: &str) -> Option<f64> {
    let fastpath = plan.section().map_or(Span::ZERO, |fastpath: &plan::Fastpath| fastpath.poll);
    match stage {
        POLL => Some(2.0 * plan.host.poll.max(fastpath).0 as f64),
        PICKUP => Some(2.0 * (plan.link.latency.0 * 2 + plan.link.host_read.0) as f64),
        _ => None,
    }
}

/// Checks the law for every stage of a case; returns the stages that had time.
fn check(case: &Case, broken: &mut Vec<String>) -> BTreeSet<&'static str> {
    let plan = case.plan(&[]);
    let (base, row) = (case.run(&plan), case.row.of_plan(&plan));
    let named: f64 = base.stages.iter().sum();
    if (base.total - named).abs() > 1.0 {
        broken.push(format!("{}: stages name {named} of {} ps", case.name(), base.total));
    }
    let time = |stage: &str| row.stage(stage).map_or(0.0, |at| base.stages[at]);
    let active: BTreeSet<_> =
        row.stages.iter().copied().filter(|stage| time(stage) > 0.0).collect();
    let slack = case.slack / 1000.0 * base.total;
    for stage in active.iter().filter(|stage| keys_of(row, stage).is_none()) {
        if time(stage) > bound(&plan, stage).unwrap_or(slack) {
            broken.push(format!("{}: {stage} takes {} ps alone", case.name(), time(stage)));
        }
    }
    let sets: BTreeSet<_> = active.iter().filter_map(|stage| keys_of(row, stage)).collect();
    for keys in sets {
        let faster = case.halved(&plan, &keys);
        let halved = case.plan(&faster);
        let found = case.run(&halved);
        for stage in &active {
            let (before, after) = (time(stage), found.stages[row.stage(stage).expect("its own")]);
            let own = keys_of(row, stage).unwrap_or_default();
            let (least, most) = match (own.is_subset(&keys), own.is_disjoint(&keys)) {
                (_, true) => (before, before),
                (true, _) => (before / 2.0, before / 2.0),
                _ => (before / 2.0, before),
            };
            let (least, most) = match (bound(&halved, stage), *stage) {
                (Some(bound), _) => (0.0, bound),
                (None, MEDIA) => (least - time(TRANSFER), most + time(TRANSFER) / 2.0),
                _ => (least, most),
            };
            if !(least - slack..=most + slack).contains(&after) {
                let case = case.name();
                broken.push(format!("{case}: {stage} {before} ps, {after} with {faster:?}"));
            }
        }
    }
    active
}

const FILLED: (&str, &str) = ("medium.flash.start", "filled");

/// Flash whose blocks have been written, in a size that a test can have.
fn sets_of(plan: &Plan) -> &'static [(&'static str, &'static str)] {
    match (&plan.medium.flash, &*plan.name) {
        (None, "vortex") => &[("host.queues", "2"), ("host.queue_depth", "64")],
        (None, _) | (Some(_), "flash-bridge") => &[],
        (Some(_), name) if name == "tlc" || plan.drive.is_some() => &[
            FILLED,
            ("medium.flash.channels", "1"),
            ("medium.flash.blocks", "16"),
            ("medium.flash.word_lines", "8"),
            ("medium.flash.buffer", "2 MiB"),
        ],
        (Some(_), "flash-closer") => &[
            FILLED,
            ("medium.flash.channels", "4"),
            ("medium.flash.packages", "1"),
            ("medium.flash.blocks", "12"),
            ("medium.flash.word_lines", "2"),
            ("medium.flash.buffer", "512 KiB"),
        ],
        (Some(_), _) => &[FILLED],
    }
}

fn case(row: &'static Row, plan: &'static str, sets: &[(&str, &str)], rw: &str) -> Case {
    let kind = if rw.contains("read") { OpKind::Read } else { OpKind::Write };
    let sets = sets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    // The place of a disk's arm differs from run to run, and so does collection beside the command.
    let (number, slack) = match (plan, row.name) {
        ("vortex-disks", _) => (100, 100.0),
        (_, "host-gc") => (8, 30.0),
        _ => (8, 5.0),
    };
    let job = format!("[one]\nrw={rw}\nbs=4k\niodepth=1\nsize=1m\nnumber_ios={number}\n");
    Case { row, plan, sets, job, kind, slack }
}

/// Reads and writes by every interface on every plan.
fn built_in() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, _) in plan::built_in() {
        let plain = plan(name, &[]);
        for row in all().into_iter().filter(|row| (row.check)(&plain).is_ok()) {
            cases.extend(["randread", "randwrite"].map(|rw| case(row, name, sets_of(&plain), rw)));
        }
    }
    cases
}

/// Stages of parts that no built-in plan has, or that reads and writes of 4 KiB do not use.
fn further() -> Vec<Case> {
    let by = |name: &str, plan, sets: &[(&str, &str)], rw: &str, more: &str| {
        let mut case = case(named(name).expect("an interface"), plan, sets, rw);
        case.job += more;
        case
    };
    // The buffer is emptied while commands pass; members of an array have commands at the same time.
    let overlapping = |case| Case { slack: 25.0, ..case };
    let all = [("medium.keep", "everything")];
    let protected = [
        all[0],
        ("device.protection", "1"),
        ("host.protection", "host"),
        ("host.guard", "{ value = \"300 ns\", source = \"assumed\" }"),
    ];
    let mapped = [FILLED, ("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "64")];
    let through = [("medium.flash.cache", "through")];
    let processing = [
        FILLED,
        ("medium.flash.processing.lookup", "{ value = \"5 us\", source = \"assumed\" }"),
        ("medium.flash.processing.update", "{ value = \"4 us\", source = \"assumed\" }"),
        ("medium.flash.processing.split_lookup", "{ value = \"6 us\", source = \"assumed\" }"),
    ];
    let small = [("medium.flash.buffer", "256 KiB")];
    let apart = [
        FILLED,
        ("pages.cores", "1"),
        ("pages.costs.hand over", "{ value = \"200 ns\", source = \"assumed\" }"),
    ];
    let function = [all[0], ("fastpath.function", "crc32c")];
    let array = [
        ("host.memory", "64 MiB"),
        (
            "array",
            "{devices=4,layout=\"parity\",chunk=\"8 KiB\",lanes=16,\
        collections=\"free\",costs={parity={value=\"80 ns\",source=\"assumed\"}}}",
        ),
    ];
    vec![
        by("nvme", "gen4", &[], "randread", "bs=64k\n"),
        by("nvme", "gen4", &[], "randwrite", "bs=64k\n"),
        by("nvme", "gen4", &protected, "randread", ""),
        by("fastpath", "gen4", &function, "randread", ""),
        by("nvme", "small-flash", &through, "randwrite", ""),
        by("nvme", "small-flash", &processing, "randread", ""),
        by("nvme", "small-flash", &processing, "randread", "bs=16k\n"),
        by("nvme", "small-flash", &processing, "randwrite", ""),
        overlapping(by("nvme", "small-flash", &small, "write", "number_ios=400\n")),
        by("nvme", "small-flash", &mapped, "randread", ""),
        by("host-map", "small-flash", &mapped, "randread", "bs=16k\n"),
        by("host-flash", "small-flash", &apart, "randread", ""),
        overlapping(by("nvme", "small-flash", &array, "randwrite", "")),
    ]
}

#[test]
fn halving_a_stage_changes_latency_by_its_share() {
    let (mut seen, mut broken) = (BTreeSet::new(), Vec::new());
    for case in built_in().iter().chain(&further()) {
        seen.extend(check(case, &mut broken));
    }
    for row in all() {
        for stage in row.stages.iter().chain(row.array().map_or(&[][..], |array| array.stages)) {
            let has_key = keys_of(row, stage).is_some();
            let has_reason = NO_KEY.iter().any(|(stages, _)| stages.contains(stage));
            if has_key == (has_reason || [POLL, PICKUP].contains(stage)) {
                broken.push(format!("{} {stage}: keys, or a reason why there are none", row.name));
            }
            if has_key && !seen.contains(stage) {
                broken.push(format!("{} {stage}: no case has it", row.name));
            }
        }
    }
    assert!(broken.is_empty(), "{} of the law's cases: {broken:#?}", broken.len());
}
