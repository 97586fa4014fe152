//! Shadow doorbells, from the driver to the controller: verified in both worlds and under resets, and
//! doorbells that need not be written.

use runtime::Log;
use testing::{clean, only, operations, plan, simulate_with, work};
use world::interfaces::NVME;
use world::{self, Options};

const VERIFIED: &str =
    "[mixed]\nrw=randrw\nbs=4k\niodepth=32\nsize=8m\nnumber_ios=300\nverify=meta\n";

/// Doorbells that were written, and those that were saved, as the run's note says.
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
fn most_doorbells_are_saved_where_many_commands_wait() {
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

/// Whatever the order in which ready tasks run, no command is left behind.
#[test]
fn no_order_of_tasks_leaves_a_command_behind() {
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
fn live_and_under_resets() {
    // No more than 64 + 128 operations, and those in flight, end from one reset to the next.
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
