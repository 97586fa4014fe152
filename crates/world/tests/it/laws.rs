//! Results known independently of the code: hand-computed schedules in whole picoseconds, conservation,
//! Little's law, and the queue with random arrivals and one deterministic server (M/D/1).

use host::BlockDevice;
use plan::Plan;
use runtime::{Entry, Log, Span};
use testing::{in_sim, only, plan, shares, simulate, simulate_by, simulate_with, whole_ps, work};
use wire::Lba;
use workload::job::Job;
use workload::pattern::{OpKind, Ops, Target};
use world::Options;
use world::interfaces::{BLOCK, DCX, FASTPATH, NVME, Row};

/// Time of a byte on Gen2 x4, ps: 5 GT/s, 8b/10b, four lanes.
const BYTE: u64 = 500;
/// Bytes of framing (STP, sequence, LCRC, END) and a header of four words, for an address above 4 GiB. `LOW`
/// has a header of three words, for registers below 4 GiB and for completions.
const HIGH: u64 = 8 + 16;
const LOW: u64 = 8 + 12;
/// The plan's one-way link latency, ps.
const LATENCY: u64 = 150_000;
/// The plan's time from a read request's arrival at the host to its first completion, ps.
const HOST_READ: u64 = 250_000;
/// A doorbell write of four bytes, ps.
const DOORBELL: u64 = (4 + LOW) * BYTE + LATENCY;
/// Fetch of an entry, ps: the request, host memory, one completion of 64 bytes.
const FETCH: u64 = HIGH * BYTE + LATENCY + HOST_READ + (64 + LOW) * BYTE + LATENCY;
// Two costs of the driver and two of the device, ps.
const SUBMIT: u64 = 50_000;
const COMPLETE: u64 = 50_000;
const PARSE: u64 = 128_000;
const POST: u64 = 32_000;
/// The completion entry of 16 bytes until it has arrived, ps.
const COMPLETION: u64 = (16 + HIGH) * BYTE + LATENCY;
const POLL: u64 = 20_000;
// The medium, ps: to a row's first byte, for each further row, and 512 bytes of a row at 2 GB/s.
const FIRST_BYTE: u64 = 110_000;
const NEXT_ROW: u64 = 36_857;
const ROW: u64 = 256_000;

/// Time from call to call at depth 1, ps: the parts, and the rest of the poll loop's turn in which the
/// completion arrives. The loop runs from one completion to the next, which takes the same time.
fn with_poll(parts: u64) -> u64 {
    parts + POLL - parts % POLL
}

/// Latency of each of 1000 equal commands, ps.
fn simulated(plan: &Plan, kind: &str, bytes: &str) -> u64 {
    let measured = |count| {
        let job = format!("[one]\nrw={kind}\nbs={bytes}\nsize=256m\nnumber_ios={count}\n");
        only(&simulate(plan, &work(&job))).measured.0
    };
    // The first command meets the poll loop at a different phase, so it is excluded.
    let thousand = measured(1100) - measured(100);
    assert_eq!(thousand % 1000, 0, "every {kind} of {bytes} takes as long as the other");
    thousand / 1000
}

#[test]
fn read_4k_latency_is_sum_of_parts() {
    let media = FIRST_BYTE + 7 * NEXT_ROW;
    // 32 packets of 128 bytes. The medium delivers its last byte 2.048 us after its first, which is earlier.
    let transfer = 32 * (128 + HIGH) * BYTE;
    assert_eq!(transfer, 2_432_000);
    let parts = SUBMIT + DOORBELL + FETCH + PARSE + media + transfer + POST + COMPLETION + COMPLETE;
    assert_eq!(with_poll(parts), 4_000_000);
    assert_eq!(simulated(&plan("dc-express", &[]), "randread", "4k"), with_poll(parts));
}

#[test]
fn read_512_latency_is_sum_of_parts() {
    // Four packets take longer than the 256 ns of the row.
    let transfer = 4 * (128 + HIGH) * BYTE;
    let parts =
        SUBMIT + DOORBELL + FETCH + PARSE + FIRST_BYTE + transfer + POST + COMPLETION + COMPLETE;
    assert_eq!(simulated(&plan("dc-express", &[]), "randread", "512"), with_poll(parts));
}

/// If the medium's stream is slower than the link, the transfer takes as long as the stream.
#[test]
fn read_from_slow_medium_is_limited_by_stream() {
    let slow = "{ value = \"1 GB/s\", source = \"assumed\" }";
    let plan = plan("dc-express", &[("medium.timing.bandwidth", slow)]);
    let (media, stream) = (FIRST_BYTE + 7 * NEXT_ROW, 8 * 2 * ROW);
    let parts = SUBMIT + DOORBELL + FETCH + PARSE + media + stream + POST + COMPLETION + COMPLETE;
    assert_eq!(simulated(&plan, "randread", "4k"), with_poll(parts));
}

#[test]
fn write_4k_latency_is_sum_of_parts() {
    // The first of eight read requests of 512 bytes; host memory; 64 completions of a cache line each.
    let data = HIGH * BYTE + LATENCY + HOST_READ + 64 * (64 + LOW) * BYTE + LATENCY;
    // Transfer over the channel into the row buffers, then 55 times the read time in eight banks in parallel.
    let media = 7 * NEXT_ROW + 8 * ROW + 55 * FIRST_BYTE;
    let parts = SUBMIT + DOORBELL + FETCH + PARSE + data + media + POST + COMPLETION + COMPLETE;
    assert_eq!(simulated(&plan("dc-express", &[]), "randwrite", "4k"), with_poll(parts));
}

/// Each stage has its computed time and no time is unexplained. Stages are never negative, so an equal mean
/// implies equality for each command.
#[test]
fn read_stages_match_schedule_without_unexplained_time() {
    let plan = plan("dc-express", &[("host.poll", "{ value = \"0 ns\", source = \"assumed\" }")]);
    let job = "[one]\nrw=randread\nbs=4k\nsize=256m\nnumber_ios=500\n";
    let run_result = simulate(&plan, &work(job));
    let shares = shares(only(&run_result), OpKind::Read);
    let found: Vec<_> = NVME
        .stages
        .iter()
        .copied()
        .zip(shares.stages_ps.iter().copied())
        .filter(|(_, ps)| *ps > 0.0)
        .collect();
    let expected = [
        ("submit", SUBMIT),
        ("doorbell", DOORBELL),
        ("fetch", FETCH),
        ("parse", PARSE),
        ("media", FIRST_BYTE + 7 * NEXT_ROW),
        ("data transfer", 2_432_000),
        ("post completion", POST),
        ("completion", COMPLETION),
        ("complete", COMPLETE),
    ];
    assert_eq!(found, expected.map(|(name, ps)| (name, ps as f64)));
    let sum = expected.iter().map(|(_, ps)| ps).sum::<u64>();
    assert_eq!(whole_ps(only(&run_result), OpKind::Read), Span(sum));
    assert_eq!(shares.unexplained_ps, 0.0);
}

#[test]
fn no_unexplained_time_under_contention() {
    let job = "[mixed]\nrw=randrw\nbssplit=4k/60:64k/30:256k/10\niodepth=64\nsize=64m\n\
        io_size=32m\nfsync=20\n[open]\nrw=randread\nbs=4k\nsize=64m\nrate_process=poisson\n\
        rate_iops=150000\niodepth=64\nnumber_ios=500\n";
    for name in ["dc-express", "dc-express-linux", "gen4"] {
        assert_no_unexplained_time(NVME, &plan(name, &[("device.processors", "1")]), job);
    }
    for writes in ["ordinary", "polled"] {
        let sets = [("device.processors", "1"), ("dcx.writes", writes), ("dcx.sleep_after", "3")];
        assert_no_unexplained_time(DCX, &plan("dc-express", &sets), job);
    }
    for (returned, engines, ahead) in [("whole", "1", "0"), ("each", "2", "16"), ("each", "1", "0")]
    {
        let returned =
            [("block.returned", returned), ("block.engines", engines), ("block.ahead", ahead)];
        assert_no_unexplained_time(BLOCK, &plan("descriptor-blocks", &returned), job);
    }
}

fn assert_no_unexplained_time(row: &'static Row, plan: &Plan, job: &str) {
    let run_result = simulate_by(row, plan, &work(job), Options::default());
    for (job, job_result) in &run_result.jobs {
        for (kind, breakdown) in &job_result.stats.breakdowns {
            let left = breakdown.mean().unexplained_ps;
            assert_eq!(left, 0.0, "{}, {}, {}, {kind:?}", row.name, plan.name, job.name);
        }
    }
}

/// Two reads at once. The fetcher brings one entry after the other. The first occupies its bank for access
/// and stream; the second waits if it is on the same bank.
#[test]
fn reads_of_same_bank_queue_and_of_two_banks_overlap() {
    let access = 2_000_000;
    let free = "{ value = \"0 ns\", source = \"assumed\" }";
    let slow = "{ value = \"2 us\", source = \"assumed\" }";
    let plan = plan("dc-express", &[("host.poll", free), ("medium.timing.first_byte", slow)]);
    let ends = |second: u64| {
        in_sim(NVME, &plan, Log::Off, async |rt, driver, _| {
            let disk = driver.disk(0);
            let begun = rt.now();
            let done = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            for lba in [0, second] {
                let (disk, rt, done) = (disk.clone(), rt.clone(), done.clone());
                rt.clone().spawn(async move {
                    let (_, result) = disk.read(Lba(lba), disk.buffer(512).unwrap()).await;
                    result.unwrap();
                    done.borrow_mut().push(rt.now().since(begun).0);
                });
            }
            rt.sleep(Span::us(100)).await;
            done.take()
        })
    };
    let transfer = 4 * (128 + HIGH) * BYTE;
    let after_access = transfer + POST + COMPLETION + COMPLETE;
    let first_begins = SUBMIT + DOORBELL + FETCH + PARSE;
    let second_there = first_begins + FETCH;
    let first_ends = first_begins + access + after_access;
    let bank_free = first_begins + access + ROW;
    assert!(second_there < bank_free, "the second read arrives during the first");
    assert_eq!(ends(0), [first_ends, bank_free + access + after_access]);
    assert_eq!(ends(1), [first_ends, second_there + access + after_access]);
}

/// Link busy time equals the bytes of all packets times the byte time.
#[test]
fn link_busy_time_matches_transferred_bytes() {
    // Gen2 x4, 128-byte payloads. Up: the fetch request, 32 data packets, the completion. Down: a doorbell
    // and the entry, and another doorbell for each quarter of the completion queue. Gen4 x4 has 256-byte
    // payloads, and rounds each transfer up.
    let gen4 = |bytes: u64| (bytes * 8125).div_ceil(64);
    let up = [HIGH, 32 * (128 + HIGH), 16 + HIGH];
    let up4 = [HIGH, 16 * (256 + HIGH), 16 + HIGH];
    let down = [4 + LOW, 64 + LOW];
    let gen2: fn(u64) -> u64 = |bytes| bytes * BYTE;
    let by =
        |time: fn(u64) -> u64, parts: &[u64]| parts.iter().map(|part| time(*part)).sum::<u64>();
    for (name, up, down, doorbell) in [
        ("dc-express", by(gen2, &up), by(gen2, &down), gen2(4 + LOW)),
        ("gen4", by(gen4, &up4), by(gen4, &down), gen4(4 + LOW)),
    ] {
        let plan = plan(name, &[("host.timeout", "3600 s")]);
        let busy = |count| {
            let job =
                format!("[one]\nrw=randread\nbs=4k\nsize=256m\nnumber_ios={count}\niodepth=1\n");
            let busy = simulate(&plan, &work(&job)).busy.expect("a simulated run");
            (busy.up.0, busy.down.0)
        };
        let (more, less) = (busy(128 + 1024), busy(128));
        let quarter = u64::from((plan.host.queue_depth + 1).max(64) / 4);
        assert_eq!(more.0 - less.0, 1024 * up, "{name}, to the host");
        let down = 1024 * down + 1024 / quarter * doorbell;
        assert_eq!(more.1 - less.1, down, "{name}, to the device");
    }
}

/// Sum of the times of `count` writes in the device, ps, from the event log: a write enters at its fetch and
/// leaves when its completion arrives in memory. A write has no other arrivals in memory.
fn time_in_device(entries: &[Entry], count: usize) -> u64 {
    let (mut inside, mut since, mut sum, mut ended) = (0_u64, 0, 0, 0);
    for entry in entries {
        let enters = entry.what == "fetched" && entry.a > 0;
        let leaves = entry.what == "memory" && inside > 0;
        if enters || leaves {
            sum += inside * (entry.at.0 - since);
            since = entry.at.0;
            inside = if enters { inside + 1 } else { inside - 1 };
            ended += usize::from(leaves);
        }
    }
    assert_eq!((inside, ended), (0, count), "all fetched commands have completed");
    sum
}

/// Stages before a command has been fetched and after its completion has arrived.
const OUTSIDE: [&str; 7] =
    ["queueing delay", "slot wait", "core wait", "submit", "doorbell", "fetch", "complete"];

/// Little's law: the mean number in the device is the rate times the mean time in the device. The number is
/// counted from the event log; the times are from request traces.
#[test]
fn littles_law_holds_to_the_picosecond() {
    let free = ("host.poll", "{ value = \"0 ns\", source = \"assumed\" }");
    for (name, depth) in [("dc-express", 1), ("dc-express", 7), ("gen4", 32), ("gen4", 256)] {
        let log = Log::kept();
        let options = Options { log: log.clone(), ..Options::default() };
        let job = format!("[w]\nrw=randwrite\nbs=4k\nsize=64m\nnumber_ios=2000\niodepth={depth}\n");
        let run_result = simulate_with(&plan(name, &[free]), &work(&job), options);
        let job_result = only(&run_result);
        let shares = shares(job_result, OpKind::Write);
        let stages = NVME.stages.iter().zip(&shares.stages_ps);
        let inside: f64 =
            stages.filter(|(name, _)| !OUTSIDE.contains(name)).map(|(_, ps)| ps * 2000.0).sum();
        let counted = time_in_device(&log.entries(), 2000);
        assert!((inside - counted as f64).abs() < 1.0, "{name}, {depth}: {inside} {counted}");
        // A closed loop has `depth` commands in flight except at its end.
        let all = (shares.total_ps * 2000.0).round() as u64;
        assert_eq!(job_result.in_flight.0, all, "{name}, {depth}");
        let full = job_result.measured.0 * depth;
        let longest = (job_result.stats.write.total.max_ns() + 1) * 1000;
        assert!(all <= full && full - all <= depth * longest, "{name}, {depth}: {all} of {full}");
    }
}

/// Little's law for DC Express: the time in flight counted at submission equals the sum of latencies, and is
/// `depth` times the length of the run in a closed loop.
#[test]
fn littles_law_holds_for_dc_express() {
    for (depth, bytes) in [(1, "512"), (1, "4k"), (7, "4k"), (32, "512"), (64, "4k")] {
        for kind in [OpKind::Read, OpKind::Write] {
            let rw = if kind == OpKind::Read { "randread" } else { "randwrite" };
            let job =
                format!("[j]\nrw={rw}\nbs={bytes}\nsize=64m\nnumber_ios=2000\niodepth={depth}\n");
            let plan = plan("dc-express", &[("dcx.writes", "polled")]);
            let run_result = simulate_by(DCX, &plan, &work(&job), Options::default());
            let job_result = only(&run_result);
            let all = (shares(job_result, kind).total_ps * 2000.0).round() as u64;
            assert_eq!(job_result.in_flight.0, all, "{rw} {bytes}, {depth}");
            let full = job_result.measured.0 * depth;
            let longest = (job_result.stats.of(kind).total.max_ns() + 1) * 1000;
            assert!(all <= full && full - all <= depth * longest, "{rw} {bytes}, {depth}");
        }
    }
}

/// A plan with one bank that serves each request in [`SERVICE`], and almost no other costs.
fn one_server() -> Plan {
    let nothing = "{ value = \"0 ns\", source = \"assumed\" }";
    let sets = [
        ("link.generation", "gen5"),
        ("link.lanes", "32"),
        ("link.latency", nothing),
        ("link.host_read", nothing),
        ("link.device_read", nothing),
        ("host.poll", nothing),
        ("host.costs.submit", nothing),
        ("host.costs.complete", nothing),
        ("host.queue_depth", "1000"),
        ("host.memory", "256 MiB"),
        ("device.command_slots", "1024"),
        ("device.costs.parse", nothing),
        ("device.costs.post completion", nothing),
        ("medium.timing.banks", "1"),
        ("medium.timing.first_byte", "{ value = \"9744 ns\", source = \"assumed\" }"),
    ];
    plan("dc-express", &sets)
}

/// 9.744 us for the access plus 256 ns for the row's stream.
const SERVICE: Span = Span::us(10);

fn arrivals_at(percent: u64, count: u64) -> Job {
    let rate = percent * 1000;
    let job = format!(
        "[open]\nrw=randread\nbs=512\nsize=64m\nnorandommap=1\nrate_process=poisson\n\
         rate_iops={rate}\nnumber_ios={count}\niodepth=1000\n"
    );
    work(&job).jobs.remove(0)
}

/// Mean wait of these arrivals at one FIFO server, ps (Lindley's recursion).
fn lindley(job: &Job) -> f64 {
    let target = Target { capacity_bytes: 640 << 20, block_bytes: 512 };
    let ops = Ops::new(job, 0, 1, target).expect("a valid job");
    let (mut free_at, mut waits, mut count) = (Span::ZERO, 0_u128, 0_u32);
    for op in ops {
        let at = op.not_before.expect("an arrival of its own");
        waits += u128::from(free_at.saturating_sub(at).0);
        free_at = free_at.max(at) + SERVICE;
        count += 1;
    }
    waits as f64 / f64::from(count)
}

/// M/D/1 queue: the mean wait is `u s / 2 (1 - u)` for utilisation `u` and service time `s` (Pollaczek and
/// Khinchine). The recursion is compared with the law for many arrivals, and the simulation with the
/// recursion for the same arrivals.
#[test]
fn bank_wait_matches_pollaczek_khinchine() {
    let plan = one_server();
    for percent in [30, 60, 90] {
        let u = percent as f64 / 100.0;
        let law = u * SERVICE.0 as f64 / (2.0 * (1.0 - u));
        let many = lindley(&arrivals_at(percent, 1_500_000));
        assert!((many / law - 1.0).abs() < 0.03, "{percent} %: {many} ps, by the law {law}");

        let few = arrivals_at(percent, 5_000);
        let expected = lindley(&few);
        let mut work = work("[open]\nrw=read\n");
        work.jobs = vec![few];
        let run_result = simulate(&plan, &work);
        let shares = shares(only(&run_result), OpKind::Read);
        let stage = |name| NVME.stages.iter().position(|stage| *stage == name).expect("a stage");
        let waited =
            shares.stages_ps[stage("media wait")] + shares.stages_ps[stage("queueing delay")];
        println!(
            "{percent} %: {waited:.0} ps simulated, {expected:.0} its arrivals, {law:.0} the law"
        );
        assert!((waited / expected - 1.0).abs() < 0.005, "{percent} %: {waited}, not {expected}");
    }
}

/// FastPath passes no kernel and polls, so costs of the kernel, interrupts and context switches are not its
/// own on a plan that has them for others.
#[test]
fn fastpath_bypasses_the_kernel_of_its_plan() {
    let job = "[one]\nrw=randread\nbs=4k\nsize=64m\nnumber_ios=20\n";
    let mean = |name: &str, row: &'static Row| {
        shares(
            only(&simulate_by(row, &plan(name, &[]), &work(job), Options::default())),
            OpKind::Read,
        )
    };
    let (with, without) = (mean("fastpath-linux", FASTPATH), mean("fastpath", FASTPATH));
    assert_eq!(with.stages_ps, without.stages_ps);
    for name in ["fastpath-linux", "fastpath-x86"] {
        let found = mean(name, FASTPATH);
        for stage in ["call entry", "file layer", "cache sync", "interrupt", "context switch"] {
            assert_eq!(found.stages_ps[FASTPATH.stage(stage).unwrap()], 0.0, "{name}: {stage}");
        }
        assert!(found.total_ps < mean(name, NVME).total_ps, "{name}: the kernel costs more");
    }
}

/// Rates that sources of built-in plans state for their drives, in 10^6 bytes or in commands per second, and
/// those of deep runs.
#[test]
fn drives_have_the_rates_that_their_plans_state() {
    let (bytes, commands) = (128 << 10, 4096);
    for (name, rw, size, stated, within) in [
        ("fastpath", "read", bytes, 1000.0, 0.03),
        ("fastpath", "write", bytes, 800.0, 0.03),
        // N commands at K banks of equal load keep N / (N + K - 1) of them busy: 120 of 126.
        ("vortex", "randread", commands, 70_000.0, 0.08),
        // The nearest whole number of reads that a write takes.
        ("vortex", "randwrite", commands, 30_000.0, 0.2),
    ] {
        // Filling the queue takes part of the window: 120 of 24,000 commands.
        let (depth, count) = if size == bytes { (8, 600) } else { (120, 24_000) };
        let job = format!(
            "[one]\nrw={rw}\nbs={size}\niodepth={depth}\nsize=256m\nnumber_ios={count}\nramp_time=5ms\n"
        );
        let sets = [("host.costs.benchmark", "0 ns")];
        let run_result = simulate(&plan(name, &sets), &work(&job));
        let job_result = only(&run_result);
        let kind = if rw.ends_with("read") { OpKind::Read } else { OpKind::Write };
        let iops = job_result.stats.of(kind).iops(job_result.measured);
        let found = if size == bytes { iops * f64::from(bytes) / 1e6 } else { iops };
        assert!((found / stated - 1.0).abs() < within, "{name} {rw}: {found}, stated {stated}");
    }
}

/// Jobs whose blocks pass a function fail by nothing but the medium: reads that race with writes, blocks that
/// were never written, and a plan that keeps stamps by default.
#[test]
fn functions_accept_every_version_that_a_good_medium_returns() {
    let key = format!("aes-xts:{:064x}", 0x1234_5678_9abc_def0_u64);
    let racing = "[global]\nbs=4k\niodepth=8\nsize=64k\nnorandommap=1\nnumber_ios=400\nverify=crc32c\n\
                  [writes]\nrw=randwrite\n[reads]\nrw=randread\n";
    let checked = "[one]\nrw=randrw\nbs=4k\niodepth=4\nsize=256k\nnumber_ios=200\nverify=crc32c\n";
    for plan_name in ["fastpath", "gen4"] {
        for function in ["crc32c", &key] {
            let plan = plan(plan_name, &[("fastpath.function", function)]);
            for job in [racing, checked] {
                // Fails on any error of the job.
                simulate_by(FASTPATH, &plan, &work(job), Options::default());
            }
        }
    }
    let stamps = plan("gen4", &[("fastpath.function", "crc32c"), ("medium.keep", "stamps")]);
    let refused = (FASTPATH.check)(&stamps).expect_err("a function needs every byte").to_string();
    assert!(refused.contains("medium.keep: found \"stamps\""), "{refused}");
    assert!((NVME.check)(&stamps).is_ok(), "of FastPath only");
}
