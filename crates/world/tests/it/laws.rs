//! Laws that hold whatever the code does: hand-computed schedules in whole picoseconds, conservation,
//! Little's law, and the queue with random arrivals and one deterministic server.

use host::BlockDevice;
use plan::Plan;
use runtime::{Entry, Log, Span};
use testing::{in_sim, only, plan, shares, simulate, simulate_by, simulate_with, whole_ps, work};
use wire::Lba;
use workload::job::Job;
use workload::pattern::{OpKind, Ops, Target};
use world::Options;
use world::interfaces::{BLOCK, DCX, Driver, Interface, NVME, Nvme, Row};

/// A byte on Gen2 x4: 5 GT/s, 8b/10b, four lanes.
const BYTE: u64 = 500;
/// Framing of a packet (STP, sequence, LCRC, END) behind a header of four words, for an address above
/// 4 GiB; of three below, where registers are; of three, for a completion.
const HIGH: u64 = 8 + 16;
const LOW: u64 = 8 + 12;
/// The plan's way from one end of the link to the other.
const LATENCY: u64 = 150_000;
/// The plan's time from a read request's arrival at the host to its first completion.
const HOST_READ: u64 = 250_000;
/// The doorbell, four bytes.
const DOORBELL: u64 = (4 + LOW) * BYTE + LATENCY;
/// The fetch of an entry: the request, host memory, one completion of 64 bytes.
const FETCH: u64 = HIGH * BYTE + LATENCY + HOST_READ + (64 + LOW) * BYTE + LATENCY;
/// The driver's two costs, and the device's two.
const SUBMIT: u64 = 50_000;
const COMPLETE: u64 = 50_000;
const PARSE: u64 = 298_000;
const POST: u64 = 32_000;
/// The completion's 16 bytes, until they have landed.
const COMPLETION: u64 = (16 + HIGH) * BYTE + LATENCY;
const POLL: u64 = 20_000;
/// The medium: to a row's first byte, for each further row, and a row's stream of 512 bytes at 2 GB/s.
const FIRST_BYTE: u64 = 110_000;
const NEXT_ROW: u64 = 36_857;
const ROW: u64 = 256_000;

/// From call to call at depth 1: the parts, and the rest of the turn in which the poll loop finds the
/// completion. It turns from one completion to the next, which is as long.
fn with_poll(parts: u64) -> u64 {
    parts + POLL - parts % POLL
}

/// The latency of each of a thousand commands, which are all alike.
fn simulated(plan: &Plan, kind: &str, bytes: &str) -> u64 {
    let measured = |count| {
        let job = format!("[one]\nrw={kind}\nbs={bytes}\nsize=256m\nnumber_ios={count}\n");
        only(&simulate(plan, &work(&job))).measured.0
    };
    // The first command finds a poll loop that has turned for another while.
    let thousand = measured(1100) - measured(100);
    assert_eq!(thousand % 1000, 0, "every {kind} of {bytes} takes as long as the other");
    thousand / 1000
}

#[test]
fn a_read_of_4_kib_takes_what_its_parts_take() {
    let media = FIRST_BYTE + 7 * NEXT_ROW;
    // 32 packets of 128 bytes. The medium's last byte is there 2.048 us after its first: sooner.
    let transfer = 32 * (128 + HIGH) * BYTE;
    assert_eq!(transfer, 2_432_000);
    let parts = SUBMIT + DOORBELL + FETCH + PARSE + media + transfer + POST + COMPLETION + COMPLETE;
    assert_eq!(with_poll(parts), 4_180_000);
    assert_eq!(simulated(&plan("dc-express", &[]), "randread", "4k"), with_poll(parts));
}

#[test]
fn a_read_of_512_bytes_takes_what_its_parts_take() {
    // Four packets take longer than the row's 256 ns.
    let transfer = 4 * (128 + HIGH) * BYTE;
    let parts =
        SUBMIT + DOORBELL + FETCH + PARSE + FIRST_BYTE + transfer + POST + COMPLETION + COMPLETE;
    assert_eq!(simulated(&plan("dc-express", &[]), "randread", "512"), with_poll(parts));
}

/// Where the medium's stream is slower than the link, the transfer is as long as the stream.
#[test]
fn a_read_from_a_slow_medium_ends_with_its_last_byte() {
    let slow = "{ value = \"1 GB/s\", source = \"assumed\" }";
    let plan = plan("dc-express", &[("medium.timing.bandwidth", slow)]);
    let (media, stream) = (FIRST_BYTE + 7 * NEXT_ROW, 8 * 2 * ROW);
    let parts = SUBMIT + DOORBELL + FETCH + PARSE + media + stream + POST + COMPLETION + COMPLETE;
    assert_eq!(simulated(&plan, "randread", "4k"), with_poll(parts));
}

#[test]
fn a_write_of_4_kib_takes_what_its_parts_take() {
    // The first of eight requests of 512 bytes; host memory; 64 completions of a cache line each.
    let data = HIGH * BYTE + LATENCY + HOST_READ + 64 * (64 + LOW) * BYTE + LATENCY;
    // Over the channel into the rows' buffers, then 55 times as long as a read in eight banks at once.
    let media = 7 * NEXT_ROW + 8 * ROW + 55 * FIRST_BYTE;
    let parts = SUBMIT + DOORBELL + FETCH + PARSE + data + media + POST + COMPLETION + COMPLETE;
    assert_eq!(simulated(&plan("dc-express", &[]), "randwrite", "4k"), with_poll(parts));
}

/// Stage by stage, and nothing left over. A stage takes no time back, so that what adds up in the mean
/// adds up for each.
#[test]
fn every_stage_of_a_read_is_known_and_nothing_is_left_over() {
    let plan = plan("dc-express", &[("host.poll", "{ value = \"0 ns\", source = \"assumed\" }")]);
    let job = "[one]\nrw=randread\nbs=4k\nsize=256m\nnumber_ios=500\n";
    let run_result = simulate(&plan, &work(job));
    let shares = shares(only(&run_result), OpKind::Read);
    let found: Vec<_> = Nvme::STAGES
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
fn nothing_is_left_over_where_requests_crowd() {
    let job = "[mixed]\nrw=randrw\nbssplit=4k/60:64k/30:256k/10\niodepth=64\nsize=64m\n\
        io_size=32m\nfsync=20\n[open]\nrw=randread\nbs=4k\nsize=64m\nrate_process=poisson\n\
        rate_iops=150000\niodepth=64\nnumber_ios=500\n";
    for name in ["dc-express", "dc-express-linux", "gen4"] {
        nothing_is_left_over(NVME, &plan(name, &[("device.processors", "1")]), job);
    }
    for writes in ["ordinary", "polled"] {
        let sets = [("device.processors", "1"), ("dcx.writes", writes), ("dcx.sleep_after", "3")];
        nothing_is_left_over(DCX, &plan("dc-express", &sets), job);
    }
    for (returned, engines, ahead) in [("whole", "1", "0"), ("each", "2", "16"), ("each", "1", "0")]
    {
        let returned =
            [("block.returned", returned), ("block.engines", engines), ("block.ahead", ahead)];
        nothing_is_left_over(BLOCK, &plan("descriptor-blocks", &returned), job);
    }
}

fn nothing_is_left_over(row: &'static Row, plan: &Plan, job: &str) {
    let run_result = simulate_by(row, plan, &work(job), Options::default());
    for (job, job_result) in &run_result.jobs {
        for (kind, breakdown) in &job_result.stats.breakdowns {
            let left = breakdown.mean().unexplained_ps;
            assert_eq!(left, 0.0, "{}, {}, {}, {kind:?}", row.name, plan.name, job.name);
        }
    }
}

/// Two reads of one block at once. The fetcher brings one entry after the other; the bank is taken by
/// the first for its access and its stream, and the second waits for it.
#[test]
fn two_reads_of_one_bank_queue_and_two_of_different_banks_do_not() {
    let access = 2_000_000;
    let free = "{ value = \"0 ns\", source = \"assumed\" }";
    let slow = "{ value = \"2 us\", source = \"assumed\" }";
    let plan = plan("dc-express", &[("host.poll", free), ("medium.timing.first_byte", slow)]);
    let ends = |second: u64| {
        in_sim::<Nvme, _>(&plan, Log::Off, async |rt, driver, _| {
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
    assert!(second_there < bank_free, "the second comes while the first is served");
    assert_eq!(ends(0), [first_ends, bank_free + access + after_access]);
    assert_eq!(ends(1), [first_ends, second_there + access + after_access]);
}

/// What a command puts on the wire, in bytes and byte times, is what the link was busy with.
#[test]
fn the_link_is_busy_for_its_bytes_and_no_longer() {
    // Gen2 x4, 128-byte payloads: the fetch's request, 32 data packets, the completion; and the other
    // way a doorbell and the entry; and for a quarter of the completion queue another doorbell. Gen4 x4
    // has payloads of 256 bytes, and rounds each transfer up.
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

/// The picoseconds that so many writes have been in the device, added up from the event log: one more
/// from each fetch on, one less when a completion lands. Nothing else of a write lands in memory.
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
    assert_eq!((inside, ended), (0, count), "what was fetched was completed");
    sum
}

/// The stages before a command has been fetched, and after its completion has landed.
const OUTSIDE: [&str; 7] =
    ["queueing delay", "slot wait", "core wait", "submit", "doorbell", "fetch", "complete"];

/// Little's law: the mean number inside is the rate times the mean time inside. The number is counted
/// from the event log, the times are the journeys'.
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
        let stages = Nvme::STAGES.iter().zip(&shares.stages_ps);
        let inside: f64 =
            stages.filter(|(name, _)| !OUTSIDE.contains(name)).map(|(_, ps)| ps * 2000.0).sum();
        let counted = time_in_device(&log.entries(), 2000);
        assert!((inside - counted as f64).abs() < 1.0, "{name}, {depth}: {inside} {counted}");
        // A closed loop has its depth in flight, but for the end, when there is nothing left to begin.
        let all = (shares.total_ps * 2000.0).round() as u64;
        assert_eq!(job_result.in_flight.0, all, "{name}, {depth}");
        let full = job_result.measured.0 * depth;
        let longest = (job_result.stats.write.total.max_ns() + 1) * 1000;
        assert!(all <= full && full - all <= depth * longest, "{name}, {depth}: {all} of {full}");
    }
}

/// And for DC Express: the time that operations were under way, counted by who submits them, is the sum
/// of their latencies, and with a closed loop of so many it is as many times the run's length.
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

/// One bank that serves each request in [`SERVICE`], and next to nothing else that takes time.
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

/// 9.744 us for the access, 256 ns for the row's stream.
const SERVICE: Span = Span::us(10);

fn arrivals_at(percent: u64, count: u64) -> Job {
    let rate = percent * 1000;
    let job = format!(
        "[open]\nrw=randread\nbs=512\nsize=64m\nnorandommap=1\nrate_process=poisson\n\
         rate_iops={rate}\nnumber_ios={count}\niodepth=1000\n"
    );
    work(&job).jobs.remove(0)
}

/// The mean wait of these arrivals for one server, first come, first served (Lindley's recursion).
fn lindley(job: &Job) -> f64 {
    let target = Target { capacity_bytes: 640 << 20, block_bytes: 512 };
    let ops = Ops::new(job, 0, 1, target).expect("a job of sense");
    let (mut free_at, mut waits, mut count) = (Span::ZERO, 0_u128, 0_u32);
    for op in ops {
        let at = op.not_before.expect("an arrival of its own");
        waits += u128::from(free_at.saturating_sub(at).0);
        free_at = free_at.max(at) + SERVICE;
        count += 1;
    }
    waits as f64 / f64::from(count)
}

/// Random arrivals, deterministic service, one server: the mean wait is `u s / 2 (1 - u)` for a
/// utilisation of `u` and a service of `s` (Pollaczek and Khinchine). What is simulated follows the
/// recursion for its very arrivals, and the recursion the law over many.
#[test]
fn waiting_for_one_bank_is_what_queueing_theory_says() {
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
        let stage = |name| Nvme::STAGES.iter().position(|stage| *stage == name).expect("a stage");
        let waited =
            shares.stages_ps[stage("media wait")] + shares.stages_ps[stage("queueing delay")];
        println!(
            "{percent} %: {waited:.0} ps simulated, {expected:.0} its arrivals, {law:.0} the law"
        );
        assert!((waited / expected - 1.0).abs() < 0.005, "{percent} %: {waited}, not {expected}");
    }
}
