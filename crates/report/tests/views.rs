//! Views of one result: the golden text of the details, fio's numbers, the summary's warnings.

use report::model::{Device, Document, Kind, Run, WarningKind, World};
use report::{Pool, RunContext, Style};
use runtime::Span;
use serde_json::json;
use workload::job::Job;
use workload::pattern::OpKind;
use workload::stats::{Breakdown, JobStats};
use workload::trace::Mapping;
use world::engine::JobResult;
use world::work::Work;
use world::{RunResult, ThreadUse, Warning};

fn stats() -> JobStats {
    let mut stats = JobStats::default();
    let mut breakdown = Breakdown::new(&["doorbell", "media"]);
    for k in 0..1_000 {
        let total = if k < 980 { Span::us(50) } else { Span::us(400) };
        stats.read.record_split(Span::ms(k), Span::ns(200), total, 4096);
        breakdown.record(total.0, [(0, Span::ns(150).0), (1, total.0 - Span::us(1).0)]);
        stats.depths.note(4);
        stats.submitted.note(1);
        stats.completed.note(1);
    }
    stats.breakdowns.insert(OpKind::Read, breakdown);
    for k in 0..10 {
        stats.write.record(Span::ms(k), Span::us(20 + k), 8192);
        stats.flush.record(Span::ms(k), Span::ms(1), 0);
    }
    stats.write.record_error();
    stats
}

fn reader() -> (Job, JobResult) {
    let options = vec![("rw".to_owned(), "randread".to_owned())];
    let job = Job { name: "reader".to_owned(), options, ..Job::default() };
    let result = JobResult {
        stats: stats(),
        measured: Span::s(1),
        elapsed: Span::ms(1_500),
        messages: vec!["reader: LBA 7: write failed".to_owned()],
        ..JobResult::default()
    };
    (job, result)
}

/// The run of these jobs, as if live.
fn run(plan: &str, sets: &[(&str, &str)], result: &RunResult) -> Run {
    run_in(World::Live, plan, sets, result)
}

fn run_in(world: World, plan: &str, sets: &[(&str, &str)], result: &RunResult) -> Run {
    let plan = plan::Plan::open(plan, sets).unwrap_or_else(|errors| panic!("{errors}"));
    let text = "[global]\nbs=4k\n[reader]\nrw=randread\n";
    let path = std::path::Path::new("a.fio");
    let mut work = Work::parse(path, text, Mapping::default()).unwrap_or_else(|e| panic!("{e}"));
    work.notes = vec!["a.fio:3: direct: there is no page cache".to_owned()];
    let context = RunContext {
        plan: &plan,
        work: &work,
        settings: &[],
        recordings: &[],
        interface: "nvme",
        world,
        device: Device::Thread,
        threads: 1,
        resets: 0,
        log: None,
        register_writes: 0,
    };
    context.with(result)
}

fn of(jobs: Vec<(Job, JobResult)>) -> RunResult {
    RunResult { jobs, ..RunResult::default() }
}

fn document(runs: Vec<Run>) -> Document {
    let empty = json!({
        "schema": report::model::SCHEMA,
        "schema_version": report::model::SCHEMA_VERSION,
        "program": { "name": "doorbell", "version": "0.1.0" },
        "command": { "name": "run", "arguments": ["a.fio"] },
        "unix_ms": 1_795_237_755_092_u64,
    });
    let document = report::from_json(&empty.to_string()).expect("no field more is needed");
    Document { runs, ..document }
}

#[test]
fn details_match_golden_file() {
    let page = report::details(&run("live", &[], &of(vec![reader()])));
    assert_eq!(page, include_str!("details.golden.txt"), "\n{page}");
}

#[test]
fn details_have_packets_of_both_directions_in_80_columns() {
    use report::model::{Direction, Link, Packets};
    let packets = |kind: &str, count, bytes, payload_bytes| Packets {
        kind: kind.to_owned(),
        count,
        bytes,
        payload_bytes,
    };
    let up = vec![
        packets("memory write", 33, 4_904, 4_112),
        packets("memory read request", 1, 24, 0),
        packets("DLLP", 4, 32, 0),
    ];
    let down = vec![packets("memory write", 1, 24, 4), packets("completion with data", 1, 84, 64)];
    let link = Link {
        of_ps: 4_000_000,
        up: Direction { busy_ps: 2_464_000, tlps: 34, packets: up },
        down: Direction { busy_ps: 54_000, tlps: 2, packets: down },
    };
    let page = report::details(&Run { link: Some(link), ..run("live", &[], &of(vec![])) });
    let table: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("link:")).collect();
    assert_eq!(
        table[..7],
        [
            "link: 61.60 % of the time up, 1.35 % down",
            "  packets                        up      MiB payload       down      MiB payload",
            "    memory write                 33    0.005   83.8%          1    0.000   16.7%",
            "    memory read request           1    0.000    0.0%          0    0.000       -",
            "    DLLP                          4    0.000    0.0%          0    0.000       -",
            "    completion with data          0    0.000       -          1    0.000   76.2%",
            "    all                          38    0.005   82.9%          2    0.000   63.0%",
        ]
    );
    assert!(table.iter().all(|line| line.len() <= 80));
}

#[test]
fn fio_object_has_the_numbers_of_fio() {
    let run = run("live", &[], &of(vec![reader()]));
    let json = report::to_fio(&document(Vec::new()), &run);
    assert_eq!(json["fio version"], "fio-3.33-doorbell-0.1.0");
    assert_eq!(json["time"], "Sat Nov 21 05:09:15 2026");
    assert_eq!(json["global options"]["bs"], "4k");
    let job = &json["jobs"][0];
    assert_eq!((&job["elapsed"], &job["error"]), (&json!(2), &json!(5)));
    assert_eq!(job["job options"]["rw"], "randread");
    let read = &job["read"];
    assert_eq!((&read["io_bytes"], &read["io_kbytes"]), (&json!(4_096_000), &json!(4_000)));
    assert_eq!((&read["bw_bytes"], &read["bw"]), (&json!(4_096_000), &json!(4_000)));
    assert_eq!((&read["iops"], &read["runtime"]), (&json!(1000.0), &json!(1000)));
    assert_eq!(read["slat_ns"]["mean"], 200.0);
    assert_eq!(read["clat_ns"]["min"], 49_800);
    assert_eq!(read["lat_ns"]["max"], 400_000);
    let median = read["clat_ns"]["percentile"]["50.000000"].as_u64().unwrap();
    assert!((49_800..49_850).contains(&median));
    assert!(read["lat_ns"]["percentile"].is_null(), "fio has them with lat_percentiles=1 alone");
    let (near, exact) = (&read["clat_ns"]["percentile"]["99.990000"], json!(399_800));
    assert_eq!(near, &exact, "never above the maximum");
    assert_eq!((&read["bw_samples"], &read["iops_min"]), (&json!(2), &json!(1000)));
    assert_eq!(read["bw_agg"], 100.0);
    // Of 1,010: 10 writes below 50 us, 980 reads of exactly 50, 20 reads of 400.
    let share = |label: &str| (job["latency_us"][label].as_f64().unwrap() * 10.1).round();
    assert_eq!((share("50"), share("100"), share("500")), (10.0, 980.0, 20.0));
    assert_eq!(job["sync"]["total_ios"], 10);
    assert_eq!(job["iodepth_level"]["4"], 100.0);
    assert_eq!(job["trim"]["total_ios"], 0);
}

#[test]
fn fio_groups_begin_with_stonewall_and_new_group() {
    let job = |wait_for_previous, new_group| {
        let (job, result) = reader();
        (Job { wait_for_previous, new_group, ..job }, result)
    };
    let jobs = vec![job(true, false), job(false, false), job(true, false), job(false, true)];
    let run = run("live", &[], &of(jobs));
    let groups: Vec<_> = run.jobs.iter().map(|job| job.group).collect();
    assert_eq!(groups, [0, 0, 1, 2]);
    let json = report::to_fio(&document(Vec::new()), &run);
    assert_eq!(json["jobs"][1]["read"]["bw_agg"], 50.0, "half of its group");
}

#[test]
fn breakdown_has_shares_at_quantiles() {
    let run = run("live", &[], &of(vec![reader()]));
    let operations = &run.jobs[0].operations;
    assert_eq!((operations[&Kind::Write].errors, run.jobs[0].errors), (1, 1));
    let breakdown = operations[&Kind::Read].breakdown.as_ref().expect("traced");
    assert_eq!(breakdown.stages, ["doorbell", "media"]);
    let tail = breakdown.at.iter().find(|around| around.quantile == 0.99).expect("p99");
    assert_eq!((tail.count, tail.shares.stages_ns[1]), (20, 399_000.0));
    assert_eq!(tail.shares.unexplained_ns, 850.0);
}

#[test]
fn job_without_operations_is_reported() {
    let run = run("live", &[], &of(vec![(Job::default(), JobResult::default())]));
    assert!(report::details(&run).ends_with(": group 0, measured 0ps, errors 0\n"));
    assert_eq!(report::to_fio(&document(Vec::new()), &run)["jobs"][0]["read"]["iops"], 0.0);
    assert!(report::summary::of_file(&[&run], Style::PLAIN).lines().count() >= 2);
}

/// A simulated run traces every command; a live one what the plan samples.
#[test]
fn number_of_traced_commands_is_that_of_the_world() {
    for (world, one_in) in [(World::Simulated, 1), (World::Live, 64)] {
        let sets = [("run.breakdown_sample", "64")];
        let run = run_in(world, "gen4", &sets, &of(vec![reader()]));
        let breakdowns: Vec<_> = run.jobs[0].operations.values().collect();
        let sampled = breakdowns.iter().filter_map(|one| one.breakdown.as_ref());
        assert!(sampled.clone().count() > 0);
        assert!(sampled.into_iter().all(|found| found.sampled_one_in == one_in), "{world:?}");
        let page = report::page::html(&document(vec![run]));
        assert_eq!(page.contains("1 command in 64 was traced"), one_in == 64, "{world:?}");
    }
}

/// The warnings that a run has, by kind.
fn warnings(run: &Run) -> Vec<WarningKind> {
    run.warnings.iter().map(|warning| warning.kind).collect()
}

#[test]
fn warnings_of_a_run_have_their_kind_and_text() {
    let found = ThreadUse {
        elapsed: Span::ms(1_000),
        cpu: None,
        waited: Some(Span::ms(800)),
        switches: Some(3),
    };
    let warned = vec![
        Warning::Disturbed { thread: "host", found },
        Warning::FreshFlash { written_per_mille: 250 },
        Warning::UnwrittenReads { blank_units: 7, read_units: 9 },
        Warning::UntypicalBreakdown {
            job: "reader".to_owned(),
            kind: OpKind::Read,
            one_in: 64,
            traced: Span::us(21),
            all: Span::us(57),
        },
    ];
    let run = run("live", &[], &RunResult { warnings: warned, ..of(vec![reader()]) });
    let expected = [
        WarningKind::Errors,
        WarningKind::DisturbedCores,
        WarningKind::FreshFlash,
        WarningKind::UnwrittenReads,
        WarningKind::SampledBreakdown,
    ];
    assert_eq!(warnings(&run), expected);
    let summary = report::summary::of_file(&[&run], Style::PLAIN);
    assert!(summary.contains("error: 1 errors: reader: LBA 7: write failed"), "{summary}");
    assert!(summary.contains("the host thread lost its core for 80.0 %"), "{summary}");
    assert!(run.warnings[3].text.contains("7 of 9 units"), "{:?}", run.warnings);
}

/// Jobs that ran at once share their time; after one another, times add up.
#[test]
fn pooled_rates_are_over_the_time_of_all_jobs() {
    let (job, result) = reader();
    let again = || {
        (job.clone(), JobResult { stats: stats(), measured: Span::s(1), ..JobResult::default() })
    };
    let at_once =
        Pool::of(&run("live", &[], &of(vec![(job.clone(), result), again()])), Kind::Read);
    assert_eq!((at_once.count, at_once.iops()), (2_000, 2_000.0));
    assert_eq!((at_once.traced, at_once.stage_ns("media")), (2_000, Some(56_000.0)));
    assert_eq!((at_once.latency.at(0.5), at_once.latency.mean_ns), (50_015, 57_000.0));
    let after = Job { wait_for_previous: true, ..job.clone() };
    let jobs = vec![again(), (after, again().1)];
    let in_turn = Pool::of(&run("live", &[], &of(jobs)), Kind::Read);
    assert_eq!((in_turn.count, in_turn.iops()), (2_000, 1_000.0));
}

#[test]
fn colour_is_of_a_terminal_alone() {
    let run = run("live", &[], &of(vec![reader()]));
    let plain = report::summary::of_file(&[&run], Style::PLAIN);
    let colour = report::summary::of_file(&[&run], Style::COLOUR);
    assert!(!plain.contains('\u{1b}') && colour.contains("\u{1b}[31merror"), "{colour:?}");
    let codes = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[31m", "\u{1b}[33m"];
    let stripped = codes.iter().fold(colour, |text, code| text.replace(code, ""));
    assert_eq!(stripped, plain);
}

#[test]
fn written_document_is_read_back() {
    let document = document(vec![run("live", &[], &of(vec![reader()]))]);
    let text = report::to_json(&document);
    assert_eq!(report::from_json(&text).expect("what was written"), document);
    // A bin is on a line of its own.
    assert!(text.lines().any(|line| line.trim() == "[50015, 980],"), "{text}");
}
