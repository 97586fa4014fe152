//! Timelines of sampled operations: the spans of each are contiguous, and add up to the breakdown.

use std::collections::BTreeMap;

use runtime::{Log, Span, Time, TraceSpan};
use testing::{only, plan, root, simulate_by, simulate_with, turn, work};
use workload::pattern::{Op, OpKind};
use world::interfaces::{
    BLOCK, DCX, FASTPATH, HOST_FLASH, HOST_GC, HOST_MAP, Lane, NVME, NVME_ARRAY, Row, SCSI,
    StageLane,
};
use world::timeline::{Ended, Path, SampledRequest, Sampler, Timeline, UNEXPLAINED};
use world::{self, Options};

/// Reads, writes and flushes of up to several commands each, with arrivals that may come late.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:64k/30:256k/10\niodepth=8\nsize=4m\nio_size=64m\n\
    norandommap=1\nnumber_ios=300\nfsync=20\n[open]\nrw=randread\nbs=4k\nsize=4m\nrate_process=poisson\n\
    rate_iops=150000\niodepth=8\nnumber_ios=100\nramp_time=100us\n";
const SMALL: [(&str, &str); 2] = [("host.memory", "128 MiB"), ("host.queues", "2")];

fn with_timeline(most: u32) -> Options {
    Options { timeline: Some(most), ..Options::default() }
}

#[track_caller]
fn assert_contiguous(request: &SampledRequest) {
    let mut at = request.begun;
    for span in &request.spans {
        assert_eq!(span.from, at, "{request:?}");
        assert!(span.to > span.from, "{request:?}");
        at = span.to;
    }
    assert_eq!(at, request.ended, "{request:?}");
}

/// Picoseconds of each stage of the requests that make the latencies.
fn sums(timeline: &Timeline, job: &str, kind: OpKind) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    let of = |request: &&SampledRequest| {
        request.is_longest && request.job == job && request.kind == kind
    };
    for span in timeline.requests.iter().filter(of).flat_map(|request| &request.spans) {
        *sums.entry(span.stage).or_default() += span.to.since(span.from).0;
    }
    sums
}

/// Runs [`MIXED`] with every operation in the timeline, and compares its sums with the breakdown.
fn assert_adds_up(row: &'static Row, name: &str, sets: &[(&str, &str)]) {
    let plan = plan(name, &[&SMALL[..], sets].concat());
    let run_result = simulate_by(row, &plan, &work(MIXED), with_timeline(100_000));
    let timeline = run_result.timeline.as_ref().expect("a timeline");
    timeline.requests.iter().for_each(assert_contiguous);
    let mut compared = 0;
    for (job, job_result) in &run_result.jobs {
        for (kind, breakdown) in &job_result.stats.breakdowns {
            let (shares, found) = (breakdown.mean(), sums(timeline, &job.name, *kind));
            let sum = |mean: f64| (mean * shares.count as f64).round() as u64;
            let stages =
                row.stages.iter().zip(&shares.stages_ps).map(|(stage, ps)| (*stage, sum(*ps)));
            let unexplained = (UNEXPLAINED, sum(shares.unexplained_ps));
            let expected: BTreeMap<_, _> =
                stages.chain([unexplained]).filter(|(_, ps)| *ps > 0).collect();
            assert_eq!(found, expected, "{}, {name} {sets:?}, {}, {kind:?}", row.name, job.name);
            assert_eq!(shares.unexplained_ps, 0.0, "{}, {name} {sets:?}, {}", row.name, job.name);
            compared += shares.count;
        }
    }
    // Some flushes of flash run no command.
    assert!(compared >= 380, "{}, {name} {sets:?}: {compared} operations", row.name);
}

#[test]
fn spans_add_up_to_breakdown_nvme() {
    assert_adds_up(NVME, "dc-express", &[]);
    assert_adds_up(NVME, "dc-express", &[("host.queue_depth", "4"), ("device.processors", "1")]);
    assert_adds_up(NVME, "dc-express-linux", &[]);
    assert_adds_up(NVME, "gen4", &[("device.mdts", "16 KiB")]);
    assert_adds_up(NVME, "small-flash", &[]);
    assert_adds_up(HOST_GC, "flash-closer", &[]);
    let cached = [("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "64")];
    assert_adds_up(HOST_MAP, "small-flash", &cached);
    assert_adds_up(SCSI, "gen4", &[]);
}

#[test]
fn spans_add_up_to_breakdown_other_interfaces() {
    for writes in ["ordinary", "polled"] {
        assert_adds_up(DCX, "dc-express", &[("dcx.writes", writes)]);
    }
    assert_adds_up(BLOCK, "descriptor-blocks", &[]);
    assert_adds_up(FASTPATH, "fastpath", &[]);
    assert_adds_up(HOST_FLASH, "small-flash", &[]);
    let array = "{ devices = 4, layout = \"parity\", chunk = \"8 KiB\", lanes = 4, collections = \"free\", \
        costs = { parity = \"30 ns\" } }";
    assert_adds_up(NVME_ARRAY, "gen4", &[("array", array)]);
}

/// The stages and their ends in the walk of ARCHITECTURE.md: nanoseconds since the call.
fn walk() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let (_, walk) = page.split_once("<!-- walk: dc-express -->").expect("the beginning");
    let (walk, _) = walk.split_once("<!-- end of walk -->").expect("the end");
    let line = |line: &str| {
        let (ns, rest) = line.trim().split_once(' ')?;
        let stage = rest.trim().strip_prefix("stage")?.trim().strip_suffix(" ends")?;
        Some((stage.to_owned(), ns.to_owned()))
    };
    walk.lines().filter_map(line).collect()
}

#[test]
fn timeline_of_one_read_is_the_walk_of_the_page() {
    let job = std::fs::read_to_string(root().join("jobs/one-read.fio")).expect("the job");
    let run_result = simulate_with(&plan("dc-express", &[]), &work(&job), with_timeline(8));
    let timeline = run_result.timeline.expect("a timeline");
    let [request] = &timeline.requests[..] else { panic!("one request: {timeline:?}") };
    let found = request.spans.iter().map(|span| {
        let ps = span.to.since(request.begun).0;
        (span.stage.to_owned(), format!("{}.{:03}", ps / 1000, ps % 1000))
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 10);
    assert_eq!(found, walk());
    let lanes: Vec<Lane> = request.spans.iter().map(|span| span.lane).collect();
    use Lane::{Device, Host, LinkDown, LinkUp, Medium};
    let expected = [Host, LinkDown, LinkDown, Device, Medium, LinkUp, Device, LinkUp, Host, Host];
    assert_eq!(lanes, expected);
    assert_eq!((request.kind, request.bytes, request.is_longest), (OpKind::Read, 4096, true));
}

#[test]
fn data_of_writes_go_down() {
    let job = work("[one]\nrw=write\nbs=4k\nsize=1m\nnumber_ios=4\n");
    let run_result = simulate_with(&plan("dc-express", &[]), &job, with_timeline(8));
    let timeline = run_result.timeline.expect("a timeline");
    let spans = timeline.requests.iter().flat_map(|request| &request.spans);
    let down: Vec<_> = spans
        .filter(|span| span.lane == Lane::LinkDown && span.stage != "doorbell")
        .map(|span| span.stage)
        .collect();
    assert!(down.contains(&"host read") || down.contains(&"data transfer"), "{down:?}");
    let mut all = timeline.requests.iter().flat_map(|request| &request.spans);
    assert!(all.all(|span| span.lane != Lane::LinkUp || span.stage == "completion"));
}

#[test]
fn timeline_changes_neither_event_log_nor_timing_and_repeats() {
    let plan = plan("gen4", &SMALL);
    let run = |timeline| {
        let log = Log::kept();
        let options = Options { timeline, log: log.clone(), ..Options::default() };
        let run_result = simulate_with(&plan, &work(MIXED), options);
        (log.entries(), run_result.timed_events, run_result.timeline)
    };
    let (without, once, again) = (run(None), run(Some(40)), run(Some(40)));
    assert!(without.2.is_none());
    assert!(without.0.len() > 500);
    assert!(without.0 == once.0, "the event log");
    assert_eq!(without.1, once.1);
    assert_eq!(once.2, again.2);
    let timeline = once.2.expect("a timeline");
    let mut operations: Vec<u64> =
        timeline.requests.iter().map(|request| request.operation).collect();
    operations.dedup();
    assert_eq!(operations.len(), 40);
}

#[test]
fn no_operation_of_the_ramp_is_sampled() {
    let job = work(
        "[reads]\nrw=randread\nbs=4k\nsize=1m\nruntime=200us\ntime_based=1\nramp_time=100us\n",
    );
    let run_result = simulate_with(&plan("dc-express", &[]), &job, with_timeline(1000));
    let timeline = run_result.timeline.as_ref().expect("a timeline");
    let count = only(&run_result).stats.read.total.count();
    assert_eq!(timeline.drawn_from, count);
    assert_eq!(timeline.requests.len() as u64, count);
}

#[test]
fn live_spans_are_contiguous_and_bounded() {
    let _turn = turn();
    let plan = plan("live", &[("host.memory", "64 MiB"), ("run.breakdown_sample", "4")]);
    let job = work(
        "[reads]\nrw=randread\nbssplit=4k/80:256k/20\niodepth=4\nsize=16m\nnumber_ios=4000\nnorandommap=1\n",
    );
    let run_result = world::live_in_threads(NVME, &plan, &job, with_timeline(64)).expect("a run");
    let timeline = run_result.timeline.expect("a timeline");
    timeline.requests.iter().for_each(assert_contiguous);
    let mut operations: Vec<u64> =
        timeline.requests.iter().map(|request| request.operation).collect();
    operations.dedup();
    assert_eq!(operations.len(), 64);
    assert!(timeline.drawn_from > 64);
    let lanes = |lane| {
        let mut spans = timeline.requests.iter().flat_map(|request| &request.spans);
        spans.any(|span| span.lane == lane)
    };
    assert!(lanes(Lane::Host) && lanes(Lane::LinkUp) && lanes(Lane::LinkDown));
}

const STAGES: [(&str, StageLane); 2] =
    [("queueing delay", StageLane::In(Lane::Host)), ("media", StageLane::In(Lane::Medium))];

fn op(number: u64) -> Op {
    let (kind, durability) = (OpKind::Read, Default::default());
    Op { kind, offset_bytes: 512 * number, bytes: 512, durability, not_before: None }
}

fn sample(seed: u64, operations: u64, most: u32) -> Timeline {
    let sampler = Sampler::new(STAGES.into(), seed, most);
    for number in 0..operations {
        let (begun, ended) = (Time(1000 * number), Time(1000 * number + 10));
        let spans = vec![TraceSpan { stage: Some(1), from: Time(begun.0 + 2), to: ended }];
        let path = Path { lba: number, spans, ended, is_complete: true, ..Path::default() };
        let of = Ended {
            op: &op(number),
            job: "reads",
            arrival: begun,
            late: Span::ZERO,
            arrival_stage: Some(0),
            ended,
            layers: &[],
            longest: 0,
        };
        sampler.note(&of, &[path]);
    }
    sampler.timeline()
}

#[test]
fn sample_is_bounded_repeats_and_has_the_first_operations() {
    let timeline = sample(1, 10_000, 64);
    assert_eq!((timeline.requests.len(), timeline.drawn_from), (64, 10_000));
    let lbas: Vec<u64> = timeline.requests.iter().map(|request| request.lba).collect();
    assert_eq!(lbas[..16], Vec::from_iter(0..16), "the first quarter");
    // Of a uniform sample of 48 from 10 000, fewer than 8 in either half has a probability below 1e-6.
    let early = lbas[16..].iter().filter(|lba| **lba < 5000).count();
    assert!((8..=40).contains(&early), "{early} of 48 in the first half");
    assert_eq!(timeline, sample(1, 10_000, 64));
    assert_ne!(timeline, sample(2, 10_000, 64));
}

#[test]
fn time_without_stage_is_unexplained() {
    let spans = &sample(1, 1, 8).requests[0].spans;
    let lengths = spans.iter().map(|span| (span.stage, span.to.since(span.from).0));
    assert_eq!(lengths.collect::<Vec<_>>(), [(UNEXPLAINED, 2), ("media", 8)]);
}
