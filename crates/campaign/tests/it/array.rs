//! Arrays of whole devices: contents verified simulated and live, with flash software on the device or the
//! host, with a member missing, and after power cuts.
//!
//! `DOORBELL_CUTS=N` sets the length of each campaign.

use bus::link::Way;
use bus::sim::SimHost;
use campaign::power_cuts::{self, Campaign};
use host::BlockDevice;
use plan::Plan;
use runtime::Log;
use testing::{clean, only, plan, simulate_by, work};
use world::interfaces::{ArrayDriver, HOST_FLASH_ARRAY, HOST_GC_ARRAY, NVME, NVME_ARRAY, Row};
use world::{self, Options, RunResult};

/// All request lengths, over part of the array, with overwrites.
const MIXED: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/10:512/5\niodepth=8\nsize=1m\n\
    io_size=1536k\nnorandommap=1\nfsync=16\nverify=crc32c\n";

fn table(devices: u32, layout: &str, more: &str) -> String {
    format!(
        "{{ devices = {devices}, layout = \"{layout}\", chunk = \"8 KiB\", lanes = 4, collections = \
         \"free\", costs = {{ parity = \"30 ns\" }}{more} }}"
    )
}

fn striped() -> String {
    table(3, "striped", "")
}

fn parity() -> String {
    table(4, "parity", "")
}

fn flash(array: &str, sets: &[(&str, &str)]) -> Plan {
    plan("small-flash", &[sets, &[("array", array), ("host.memory", "64 MiB")]].concat())
}

#[test]
fn array_verified_io_simulated_and_live() {
    let without = table(4, "parity", ", out = 2");
    for (number, array) in [striped(), parity(), without].iter().enumerate() {
        let live = flash(array, &[("medium.pace", "immediate")]);
        let (modelled, work) = (flash(array, &[]), work(MIXED));
        let outcomes = match number {
            0 => [
                simulate_by(NVME_ARRAY, &modelled, &work, Options::default()),
                clean(
                    world::live_in_threads(NVME_ARRAY, &live, &work, Options::default())
                        .expect("a run"),
                ),
            ],
            _ => [
                simulate_by(HOST_FLASH_ARRAY, &modelled, &work, Options::default()),
                clean(
                    world::live_in_threads(HOST_FLASH_ARRAY, &live, &work, Options::default())
                        .expect("a run"),
                ),
            ],
        };
        for run_result in outcomes {
            assert!(only(&run_result).blocks_verified > 200, "{array}");
            let software = run_result.flash.and_then(|seen| seen.software).expect("they tell");
            assert!(software.counters.host_units > 100, "of all members: {software:?}");
        }
    }
}

/// Each member has a file of its own, and the array is there again in the next run.
#[test]
fn state_files_of_members_keep_an_array_between_runs() {
    let folder = std::env::temp_dir().join(format!("doorbell-array-state-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    let state = format!("{:?}", folder.join("member").display().to_string());
    let journaled = table(4, "parity", ", journal = 8");
    for (row, array) in [(NVME_ARRAY, journaled), (HOST_FLASH_ARRAY, parity())] {
        let plan = flash(&array, &[("medium.flash.state", &state)]);
        let mapped = |job: &str| {
            let run_result = simulate_by(row, &plan, &work(job), Options::default());
            run_result.flash.and_then(|flash| flash.software).expect("software").mapped_units
        };
        // Much of it is in write buffers at the end of the jobs, and in the files after the end of the run.
        mapped("[w]\nrw=write\nbs=64k\nsize=1m\n");
        let again = mapped("[r]\nrw=randread\nbs=4k\nsize=1m\nio_size=64k\n");
        assert!(again >= 341, "1 MiB and a third of parities: {again} units, {array}");
        for name in ["member", "member.2", "member.3", "member.4"] {
            std::fs::remove_file(folder.join(name)).expect(name);
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

/// Random writes of 4 KiB per second in virtual time, five members by `nvme`, chips of 64 blocks: by entries
/// of the journal and writes in flight.
fn journal_rate(entries: Option<u32>, depth: u32) -> f64 {
    let journal = entries.map_or(String::new(), |entries| format!(", journal = {entries}"));
    let array = table(5, "parity", &journal).replace("lanes = 4", "lanes = 16");
    let sets = [("medium.flash.blocks", "64"), ("host.queue_depth", "256")];
    let plan = flash(&array, &[&sets[..], &[("device.queue_entries", "512")]].concat());
    let io_size = if depth == 1 { "512k" } else { "8m" };
    let job = format!("[w]\nrw=randwrite\nbs=4k\niodepth={depth}\nio_size={io_size}\n");
    let run_result = simulate_by(NVME_ARRAY, &plan, &work(&job), Options::default());
    let writes = testing::operations(only(&run_result));
    writes as f64 / only(&run_result).elapsed.as_s_f64()
}

#[test]
fn changes_of_a_journal_share_flushes() {
    let (one, sixteen) = (journal_rate(Some(64), 1), journal_rate(Some(64), 16));
    // With a flush for each of them sixteen would not be faster than one.
    assert!(sixteen > 4.0 * one, "{sixteen} of {one}");
    let (without, with) = (journal_rate(None, 256), journal_rate(Some(1024), 256));
    // Each part is written twice, so that half is the most.
    assert!(with > without / 3.0 && with < without / 2.0, "{with} of {without}");
}

/// With this depth a member's buffer has a superblock of the journal at the end.
#[test]
fn all_members_flush_before_one_is_switched_off() {
    assert!(journal_rate(Some(1024), 64) > 0.0);
}

fn windows(window: &str) -> String {
    let windows = format!("collections = \"windows\", window = \"{window}\", early = 2");
    striped().replace("collections = \"free\"", &windows)
}

const BY_WINDOWS: [&Row; 3] = [NVME_ARRAY, HOST_FLASH_ARRAY, HOST_GC_ARRAY];

#[test]
fn members_verified_with_collections_in_windows() {
    for row in BY_WINDOWS {
        let plan = flash(&windows("2 ms"), &[]);
        let longer = MIXED.replace("size=1m", "size=100%").replace("io_size=1536k", "io_size=24m");
        let run_result = simulate_by(row, &plan, &work(&longer), Options::default());
        assert!(only(&run_result).blocks_verified > 200, "{}", row.name);
        let software = run_result.flash.and_then(|seen| seen.software).expect("software");
        assert!(software.counters.collected > 0, "{}: {software:?}", row.name);
        let live = flash(&windows("2 ms"), &[("medium.pace", "immediate")]);
        let live = world::live_in_threads(row, &live, &work(MIXED), Options::default());
        assert!(only(&clean(live.expect("a run"))).blocks_verified > 200, "{}", row.name);
    }
}

/// Writes until members begin to collect, at a rate that leaves them time.
const SLOW: &str = "[w]\nrw=randwrite\nbs=24k\niodepth=2\nsize=100%\nio_size=20m\nnorandommap=1\n\
    rate_iops=1000\n";

fn slow(row: &'static Row, array: &str) -> RunResult {
    let plan = flash(array, &[("medium.keep", "stamps")]);
    simulate_by(row, &plan, &work(SLOW), Options::default())
}

fn collected(run_result: &RunResult) -> u64 {
    run_result.flash.and_then(|seen| seen.software).expect("software").counters.collected
}

/// In a window a member collects early, and outside of it late. The windows of a minute are one that is open
/// all the time and two that never are.
#[test]
fn member_collects_early_in_its_window_and_late_outside_of_it() {
    for row in BY_WINDOWS {
        let of = |array: &str| collected(&slow(row, array));
        let (free, short, long) = (of(&striped()), of(&windows("2 ms")), of(&windows("60 s")));
        assert!(short > free, "{}: {short} by windows, {free} free", row.name);
        assert!(long < short, "{}: {long} with two held, {short} by turns", row.name);
    }
}

/// Outside of its window a member of host-directed GC has no event before writes would wait: the host reads
/// its table for the window alone.
#[test]
fn host_reads_no_table_of_a_member_outside_its_window() {
    let run_result = slow(HOST_GC_ARRAY, &windows("60 s"));
    let calls = |note: &String| -> Option<u64> {
        note.split_once("called ")?.1.split_once(' ')?.0.parse().ok()
    };
    let calls: Vec<u64> = run_result.notes.iter().filter_map(calls).collect();
    assert_eq!(calls.len(), 3, "{:?}", run_result.notes);
    let named = collected(&run_result);
    assert!(calls.iter().all(|calls| *calls <= 2 * named), "{calls:?} of {named}");
}

#[test]
fn array_run_is_deterministic_by_seed() {
    let events = |seed| {
        let plan = flash(&parity(), &[("run.seed", seed)]);
        let run_result = simulate_by(HOST_FLASH_ARRAY, &plan, &work(MIXED), Options::default());
        (run_result.timed_events, only(&run_result).elapsed)
    };
    assert_eq!(events("7"), events("7"));
    assert_ne!(events("7"), events("8"));
}

#[test]
fn array_io_survives_controller_resets() {
    for array in [striped(), parity()] {
        let plan = flash(&array, &[("medium.pace", "immediate")]);
        let options = Options { resets: 2, ..Options::default() };
        let longer = MIXED.replace("1536k", "6m");
        let run_result = world::live_in_one_thread(NVME_ARRAY, &plan, &work(&longer), options);
        let run_result = clean(run_result.expect("a run"));
        assert_eq!(run_result.resets, 2);
        assert!(only(&run_result).blocks_verified > 200);
    }
}

/// Members share the link above the switch: with one lane it has the throughput of one member, with four that
/// of all.
#[test]
fn array_throughput_limited_by_link_above_switch() {
    let rate = |lanes: &str| {
        let array = striped().replace("lanes = 4", &format!("lanes = {lanes}"));
        let sets = [("medium.flash.channels", "4"), ("link.lanes", "1"), ("medium.keep", "stamps")];
        let plan = flash(&array, &sets);
        let job = "[w]\nrw=write\nbs=24k\nsize=4m\niodepth=16\n";
        let run_result = simulate_by(NVME_ARRAY, &plan, &work(job), Options::default());
        let busy = run_result.busy.as_ref().expect("simulated");
        assert!(busy.down < busy.of, "{lanes}");
        only(&run_result).measured
    };
    assert!(rate("4") < rate("1"), "{} and {}", rate("4"), rate("1"));
}

#[test]
fn switch_enumerates_as_bridge_with_one_function_per_port() {
    let plan = flash(&parity(), &[]);
    let done = world::in_virtual_time(NVME_ARRAY, &plan, Log::Off, 1, async |_, bus, driver| {
        assert!(bus.switch_busy(Way::Up).is_some_and(|busy| busy.0 > 0));
        let array = driver.typed::<ArrayDriver<SimHost>>().array(0);
        let (blocks, stripe) = (array.geometry().blocks, array.layout().stripe_blocks());
        assert_eq!((blocks % stripe, array.out()), (0, None));
        driver.stop().await.expect("it stops");
    });
    done.unwrap_or_else(|error| panic!("{error}"));
}

/// The owner of the flash software coordinates garbage collection: one member at a time, or all together. No
/// data are lost, and collection keeps up.
#[test]
fn array_gc_coordination_with_host_flash() {
    let mut begun = Vec::new();
    for agreed in ["free", "in turn", "together"] {
        let array = striped().replace("\"free\"", &format!("\"{agreed}\""));
        let plan = flash(&array, &[("medium.keep", "stamps")]);
        let job = "[w]\nrw=randwrite\nbs=24k\niodepth=4\nsize=100%\nio_size=24m\nnorandommap=1\n";
        let run_result = simulate_by(HOST_FLASH_ARRAY, &plan, &work(job), Options::default());
        let software = run_result.flash.and_then(|seen| seen.software).expect("the host tells");
        assert!(software.counters.collected > 0, "{agreed}");
        begun.push((software.counters.collected, run_result.timed_events));
        let said = world::simulate(NVME_ARRAY, &plan, &work(MIXED), Options::default()).err();
        let said = said.map(|error| error.to_string());
        assert_eq!(said.is_some(), agreed != "free", "by nvme nobody can agree: {said:?}");
    }
    assert!(begun[0] != begun[1] && begun[1] != begun[2], "{begun:?}");
}

/// Every operation's latency consists of the commands that it waited for and the array's own waits: the
/// unexplained part is zero.
fn explained(row: &'static Row, array: &str, job: &str) -> Vec<(&'static str, f64)> {
    let plan = flash(array, &[("medium.keep", "stamps")]);
    let run_result = simulate_by(row, &plan, &work(job), Options::default());
    let mut stages: Vec<_> = row.stages.iter().map(|name| (*name, 0.0)).collect();
    for (kind, breakdown) in &only(&run_result).stats.breakdowns {
        let mean = breakdown.mean();
        if mean.count == 0 {
            continue;
        }
        let seen = only(&run_result).stats.of(*kind).total.count();
        assert_eq!(mean.count, seen, "{kind:?}: every operation is followed");
        let left = mean.unexplained_ps.abs() / mean.total_ps;
        assert!(left < 1e-9, "{array}: {kind:?}: {left} of {} ps: {mean:?}", mean.total_ps);
        stages.iter_mut().zip(&mean.stages_ps).for_each(|(stage, ps)| stage.1 += ps);
    }
    stages
}

#[test]
fn array_latency_breakdown_is_complete() {
    let job = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/25:64k/15\niodepth=8\nsize=1m\nio_size=1536k\n\
        norandommap=1\nfsync=16\n";
    let of = |stages: &[(&str, f64)], name| stages.iter().find(|stage| stage.0 == name).unwrap().1;
    let journal = table(3, "parity", ", journal = 4");
    for array in [striped(), parity(), table(4, "parity", ", out = 2"), journal] {
        let nvme = explained(NVME_ARRAY, &array, job);
        let closer = explained(HOST_FLASH_ARRAY, &array, job);
        for stages in [nvme, closer] {
            assert_eq!(of(&stages, "journal wait") > 0.0, array.contains("journal"), "{stages:?}");
            assert!(of(&stages, "flush") > 0.0, "{array}: {stages:?}");
            let own = of(&stages, "stripe wait") > 0.0 && of(&stages, "parity") > 0.0;
            assert_eq!(own, array != striped(), "{stages:?}");
        }
    }
}

fn survives(row: &'static Row, array: &str, seed: u64) {
    let cuts = std::env::var("DOORBELL_CUTS").map_or(3, |cuts| cuts.parse().expect("a number"));
    let plan = flash(array, &[]);
    power_cuts::check(row, &plan).unwrap_or_else(|error| panic!("{error}"));
    let campaign = Campaign { seed, from: 0, cuts };
    let survived = power_cuts::run(row, &plan, campaign, |_| ());
    let survived = survived.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    assert_eq!(survived.cuts, cuts);
    assert!(survived.writes > 0 && survived.blocks > cuts, "{survived:?}");
}

#[test]
fn array_flushed_data_survives_power_cuts() {
    survives(NVME_ARRAY, &striped(), 1);
    survives(NVME_ARRAY, &parity(), 2);
    survives(HOST_FLASH_ARRAY, &parity(), 3);
}

/// A member is missing from the beginning, or from some power cut on in every other life, and then returns
/// with its stale contents.
#[test]
fn journaled_array_survives_power_cuts_with_missing_member() {
    let missing = table(3, "parity", ", journal = 8, out = 1");
    survives(NVME_ARRAY, &missing, 4);
    survives(HOST_FLASH_ARRAY, &missing, 5);
    survives(NVME_ARRAY, &table(3, "parity", ", journal = 8"), 6);
    survives(HOST_FLASH_ARRAY, &table(3, "parity", ", journal = 8"), 7);
}

/// The same without a journal: blocks change without being written.
#[test]
fn unjournaled_degraded_array_has_write_hole() {
    let plan = flash(&table(3, "parity", ", out = 1"), &[]);
    let campaign = Campaign { seed: 8, from: 0, cuts: 20 };
    let failure = power_cuts::run(NVME_ARRAY, &plan, campaign, |_| ());
    assert!(failure.is_err(), "no cut fell between data and parity: {failure:?}");
}

#[test]
fn invalid_array_plan_error_names_key() {
    let said = |sets: &[(&str, &str)]| {
        let plan = flash(&parity(), sets);
        world::device::check(NVME_ARRAY, &plan).expect_err("no array").to_string()
    };
    let origin = "plans/small-flash.toml";
    assert_eq!(
        said(&[("device.mdts", "4 KiB")]),
        format!("{origin}: array.chunk: expected at most device.mdts, which is 4 KiB")
    );
    let plan = flash(&parity(), &[]);
    let one = world::simulate(NVME, &plan, &work(MIXED), Options::default());
    assert_eq!(
        one.err().map(|error| error.to_string()),
        Some(format!(
            "{origin}: array: found one, expected none: interface nvme supports one device here"
        ))
    );
}
