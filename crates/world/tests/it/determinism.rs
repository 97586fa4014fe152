//! The same plan, work and seed give the same event log, byte for byte; correctness does not depend on the
//! order of ready tasks.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

use plan::Plan;
use runtime::Log;
use testing::{only, operations, plan, simulate_by, simulate_with, work};
use world::Options;
use world::interfaces::{BLOCK, DCX, FASTPATH, NVME, Row};

const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:256k/5\niodepth=32\n\
    size=4m\nio_size=6m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

/// Two clones with their own queues and cores, followed by another group.
const GROUPS: &str = "[global]\nbs=4k\nsize=1m\niodepth=8\n[a]\nrw=randwrite\nnumjobs=2\n\
    [b]\nstonewall\nrw=randread\nnumber_ios=200\nrate_process=poisson\nrate_iops=100000\n";

/// Few flow-control credits, and delays in the root complex with relaxed ordering.
const CROWDED: [(&str, &str); 3] = [
    (
        "link.credits",
        "{ posted_headers = { value = 4, source = \"assumed\" }, \
           posted_data = { value = 64, source = \"assumed\" }, \
           return_after = { value = \"200 ns\", source = \"assumed\" } }",
    ),
    (
        "link.held_up",
        "{ one_in = { value = 16, source = \"assumed\" }, \
           span = { value = \"2 us\", source = \"assumed\" } }",
    ),
    ("link.relaxed_ordering", "{ value = true, source = \"assumed\" }"),
];

type Named = (&'static str, Vec<(&'static str, &'static str)>);

fn plans() -> Vec<Named> {
    let processors = ("device.processors", "2");
    let batched = ("host.doorbell", "batched");
    vec![
        ("dc-express", vec![]),
        ("dc-express-linux", vec![processors]),
        ("dc-express", CROWDED.to_vec()),
        ("gen4", vec![]),
        ("gen4", vec![("host.completion", "interrupt"), batched, processors]),
    ]
}

/// One engine and several, small blocks and large.
fn fastpath_plans() -> Vec<Named> {
    let several =
        [("fastpath.engines", "4"), ("fastpath.block", "8 KiB"), ("host.queue_depth", "8")];
    vec![("fastpath", vec![("fastpath.block", "1 KiB")]), ("gen4", several.to_vec())]
}

/// Random and device tags, polled completions and interrupts, writes on both paths.
fn dcx_plans() -> Vec<Named> {
    let interrupts = [("host.completion", "interrupt"), ("device.processors", "2")];
    let own = [("dcx.writes", "polled"), ("dcx.sleep_after", "4"), ("medium.capacity", "64 MiB")];
    vec![
        ("dc-express", vec![]),
        ("dc-express", CROWDED.to_vec()),
        ("dc-express", [&interrupts[..], &own[..2]].concat()),
        ("live", own.to_vec()),
        ("live", [&CROWDED[..], &own[..]].concat()),
    ]
}

/// Every way of returning blocks, one engine and two, with and without look-ahead, every sizing policy.
fn block_plans() -> Vec<Named> {
    let apart = [("block.returned", "each"), ("block.engines", "2"), ("block.ahead", "16")];
    let subsets = [("block.returned", "subsets"), ("block.subset", "5"), ("block.ahead", "3")];
    let fixed =
        [("block.sizing", "static"), ("block.static_size", "4"), ("block.linger", "\"20 us\"")];
    vec![
        ("descriptor-blocks", vec![]),
        ("descriptor-blocks", [&apart[..], &[("block.sizing", "gathering")]].concat()),
        ("descriptor-blocks", [&subsets[..], &fixed[..]].concat()),
        ("live", vec![("medium.capacity", "64 MiB"), ("block.sizing", "gathering")]),
        ("gen4", [&apart[..], &[("host.completion", "interrupt")]].concat()),
    ]
}

/// As small as possible, because every run clears its memory.
const SMALL: [(&str, &str); 4] = [
    ("host.memory", "16 MiB"),
    ("host.queue_depth", "64"),
    ("host.queues", "2"),
    ("device.mdts", "64 KiB"),
];

fn seeded(name: &str, sets: &[(&str, &str)], seed: u64) -> Plan {
    let seed = seed.to_string();
    let sets: Vec<_> =
        SMALL.iter().chain(sets).copied().chain([("run.seed", seed.as_str())]).collect();
    plan(name, &sets)
}

/// The event log of a run as text, followed by the reported numbers.
fn log_of(row: &'static Row, plan: &Plan, job: &str, resets: u32) -> String {
    let text = Rc::new(RefCell::new(String::new()));
    let lines = text.clone();
    let log = Log::To(Rc::new(move |entry| {
        writeln!(lines.borrow_mut(), "{entry}").expect("writing to a string");
    }));
    let run_result =
        simulate_by(row, plan, &work(job), Options { log, resets, ..Options::default() });
    assert_eq!(run_result.resets, resets, "{}: resets under the work", row.name);
    let mut text = text.take();
    for (job, job_result) in &run_result.jobs {
        let (count, verified) = (operations(job_result), job_result.blocks_verified);
        let (elapsed, in_flight) = (job_result.elapsed.0, job_result.in_flight.0);
        writeln!(text, "{} {count} {verified} {elapsed} {in_flight}", job.name).expect("a string");
    }
    writeln!(text, "{:?}", run_result.timed_events).expect("a string");
    text
}

/// The first line in which two logs differ.
fn difference<'a>(a: &'a str, b: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let (mut a, mut b) = (a.lines(), b.lines());
    (1..).find_map(|line| match (a.next(), b.next()) {
        (None, None) => Some(None),
        (left, right) if left == right => None,
        (left, right) => Some(Some((line, left.unwrap_or(""), right.unwrap_or("")))),
    })?
}

#[test]
fn nvme_same_seed_gives_same_log() {
    repeats(NVME, plans());
}

#[test]
fn dcx_same_seed_gives_same_log() {
    repeats(DCX, dcx_plans());
}

#[test]
fn descriptor_blocks_same_seed_gives_same_log() {
    repeats(BLOCK, block_plans());
}

#[test]
fn fastpath_same_seed_gives_same_log() {
    repeats(FASTPATH, fastpath_plans());
}

fn repeats(row: &'static Row, plans: Vec<Named>) {
    for (name, sets) in plans {
        for (job, resets) in [(MIXED, 1), (GROUPS, 0)] {
            let mut before: Option<String> = None;
            for seed in [1, 2] {
                let once = log_of(row, &seeded(name, &sets, seed), job, resets);
                let again = log_of(row, &seeded(name, &sets, seed), job, resets);
                assert!(once.lines().count() > 500, "{name} {sets:?}: the log is too short");
                assert_eq!(difference(&once, &again), None, "{name} {sets:?}, seed {seed}");
                if let Some(other) = before.replace(once) {
                    let found = difference(&other, before.as_deref().expect("just put there"));
                    assert!(
                        found.is_some(),
                        "{name} {sets:?}: seed {seed} gives the log of seed 1"
                    );
                }
            }
        }
    }
}

#[test]
fn nvme_reads_verify_in_any_task_order() {
    right_in_any_order(NVME, plans());
}

#[test]
fn dcx_reads_verify_in_any_task_order() {
    right_in_any_order(DCX, dcx_plans());
}

#[test]
fn descriptor_blocks_reads_verify_in_any_task_order() {
    right_in_any_order(BLOCK, block_plans());
}

fn right_in_any_order(row: &'static Row, plans: Vec<Named>) {
    // Not every plan shuffles: with one block in flight there may be only one ready task at a time.
    let mut shuffled = false;
    for (name, sets) in plans {
        let mut logs = Vec::new();
        for (shuffle, resets) in [(1, 0), (2, 0), (3, 2)] {
            let entries = Log::kept();
            let shuffle = Some(shuffle);
            let options = Options { shuffle, resets, log: entries.clone(), ..Options::default() };
            let run_result = simulate_by(row, &seeded(name, &sets, 1), &work(MIXED), options);
            assert!(only(&run_result).blocks_verified > 0, "{name}: nothing was verified");
            assert_eq!(run_result.resets, resets, "{name}");
            logs.push(entries.entries());
        }
        shuffled |= logs[0] != logs[1] || logs[1] != logs[2];
    }
    assert!(shuffled, "{}: nothing was shuffled", row.name);
}

#[test]
fn event_log_does_not_change_timing() {
    let plan = seeded("gen4", &[], 1);
    let silent = simulate_with(&plan, &work(MIXED), Options::default());
    let kept =
        simulate_with(&plan, &work(MIXED), Options { log: Log::kept(), ..Options::default() });
    assert_eq!(silent.timed_events, kept.timed_events);
    assert_eq!(only(&silent).in_flight, only(&kept).in_flight);
}

#[test]
fn fastpath_reads_verify_in_any_task_order() {
    right_in_any_order(FASTPATH, fastpath_plans());
}
