//! SSD controllers behind a bridge: striped, each with its own flash software, verified simulated and live,
//! and after power cuts.

use campaign::power_cuts::{self, Campaign};
use plan::Plan;
use testing::{clean, only, plan, simulate_by, work};
use workload::pattern::OpKind;
use world::interfaces::{HOST_FLASH, NVME};
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

/// Median latency of an operation kind, ns.
fn median_ns(plan: &Plan, work: &Work, kind: OpKind) -> u64 {
    let run_result = simulate_by(NVME, plan, work, Options::default());
    let total = &only(&run_result).stats.of(kind).total;
    total.percentile_ns(50_000)
}

#[test]
fn bridge_verified_io_under_gc() {
    for sets in [
        &[][..],
        &[("medium.bridge.queue", "1"), ("medium.bridge.small", "4 KiB")],
        &[("medium.keep", "stamps"), ("medium.bridge.frames", "true")],
    ] {
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

/// A single 4 KiB write into a buffer: the bridge adds two conversions and the link time.
#[test]
fn bridge_adds_two_conversions_and_link_time() {
    let alone = work("[w]\nrw=write\nbs=4k\nsize=64k\n");
    let plain = plan("small-flash", &[("medium.flash.cache", "protected")]);
    let without = median_ns(&plain, &alone, OpKind::Write);
    let with = median_ns(&bridged(&[]), &alone, OpKind::Write);
    // 4096 bytes at 600 MB/s are 6.827 us. Percentiles have a resolution of 1 %.
    let added = with - without;
    assert!((10_700..=10_960).contains(&added), "{added} ns: {without} to {with}");
}

/// The same on a link of SSP frames: 112 bytes of command, 48 of XFER_RDY, four frames of data and 108 of
/// response.
#[test]
fn bridge_link_of_frames_adds_headers_and_answers() {
    let alone = work("[w]\nrw=write\nbs=4k\nsize=64k\n");
    let frames = |on| median_ns(&bridged(&[("medium.bridge.frames", on)]), &alone, OpKind::Write);
    // 412 bytes at 600 MB/s more.
    let added = frames("true") - frames("false");
    assert!((600..=780).contains(&added), "{added} ns");
}

/// Data and commands go one way, data and answers the other: reads and writes share a link of frames.
#[test]
fn bridge_link_of_frames_carries_both_ways_at_once() {
    let both = work("[b]\nrw=randrw\nbs=8k\niodepth=32\nsize=2m\nio_size=16m\nnorandommap=1\n");
    let slow = ("medium.bridge.link", "20 MB/s");
    let rate = |frames| {
        let plan = bridged(&[slow, ("medium.bridge.frames", frames)]);
        let run_result = simulate_by(NVME, &plan, &both, Options::default());
        let job_result = only(&run_result);
        job_result.stats.of(OpKind::Read).iops(job_result.measured)
    };
    let (frames, bare) = (rate("true"), rate("false"));
    assert!(frames > 1.4 * bare, "{frames} and {bare}");
}

/// Adjacent writes are one long request, which waits for flash; random ones of the same length wait for the
/// buffer. With one path sequential writes are the faster.
#[test]
fn bridge_with_two_paths_makes_sequential_writes_wait_for_flash() {
    let rate = |rw: &str, sets: &[(&str, &str)]| {
        let job = format!("[w]\nrw={rw}\nbs=4k\niodepth=32\nsize=100%\nio_size=2m\n");
        let run_result = simulate_by(NVME, &bridged(sets), &work(&job), Options::default());
        let job_result = only(&run_result);
        job_result.stats.of(OpKind::Write).iops(job_result.measured)
    };
    let small = [("medium.bridge.small", "4 KiB")];
    let (random, sequential) = (rate("randwrite", &small), rate("write", &small));
    assert!(random > 1.5 * sequential, "{random} and {sequential}");
    let (random, sequential) = (rate("randwrite", &[]), rate("write", &[]));
    assert!(random < 1.1 * sequential, "{random} and {sequential}");
    let large = [("medium.bridge.small", "2 KiB")];
    assert!(rate("randwrite", &large) < random / 2.0, "a long request goes to flash by itself");
}

/// A controller's processor runs one command at a time, in parallel with the other controllers.
#[test]
fn bridge_controllers_process_commands_in_parallel() {
    let random = "[r]\nrw=randread\nbs=512\niodepth=64\nsize=1m\nnumber_ios=1024\n";
    let sets = [("medium.bridge.command", "100 us"), ("medium.bridge.conversion", "100 ns")];
    let run_result = simulate_by(NVME, &bridged(&sets), &work(random), Options::default());
    let job_result = only(&run_result);
    let rate = job_result.stats.of(OpKind::Read).iops(job_result.measured);
    // 10,000 per second from each of three.
    assert!((24_000.0..30_300.0).contains(&rate), "{rate}");
    let alone = work("[w]\nrw=write\nbs=4k\nsize=64k\n");
    let added = median_ns(&bridged(&[sets[0]]), &alone, OpKind::Write)
        - median_ns(&bridged(&[]), &alone, OpKind::Write);
    assert!((99_500..=100_500).contains(&added), "{added} ns");
}

#[test]
fn bridge_queue_of_one_is_slower_than_deep_queue() {
    let many = work("[r]\nrw=randread\nbs=4k\niodepth=32\nsize=2m\nio_size=4m\nnorandommap=1\n");
    // Fast enough that the converter is not the bottleneck.
    let quick = ("medium.bridge.conversion", "500 ns");
    let legacy = median_ns(&bridged(&[quick, ("medium.bridge.queue", "1")]), &many, OpKind::Read);
    let queued = median_ns(&bridged(&[quick]), &many, OpKind::Read);
    assert!(legacy > queued, "{legacy} and {queued}");
}

#[test]
fn bridge_flushed_data_survives_power_cuts() {
    for (seed, sets) in [
        (1, &[][..]),
        (2, &[("medium.flash.cache", "volatile")]),
        (3, &[("medium.flash.cache", "volatile"), ("medium.bridge.small", "4 KiB")]),
        (4, &[("medium.flash.nv_sram", "8 KiB")]),
    ] {
        let campaign = Campaign { seed, from: 0, cuts: 3 };
        let survived = power_cuts::run(NVME, &bridged(sets), campaign, |_| {});
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: {failure}"));
        assert!(survived.writes > 100 && survived.blocks > 500, "{sets:?}: {survived:?}");
    }
}

#[test]
fn bridge_rejects_host_flash_and_used_flash() {
    let said = (HOST_FLASH.check)(&bridged(&[("medium.flash.cache", "volatile")]));
    assert!(said.expect_err("bare flash").to_string().contains("medium.bridge: expected none"));
    let bridge = BRIDGE.replace('\n', " ");
    let sets = [("medium.bridge", bridge.as_str()), ("medium.flash.start", "steady")];
    let said = Plan::open("small-flash", &sets).expect_err("used flash").to_string();
    assert!(said.contains("medium.bridge") && said.contains("fresh"), "{said}");
}
