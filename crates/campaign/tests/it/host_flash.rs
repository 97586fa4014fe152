//! Flash software on the host: contents verified simulated and live under garbage collection, complete
//! latency breakdowns, a failing endpoint, and power cuts that also lose the host's memory.
//!
//! `DOORBELL_CUTS=N` sets the length of each campaign.

use campaign::power_cuts::{self, Campaign};
use host::{BlockDevice, Kind};
use plan::Plan;
use runtime::{Log, Span};
use testing::{clean, only, plan, shares, simulate_by, work};
use wire::Lba;
use workload::pattern::OpKind;
use world::interfaces::{Driver, HOST_FLASH, HostFlash, Interface, NVME};
use world::{self, Options};

/// All request lengths, over the whole drive, with overwrites.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=100%\n\
    io_size=12m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

fn flash(sets: &[(&str, &str)]) -> Plan {
    plan("small-flash", sets)
}

/// Endpoints, copies by host or endpoint, full contents and stamps, minimum memory for pages, interrupts.
const WAYS: [&[(&str, &str)]; 5] = [
    &[],
    &[("pages.endpoints", "1"), ("pages.copies", "endpoint")],
    &[("pages.copies", "endpoint"), ("medium.keep", "stamps")],
    &[("pages.read_memory", "416 KiB"), ("medium.flash.cache", "through")],
    &[("host.completion", "interrupt"), ("pages.queue_depth", "3"), ("pages.upstream_pages", "2")],
];

#[test]
fn host_flash_verified_io_under_gc_simulated() {
    for sets in WAYS {
        let run_result = simulate_by(HOST_FLASH, &flash(sets), &work(MIXED), Options::default());
        assert!(only(&run_result).blocks_verified > 2_000, "{sets:?}");
        let software = run_result.flash.and_then(|seen| seen.software).expect("the host tells");
        assert!(software.counters.collected > 0, "{sets:?}: {software:?}");
    }
}

#[test]
fn host_flash_verified_io_live() {
    let plan = flash(&[("medium.pace", "immediate")]);
    for run in [world::live_in_one_thread, world::live_in_threads] {
        let run_result = run(HOST_FLASH, &plan, &work(MIXED), Options::default());
        let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
        assert!(only(&run_result).blocks_verified > 2_000);
    }
}

#[test]
fn flash_state_mounts_on_host_and_device() {
    // The flash format does not depend on the placement: a state that one placement leaves, the other mounts.
    let folder = testing::Folder::new("placements");
    let state = folder.path("state");
    let sets = [("medium.flash.state", state.to_str().expect("a path"))];
    let write = "[w]\nrw=write\nbs=4k\nsize=2m\nverify=crc32c\ndo_verify=0\n";
    simulate_by(HOST_FLASH, &flash(&sets), &work(write), Options::default());
    let read = "[r]\nrw=read\nbs=4k\nsize=2m\n";
    let run_result = simulate_by(NVME, &flash(&sets), &work(read), Options::default());
    let software = run_result.flash.and_then(|seen| seen.software).expect("the device tells");
    assert_eq!(software.mapped_units, 512, "2 MiB of units");
}

#[test]
fn host_flash_latency_breakdown_is_complete() {
    let run_result = simulate_by(HOST_FLASH, &flash(&[]), &work(MIXED), Options::default());
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
        let shares = shares(only(&run_result), kind);
        assert!(shares.unexplained_ps.abs() < 0.5, "{kind:?}");
    }
}

#[test]
fn host_flash_run_is_deterministic_by_seed() {
    let events = |seed| {
        let plan = flash(&[("run.seed", seed)]);
        simulate_by(HOST_FLASH, &plan, &work(MIXED), Options::default()).timed_events
    };
    assert_eq!(events("7"), events("7"));
    assert_ne!(events("7"), events("8"));
}

/// The link goes down under reads and writes: every caller gets an error, and none waits forever.
#[test]
fn host_flash_link_down_fails_all_callers() {
    let plan = flash(&[("host.timeout", "20 ms")]);
    let ended = world::in_virtual_time::<HostFlash, _>(&plan, Log::Off, async |rt, bus, driver| {
        let (disk, ended) = (driver.disk(0), std::rc::Rc::new(std::cell::RefCell::new(Vec::new())));
        for at in 0..16 {
            let (disk, ended) = (disk.clone(), ended.clone());
            rt.spawn(async move {
                loop {
                    let buffer = disk.buffer(4096).expect("memory");
                    let wrote = disk.write(Lba(8 * at), buffer, true).await.1;
                    let read = disk.read(Lba(8 * at), disk.buffer(4096).expect("memory")).await.1;
                    if let Err(error) = wrote.and(read) {
                        ended.borrow_mut().push(error.kind);
                        return;
                    }
                }
            });
        }
        rt.sleep(Span::ms(30)).await;
        assert!(ended.borrow().is_empty());
        bus.take_link_down();
        rt.sleep(Span::ms(60)).await;
        assert!(driver.stop().await.is_err());
        ended.take()
    });
    assert_eq!(ended.expect("a world"), vec![Kind::Gone; 16]);
}

/// Operations may be dropped at any await: others continue, and all data are read back.
#[test]
fn host_flash_operations_can_be_dropped_at_any_await() {
    let plan = flash(&[("pages.queue_depth", "2"), ("pages.read_memory", "416 KiB")]);
    let done = world::in_virtual_time::<HostFlash, _>(&plan, Log::Off, async |rt, _, driver| {
        let disk = driver.disk(0);
        for lba in 0..64 {
            let buffer = disk.buffer(4096).expect("memory");
            buffer.copy_in(0, &[lba as u8; 4096]);
            disk.write(Lba(8 * lba), buffer, true).await.1.expect("a good write");
        }
        for step in 0..400 {
            let limit = Span::ns(step * 371);
            let buffer = disk.buffer(8 * 4096).expect("memory");
            runtime::race(disk.read(Lba(step % 56 * 8), buffer), rt.sleep(limit)).await;
            let buffer = disk.buffer(4096).expect("memory");
            runtime::race(disk.write(Lba(4000), buffer, true), rt.sleep(limit * 9)).await;
        }
        for lba in 0..64 {
            let (buffer, read) = disk.read(Lba(8 * lba), disk.buffer(4096).expect("memory")).await;
            read.expect("a good read");
            let mut found = [0; 4096];
            buffer.copy_out(0, &mut found);
            assert!(found == [lba as u8; 4096], "block {lba}");
        }
    });
    done.expect("a world");
}

#[test]
fn host_flash_flushed_data_survives_power_cuts() {
    let cuts = std::env::var("DOORBELL_CUTS").map_or(3, |cuts| cuts.parse().expect("a number"));
    for (seed, sets) in (1..).zip([
        &[][..],
        &[("medium.flash.start", "steady"), ("pages.copies", "endpoint")],
        &[("medium.flash.cache", "through"), ("medium.keep", "stamps"), ("pages.endpoints", "1")],
        &[("medium.flash.errors", "profile"), ("pages.read_memory", "416 KiB")],
    ]) {
        let campaign = Campaign { seed, from: 0, cuts };
        let survived = power_cuts::run(HOST_FLASH, &flash(sets), campaign, |_| {});
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: {failure}"));
        assert!(survived.writes > 100 && survived.blocks > 1000, "{sets:?}: {survived:?}");
    }
}

#[test]
fn host_flash_campaign_detects_flush_without_wait() {
    let mut plan = flash(&[]);
    let software = &mut plan.medium.flash.as_mut().expect("flash").software;
    software.mistakes.flush_returns_at_once = true;
    let campaign = Campaign { seed: 1, from: 0, cuts: 100 };
    power_cuts::run(HOST_FLASH, &plan, campaign, |_| {}).expect_err("the mistake is found");
}

#[test]
fn host_flash_invalid_plan_error_names_key() {
    let said = |plan: &Plan| HostFlash::check(plan).expect_err("refused");
    for (sets, what) in [
        (&[("medium.flash.cache", "protected")][..], "medium.flash.cache: found protected"),
        (&[("pages.endpoints", "3")], "pages.endpoints: found 3 endpoints, expected at most 2"),
        (
            &[("pages.read_memory", "64 KiB")],
            "pages.read_memory: found 65536 bytes, expected at least 425984",
        ),
        (&[("host.memory", "5 MiB")], "host.memory: found 5242880 bytes, expected at least"),
    ] {
        let said = said(&flash(sets));
        assert!(said.starts_with(&format!("plans/small-flash.toml: {what}")), "{said}");
    }
    assert!(said(&plan("gen4", &[])).contains("found no table [pages]"));
}
