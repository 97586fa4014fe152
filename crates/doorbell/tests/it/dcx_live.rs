//! DC Express, live: every read is verified against concurrent writes to the same blocks, at depths from 1
//! to 32, with tags of both kinds, with writes on both paths, under resets, and in two processes.
//!
//! `doorbell run jobs/verify-among-writes.fio --world live --interface dcx` is the long run: ten million
//! reads.

use crate::common::{Folder, across_two_processes, assert_verified, clean, only, plan, work};
use world::interfaces::DCX;
use world::{self, Options};

/// The plan's table of this interface, with these tags.
fn table(tags: &str, latency: &str, sleep_after: u32, writes: &str) -> String {
    format!(
        "{{ tags = {tags}, max_latency = {{ value = \"{latency}\", source = \"assumed\" }}, \
         fetch_max = 8, anticipate = true, sleep_after = {sleep_after}, writes = \"{writes}\", \
         mark = {{ value = \"5 ns\", source = \"assumed\" }} }}"
    )
}

const DEVICE: &str = "\"device\", grain = \"64 B\"";
const COMPARED: &str = "\"compared\", grain = \"64 B\", tag_bits = 64, candidates = 8";
const RANDOM: &str = "\"random\", tag_bits = 32";
/// So short that some blocks end with the tag by coincidence.
const SHORT: &str = "\"random\", tag_bits = 6";

/// Reads and writes a region so small that requests overlap; every block read is verified. Returns the
/// number of resets during the run.
fn verified(table: &str, more: &[(&str, &str)], depth: u32, ios: u32, resets: u32) -> u32 {
    let _turn = testing::turn();
    let job = format!(
        "[v]\nrw=randrw\nrwmixread=70\nbssplit=512/50:4k/40:64k/10\niodepth={depth}\nsize=1m\n\
         io_size=1g\nnorandommap=1\nnumber_ios={ios}\nverify=crc32c\nverify_fatal=1\n"
    );
    let small = [("medium.capacity", "16 MiB"), ("host.memory", "64 MiB"), ("host.retries", "100")];
    let sets: Vec<_> = small.iter().chain(more).copied().chain([("dcx", table)]).collect();
    let options = Options { resets, ..Options::default() };
    let run_result = world::live_in_threads(DCX, &plan("live", &sets), &work(&job), options);
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{sets:?}, {depth}: {error}")));
    let verified = only(&run_result).blocks_verified;
    assert!(verified > u64::from(ios) / 4, "{sets:?}, {depth}: only {verified} blocks verified");
    run_result.resets
}

#[test]
fn verified_at_every_depth_and_tag_kind() {
    for depth in [1, 2, 8, 32] {
        for tags in [DEVICE, COMPARED, RANDOM] {
            for writes in ["ordinary", "polled"] {
                verified(&table(tags, "1 s", 0, writes), &[], depth, 300, 0);
            }
        }
    }
}

#[test]
fn verified_with_sleeping_queues_and_interrupts() {
    let interrupt = [("host.completion", "interrupt")];
    for more in [&[][..], &interrupt[..]] {
        for tags in [DEVICE, RANDOM] {
            verified(&table(tags, "1 s", 16, "polled"), more, 8, 400, 0);
            verified(&table(tags, "1 s", 16, "ordinary"), more, 1, 200, 0);
        }
    }
}

/// Tag collisions are certain, and so are time-outs, also of reads that are slow on a busy machine.
#[test]
fn verified_with_colliding_short_tags() {
    verified(&table(SHORT, "20 us", 0, "polled"), &[], 8, 500, 0);
    verified(&table(RANDOM, "1 us", 0, "ordinary"), &[], 8, 500, 0);
}

#[test]
fn verified_under_resets() {
    for tags in [DEVICE, COMPARED, RANDOM] {
        let resets = verified(&table(tags, "1 s", 16, "polled"), &[], 32, 5_000, 20);
        assert_eq!(resets, 20, "they come with the operations");
    }
}

#[test]
fn verified_across_two_processes_under_resets() {
    let _turn = testing::turn();
    let folder = Folder::new("dcx");
    let table = format!("dcx={}", table(DEVICE, "1 s", 16, "polled"));
    let sets = ["medium.capacity=64 MiB", "host.memory=64 MiB", "host.retries=100", &table];
    let job = "[mixed]\nrw=randrw\nbssplit=512/40:4k/40:64k/20\niodepth=32\nsize=1m\n\
        io_size=10g\nnorandommap=1\nnumber_ios=10000\nverify=crc32c\nverify_fatal=1\n";
    let run = across_two_processes((&folder, "dcx"), &sets, (job, "10"));
    assert_verified(&run, 10_000);
}

/// The device chooses its tags by what the medium holds; a medium of stamps, of any size, is not scanned
/// for that.
#[test]
fn large_stamp_medium_starts_without_scan() {
    let plan = plan("gen4", &[]);
    let job = "[one]\nrw=randread\nbs=4k\nsize=1g\nnumber_ios=10\n";
    let run_result = world::simulate(DCX, &plan, &work(job), Options::default());
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(only(&run_result).stats.read.total.count(), 10);
}
