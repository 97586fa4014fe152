//! The map of flash on the host: contents verified simulated and live, the cost of reads, resets, and power
//! cuts.
//!
//! `DOORBELL_CUTS=N` sets the length of each campaign.

use campaign::power_cuts::{self, Campaign};
use ftl::Mistakes;
use plan::Plan;
use testing::{clean, only, plan, shares, simulate_by, work};
use workload::pattern::OpKind;
use world::interfaces::{HOST_MAP, NVME, PLACEMENTS, Row};
use world::{self, Options, RunResult};

/// All request lengths, over the whole drive, with overwrites.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=100%\n\
    io_size=12m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

const READS: &str = "[all]\nrw=randread\nbs=4k\niodepth=8\nsize=100%\nio_size=4m\nnorandommap=1\n";

/// The smallest cache of the device: one part of eight, and 512 changes.
fn flash(sets: &[(&str, &str)]) -> Plan {
    let own = [("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "64")];
    plan("small-flash", &[&own[..], sets].concat())
}

fn counters(run_result: &RunResult) -> ftl::Counters {
    run_result.flash.and_then(|seen| seen.software).expect("the device tells").counters
}

#[test]
fn host_map_verified_io_simulated() {
    for sets in [
        &[][..],
        &[("map.moves", "2"), ("host.completion", "interrupt")],
        &[("medium.flash.cache", "protected"), ("medium.flash.start", "filled")],
        &[("medium.flash.cache", "through"), ("medium.keep", "stamps")],
    ] {
        let run_result = simulate_by(HOST_MAP, &flash(sets), &work(MIXED), Options::default());
        assert!(only(&run_result).blocks_verified > 2_000, "{sets:?}");
    }
}

#[test]
fn every_placement_verified_io_in_both_worlds() {
    for (placement, row) in PLACEMENTS {
        // Flash software on the host has its whole map in memory.
        let cached = placement.on_host[0] && !placement.on_host[1];
        let cache = [("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "64")];
        let mut sets = if cached { cache.to_vec() } else { cache[1..].to_vec() };
        let run_result =
            simulate_by(row, &plan("small-flash", &sets), &work(MIXED), Options::default());
        assert!(only(&run_result).blocks_verified > 2_000, "{placement}");
        sets.push(("medium.pace", "immediate"));
        let live = plan("small-flash", &sets);
        let run_result = world::live_in_one_thread(row, &live, &work(MIXED), Options::default());
        let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
        assert!(only(&run_result).blocks_verified > 2_000, "{placement}");
    }
}

#[test]
fn host_map_verified_io_live() {
    let plan = flash(&[("medium.pace", "immediate")]);
    let runs = [world::live_in_one_thread, world::live_in_threads];
    for run in runs {
        let run_result = run(HOST_MAP, &plan, &work(MIXED), Options::default());
        let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
        assert!(only(&run_result).blocks_verified > 2_000);
    }
}

/// The mechanism: by a place, flash is sensed once for each read; a device with as little memory senses the
/// map as well, and one with the whole map in memory does not.
#[test]
fn places_save_reads_of_the_map() {
    let map_reads = |row: &'static Row, sets: &[(&str, &str)]| {
        let start = [("medium.flash.start", "filled")];
        let plan = flash(&[&start[..], sets].concat());
        let run_result = simulate_by(row, &plan, &work(READS), Options::default());
        let latency = shares(only(&run_result), OpKind::Read);
        assert!(latency.unexplained_ps.abs() < 0.5);
        counters(&run_result).map_reads
    };
    let (host, device) = (map_reads(HOST_MAP, &[]), map_reads(NVME, &[]));
    // 1,024 reads in eight parts of the map.
    assert!(host <= 16 && device > 700, "{host} of the host, {device} of the device");
    let cached = map_reads(NVME, &[("medium.flash.map_cache", "1 MiB")]);
    assert!(cached <= 8, "each part once at most, not {cached}");
}

#[test]
fn host_map_latency_breakdown_is_complete() {
    let work = work(MIXED);
    let run_result =
        simulate_by(HOST_MAP, &flash(&[("map.moves", "2")]), &work, Options::default());
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        assert!(shares(only(&run_result), kind).unexplained_ps.abs() < 0.5, "{kind:?}");
    }
}

#[test]
fn host_map_run_is_deterministic_by_seed() {
    let events = |seed| {
        let plan = flash(&[("run.seed", seed)]);
        simulate_by(HOST_MAP, &plan, &work(MIXED), Options::default()).timed_events
    };
    assert_eq!(events("7"), events("7"));
    assert_ne!(events("7"), events("8"));
}

/// A reset ends the report of moves, and the host enables it again; its map goes on, stale places included.
#[test]
fn host_map_survives_controller_resets() {
    let plan = flash(&[("medium.pace", "immediate")]);
    let options = Options { resets: 3, ..Options::default() };
    let run_result = world::live_in_threads(HOST_MAP, &plan, &work(MIXED), options);
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    assert!(run_result.resets == 3 && only(&run_result).blocks_verified > 2_000);
}

#[test]
fn host_map_flushed_data_survives_power_cuts() {
    let cuts = std::env::var("DOORBELL_CUTS").map_or(3, |cuts| cuts.parse().expect("a number"));
    for (seed, sets) in (1..).zip([
        &[][..],
        &[("medium.flash.start", "steady"), ("medium.flash.cache", "protected")],
        &[("medium.flash.errors", "profile"), ("map.moves", "2")],
    ]) {
        let campaign = Campaign { seed, from: 0, cuts };
        let survived = power_cuts::run(HOST_MAP, &flash(sets), campaign, |_| {});
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: {failure}"));
        assert!(survived.writes > 100 && survived.blocks > 1000, "{sets:?}: {survived:?}");
    }
}

/// The campaign notices a device that loses what it has flushed under this interface too.
#[test]
fn host_map_campaign_detects_flush_without_wait() {
    let mut plan = flash(&[]);
    let software = &mut plan.medium.flash.as_mut().expect("flash").software;
    software.mistakes = Mistakes { flush_returns_at_once: true, ..Mistakes::default() };
    let campaign = Campaign { seed: 1, from: 0, cuts: 100 };
    power_cuts::run(HOST_MAP, &plan, campaign, |_| {}).expect_err("the mistake is found");
}

#[test]
fn host_map_invalid_plan_error_names_key() {
    let said = |plan: &Plan| (HOST_MAP.check)(plan).expect_err("refused").to_string();
    assert!(said(&plan("gen4", &[])).contains("found no table [map]"));
    assert!(said(&plan("small-flash", &[])).contains("medium.flash.map_cache: expected"));
    let bridge = "{controllers=3,stripe=\"8 KiB\",queue=128,conversion=\"2 us\",command=\"0 ns\",\
        link=\"600 MB/s\"}";
    let said = said(&flash(&[("medium.bridge", bridge)]));
    assert!(said.contains("medium.bridge: expected none"), "{said}");
}
