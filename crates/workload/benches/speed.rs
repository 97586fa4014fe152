//! Benchmarks of the parts in the I/O path: `cargo bench -p doorbell-workload`. `cargo test` runs a
//! short pass of each, so that they keep working. The hash keeps the work from being optimised away
//! and shows that two runs did the same work.

use std::hint::black_box;
use std::time::Instant;

use runtime::{Rng, Span};
use workload::job::parse;
use workload::stats::{Breakdown, Recorder};
use workload::verify::{Ledger, Stamps};
use workload::{Ops, Target};

fn main() {
    // cargo bench passes --bench, cargo test does not.
    let large = std::env::args().any(|arg| arg == "--bench");
    let scale = if large { 1_000 } else { 1 };
    fill_and_check(40 * scale);
    record(10_000 * scale);
    ledger(1_000 * scale);
    operations("randread", 10_000 * scale);
    operations("randrw", 10_000 * scale);
}

fn report(name: &str, unit: &str, count: u64, started: Instant, hash: u64) {
    let ns = started.elapsed().as_nanos() as f64;
    let each = ns / count as f64;
    println!("{name:<28} {each:>9.3} ns a {unit}, {:>9.3} a us, hash {hash:016x}", 1e3 / each);
}

fn fill_and_check(rounds: u64) {
    let stamps = Stamps::new(1);
    let mut ledger = Ledger::new(1 << 20);
    for block_bytes in [512, 4096] {
        let mut buffer = vec![0; 128 << 10];
        let blocks = buffer.len() as u32 / block_bytes;
        let bytes = rounds * buffer.len() as u64;
        let started = Instant::now();
        for version in 1..=rounds {
            stamps.fill(black_box(&mut buffer), 77, block_bytes, version as u32);
        }
        let hash = buffer.iter().fold(0_u64, |hash, &byte| hash.rotate_left(5) ^ u64::from(byte));
        report(&format!("fill {block_bytes}"), "byte", bytes, started, hash);
        let write = ledger.start_write(77, blocks);
        stamps.fill(&mut buffer, 77, block_bytes, write.version);
        ledger.finish_write(write, false);
        let mut read = ledger.start_read(77, blocks);
        let started = Instant::now();
        for _ in 0..rounds {
            ledger.start_read_again(&mut read, 77, blocks);
            ledger.check_read(&read, &stamps, black_box(&buffer), block_bytes, false).unwrap();
        }
        report(&format!("check {block_bytes}"), "byte", bytes, started, hash);
    }
}

fn record(count: u64) {
    let mut rng = Rng::new(1);
    let spans: Vec<Span> = (0..4096).map(|_| rng.exponential(Span::us(80))).collect();
    let mut recorder = Recorder::new();
    let started = Instant::now();
    for at in 0..count {
        recorder.record(Span::us(at), spans[at as usize % 4096], 4096);
    }
    report("record a latency", "op", count, started, recorder.total.percentile_ns(99_000));
    let names = ["stage"; 24];
    for stages in [8, 24] {
        let mut breakdown = Breakdown::new(&names[..stages]);
        let parts = [1_000_000; 24];
        let started = Instant::now();
        for at in 0..count {
            let parts = black_box(&parts[..stages]).iter().copied().enumerate();
            breakdown.record(spans[at as usize % 4096].0, parts);
        }
        let hash = breakdown.mean().total_ps as u64;
        report(&format!("break down {stages} stages"), "op", count, started, hash);
    }
}

fn ledger(count: u64) {
    let mut ledger = Ledger::new(1 << 30);
    let mut rng = Rng::new(1);
    let mut hash = 0;
    let started = Instant::now();
    for _ in 0..count {
        let write = ledger.start_write(rng.below(1 << 20), 1);
        hash ^= u64::from(write.version);
        ledger.finish_write(write, false);
    }
    report("ledger, write of a block", "op", count, started, hash);
}

fn operations(rw: &str, count: u64) {
    let job = format!("[j]\nrw={rw}\nbs=4k\ntime_based\nruntime=1\n");
    let job = parse("speed", &job).unwrap().jobs.remove(0);
    let target = Target { capacity_bytes: 1 << 40, block_bytes: 4096 };
    let ops = Ops::new(&job, 0, 1, target).unwrap();
    let started = Instant::now();
    let take = usize::try_from(count).unwrap();
    let hash = ops.take(take).fold(0_u64, |hash, op| hash.rotate_left(7) ^ op.offset_bytes);
    report(&format!("operations of {rw}"), "op", count, started, hash);
}
