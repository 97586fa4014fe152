//! Host-directed GC: contents verified simulated and live, write amplification compared with the device's own
//! GC, resets, and power cuts.
//!
//! `DOORBELL_CUTS=N` sets the length of each campaign.

use campaign::power_cuts::{self, Campaign};
use plan::Plan;
use testing::{clean, only, plan, shares, simulate_by, work};
use workload::pattern::OpKind;
use world::interfaces::{HOST_GC, NVME};
use world::{self, Options, RunResult};

/// All request lengths, over the whole drive, with overwrites.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=100%\n\
    io_size=12m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

/// Overwrites only, so that writes wait for nothing but the collector.
const OVERWRITE: &str =
    "[all]\nrw=randwrite\nbs=4k\niodepth=16\nsize=100%\nio_size=16m\nnorandommap=1\n";

fn flash(sets: &[(&str, &str)]) -> Plan {
    plan("small-flash", sets)
}

fn counters(run_result: &RunResult) -> ftl::Counters {
    run_result.flash.and_then(|seen| seen.software).expect("the device tells").counters
}

#[test]
fn host_directed_gc_verified_io_simulated() {
    for sets in [
        &[][..],
        &[("medium.flash.collector", "cost-benefit"), ("host.completion", "interrupt")],
        &[("medium.flash.cache", "protected"), ("medium.flash.start", "filled")],
        &[("medium.flash.cache", "through"), ("medium.keep", "stamps"), ("collector.early", "2")],
    ] {
        let run_result = simulate_by(HOST_GC, &flash(sets), &work(MIXED), Options::default());
        assert!(only(&run_result).blocks_verified > 2_000, "{sets:?}");
        let done = counters(&run_result);
        assert!(done.named > 0 && 2 * done.named >= done.collected, "{sets:?}: {done:?}");
    }
}

#[test]
fn host_directed_gc_verified_io_live() {
    let plan = flash(&[("medium.pace", "immediate")]);
    let runs = [world::live_in_one_thread, world::live_in_threads];
    for run in runs {
        let run_result = run(HOST_GC, &plan, &work(MIXED), Options::default());
        let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
        assert!(only(&run_result).blocks_verified > 2_000);
    }
}

/// With the same policy, stale information and whole-superblock requests cost a few percent.
#[test]
fn host_directed_gc_amplification_matches_device_gc() {
    let written = |run_result: &RunResult| {
        counters(run_result).write_amplification_per_mille().expect("something was written")
    };
    let (plan, work) = (flash(&[]), work(OVERWRITE));
    let device = simulate_by(NVME, &plan, &work, Options::default());
    let host = simulate_by(HOST_GC, &plan, &work, Options::default());
    let (of_device, of_host) = (written(&device), written(&host));
    assert!(
        of_device > 1_200 && of_host.abs_diff(of_device) * 20 < of_device,
        "{of_device} {of_host}"
    );
    let done = counters(&host);
    assert!(done.named > 10 && 10 * done.named > 9 * done.collected, "{done:?}");
}

#[test]
fn host_directed_gc_latency_breakdown_is_complete() {
    let work = work(MIXED);
    let run_result = simulate_by(HOST_GC, &flash(&[]), &work, Options::default());
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        assert!(shares(only(&run_result), kind).unexplained_ps.abs() < 0.5, "{kind:?}");
    }
}

#[test]
fn host_directed_gc_run_is_deterministic_by_seed() {
    let events = |seed| {
        let plan = flash(&[("run.seed", seed)]);
        simulate_by(HOST_GC, &plan, &work(MIXED), Options::default()).timed_events
    };
    assert_eq!(events("7"), events("7"));
    assert_ne!(events("7"), events("8"));
}

/// A reset ends host-directed GC, and the host resumes it; a pending request may be lost.
#[test]
fn host_directed_gc_survives_controller_resets() {
    let plan = flash(&[("medium.pace", "immediate")]);
    let options = Options { resets: 3, ..Options::default() };
    let run_result = world::live_in_threads(HOST_GC, &plan, &work(MIXED), options);
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    assert!(run_result.resets == 3 && only(&run_result).blocks_verified > 2_000);
    assert!(counters(&run_result).collected > 0);
}

#[test]
fn host_directed_gc_flushed_data_survives_power_cuts() {
    let cuts = std::env::var("DOORBELL_CUTS").map_or(3, |cuts| cuts.parse().expect("a number"));
    for (seed, sets) in (1..).zip([
        &[][..],
        &[("medium.flash.start", "steady"), ("medium.flash.cache", "protected")],
        &[("medium.flash.errors", "profile"), ("collector.early", "1")],
    ]) {
        let campaign = Campaign { seed, from: 0, cuts };
        let survived = power_cuts::run(HOST_GC, &flash(sets), campaign, |_| {});
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: {failure}"));
        assert!(survived.writes > 100 && survived.blocks > 1000, "{sets:?}: {survived:?}");
    }
}

#[test]
fn host_directed_gc_invalid_plan_error_names_key() {
    let said = |plan: &Plan| (HOST_GC.check)(plan).expect_err("refused").to_string();
    assert!(said(&plan("gen4", &[])).contains("found no table [collector]"));
    let bridge = "{controllers=3,stripe=\"8 KiB\",queue=128,conversion=\"2 us\",command=\"0 ns\",\
        link=\"600 MB/s\"}";
    let said = said(&flash(&[("medium.bridge", bridge)]));
    assert!(said.contains("medium.bridge: expected none"), "{said}");
}
