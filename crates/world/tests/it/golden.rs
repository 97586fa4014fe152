//! Golden tables of latency and rate in virtual time, compared to the last digit, so that every change of the
//! model shows its effect.
//!
//! `DOORBELL_BLESS=1 cargo test -p doorbell-world --test it golden` rewrites the tables.

use std::fmt::Write;
use std::path::Path;

use testing::{only, plan, shares, simulate_by, work};
use workload::pattern::OpKind;
use world::Options;
use world::interfaces::{BLOCK, DCX, NVME, Row};

const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// A run has `EACH * depth + MORE` commands.
const EACH: u32 = 4;
const MORE: u32 = 60;

/// Links, as settings of base plans. The base plans differ in their medium: PCM, a notable part of the
/// latency, and DRAM, almost none.
const LINKS: [(&str, &Row, &str, &str, &str); 9] = [
    ("gen1-x1", NVME, "dc-express", "gen1", "1"),
    ("gen2-x4", NVME, "dc-express", "gen2", "4"),
    ("gen3-x4", NVME, "gen4", "gen3", "4"),
    ("gen4-x4", NVME, "gen4", "gen4", "4"),
    ("gen5-x4", NVME, "gen4", "gen5", "4"),
    ("dcx-gen2-x4", DCX, "dc-express", "gen2", "4"),
    ("dcx-gen4-x4", DCX, "dc-express", "gen4", "4"),
    ("block-gen2-x4", BLOCK, "descriptor-blocks", "gen2", "4"),
    ("block-gen4-x4", BLOCK, "gen4", "gen4", "4"),
];

/// One line: mean, p50 and p99 in ns, and IOPS, computed in integers.
fn line(row: &'static Row, plan: &plan::Plan, kind: OpKind, bytes: u32, depth: u32) -> String {
    let rw = if kind == OpKind::Read { "randread" } else { "randwrite" };
    let count = EACH * depth + MORE;
    let job = format!(
        "[{rw}]\nrw={rw}\nbs={bytes}\nsize=64m\niodepth={depth}\nnumber_ios={count}\nnorandommap=1\n"
    );
    let run_result = simulate_by(row, plan, &work(&job), Options::default());
    let job_result = only(&run_result);
    let latencies = &job_result.stats.of(kind).total;
    assert_eq!(latencies.count(), u64::from(count));
    // The sum in picoseconds is below 2^53, so the `f64` is exact.
    let sum = (shares(job_result, kind).total_ps * f64::from(count)).round() as u128;
    let mean = sum / u128::from(count);
    let (p50, p99) = (latencies.percentile_ns(50_000), latencies.percentile_ns(99_000));
    let iops = u128::from(count) * 1_000_000_000_000 / u128::from(job_result.measured.0);
    let (whole, rest) = (mean / 1000, mean % 1000);
    format!("{rw:<10} {bytes:>5} {depth:>5} {whole:>9}.{rest:03} {p50:>9} {p99:>9} {iops:>9}")
}

fn table(row: &'static Row, name: &str, base: &str, generation: &str, lanes: &str) -> String {
    let mut table = format!(
        "# {name}: the plan {base}, its link {generation} x{lanes}, blocks of 512 B. Latency in ns.\n\
         {:<10} {:>5} {:>5} {:>13} {:>9} {:>9} {:>9}\n",
        "rw", "bytes", "depth", "mean", "p50", "p99", "IOPS",
    );
    let sets = [
        ("link.generation", generation),
        ("link.lanes", lanes),
        ("medium.block", "512 B"),
        ("host.queue_depth", "128"),
        // As small as possible, because every run clears its memory.
        ("host.memory", "4 MiB"),
        ("device.mdts", "16 KiB"),
        ("host.queues", "1"),
    ];
    let plan = plan(base, &sets);
    for kind in [OpKind::Read, OpKind::Write] {
        for bytes in [512, 4096] {
            for depth in DEPTHS {
                writeln!(table, "{}", line(row, &plan, kind, bytes, depth)).expect("a string");
            }
        }
    }
    table
}

#[test]
fn latency_and_rate_match_golden_tables() {
    let bless = std::env::var_os("DOORBELL_BLESS").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let mut changed = String::new();
    for (name, row, base, generation, lanes) in LINKS {
        let (path, found) =
            (folder.join(format!("{name}.txt")), table(row, name, base, generation, lanes));
        if bless {
            std::fs::write(&path, &found).expect("the tables' folder can be written");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        if kept != found {
            writeln!(changed, "{name}:").expect("a string");
            let mut old = kept.lines();
            for new in found.lines() {
                let old = old.next().unwrap_or("(nothing)");
                if old != new {
                    writeln!(changed, "  was {old}\n  is  {new}").expect("a string");
                }
            }
        }
    }
    assert!(
        changed.is_empty(),
        "latencies have changed; if that is intended, rewrite the tables with \
         DOORBELL_BLESS=1 cargo test -p doorbell-world --test it golden\n{changed}"
    );
}
