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
use world::interfaces::{HOST_FLASH, NVME};
use world::{self, Options};

/// All request lengths, over the whole drive, with overwrites.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=100%\n\
    io_size=12m\nnorandommap=1\nfsync=16\nverify=crc32c\n";

fn flash(sets: &[(&str, &str)]) -> Plan {
    plan("small-flash", sets)
}

/// Cores of the FTL alone, and what handing over costs.
const APART: &[(&str, &str)] =
    &[("host.cores", "4"), ("pages.cores", "2"), ("pages.costs.hand over", "100 ns")];

/// Endpoints, copies by host or endpoint, full contents and stamps, minimum memory for pages, interrupts, and
/// cores of the FTL alone, one command a die, and endpoints with links of their own.
const WAYS: [&[(&str, &str)]; 8] = [
    APART,
    &[],
    &[("pages.endpoints", "1"), ("pages.copies", "endpoint")],
    &[("pages.copies", "endpoint"), ("medium.keep", "stamps")],
    &[("pages.read_memory", "416 KiB"), ("medium.flash.cache", "through")],
    &[("pages.die_commands", "1"), ("pages.endpoints", "1")],
    &[("pages.port_lanes", "1")],
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
    let immediate = ("medium.pace", "immediate");
    let plan = flash(&[immediate]);
    let by_die = flash(&[immediate, ("pages.die_commands", "1"), ("pages.endpoints", "1")]);
    for (run, plan) in [
        (world::live_in_one_thread as fn(_, &_, &_, _) -> _, &plan),
        (world::live_in_threads, &plan),
        (world::live_in_one_thread, &by_die),
        (world::live_in_threads, &by_die),
    ] {
        let run_result = run(HOST_FLASH, plan, &work(MIXED), Options::default());
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

/// With cores of its own, the FTL takes the callers' cores nothing but the hand-over; without, it takes the
/// other cores nothing.
#[test]
fn host_flash_on_cores_of_its_own_leaves_those_of_callers() {
    let job = "[w]\nrw=randwrite\nbs=4k\niodepth=8\nsize=100%\nio_size=4m\nnorandommap=1\n";
    let busy = |sets: &[(&str, &str)]| {
        let run_result = simulate_by(HOST_FLASH, &flash(sets), &work(job), Options::default());
        let writes = only(&run_result).stats.of(OpKind::Write).total.count();
        (run_result.busy.expect("simulated").cores, writes)
    };
    let (cores, writes) = busy(APART);
    // The two hand-overs, and what the block layer and the load generator take without an FTL.
    let (alone, _) = busy(&[("host.cores", "4")]);
    assert!(cores[2] > Span::ZERO && cores[3] > Span::ZERO, "{cores:?}");
    assert!(cores[1] == Span::ZERO && alone[1..] == [Span::ZERO; 3], "{cores:?}, {alone:?}");
    assert!(cores[0] >= Span::ns(200) * writes && cores[0] < alone[0], "{cores:?}, {alone:?}");
}

/// Host memory by what it grows with: the map with the capacity, pages that are read with the plan's key, and
/// commands with the queues. Nothing else of it does.
#[test]
fn host_flash_memory_parts_follow_their_own_laws() {
    let job = "[w]\nrw=write\nbs=4k\nsize=64k\n";
    let memory = |sets: &[(&str, &str)]| {
        let run_result = simulate_by(HOST_FLASH, &flash(sets), &work(job), Options::default());
        run_result.host_memory.expect("the FTL is on the host")
    };
    let base = memory(&[]);
    let twice = memory(&[("medium.flash.blocks", "32")]);
    let per_cent = |part: u64, of: u64| part * 100 / of;
    assert!((180..260).contains(&per_cent(twice.map, base.map)), "{base:?}, {twice:?}");
    assert_eq!(
        (twice.write_buffer, twice.read_pages, twice.commands),
        (base.write_buffer, base.read_pages, base.commands)
    );
    let reads = memory(&[("pages.read_memory", "2 MiB"), ("host.memory", "32 MiB")]);
    assert!(reads.read_pages > base.read_pages && reads.map == base.map);
    assert_eq!((reads.commands, reads.write_buffer), (base.commands, base.write_buffer));
    let deep = memory(&[("pages.queue_depth", "128")]);
    assert!(deep.commands > base.commands && deep.map == base.map);
}

/// Long reads at a moderate load, of a range in which a few units were overwritten since: these split a
/// page's units, so that a request meets the same page twice. It is one operation all the same. Read again unit by
/// unit, each queued again, such a request took 128 times as long as its neighbours.
#[test]
fn host_flash_long_random_reads_have_a_bounded_tail() {
    let job = "[fill]\nrw=write\nbs=128k\niodepth=8\nsize=25%\n\n\
        [holes]\nstonewall\nrw=randwrite\nbs=512\nsize=25%\nio_size=64k\nnorandommap=1\n\n\
        [load]\nstonewall\nrw=randread\nbs=64k\niodepth=8\nsize=25%\nio_size=64m\nnorandommap=1\n";
    let plan = plan("flash-closer", &[]);
    let run_result = simulate_by(HOST_FLASH, &plan, &work(job), Options::default());
    let (_, load) = run_result.jobs.last().expect("the load");
    let latency = &load.stats.of(OpKind::Read).total;
    let (median, tail) = (latency.percentile_ns(50_000), latency.percentile_ns(99_990));
    assert!(latency.count() > 1000 && tail <= 10 * median, "median {median} ns, 99.99 % {tail} ns");
}

/// The link goes down under reads and writes: every caller gets an error, and none waits forever.
#[test]
fn host_flash_link_down_fails_all_callers() {
    link_down(&flash(&[("host.timeout", "20 ms")]));
    link_down(&flash(&[("host.timeout", "20 ms"), ("pages.die_commands", "1")]));
}

fn link_down(plan: &Plan) {
    let ended = world::in_virtual_time(HOST_FLASH, plan, Log::Off, 1, async |rt, bus, driver| {
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
    let small = [("pages.queue_depth", "2"), ("pages.read_memory", "416 KiB")];
    drop_operations(&flash(&small));
    drop_operations(&flash(&[small[0], small[1], ("pages.die_commands", "1")]));
}

fn drop_operations(plan: &Plan) {
    let done = world::in_virtual_time(HOST_FLASH, plan, Log::Off, 1, async |rt, _, driver| {
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

/// The map costs of a trim are those of its mapping units, as of a read or a write.
#[test]
fn host_flash_trim_cost_grows_with_mapping_units() {
    let plan = flash(&[("pages.costs.map", "1 us")]);
    let spans = world::in_virtual_time(HOST_FLASH, &plan, Log::Off, 1, async |rt, _, driver| {
        let disk = driver.disk(0);
        let mut spans = Vec::new();
        for (lba, blocks) in [(0, 8), (0, 8 * 64), (4, 8)] {
            let begin = rt.now();
            disk.deallocate(Lba(lba), blocks).await.expect("a good trim");
            spans.push(rt.now().since(begin));
        }
        for (lba, blocks) in [(u64::MAX, 1), (disk.geometry().blocks, 1), (0, u32::MAX)] {
            let error = disk.deallocate(Lba(lba), blocks).await.expect_err("beyond the capacity");
            assert_eq!(error.kind, Kind::OutOfRange);
        }
        spans
    });
    let spans = spans.expect("a world");
    assert_eq!(spans[1] - spans[0], Span::us(63));
    assert!(spans[2] - spans[0] >= Span::us(1), "blocks in two units: {spans:?}");
}

#[test]
fn host_flash_flushed_data_survives_power_cuts() {
    let cuts = std::env::var("DOORBELL_CUTS").map_or(3, |cuts| cuts.parse().expect("a number"));
    for (seed, sets) in (1..).zip([
        &[][..],
        &[("medium.flash.start", "steady"), ("pages.copies", "endpoint")],
        &[("medium.flash.cache", "through"), ("medium.keep", "stamps"), ("pages.endpoints", "1")],
        &[("medium.flash.errors", "profile"), ("pages.read_memory", "416 KiB")],
        &[("pages.die_commands", "1"), ("pages.endpoints", "1"), ("medium.flash.channels", "4")],
        &[("pages.port_lanes", "1")],
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
    let said = |plan: &Plan| (HOST_FLASH.check)(plan).expect_err("refused").to_string();
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
