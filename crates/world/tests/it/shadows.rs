//! Shadow doorbells, from driver to controller: verified in both worlds and under resets, with counts of
//! register writes saved.

use runtime::Log;
use testing::{clean, only, operations, plan, simulate_with, work};
use world::interfaces::NVME;
use world::{self, Options};

const VERIFIED: &str =
    "[mixed]\nrw=randrw\nbs=4k\niodepth=32\nsize=8m\nnumber_ios=300\nverify=meta\n";

/// Doorbells written and doorbells saved, from the run's note.
fn doorbells(notes: &[String]) -> (u64, u64) {
    let note = notes.iter().find_map(|note| note.strip_prefix("shadow doorbells: "));
    let numbers: Vec<u64> = note
        .expect("a note of doorbells")
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

fn with_shadows(name: &str, more: &[(&str, &str)]) -> plan::Plan {
    let sets = [&[("host.shadow_doorbells", "true"), ("medium.capacity", "16 MiB")], more].concat();
    plan(name, &sets)
}

#[test]
fn shadow_doorbells_save_most_writes_at_depth() {
    for completion in ["polled", "interrupt"] {
        let plan = with_shadows("gen4", &[("host.completion", completion)]);
        let run_result = clean(simulate_with(&plan, &work(VERIFIED), Options::default()));
        let (written, saved) = doorbells(&run_result.notes);
        let commands = operations(only(&run_result));
        assert!(
            saved > written,
            "{completion}: {written} written, {saved} saved of {commands} commands"
        );
    }
}

/// No command is missed in any order of ready tasks.
#[test]
fn shadow_doorbells_miss_no_command_in_any_task_order() {
    let job = VERIFIED.replace("number_ios=300", "number_ios=100");
    for seed in 0..8 {
        let (depth, burst) = ([1, 2, 5, 64][seed as usize % 4], ["1", "16"][seed as usize % 2]);
        let sets = [("host.queue_depth", &*depth.to_string()), ("device.fetch_max", burst)];
        let plan = with_shadows("gen4", &sets);
        let options = Options { shuffle: Some(seed), log: Log::Off, ..Options::default() };
        let run_result = clean(simulate_with(&plan, &work(&job), options));
        assert!(operations(only(&run_result)) >= 100);
    }
}

#[test]
fn shadow_doorbells_verify_live_under_resets() {
    // At most 64 + 128 operations, plus those in flight, complete between two resets.
    let job = VERIFIED.replace("number_ios=300", "number_ios=1000");
    for resets in [0, 3] {
        for run in [world::live_in_one_thread, world::live_in_threads] {
            let plan = with_shadows("live", &[]);
            let options = Options { resets, ..Options::default() };
            let run_result = clean(run(NVME, &plan, &work(&job), options).expect("a live run"));
            assert_eq!(run_result.resets, resets);
            assert!(doorbells(&run_result.notes).1 > 0);
        }
    }
}
