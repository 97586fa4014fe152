//! An external host interface is added without changes to the crates: three modules and a row.

use host::BlockDevice;
use plan::Plan;
use runtime::{Log, Span};
use testing::mailbox::MAILBOX;
use testing::{clean, in_sim, only, plan, shares, work};
use wire::Lba;
use workload::pattern::OpKind;
use world::interfaces::{NVME, Row};
use world::{self, Options, RunResult};

/// Concurrent writes, reads and flushes, verified. Lengths exceed the maximum of one command, and the region
/// is small enough that blocks are used repeatedly.
const VERIFIED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:256k/5\niodepth=16\n\
    size=4m\nio_size=16m\nnorandommap=1\nfsync=32\nverify=crc32c\nverify_fatal=1\n";

fn verified(run_result: Result<RunResult, world::RunError>) -> RunResult {
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    let job_result = only(&run_result);
    assert!(
        job_result.blocks_verified > 1000,
        "only {} blocks verified",
        job_result.blocks_verified
    );
    assert!(job_result.stats.flush.total.count() > 3, "the job flushes");
    run_result
}

#[test]
fn mailbox_reads_verify_in_virtual_time() {
    for (name, sets) in [
        ("dc-express", &[][..]),
        ("gen4", &[("link.relaxed_ordering", "true"), ("host.queues", "1")][..]),
    ] {
        let plan = plan(name, sets);
        let work = work(VERIFIED);
        verified(world::simulate(MAILBOX, &plan, &work, Options::default()));
        verified(world::simulate(NVME, &plan, &work, Options::default()));
    }
}

#[test]
fn mailbox_reads_verify_live() {
    let plan = plan("live", &[("medium.capacity", "64 MiB")]);
    let work = work(VERIFIED);
    verified(world::live_in_threads(MAILBOX, &plan, &work, Options::default()));
    verified(world::live_in_threads(NVME, &plan, &work, Options::default()));
}

#[test]
fn mailbox_reads_verify_in_any_task_order() {
    let plan = plan("dc-express", &[]);
    for seed in 0..4 {
        let options = Options { shuffle: Some(seed), ..Options::default() };
        verified(world::simulate(MAILBOX, &plan, &work(VERIFIED), options));
    }
}

#[test]
fn mailbox_errors_reach_caller_with_lba() {
    let plan = plan("dc-express", &[]);
    in_sim(MAILBOX, &plan, Log::Off, async |_, driver, _| {
        let disk = driver.disk(0);
        let past = Lba(disk.geometry().blocks - 1);
        let (_, result) = disk.read(past, disk.buffer(1024).unwrap()).await;
        let error = result.expect_err("the second block is past the end");
        assert_eq!(error.to_string(), "LBA 1310719: the medium failed");
        let (_, result) = disk.write(Lba(7), disk.buffer(256 << 10).unwrap(), false).await;
        let error = result.expect_err("longer than a request may be");
        assert_eq!(error.to_string(), "LBA 7: refused");
    });
}

/// Mean of each stage of 4 KiB reads at depth 1. Asserts that the stages add up to the total.
fn stages(row: &'static Row, plan: &Plan) -> Vec<(&'static str, Span)> {
    let reads = "[read]\nrw=randread\nbs=4k\niodepth=1\nsize=16m\nnumber_ios=400\n";
    let run_result = world::simulate(row, plan, &work(reads), Options::default());
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    let shares = shares(only(&run_result), OpKind::Read);
    assert_eq!(shares.unexplained_ps, 0.0, "{}: every moment has a name", row.name);
    let spans = shares.stages_ps.iter().map(|ps| Span(ps.round() as u64));
    let mut parts: Vec<_> = row.stages.iter().copied().zip(spans).collect();
    parts.push(("total", Span(shares.total_ps.round() as u64)));
    parts
}

/// Compared with NVMe, the mailbox saves the larger completion entry and the second doorbell; the time of a
/// doorbell, a fetch and a transfer is the same.
#[test]
fn mailbox_read_is_faster_than_nvme_with_equal_shared_stages() {
    let plan = plan("dc-express", &[]);
    let (nvme, mailbox) = (stages(NVME, &plan), stages(MAILBOX, &plan));
    let mut names: Vec<_> = mailbox.iter().map(|(name, _)| *name).collect();
    for (index, (name, _)) in nvme.iter().enumerate() {
        if !names.contains(name) {
            names.insert(index.min(names.len() - 1), name);
        }
    }
    let of = |parts: &[(&str, Span)], name| {
        parts.iter().find(|(part, _)| *part == name).map_or(Span::ZERO, |(_, span)| *span)
    };
    println!("4 KiB reads at depth 1, {}, in microseconds", plan.name);
    println!("{:<24} {:>8} {:>8}", "", NVME.name, MAILBOX.name);
    for name in names {
        let (a, b) = (of(&nvme, name), of(&mailbox, name));
        if a > Span::ZERO || b > Span::ZERO {
            println!("{name:<24} {:>8.3} {:>8.3}", a.as_us_f64(), b.as_us_f64());
        }
    }
    for same in ["data transfer", "media", "parse", "submit", "complete", "post completion"] {
        assert_eq!(of(&nvme, same), of(&mailbox, same), "{same}");
    }
    assert!(of(&mailbox, "total") < of(&nvme, "total"), "a shorter request, a shorter answer");
}
