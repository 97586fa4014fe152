//! Timed events that one command costs the simulator, counted exactly and listed by name, so that no change
//! raises the number unnoticed.
//!
//! `cargo test -p doorbell-world --test it hop_budget -- --nocapture` prints the events of one read.

use plan::Plan;
use runtime::{Entry, Log};
use testing::{only, plan, simulate, simulate_by, simulate_with, work};
use world::Options;
use world::interfaces::{BLOCK, DCX};

/// An event that advances the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Wait,
    /// A posted write arrives; the event log has an entry: component, event.
    Lands(&'static str, &'static str),
}
use Event::{Lands, Wait};

/// Timed events of one 4 KiB read on plan dc-express at depth 1, with their times in picoseconds after the
/// call, computed from the plan (terms in `laws.rs`).
const READ: [(u64, Event, &str); 13] = [
    (50_000, Wait, "the driver has built the entry (submit) and writes the doorbell"),
    (212_000, Lands("bus", "register"), "the doorbell write arrives"),
    (624_000, Wait, "fetch: host memory has read the entry"),
    (816_000, Wait, "fetch: the entry has arrived"),
    (944_000, Wait, "the entry is parsed (parse)"),
    (1_054_000, Wait, "the banks have opened the rows"),
    (1_311_999, Wait, "the medium's first byte can leave"),
    (3_743_999, Wait, "the last byte has left"),
    (3_775_999, Wait, "the completion is built (post completion) and sent"),
    (3_893_999, Lands("bus", "memory"), "the data arrive"),
    (3_945_999, Lands("bus", "memory"), "the completion arrives"),
    (3_960_000, Wait, "the poll loop finds the completion"),
    (4_010_000, Wait, "the driver has processed it (complete): the call returns"),
];

/// Log entries of the device: index of the event of [`READ`] at the same time, component, event.
const DEVICE_LOG: [(usize, &str, &str); 2] = [(3, "device", "fetched"), (8, "device", "completed")];

fn job(kind: &str, bytes: &str, count: u32) -> String {
    format!("[one]\nrw={kind}\nbs={bytes}\niodepth=1\nsize=256m\nnumber_ios={count}\n")
}

/// Timed events of one command, from the difference of two runs. The completion queue doorbell, which arrives
/// once for each quarter of the queue, is subtracted.
fn events_of_one(plan: &Plan, kind: &str, bytes: &str) -> u64 {
    let events = |count| {
        let run_result = simulate(plan, &work(&job(kind, bytes, count)));
        run_result.timed_events.expect("a simulated run")
    };
    const MORE: u64 = 1024;
    let quarter = u64::from((plan.host.queue_depth + 1).max(64) / 4);
    let doorbells = MORE / quarter;
    let more = events(128 + MORE as u32) - events(128) - doorbells;
    assert_eq!(more % MORE, 0, "every {kind} of {bytes} has the same number of events: {more}");
    more / MORE
}

/// A plan with a long watchdog timeout, because watchdog checks are timed events too.
fn quiet(name: &str, sets: &[(&str, &str)]) -> Plan {
    let sets: Vec<_> = sets.iter().copied().chain([("host.timeout", "3600 s")]).collect();
    plan(name, &sets)
}

#[test]
fn one_read_has_13_listed_events() {
    assert_eq!(events_of_one(&quiet("dc-express", &[]), "randread", "4k"), READ.len() as u64);
}

#[test]
fn nvme_commands_keep_event_budget() {
    let interrupts = [("host.completion", "interrupt")];
    let batched = [("host.doorbell", "batched")];
    for (name, sets, kind, bytes, budget) in [
        // One row, so there is no wait between access and stream.
        ("dc-express", &[][..], "randread", "512", 12),
        // Two pieces of 64 KiB with four events each, and the fetch of a PRP list with two.
        ("dc-express", &[], "randread", "128k", 19),
        // Data are fetched (two events), streamed to the banks and written there; none arrive in host memory.
        ("dc-express", &[], "randwrite", "4k", 13),
        // The interrupt arrives and is handled, instead of a poll; one context switch; the benchmark, and six
        // of the way through the kernel.
        ("dc-express-linux", &[], "randread", "4k", 22),
        ("gen4", &[], "randread", "4k", 12),
        ("gen4", &[], "randwrite", "4k", 13),
        ("gen4", &interrupts, "randread", "4k", 13),
        ("gen4", &batched, "randread", "4k", 12),
    ] {
        let events = events_of_one(&quiet(name, sets), kind, bytes);
        assert_eq!(events, budget, "{name} {sets:?}: {kind} of {bytes}");
    }
}

/// A DC Express read at depth 1 has no events for a doorbell or completion, and none for a fetch of its own:
/// a fetch is always in flight, so fetches depend on elapsed time, and some return no command. The budget is
/// therefore for 1000 reads.
#[test]
fn dcx_1000_reads_keep_event_budget() {
    for (bytes, budget) in [("512", 12_060), ("4k", 12_060)] {
        let events = |count| {
            let plan = quiet(
                "dc-express",
                &[("dcx.max_latency", "{ value = \"1 s\", source = \"assumed\" }")],
            );
            let work = work(&job("randread", bytes, count));
            let run_result = simulate_by(DCX, &plan, &work, Options::default());
            run_result.timed_events.expect("a simulated run")
        };
        let thousand = events(2000) - events(1000);
        assert_eq!(thousand, budget, "a thousand reads of {bytes}");
    }
}

/// A block of one command has the events of the command and of the block's exchange: two register writes,
/// fetch, return and interrupt.
#[test]
fn descriptor_block_of_one_keeps_event_budget() {
    let polled = [("host.completion", "polled")];
    let ahead = [("block.ahead", "8")];
    for (sets, kind, bytes, budget) in [
        (&[][..], "randread", "4k", 25),
        // Padded to a page.
        (&[], "randread", "512", 25),
        (&[], "randwrite", "4k", 26),
        // The second descriptor is in a block of its own.
        (&[], "randread", "8k", 45),
        (&polled, "randread", "4k", 23),
        // One check of the next ring entry, which is empty.
        (&ahead, "randread", "4k", 28),
    ] {
        let events = |count| {
            let plan = quiet("descriptor-blocks", sets);
            let work = work(&job(kind, bytes, count));
            let run_result = simulate_by(BLOCK, &plan, &work, Options::default());
            run_result.timed_events.expect("a simulated run")
        };
        let hundred = events(300) - events(200);
        assert_eq!(hundred, 100 * budget, "a hundred of {kind}, {bytes}, {sets:?}");
    }
}

/// Event log of the third of five reads, from its doorbell to its completion.
fn log_of_a_read() -> Vec<Entry> {
    let log = Log::kept();
    let options = Options { log: log.clone(), ..Options::default() };
    let run_result =
        simulate_with(&quiet("dc-express", &[]), &work(&job("randread", "4k", 5)), options);
    assert_eq!(only(&run_result).stats.read.total.count(), 5);
    let entries = log.entries();
    let completed = |entry: &Entry| entry.what == "completed" && entry.a == 1;
    let third = entries.iter().enumerate().filter(|(_, entry)| completed(entry)).nth(2);
    let (at, _) = third.expect("five reads complete");
    entries[at - 2..at + 3].to_vec()
}

#[test]
fn listed_events_match_event_log() {
    let log = log_of_a_read();
    let begun = log[0].at.0 - READ[1].0;
    let mut expected: Vec<(u64, &str, &str)> = Vec::new();
    for (index, (at, event, _)) in READ.iter().enumerate() {
        if let Lands(component, what) = event {
            expected.push((*at, component, what));
        }
        expected.extend(
            DEVICE_LOG
                .iter()
                .filter(|line| line.0 == index)
                .map(|(_, component, what)| (*at, *component, *what)),
        );
    }
    let found: Vec<_> = log.iter().map(|e| (e.at.0 - begun, e.component, e.what)).collect();
    assert_eq!(found, expected);
    println!("one 4 KiB read of dc-express, in nanoseconds after the call:");
    for (at, event, what) in READ {
        let entry = log.iter().find(|entry| {
            matches!(event, Lands(_, name) if name == entry.what) && entry.at.0 - begun == at
        });
        let logged = entry.map_or(String::new(), |entry| format!("[log: {entry}]"));
        println!("{:>6}.{:03}  {what:<64} {logged}", at / 1000, at % 1000);
    }
}
