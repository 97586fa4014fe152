//! Flash behind its interfaces, in both worlds: contents verified during GC, trim, state files,
//! preconditioned drives.

use bus::HostPort;
use bus::sim::SimHost;
use plan::Plan;
use runtime::Log;
use testing::{Folder, clean, in_sim, only, plan, shares, simulate_by, work};
use wire::nvme::registers::{self, Cap};
use workload::pattern::OpKind;
use world::device::MediumState;
use world::interfaces::{DCX, FASTPATH, NVME};
use world::{self, Options, RunResult};

/// All lengths over the whole drive, with overwrites.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=100%\n\
    io_size=7m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

/// The same, in block sizes of FastPath.
const BLOCKS_OF_4K: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/40\niodepth=8\nsize=100%\n\
    io_size=7m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

fn flash(sets: &[(&str, &str)]) -> Plan {
    plan("small-flash", sets)
}

fn software(run_result: &RunResult) -> ftl::Stats {
    run_result.flash.expect("a device of flash").software.expect("the FTL has statistics")
}

fn verified(run_result: &RunResult) {
    assert!(only(run_result).blocks_verified > 2_000, "{}", only(run_result).blocks_verified);
}

#[test]
fn flash_reads_verify_during_gc() {
    for sets in [
        &[("medium.flash.start", "filled")][..],
        &[("medium.keep", "stamps"), ("medium.flash.start", "filled")],
        &[
            ("medium.flash.cache", "through"),
            ("medium.flash.streams", "mixed"),
            ("medium.flash.start", "filled"),
        ],
        &[
            ("medium.flash.cache", "protected"),
            ("medium.flash.collector", "cost-benefit"),
            ("medium.flash.start", "filled"),
        ],
    ] {
        let run_result = simulate_by(NVME, &flash(sets), &work(MIXED), Options::default());
        verified(&run_result);
        let seen = software(&run_result);
        assert!(seen.counters.collected > 0, "{sets:?}: {seen:?}");
        assert!(seen.counters.write_amplification_per_mille() > Some(1000), "{sets:?}");
        let run_result = simulate_by(DCX, &flash(sets), &work(MIXED), Options::default());
        verified(&run_result);
        let run_result =
            simulate_by(FASTPATH, &flash(sets), &work(BLOCKS_OF_4K), Options::default());
        verified(&run_result);
    }
}

/// A drive is preconditioned with stamps; one that keeps every byte from then on takes the same time.
#[test]
fn preconditioned_drive_has_same_events_with_stamps_and_with_every_byte() {
    for start in ["filled", "steady"] {
        let [every, stamps] = ["everything", "stamps"].map(|keep| {
            let plan = flash(&[("medium.flash.start", start), ("medium.keep", keep)]);
            let run_result = simulate_by(NVME, &plan, &work(MIXED), Options::default());
            verified(&run_result);
            (run_result.timed_events, software(&run_result).counters)
        });
        assert_eq!(every, stamps, "{start}");
    }
}

/// Jobs over the same blocks: one writes and reads, one trims, one trims and then writes.
const TRIMMED: &str = "[global]\nsize=50%\nio_size=1m\niodepth=4\nverify=crc32c\n\
    [mixed]\nrw=randrw\nbssplit=512/20:4k/60:16k/20\nnorandommap=1\nfsync=16\n\
    [trims]\nrw=randtrim\nbssplit=512/20:4k/60:64k/20\nnorandommap=1\n\
    [again]\nrw=randtrimwrite\nbs=8k\n";

#[test]
fn trimmed_blocks_read_as_zeros_until_written() {
    for sets in [
        &[("medium.flash.start", "filled")][..],
        &[("medium.keep", "stamps"), ("medium.flash.cache", "protected")],
    ] {
        for run_result in [
            simulate_by(NVME, &flash(sets), &work(TRIMMED), Options::default()),
            simulate_by(DCX, &flash(sets), &work(TRIMMED), Options::default()),
        ] {
            let verified: u64 =
                run_result.jobs.iter().map(|(_, job_result)| job_result.blocks_verified).sum();
            assert!(verified > 500, "{sets:?}: {verified} blocks");
            assert!(run_result.jobs[1].1.stats.trim.total.count() > 40);
        }
    }
    let plan = flash(&[("medium.pace", "immediate"), ("medium.flash.start", "filled")]);
    let live = world::live_in_threads(NVME, &plan, &work(TRIMMED), Options::default());
    clean(live.unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn full_trim_unmaps_all_units() {
    let plan = flash(&[("medium.flash.start", "steady")]);
    let trim = work("[trim]\nrw=trim\nbs=4k\niodepth=2\n");
    let run_result = simulate_by(NVME, &plan, &trim, Options::default());
    let units = plan.medium.flash.as_ref().expect("flash").software.units;
    assert_eq!(only(&run_result).stats.trim.bytes, u64::from(units) * 4096);
    assert_eq!(software(&run_result).mapped_units, 0);
}

/// FastPath has no trim request, so the job ends with one error message.
#[test]
fn trim_on_fastpath_is_reported_as_unsupported() {
    let trim = work("[trim]\nrw=randtrim\nbs=4k\niodepth=4\n");
    let run_result = world::simulate(FASTPATH, &flash(&[]), &trim, Options::default());
    let run_result = run_result.expect("a run");
    let message =
        "trim: trim: LBA 4440: not supported: expected an interface with a command for it";
    assert_eq!(only(&run_result).messages, [message]);
    assert!(only(&run_result).errors() <= 4);
}

#[test]
fn live_flash_reads_verify_during_gc() {
    let plan = flash(&[("medium.pace", "immediate"), ("medium.flash.start", "filled")]);
    for run in [world::live_in_one_thread, world::live_in_threads] {
        let run_result = run(NVME, &plan, &work(MIXED), Options::default());
        let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
        verified(&run_result);
        assert!(software(&run_result).counters.collected > 0);
    }
}

/// Less NV-SRAM than a superpage has units: writes that come alone are padded to one, and all data are there,
/// simulated and live.
#[test]
fn small_nv_sram_holds_verified_data_in_both_worlds() {
    let small = [("medium.flash.cache", "protected"), ("medium.flash.nv_sram", "16 KiB")];
    let padded = |sets: &[(&str, &str)]| {
        let run_result = simulate_by(NVME, &flash(sets), &work(MIXED), Options::default());
        verified(&run_result);
        software(&run_result).counters.padding_units
    };
    let (bounded, whole) = (padded(&small), padded(&small[..1]));
    assert!(bounded > 10 * whole.max(1), "{bounded} units of padding, {whole} without a bound");
    let plan = flash(&[small[0], small[1], ("medium.pace", "immediate")]);
    for run in [world::live_in_one_thread, world::live_in_threads] {
        let run_result = run(NVME, &plan, &work(MIXED), Options::default());
        verified(&clean(run_result.unwrap_or_else(|error| panic!("{error}"))));
    }
}

/// 16 writes at once take 64 KiB of NV-SRAM: in half of it every other one waits for a program.
#[test]
fn burst_larger_than_nv_sram_waits_and_smaller_one_does_not() {
    let longest_us = |nv_sram: &str| {
        let sets = [("medium.flash.cache", "protected"), ("medium.flash.nv_sram", nv_sram)];
        let burst = work("[burst]\nrw=write\nbs=4k\niodepth=16\nsize=64k\n");
        let run_result = simulate_by(NVME, &flash(&sets), &burst, Options::default());
        only(&run_result).stats.of(OpKind::Write).total.percentile_ns(100_000) / 1000
    };
    assert!(longest_us("64 KiB") < 20, "{} us", longest_us("64 KiB"));
    assert!(longest_us("32 KiB") > 300, "{} us", longest_us("32 KiB"));
}

#[test]
fn flash_waits_have_named_stages() {
    let plan = flash(&[("medium.flash.start", "filled")]);
    let run_result = simulate_by(NVME, &plan, &work(MIXED), Options::default());
    let stage = |kind, name: &str| {
        let place = NVME.stages.iter().position(|stage| *stage == name).expect("a stage");
        shares(only(&run_result), kind).stages_ps[place]
    };
    for name in ["die wait", "die", "channel"] {
        assert!(stage(OpKind::Read, name) > 0.0, "{name}");
    }
    assert!(stage(OpKind::Write, "buffer wait") > 0.0);
    assert!(stage(OpKind::Flush, "flush") > 0.0);
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        assert_eq!(shares(only(&run_result), kind).unexplained_ps, 0.0, "{kind:?}");
    }
}

#[test]
fn flash_same_seed_gives_same_log() {
    let log = |seed: &str| {
        let plan = flash(&[("run.seed", seed), ("medium.flash.errors", "profile")]);
        let log = Log::kept();
        let options = Options { log: log.clone(), ..Options::default() };
        simulate_by(NVME, &plan, &work(MIXED), options);
        log.entries()
    };
    assert_eq!(log("1"), log("1"));
    assert_ne!(log("1"), log("2"));
}

/// The second run reads the stamps that the first wrote with the same seed.
#[test]
fn flash_state_file_keeps_drive_between_runs() {
    let folder = Folder::new("flash");
    let path = folder.path("drive").display().to_string();
    let plan = flash(&[("medium.flash.state", &path)]);
    let write = "[write]\nrw=write\nbs=64k\nsize=2m\n";
    simulate_by(NVME, &plan, &work(write), Options::default());
    let filled =
        simulate_by(NVME, &plan, &work("[read]\nrw=read\nbs=64k\nsize=2m\n"), Options::default());
    let seen = software(&filled);
    assert_eq!(seen.mapped_units, 512, "2 MiB of units");
    assert!(filled.flash.expect("a device of flash").chips.senses > 0);
    let other = flash(&[("medium.flash.state", &path), ("run.seed", "2")]);
    let message = MediumState::new(&other).err().expect("other chips").to_string();
    assert_eq!(
        message,
        format!("{path}: found other chips, expected those of the plan, its seed included")
    );
    let stamps = flash(&[("medium.flash.state", &path), ("medium.keep", "stamps")]);
    let message = MediumState::new(&stamps).err().expect("another medium.keep").to_string();
    assert!(message.ends_with("to run with this state: --set medium.keep=everything"), "{message}");
}

#[test]
fn flash_start_filled_and_steady_map_all_units() {
    let seen = |start: &str| {
        let plan = flash(&[("medium.flash.start", start), ("medium.keep", "stamps")]);
        let read = "[read]\nrw=randread\nbs=4k\nsize=1m\n";
        software(&simulate_by(NVME, &plan, &work(read), Options::default()))
    };
    let (fresh, filled, steady) = (seen("fresh"), seen("filled"), seen("steady"));
    let units = u64::from(flash(&[]).medium.flash.expect("flash").software.units);
    assert_eq!((fresh.mapped_units, fresh.erases), (0, 0));
    assert_eq!((filled.mapped_units, steady.mapped_units), (units, units));
    assert!(
        steady.left_units < filled.left_units,
        "{} and {}",
        filled.left_units,
        steady.left_units
    );
}

/// CAP.TO of the controller, in seconds.
fn ready_timeout_s(sets: &[(&str, &str)], name: &str) -> f64 {
    let plan = plan(name, sets);
    let register = async |_, _, host: SimHost| host.read32(registers::CAP).await;
    let low = in_sim(NVME, &plan, Log::Off, register);
    f64::from(Cap::from_bits(low.into()).timeout_ms()) / 1000.0
}

/// A mount without checkpoint reads the spare bytes of every page, and the host waits for that.
#[test]
fn cap_to_covers_mount_scan_of_whole_drive() {
    assert_eq!(ready_timeout_s(&[], "small-flash"), 10.0, "the minimum");
    // 480 superblocks of 384 word lines with three pages each, sensed in 78, 117 and 78 us.
    let scan = 480.0 * 384.0 * 273e-6;
    let timeout = ready_timeout_s(&[], "tlc");
    assert!(timeout > scan && timeout < 1.6 * scan, "{timeout} s; the scan takes {scan} s");
    let larger = ready_timeout_s(&[("medium.flash.blocks", "4096")], "tlc");
    assert_eq!(larger, 127.5, "the maximum of eight bits");
}
