//! SSD controllers behind a bridge: striped, each with flash software of its own, verified in both worlds,
//! cut.

use campaign::power_cuts::{self, Campaign};
use plan::Plan;
use testing::{clean, only, plan, simulate_by, work};
use workload::pattern::OpKind;
use world::interfaces::{HostFlash, Interface, NVME};
use world::work::Work;
use world::{self, Options};

const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=100%\n\
    io_size=16m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

const BRIDGE: &str = r#"{ controllers = 3, stripe = "8 KiB", queue = 128,
    conversion = { value = "2 us", source = "a test" },
    command = { value = "0 ns", source = "a test" },
    link = { value = "600 MB/s", source = "a test" } }"#;

fn bridged(sets: &[(&str, &str)]) -> Plan {
    let bridge = BRIDGE.replace('\n', " ");
    let mut all = vec![("medium.bridge", bridge.as_str()), ("medium.flash.cache", "protected")];
    all.extend(sets);
    plan("small-flash", &all)
}

/// The median of a kind.
fn median_ns(plan: &Plan, work: &Work, kind: OpKind) -> u64 {
    let run_result = simulate_by(NVME, plan, work, Options::default());
    let total = &only(&run_result).stats.of(kind).total;
    total.percentile_ns(50_000)
}

#[test]
fn what_is_written_comes_back_while_every_controller_collects() {
    for sets in [&[][..], &[("medium.bridge.queue", "1")], &[("medium.keep", "stamps")]] {
        let run_result = simulate_by(NVME, &bridged(sets), &work(MIXED), Options::default());
        assert!(only(&run_result).blocks_verified > 2_000, "{sets:?}");
        let software =
            run_result.flash.and_then(|seen| seen.software).expect("their software tells");
        assert_eq!(software.good_units % 3, 0, "three controllers: {software:?}");
    }
    let live = bridged(&[("medium.pace", "immediate")]);
    let run_result = world::live_in_one_thread(NVME, &live, &work(MIXED), Options::default());
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    assert!(only(&run_result).blocks_verified > 2_000);
}

/// A write of 4 KiB into a buffer, with nobody else: two conversions and the time on the link are what the
/// bridge adds to it.
#[test]
fn a_bridge_adds_two_conversions_and_the_way_over_a_link() {
    let alone = work("[w]\nrw=write\nbs=4k\nsize=64k\n");
    let plain = plan("small-flash", &[("medium.flash.cache", "protected")]);
    let without = median_ns(&plain, &alone, OpKind::Write);
    let with = median_ns(&bridged(&[]), &alone, OpKind::Write);
    // 4096 bytes at 600 MB/s are 6.827 us. Percentiles are kept to a part in a hundred.
    let added = with - without;
    assert!((10_700..=10_960).contains(&added), "{added} ns: {without} to {with}");
}

/// What a controller's processor has to do it does one command after the other, and the others do it beside
/// it.
#[test]
fn each_controller_has_a_processor_of_its_own() {
    let random = "[r]\nrw=randread\nbs=512\niodepth=64\nsize=1m\nnumber_ios=1024\n";
    let sets = [("medium.bridge.command", "100 us"), ("medium.bridge.conversion", "100 ns")];
    let run_result = simulate_by(NVME, &bridged(&sets), &work(random), Options::default());
    let job_result = only(&run_result);
    let rate = job_result.stats.of(OpKind::Read).iops(job_result.measured);
    // 10,000 a second by each of three.
    assert!((24_000.0..30_300.0).contains(&rate), "{rate}");
    let alone = work("[w]\nrw=write\nbs=4k\nsize=64k\n");
    let added = median_ns(&bridged(&[sets[0]]), &alone, OpKind::Write)
        - median_ns(&bridged(&[]), &alone, OpKind::Write);
    assert!((99_500..=100_500).contains(&added), "{added} ns");
}

#[test]
fn one_command_at_a_time_is_slower_than_many() {
    let many = work("[r]\nrw=randread\nbs=4k\niodepth=32\nsize=2m\nio_size=4m\nnorandommap=1\n");
    // Quick enough that the converter is not what all wait for.
    let quick = ("medium.bridge.conversion", "500 ns");
    let legacy = median_ns(&bridged(&[quick, ("medium.bridge.queue", "1")]), &many, OpKind::Read);
    let queued = median_ns(&bridged(&[quick]), &many, OpKind::Read);
    assert!(legacy > queued, "{legacy} and {queued}");
}

#[test]
fn nothing_that_was_flushed_is_lost_behind_a_bridge() {
    for (seed, sets) in [(1, &[][..]), (2, &[("medium.flash.cache", "volatile")])] {
        let campaign = Campaign { seed, from: 0, cuts: 3 };
        let survived = power_cuts::run(NVME, &bridged(sets), campaign, |_| {});
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: {failure}"));
        assert!(survived.writes > 100 && survived.blocks > 500, "{sets:?}: {survived:?}");
    }
}

#[test]
fn what_can_not_be_behind_a_bridge_is_refused() {
    let said = HostFlash::check(&bridged(&[("medium.flash.cache", "volatile")]));
    assert!(said.expect_err("bare flash").contains("medium.bridge: expected none"));
    let bridge = BRIDGE.replace('\n', " ");
    let sets = [("medium.bridge", bridge.as_str()), ("medium.flash.start", "steady")];
    let said = Plan::open("small-flash", &sets).expect_err("used flash").to_string();
    assert!(said.contains("medium.bridge") && said.contains("fresh"), "{said}");
}
