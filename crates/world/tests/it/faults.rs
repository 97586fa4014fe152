//! Fault injection in virtual time: each fault affects exactly the commands that it selects, the driver
//! recovers as in ARCHITECTURE.md, "Recovery", and the same seed gives the same log.

use plan::Plan;
use runtime::{Entry, Log, Span, Time};
use testing::{operations, plan, work};
use workload::pattern::OpKind;
use world::interfaces::{DCX, NVME, Row};
use world::{self, Options, RunResult};

/// Sequential reads at depth 1, each block once.
const READS: &str = "[reads]\nrw=read\nbs=4k\nsize=64k\n";
const WRITES: &str = "[writes]\nrw=write\nbs=4k\nsize=64k\nverify=crc32c\ndo_verify=1\n";
const MANY: &str = "[many]\nrw=randread\nbs=4k\nsize=2m\niodepth=8\nnumber_ios=400\n";

/// Plan dc-express with little memory, these faults and these settings.
fn faulty(faults: &str, sets: &[(&str, &str)]) -> Plan {
    let small = [
        ("host.memory", "16 MiB"),
        ("device.mdts", "64 KiB"),
        ("host.timeout", "1 ms"),
        ("faults", faults),
    ];
    plan("dc-express", &[&small[..], sets].concat())
}

/// Result and event log of a run.
struct Seen {
    run_result: RunResult,
    log: Vec<Entry>,
}

fn run_by(row: &'static Row, plan: &Plan, job: &str) -> Seen {
    let log = Log::kept();
    let options = Options { log: log.clone(), ..Options::default() };
    let run_result = world::simulate(row, plan, &work(job), options);
    Seen { run_result: run_result.unwrap_or_else(|error| panic!("{error}")), log: log.entries() }
}

fn run(faults: &str, job: &str) -> Seen {
    run_by(NVME, &faulty(faults, &[]), job)
}

impl Seen {
    fn injected(&self) -> u64 {
        let [(_, injected)] = &self.run_result.faults[..] else { panic!("one fault") };
        *injected
    }

    fn count(&self, component: &str, what: &str) -> usize {
        self.log.iter().filter(|entry| entry.component == component && entry.what == what).count()
    }

    fn errors(&self) -> u64 {
        self.run_result.jobs.iter().map(|(_, job_result)| job_result.errors()).sum()
    }

    fn messages(&self) -> Vec<&str> {
        let all = self.run_result.jobs.iter().flat_map(|(_, job_result)| &job_result.messages);
        all.map(String::as_str).collect()
    }

    fn operations(&self) -> u64 {
        self.run_result.jobs.iter().map(|(_, job_result)| operations(job_result)).sum()
    }

    /// Maximum and minimum latency, ns.
    fn latencies(&self, kind: OpKind) -> (u64, u64) {
        let total = &self.run_result.jobs[0].1.stats.of(kind).total;
        (total.max_ns(), total.min_ns())
    }

    /// Time of the first injection of the only fault.
    fn first(&self) -> Time {
        self.log.iter().find(|entry| entry.component == "fault").expect("a fault").at
    }
}

#[test]
fn fault_that_never_fires_changes_no_timing() {
    let plain = run_by(NVME, &faulty("[]", &[]), READS);
    let never = run(r#"[{ name = "x", what = "drop", nth = 1000 }]"#, READS);
    assert!(plain.run_result.faults.is_empty() && never.injected() == 0);
    assert_eq!(plain.run_result.timed_events, never.run_result.timed_events);
    assert_eq!(plain.log, never.log);
}

#[test]
fn delay_fault_affects_only_selected_lba() {
    let seen = run(
        r#"[{ name = "x", what = "delay", span = "50 us", first_lba = 40, last_lba = 40 }]"#,
        READS,
    );
    let plain = run("[]", READS);
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 16));
    // The longest of the plain run is its first, which meets the poll loop at another phase.
    let (_, shortest) = plain.latencies(OpKind::Read);
    assert_eq!(
        seen.latencies(OpKind::Read),
        (shortest + 50_000, shortest),
        "other latencies are unchanged"
    );
    let shares = testing::shares(&seen.run_result.jobs[0].1, OpKind::Read);
    let stage = NVME.stages.iter().position(|stage| *stage == "fault").expect("a stage");
    let mean = Span::us(50).0 as f64 / 16.0;
    assert_eq!(
        (shares.stages_ps[stage], shares.unexplained_ps),
        (mean, 0.0),
        "the delay is in the stage `fault`"
    );
}

#[test]
fn faults_select_by_opcode_queue_time_and_count() {
    let reads = |faults: &str| run(faults, MANY).injected();
    assert_eq!(reads(r#"[{ name = "x", what = "delay", span = "1 ns", command = "read" }]"#), 400);
    assert_eq!(reads(r#"[{ name = "x", what = "delay", span = "1 ns", command = 2 }]"#), 400);
    assert_eq!(reads(r#"[{ name = "x", what = "delay", span = "1 ns", command = "write" }]"#), 0);
    assert_eq!(reads(r#"[{ name = "x", what = "delay", span = "1 ns", queue = 2 }]"#), 0);
    assert_eq!(reads(r#"[{ name = "x", what = "delay", span = "1 ns", every = 50 }]"#), 8);
    assert_eq!(
        reads(r#"[{ name = "x", what = "delay", span = "1 ns", every = 50, times = 3 }]"#),
        3
    );
    let identify = r#"[{ name = "x", what = "delay", span = "1 ns", queue = 0, command = 6 }]"#;
    assert!(reads(identify) > 1, "the driver sends Identify");
    let window =
        r#"[{ name = "x", what = "delay", span = "1 ns", from = "100 us", until = "110 us" }]"#;
    let seen = run(window, MANY);
    let times = seen.log.iter().filter(|entry| entry.component == "fault").map(|entry| entry.at.0);
    let (from, until) = (Span::us(100).0, Span::us(110).0);
    let times: Vec<_> = times.collect();
    assert!(!times.is_empty() && times.iter().all(|at| (from..until).contains(at)), "{times:?}");
}

#[test]
fn hung_command_is_aborted_and_retried() {
    let seen = run(r#"[{ name = "x", what = "hang", nth = 5 }]"#, READS);
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 16));
    assert_eq!((seen.count("host", "timeout"), seen.count("host", "reset")), (1, 0));
}

#[test]
fn dropped_command_is_recovered_by_reset() {
    let seen = run(r#"[{ name = "x", what = "drop", nth = 5 }]"#, READS);
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 16));
    assert_eq!((seen.count("host", "timeout"), seen.count("host", "reset")), (1, 1));
    let (longest, _) = seen.latencies(OpKind::Read);
    assert!(Span::ns(longest) > Span::ms(2), "two time-outs of 1 ms, then the reset: {longest} ns");
}

#[test]
fn reorder_fault_delays_completion_behind_later_ones() {
    let fault = r#"[{ name = "x", what = "reorder", behind = 3, span = "1 ms", nth = 100 }]"#;
    let seen = run(fault, MANY);
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 400));
    let injected = seen.log.iter().position(|entry| entry.component == "fault").expect("a fault");
    let cid = seen.log[injected].b & 0xffff;
    let completed = |entry: &&Entry| entry.what == "completed" && entry.a == 1;
    let order: Vec<u64> =
        seen.log[injected..].iter().filter(completed).map(|entry| entry.b).collect();
    let place = order.iter().position(|other| *other == cid).expect("it completes");
    assert!(place >= 3, "{place} completions went before it");
    // Alone in its queue, it waits for the whole span.
    let fault = r#"[{ name = "x", what = "reorder", behind = 1, span = "70 us", nth = 3 }]"#;
    let (seen, plain) = (run(fault, READS), run("[]", READS));
    let (_, shortest) = plain.latencies(OpKind::Read);
    assert_eq!(seen.latencies(OpKind::Read), (shortest + 70_000, shortest));
}

#[test]
fn status_fault_reaches_caller_with_lba() {
    let fault = r#"[{ name = "x", what = "status", status = "Write Fault", command = "write",
        first_lba = 8, last_lba = 8, dnr = true }]"#;
    let seen = run(fault, "[writes]\nrw=write\nbs=4k\nsize=64k\n");
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 1, 15));
    let message = seen.messages().concat();
    assert!(message.contains("Write Fault") && message.contains("LBA 8"), "{message}");
    let numbers = r#"[{ name = "x", what = "status", status = { sct = 7, sc = 0xc1 }, nth = 2,
        dnr = true }]"#;
    let message = run(numbers, READS).messages().concat();
    assert!(message.contains("0x47c1") || message.contains("0x67c1"), "{message}");
}

#[test]
fn corrupt_data_faults_are_found_by_verification() {
    // Corrupted in transfer to the host, once: found by the verifying read.
    let read = r#"[{ name = "x", what = "corrupt-data", command = "read", nth = 1 }]"#;
    let seen = run(read, WRITES);
    assert_eq!((seen.injected(), seen.errors()), (1, 1), "{:?}", seen.messages());
    // Corrupted in transfer to the device: found by the read.
    let write =
        r#"[{ name = "x", what = "corrupt-data", command = 1, first_lba = 16, last_lba = 16 }]"#;
    let seen = run(write, WRITES);
    assert_eq!((seen.injected(), seen.errors()), (1, 1), "{:?}", seen.messages());
    // Corrupted on the medium after the write.
    let medium = r#"[{ name = "x", what = "corrupt-medium", command = "write", nth = 7 }]"#;
    let seen = run(medium, WRITES);
    assert_eq!((seen.injected(), seen.errors()), (1, 1), "{:?}", seen.messages());
    // Not found if the block is overwritten before it is read.
    let twice = "[a]\nrw=write\nbs=4k\nsize=64k\n[b]\nstonewall\nrw=write\nbs=4k\n\
        size=64k\nverify=crc32c\ndo_verify=1\n";
    let seen = run(medium, twice);
    assert_eq!((seen.injected(), seen.errors()), (1, 0), "{:?}", seen.messages());
}

#[test]
fn stuck_medium_resumes_after_span() {
    let fault = r#"[{ name = "x", what = "stuck-medium", span = "300 us", at = "60 us" }]"#;
    let seen = run(fault, MANY);
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 400));
    assert_eq!(seen.first(), Time::ZERO + Span::us(60));
    let (longest, _) = seen.latencies(OpKind::Read);
    assert!(Span::ns(longest) > Span::us(290), "{longest} ns");
}

#[test]
fn permanently_stuck_medium_fails_reads_without_hang() {
    let seen = run(r#"[{ name = "x", what = "stuck-medium", nth = 5, command = "read" }]"#, READS);
    assert_eq!(seen.injected(), 1);
    assert!(seen.errors() > 0 && seen.operations() == 4, "{:?}", seen.messages());
}

#[test]
fn ignored_flushes_complete_at_once() {
    const FLUSHES: &str = "[a]\nrw=write\nbs=4k\nsize=64k\nfsync=1\n";
    let flash = |faults: &str| {
        let plan = plan("small-flash", &[("faults", faults)]);
        let seen = run_by(NVME, &plan, FLUSHES);
        assert_eq!(seen.errors(), 0, "{:?}", seen.messages());
        (seen.latencies(OpKind::Flush).0, seen.count("fault", "ignore-flush"))
    };
    let (honest, _) = flash("[]");
    let (ignored, injected) = flash(r#"[{ name = "x", what = "ignore-flush" }]"#);
    assert_eq!(injected, 1, "for good");
    assert!(ignored * 10 < honest, "{ignored} ns, {honest} ns with programs of pages");
    let (short, injected) = flash(r#"[{ name = "x", what = "ignore-flush", span = "1 ns" }]"#);
    assert_eq!(injected, 1);
    assert!(short * 2 > honest, "{short} ns, {honest} ns without the fault");
}

#[test]
fn lost_interrupt_is_found_by_watchdog() {
    let fault = r#"[{ name = "x", what = "lost-interrupt", nth = 4 }]"#;
    let plan = faulty(fault, &[("host.completion", "interrupt")]);
    let seen = run_by(NVME, &plan, READS);
    assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 16));
    assert_eq!(seen.count("host", "lost-interrupt"), 1);
    assert_eq!((seen.count("host", "timeout"), seen.count("host", "reset")), (0, 0));
}

#[test]
fn link_down_ends_all_waits() {
    for fault in [
        r#"[{ name = "x", what = "link-down", at = "100 us" }]"#,
        r#"[{ name = "x", what = "link-down", nth = 100 }]"#,
    ] {
        let seen = run(fault, MANY);
        assert_eq!((seen.injected(), seen.count("bus", "link-down")), (1, 1), "{fault}");
        assert_eq!(seen.count("host", "gone"), 1, "{fault}");
        assert!(seen.errors() > 0 && seen.operations() < 400, "{fault}");
        assert!(
            seen.messages().iter().any(|message| message.contains("gone")),
            "{:?}",
            seen.messages()
        );
    }
}

#[test]
fn fatal_controller_status_causes_reset() {
    for fault in [
        r#"[{ name = "x", what = "fatal", at = "100 us" }]"#,
        r#"[{ name = "x", what = "fatal", nth = 100 }]"#,
    ] {
        let seen = run(fault, MANY);
        assert_eq!((seen.injected(), seen.errors(), seen.operations()), (1, 0, 400), "{fault}");
        assert_eq!(seen.count("host", "controller-failed"), 1, "{fault}");
        assert_eq!(seen.count("host", "reset"), 1, "{fault}");
    }
}

#[test]
fn faults_same_seed_gives_same_log() {
    let faults = r#"[{ name = "a", what = "delay", span = "3 us", one_in = 20 },
        { name = "b", what = "reorder", behind = 2, span = "10 us", one_in = 30 },
        { name = "c", what = "hang", one_in = 150 }]"#;
    let with = |seed| run_by(NVME, &faulty(faults, &[("run.seed", seed)]), MANY).log;
    assert_eq!(with("1"), with("1"));
    let injected = |log: Vec<Entry>| -> Vec<(Time, u64)> {
        log.iter().filter(|entry| entry.component == "fault").map(|e| (e.at, e.a)).collect()
    };
    assert_ne!(injected(with("1")), injected(with("2")));
}

#[test]
fn faults_apply_to_dcx() {
    let by_dcx = |faults: &str, sets: &[(&str, &str)]| run_by(DCX, &faulty(faults, sets), READS);
    let plain = by_dcx("[]", &[]);
    let usual = plain.latencies(OpKind::Read).1;
    let delayed = by_dcx(r#"[{ name = "x", what = "delay", span = "50 us", nth = 6 }]"#, &[]);
    assert_eq!((delayed.injected(), delayed.errors(), delayed.operations()), (1, 0, 16));
    assert!(delayed.latencies(OpKind::Read).0 >= usual + 50_000);
    let failed = by_dcx(
        r#"[{ name = "x", what = "status", status = "Unrecovered Read Error", first_lba = 8,
            last_lba = 8 }]"#,
        &[],
    );
    assert!(failed.injected() > 0 && failed.errors() == 1, "{:?}", failed.messages());
    let lost = by_dcx(r#"[{ name = "x", what = "drop", nth = 6 }]"#, &[]);
    assert_eq!((lost.injected(), lost.errors(), lost.operations()), (1, 0, 16), "tried again");
    let dead = by_dcx(r#"[{ name = "x", what = "link-down", nth = 6 }]"#, &[]);
    assert!(dead.injected() == 1 && dead.errors() > 0, "{:?}", dead.messages());
}

#[test]
fn faults_apply_to_live_devices() {
    let faults = r#"[{ name = "late", what = "delay", span = "20 us", every = 100 },
        { name = "lost", what = "drop", nth = 150 },
        { name = "stopped", what = "fatal", nth = 300 }]"#;
    let sets = [("faults", faults), ("medium.capacity", "16 MiB"), ("host.timeout", "20 ms")];
    let plan = plan(
        "live",
        &[&sets[..], &[("host.memory", "16 MiB"), ("host.queue_depth", "32")]].concat(),
    );
    for run in [world::live_in_one_thread, world::live_in_threads] {
        let run_result = run(NVME, &plan, &work(MANY), Options::default());
        let run_result = testing::clean(run_result.unwrap_or_else(|error| panic!("{error}")));
        assert_eq!(operations(testing::only(&run_result)), 400);
        let injected: Vec<u64> = run_result.faults.iter().map(|(_, injected)| *injected).collect();
        assert!(injected[0] >= 4 && injected[1..] == [1, 1], "{:?}", run_result.faults);
    }
}

/// Reads of a small flash drive, each block once.
const OF_FLASH: &str = "[reads]\nrw=randread\nbs=4k\nsize=1m\niodepth=4\n";

fn faulty_die(faults: &str) -> Plan {
    plan("small-flash", &[("medium.flash.start", "filled"), ("faults", faults)])
}

#[test]
fn slow_or_stuck_die_delays_its_reads() {
    let well = run_by(NVME, &faulty_die("[]"), OF_FLASH);
    let (usual, shortest) = well.latencies(OpKind::Read);
    let fault = r#"[{ name = "x", what = "slow-die", die = 1, percent = 2000, at = "0 us" }]"#;
    let slow = run_by(NVME, &faulty_die(fault), OF_FLASH);
    let (longest, least) = slow.latencies(OpKind::Read);
    assert!(longest > 4 * usual && least <= shortest, "{longest} of {usual}, {least}");
    assert_eq!((slow.injected(), slow.errors()), (1, 0));
    let fault = r#"[{ name = "x", what = "stuck-die", die = 0, span = "7 ms", nth = 9 }]"#;
    let stuck = run_by(NVME, &faulty_die(fault), OF_FLASH);
    let (longest, _) = stuck.latencies(OpKind::Read);
    assert!((7_000_000..8_000_000).contains(&longest), "{longest}");
    assert_eq!(stuck.errors(), 0);
}

#[test]
fn unreadable_die_fails_its_reads_in_both_worlds() {
    let fault = r#"[{ name = "x", what = "unreadable-die", die = 1, at = "0 us" }]"#;
    let simulated = run_by(NVME, &faulty_die(fault), OF_FLASH);
    let live =
        world::live_in_threads(NVME, &faulty_die(fault), &work(OF_FLASH), Options::default());
    let live = live.unwrap_or_else(|error| panic!("{error}"));
    let failed = |run_result: &RunResult| run_result.jobs[0].1.errors();
    assert_eq!(failed(&simulated.run_result), failed(&live));
    // 256 reads of data written sequentially over two dies.
    assert!((64..=192).contains(&failed(&live)), "{}", failed(&live));
}

#[test]
fn fault_on_missing_die_is_rejected() {
    let refused = |plan: Plan| {
        let job_result = world::simulate(NVME, &plan, &work(OF_FLASH), Options::default());
        job_result.err().expect("a refusal").to_string()
    };
    let fault = r#"[{ name = "x", what = "stuck-die", die = 2 }]"#;
    let message = refused(faulty_die(fault));
    assert!(message.ends_with("faults.0.die: found 2, expected 0 to 1"), "{message}");
    let message = refused(faulty(fault, &[]));
    assert!(message.ends_with("expected a medium of flash: others have no dies"), "{message}");
}
