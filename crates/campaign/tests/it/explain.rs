//! Bounds that are known by construction are named, predicted gains agree with runs of the edited plan, and
//! findings do not depend on threads.

use campaign::explain::{Effort, ExplainError, Explanation, Resource, Swings, explain};
use testing::{only, plan, simulate, work};
use workload::pattern::OpKind;
use world::interfaces::{self, NVME};

const EFFORT: Effort = Effort { operations: 800, swings: Swings::None, threads: 2 };

/// A run with a known bound.
struct Known {
    plan: &'static str,
    sets: &'static [(&'static str, &'static str)],
    job: &'static str,
}

impl Known {
    fn explained(&self, effort: Effort) -> Explanation {
        let job = work(&format!("[j]\n{}\n", self.job));
        explain(NVME, &plan(self.plan, self.sets), &job, effort, &|_, _| {})
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

const READS: &str = "rw=randread\nbs=4k\nsize=64m\nnorandommap=1\nnumber_ios=100000\niodepth=32";
const DEEP_READS: &str =
    "rw=randread\nbs=4k\nsize=64m\nnorandommap=1\nnumber_ios=100000\niodepth=48";
const SLOW_DRIVER: (&str, &str) = ("host.costs.submit", "1 us");

/// 4 KiB at 7.9 GB/s, overheads included, take 0.58 us; nothing else takes as long.
const LINK: Known = Known { plan: "gen4", sets: &[], job: READS };
/// Two channels of 1 GB/s give less than half of the link's rate.
const MEDIUM: Known =
    Known { plan: "gen4", sets: &[("medium.timing.bandwidth", "1 GB/s")], job: READS };
/// The core takes 1.03 us for each read.
const CORE: Known = Known { plan: "gen4", sets: &[SLOW_DRIVER], job: READS };
/// One read at a time.
const DEPTH: Known = Known {
    plan: "gen4",
    sets: &[],
    job: "rw=randread\nbs=4k\nsize=64m\nnorandommap=1\nnumber_ios=100000\niodepth=1",
};
/// Every write of a full drive with little spare space makes the collector copy.
const COLLECTOR: Known = Known {
    plan: "small-flash",
    sets: &[("medium.flash.start", "steady")],
    job: "rw=randwrite\nbs=4k\nnorandommap=1\nnumber_ios=1500\niodepth=16",
};
/// Two dies sense for 91 us in the mean, 32 reads at a time; the bus takes 3.4 us for a unit.
const DIES: Known = Known {
    plan: "small-flash",
    sets: &[("medium.flash.start", "filled")],
    job: "rw=randread\nbs=4k\nnorandommap=1\nio_size=80m\nnumber_ios=20000\niodepth=32",
};
/// The link is the bound of eight reads at a time too; the others wait at the device's doorbell.
const BEHIND_SLOTS: Known =
    Known { plan: "gen4", sets: &[("device.command_slots", "8")], job: DEEP_READS };
/// The core is the bound of eight reads at a time too; the others wait for a slot of the queue.
const BEHIND_QUEUE: Known =
    Known { plan: "gen4", sets: &[SLOW_DRIVER, ("host.queue_depth", "8")], job: DEEP_READS };

#[test]
fn bounds_known_by_construction_are_named() {
    let all = [
        (&LINK, Resource::LinkRate),
        (&MEDIUM, Resource::Medium),
        (&CORE, Resource::HostCore),
        (&DEPTH, Resource::QueueDepth),
        (&COLLECTOR, Resource::Collector),
        (&DIES, Resource::Medium),
    ];
    for (known, want) in all {
        let found = known.explained(EFFORT);
        assert_eq!(found.bound.resources, [want], "{:#?}", found.bound);
        assert!(
            found.bound.gain > 0.4 && found.bound.also.is_empty(),
            "{want:?}: {:?}",
            found.bound
        );
        let sum: f64 = found.shares.iter().map(|share| share.us).sum();
        assert!(
            (sum - found.measured.mean_us).abs() < 0.002,
            "{sum} of {}",
            found.measured.mean_us
        );
    }
}

/// The times of flash chips are levers of their own, which a plan can set.
#[test]
fn times_of_flash_chips_are_relaxed_one_by_one() {
    let gain = |found: &Explanation, key: &str| {
        let of_key = found.details.iter().find(|effect| effect.change.sets[0].0.ends_with(key));
        of_key.map_or(0.0, |effect| effect.gain)
    };
    let found = DIES.explained(EFFORT);
    assert_eq!(
        found.details[0].change.sets[0].0, "medium.flash.times.read",
        "{:?}",
        found.details[0]
    );
    assert!(gain(&found, "times.read") > 0.5, "{:?}", found.details[0]);
    assert!(gain(&found, "times.program").abs() < 1e-9, "a run of reads programs nothing");
    let found = COLLECTOR.explained(EFFORT);
    let (read, program) = (gain(&found, "times.read"), gain(&found, "times.program"));
    assert!(
        program > 0.3 && program > read,
        "the collector programs what it moves: {program}, {read}"
    );
}

/// A ranking by shares of the mean latency would name another resource.
#[test]
fn the_largest_share_of_the_mean_is_not_taken_for_the_bound() {
    let all = [
        (&BEHIND_SLOTS, Resource::LinkRate, Resource::LinkLatency),
        (&BEHIND_QUEUE, Resource::HostCore, Resource::HostQueue),
    ];
    for (known, want, share) in all {
        let found = known.explained(EFFORT);
        assert_eq!(found.bound.resources, [want], "{:#?}", found.bound);
        let largest = found.largest.expect("stages with resources");
        assert_eq!(largest.resource, share);
        assert!(largest.share > 0.6 && !largest.bounds_the_rate, "{largest:?}");
        assert!(largest.gain.is_some_and(|gain| gain < 0.05), "{largest:?}");
        let without = largest.stage_without_bound_us.expect("the bound has a lever");
        assert!(without < 0.7 * largest.stage_us, "the wait is for the bound: {largest:?}");
    }
}

/// Two reads at a time, both in the queue and in the device: more of one of them is of little use.
#[test]
fn two_limits_of_the_same_size_bound_together() {
    // Latency of three parts, of which none is half.
    let sets = &[
        ("host.queue_depth", "2"),
        ("device.command_slots", "2"),
        ("device.costs.parse", "2 us"),
        ("medium.timing.first_byte", "2 us"),
    ];
    let found = Known { plan: "gen4", sets, job: READS }.explained(EFFORT);
    let mut bound = found.bound.resources.clone();
    bound.sort();
    assert_eq!(bound, [Resource::HostQueue, Resource::CommandSlots], "{:?}", found.pairs);
    let gains = found.resources.iter().filter(|effect| bound.contains(&effect.resource));
    let alone: f64 = gains.map(|effect| effect.gain).sum();
    assert!(found.bound.gain > 0.4 && alone < 0.3, "{:?}, {alone}", found.bound);
}

#[test]
fn an_open_loop_is_bound_by_its_arrivals_until_a_part_saturates() {
    let at = |rate: u32| format!("{READS}\nrate_process=poisson\nrate_iops={rate}");
    for (rate, want) in [(100_000, Resource::Arrivals), (1_500_000, Resource::HostCore)] {
        let job: &'static str = at(rate).leak();
        let found = Known { job, ..CORE }.explained(EFFORT);
        assert_eq!(found.bound.resources, [want], "{rate}: {:#?}", found.bound);
        assert!(found.paced && found.length.drift.is_none());
    }
}

/// The gain that is predicted from an excerpt is that of runs ten times as long, with another seed.
#[test]
fn predicted_gains_agree_with_longer_runs_of_the_edited_plan() {
    for known in [&LINK, &CORE, &DIES] {
        let found = known.explained(EFFORT);
        let best = &found.resources[0];
        let rate = |more: &[(String, String)]| {
            let more = more.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let sets: Vec<_> =
                known.sets.iter().copied().chain([("run.seed", "77")]).chain(more).collect();
            let job = known.job.replace("number_ios=100000", "number_ios=8000");
            let job = job.replace("number_ios=20000", "number_ios=8000");
            let run_result = simulate(&plan(known.plan, &sets), &work(&format!("[j]\n{job}\n")));
            let job_result = only(&run_result);
            job_result.stats.of(OpKind::Read).iops(job_result.measured)
        };
        let gain = rate(&best.change.sets) / rate(&[]) - 1.0;
        let error = (1.0 + best.gain) / (1.0 + gain) - 1.0;
        assert!(error.abs() < 0.02, "{:?}: predicted {}, found {gain}", best.resource, best.gain);
    }
}

#[test]
fn findings_do_not_depend_on_the_number_of_threads() {
    let with =
        |threads| CORE.explained(Effort { threads, operations: 300, swings: Swings::Verdict });
    let (one, many) = (with(1), with(5));
    assert_eq!(one, many);
    let swing = one.swings.iter().find(|swing| swing.key == "host.costs.submit").expect("by --set");
    // At half, the core takes less time than the link.
    assert_eq!(swing.half.bound, [Resource::LinkRate], "{swing:?}");
    assert_eq!(swing.one_and_a_half.bound, [Resource::HostCore], "{swing:?}");
    let range = one.range.expect("swings");
    assert_eq!(range.flips, ["host.costs.submit"]);
    assert!(range.rate.0 < one.measured.rate && one.measured.rate < range.rate.1);
}

#[test]
fn plans_without_the_interface_and_media_in_files_are_rejected() {
    let job = work("[j]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=10\n");
    let dcx = interfaces::named("dcx").expect("an interface");
    let error = explain(dcx, &plan("vortex-disks", &[]), &job, EFFORT, &|_, _| {}).unwrap_err();
    assert!(
        matches!(error, ExplainError::Run(_)) && error.to_string().contains("[dcx]"),
        "{error}"
    );
    let filed = plan("live", &[("medium.file", "drive.img")]);
    let error = explain(NVME, &filed, &job, EFFORT, &|_, _| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plans/live.toml: medium.file: found a file, expected none: explain simulates the run many times"
    );
}
