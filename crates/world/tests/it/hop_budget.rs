//! What one command costs the simulator: its timed events, counted exactly and listed by name, so that
//! no change raises them unseen.
//!
//! `cargo test -p doorbell-world --test it hop_budget -- --nocapture` prints the walk of one read.

use plan::Plan;
use runtime::{Entry, Log};
use testing::{only, plan, simulate, simulate_by, simulate_with, work};
use world::Options;
use world::interfaces::{BLOCK, DCX};

/// What makes the clock move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Wait,
    /// Something posted lands, and the event log says so: who, what.
    Lands(&'static str, &'static str),
}
use Event::{Lands, Wait};

/// One 4 KiB read of the plan dc-express, one at a time: every timed event, and its moment in
/// picoseconds after the call, as it follows from the plan (the terms are in `laws.rs`).
const READ: [(u64, Event, &str); 13] = [
    (50_000, Wait, "the driver has built the entry (submit), and rings"),
    (212_000, Lands("bus", "register"), "the doorbell lands"),
    (624_000, Wait, "the fetch: host memory has the entry"),
    (816_000, Wait, "the fetch: the entry has come"),
    (1_114_000, Wait, "the entry is parsed (parse)"),
    (1_224_000, Wait, "the banks have brought the rows"),
    (1_481_999, Wait, "the medium's first byte can leave"),
    (3_913_999, Wait, "the last byte has left"),
    (3_945_999, Wait, "the completion is made (post completion), and leaves"),
    (4_063_999, Lands("bus", "memory"), "the data land"),
    (4_115_999, Lands("bus", "memory"), "the completion lands"),
    (4_130_000, Wait, "the poll loop sees it"),
    (4_180_000, Wait, "the driver has taken it in (complete): the call returns"),
];

/// What the log says beside what lands: the device's own words, by the event that they come with.
const SAID: [(usize, &str, &str); 2] = [(3, "device", "fetched"), (8, "device", "completed")];

fn job(kind: &str, bytes: &str, count: u32) -> String {
    format!("[one]\nrw={kind}\nbs={bytes}\niodepth=1\nsize=256m\nnumber_ios={count}\n")
}

/// Timed events of one command, from two runs that differ by many commands. Beside them, a completion
/// queue's doorbell lands when a quarter of the queue was read.
fn events_of_one(plan: &Plan, kind: &str, bytes: &str) -> u64 {
    let events = |count| {
        let run_result = simulate(plan, &work(&job(kind, bytes, count)));
        run_result.timed_events.expect("a simulated run")
    };
    const MORE: u64 = 1024;
    let quarter = u64::from((plan.host.queue_depth + 1).max(64) / 4);
    let doorbells = MORE / quarter;
    let more = events(128 + MORE as u32) - events(128) - doorbells;
    assert_eq!(more % MORE, 0, "every {kind} of {bytes} is like the other: {more}");
    more / MORE
}

/// The plan, its watchdog out of the way: its looks are timed events of no command.
fn quiet(name: &str, sets: &[(&str, &str)]) -> Plan {
    let sets: Vec<_> = sets.iter().copied().chain([("host.timeout", "3600 s")]).collect();
    plan(name, &sets)
}

#[test]
fn a_read_has_the_events_of_its_list() {
    assert_eq!(events_of_one(&quiet("dc-express", &[]), "randread", "4k"), READ.len() as u64);
}

#[test]
fn every_kind_of_command_keeps_its_budget() {
    let interrupts = [("host.completion", "interrupt")];
    let batched = [("host.doorbell", "batched")];
    for (name, sets, kind, bytes, budget) in [
        // One row, so no wait between its access and its stream.
        ("dc-express", &[][..], "randread", "512", 12),
        // In two pieces of 64 KiB, each with four events, behind a list of pages, whose fetch is two.
        ("dc-express", &[], "randread", "128k", 19),
        // The data are fetched (two), streamed to the banks and written there; nothing of them lands.
        ("dc-express", &[], "randwrite", "4k", 13),
        // The interrupt lands and is taken, where the other has a poll; a context is switched, and three
        // layers of software lie above.
        ("dc-express-linux", &[], "randread", "4k", 18),
        ("gen4", &[], "randread", "4k", 12),
        ("gen4", &[], "randwrite", "4k", 13),
        ("gen4", &interrupts, "randread", "4k", 13),
        ("gen4", &batched, "randread", "4k", 12),
    ] {
        let events = events_of_one(&quiet(name, sets), kind, bytes);
        assert_eq!(events, budget, "{name} {sets:?}: {kind} of {bytes}");
    }
}

/// A read of DC Express, one at a time, has no events of a doorbell, of a completion or of its own fetch
/// alone: a fetch is always under way, so they come by the time that passes, and some come in vain. So the
/// budget is for a thousand reads, not for one.
#[test]
fn a_thousand_reads_of_dc_express_keep_their_budget() {
    for (bytes, budget) in [("512", 11_060), ("4k", 12_060)] {
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

/// A block of one has the events of a command and those of its exchange: announced by two registers, taken,
/// fetched, returned, told of.
#[test]
fn a_block_of_one_keeps_its_budget() {
    let polled = [("host.completion", "polled")];
    let ahead = [("block.ahead", "8")];
    for (sets, kind, bytes, budget) in [
        (&[][..], "randread", "4k", 25),
        // Padded: a page all the same.
        (&[], "randread", "512", 25),
        (&[], "randwrite", "4k", 26),
        // The second descriptor is a block of its own.
        (&[], "randread", "8k", 45),
        (&polled, "randread", "4k", 23),
        // A look at the next place of the ring, in vain.
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

/// The log of one read in the middle of several: from its doorbell to its completion.
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
fn the_list_is_what_the_log_says() {
    let log = log_of_a_read();
    let begun = log[0].at.0 - READ[1].0;
    let mut expected: Vec<(u64, &str, &str)> = Vec::new();
    for (index, (at, event, _)) in READ.iter().enumerate() {
        if let Lands(who, what) = event {
            expected.push((*at, who, what));
        }
        expected.extend(
            SAID.iter().filter(|said| said.0 == index).map(|(_, who, what)| (*at, *who, *what)),
        );
    }
    let found: Vec<_> = log.iter().map(|e| (e.at.0 - begun, e.component, e.what)).collect();
    assert_eq!(found, expected);
    println!("one 4 KiB read of dc-express, in nanoseconds after the call:");
    for (at, event, what) in READ {
        let entry = log.iter().find(|entry| {
            matches!(event, Lands(_, said) if said == entry.what) && entry.at.0 - begun == at
        });
        let logged = entry.map_or(String::new(), |entry| format!("[log: {entry}]"));
        println!("{:>6}.{:03}  {what:<64} {logged}", at / 1000, at % 1000);
    }
}
