//! Hybrid polling: verified in both worlds and under resets, idle with nothing in flight; and the table of
//! `docs/polling-table.md`, generated from simulated hosts. `DOORBELL_BLESS=1` rewrites it.

use std::fmt::Write as _;
use std::fs;

use plan::Plan;
use runtime::Span;
use testing::{clean, only, operations, plan, root, simulate, simulate_with, work};
use workload::pattern::OpKind;
use world::interfaces::{BLOCK, DCX, HOST_FLASH, NVME, Row};
use world::{self, Options, RunResult};

const VERIFIED: &str =
    "[mixed]\nrw=randrw\nbs=4k\niodepth=32\nsize=8m\nnumber_ios=300\nverify=meta\n";

fn hybrid(name: &str, more: &[(&str, &str)]) -> Plan {
    plan(name, &[&[("host.completion", "hybrid")], more].concat())
}

/// Work time and polling time of the host's first core.
fn core(run_result: &RunResult) -> (Span, Span) {
    let busy = run_result.busy.as_ref().expect("simulated");
    (busy.cores[0], busy.polling[0])
}

#[test]
fn hybrid_polling_reads_verify_in_any_task_order() {
    for seed in 0..8 {
        let depth = [1, 2, 5, 64][seed as usize % 4].to_string();
        let plan = hybrid("gen4", &[("medium.capacity", "16 MiB"), ("host.queue_depth", &depth)]);
        let job = VERIFIED.replace("number_ios=300", "number_ios=100");
        let options = Options { shuffle: Some(seed), ..Options::default() };
        let run_result = clean(simulate_with(&plan, &work(&job), options));
        assert!(operations(only(&run_result)) >= 100);
    }
}

#[test]
fn hybrid_polling_reads_verify_live_under_resets() {
    let plan = hybrid("live", &[("medium.capacity", "16 MiB")]);
    let job = VERIFIED.replace("number_ios=300", "number_ios=2000");
    let options = Options { resets: 3, ..Options::default() };
    let run_result = world::live_in_threads(NVME, &plan, &work(&job), options).expect("a run");
    assert_eq!(run_result.resets, 3);
    assert!(operations(only(&clean(run_result))) >= 2000);
}

/// 200 reads in 100 ms: a polling host uses the core for all of it.
#[test]
fn hybrid_polling_core_is_idle_with_nothing_in_flight() {
    let job = "[light]\nrw=randread\nbs=4k\niodepth=1\nsize=8m\nrate_iops=2000\nnumber_ios=200\n";
    let (work, elapsed) = (work(job), Span::ms(99));
    let polled = core(&simulate(&plan("gen4", &[]), &work));
    assert!(polled.0 + polled.1 > elapsed, "{polled:?}");
    let napped = core(&simulate(&hybrid("gen4", &[]), &work));
    assert!(napped.0 + napped.1 < elapsed / 100, "{napped:?}");
    let interrupted = core(&simulate(&plan("gen4", &[("host.completion", "interrupt")]), &work));
    assert_eq!(interrupted.1, Span::ZERO);
}

#[test]
fn hybrid_polling_is_rejected_without_nvme_queues() {
    fn rejection(row: &'static Row, name: &str) -> String {
        let plan = hybrid(name, &[]);
        let run = world::simulate(row, &plan, &work(VERIFIED), Options::default());
        run.err().expect("refused").to_string()
    }
    let expected = |interface| {
        format!(
            "interface {interface}: host.completion: found \"hybrid\", expected \"polled\" or \
             \"interrupt\": only drivers of NVMe queues have hybrid polling"
        )
    };
    assert!(rejection(DCX, "dc-express").ends_with(&expected("dcx")));
    assert!(rejection(BLOCK, "descriptor-blocks").ends_with(&expected("block")));
    assert!(rejection(HOST_FLASH, "small-flash").ends_with(&expected("host-flash")));
}

const MEDIA: [(&str, &str); 3] =
    [("gen4", "DRAM"), ("dc-express", "PCM"), ("small-flash", "flash")];
/// Written first, so that all reads are served by the flash.
const FILL: &str = "[fill]\nrw=write\nbs=128k\niodepth=8\nsize=2m\nfsync=16\n";
const LOADS: [(&str, &str); 3] = [
    ("one at a time", "iodepth=1\nnumber_ios=200\n"),
    ("32 at once", "iodepth=32\nnumber_ios=4000\n"),
    ("2,000 a second", "iodepth=32\nrate_process=poisson\nrate_iops=2000\nnumber_ios=100\n"),
];

/// One line: p50 and p99 in us, IOPS, and core time per read in us, for work and for polling.
fn line(plan: &Plan, filled: (Span, Span), load: &str) -> String {
    let reads = format!(
        "{FILL}[reads]\nstonewall\nrw=randread\nbs=4k\nsize=2m\nio_size=64m\nnorandommap=1\n{load}"
    );
    let run_result = simulate(plan, &work(&reads));
    let job_result = &run_result.jobs[1].1;
    let latencies = &job_result.stats.of(OpKind::Read).total;
    let (count, all) = (latencies.count(), core(&run_result));
    let us = |ns: u64| format!("{}.{:02}", ns / 1000, ns % 1000 / 10);
    let each = |all: Span, before: Span| us((all.0 - before.0) / count / 1000);
    let iops = u128::from(count) * 1_000_000_000_000 / u128::from(job_result.measured.0);
    let (work, polling) = (each(all.0, filled.0), each(all.1, filled.1));
    let (p50, p99) = (latencies.percentile_ns(50_000), latencies.percentile_ns(99_000));
    format!("{} | {} | {iops} | {work} | {polling} |", us(p50), us(p99))
}

#[test]
fn polling_page_table_matches_simulation() {
    let mut table = String::from(
        "| medium | reads of 4 KiB | completions | p50, us | p99, us | reads a second | \
         core's work, us a read | its polling, us a read |\n|---|---|---|---:|---:|---:|---:|---:|\n",
    );
    for (name, medium) in MEDIA {
        let hosts = ["polled", "hybrid", "interrupt"].map(|completion| {
            let plan = plan(name, &[("host.completion", completion), ("host.cores", "1")]);
            let filled = core(&simulate(&plan, &work(FILL)));
            (completion, plan, filled)
        });
        for (words, load) in LOADS {
            for (completion, plan, filled) in &hosts {
                let line = line(plan, *filled, load);
                writeln!(table, "| {medium} (`{name}`) | {words} | {completion} | {line}").unwrap();
            }
        }
    }
    let path = root().join("docs/polling-table.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (open, close) = ("<!-- table: simulated -->\n", "<!-- end of table -->");
    let (before, rest) = page.split_once(open).expect("the table's mark");
    let (found, after) = rest.split_once(close).expect("the table's end");
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        fs::write(&path, format!("{before}{open}{table}{close}{after}")).expect("written");
    } else {
        assert_eq!(found, table, "DOORBELL_BLESS=1 writes docs/polling-table.md anew");
    }
}
