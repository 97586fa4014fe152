//! Operations longer than one command: their commands run at once, within the slots of the queue.

use plan::Plan;
use runtime::{Entry, Log};
use testing::{clean, only, operations, plan, simulate_with, turn, work};
use world::interfaces::NVME;
use world::{self, Options};

/// Commands of 16 KiB.
fn split(name: &str, sets: &[(&str, &str)]) -> Plan {
    let all = [("device.mdts", "16 KiB"), ("host.memory", "64 MiB"), ("host.timeout", "100 ms")];
    plan(name, &[&all[..], sets].concat())
}

fn log_of(plan: &Plan, job: &str) -> Vec<Entry> {
    let log = Log::kept();
    let options = Options { log: log.clone(), ..Options::default() };
    assert!(operations(only(&simulate_with(plan, &work(job), options))) > 0);
    log.entries()
}

/// Largest number of I/O commands between fetch and completion.
fn most_in_flight(log: &[Entry]) -> u64 {
    let (mut now, mut most) = (0, 0);
    for entry in log.iter().filter(|entry| entry.component == "device" && entry.a == 1) {
        match entry.what {
            "fetched" => now += 1,
            "completed" => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[test]
fn commands_of_an_operation_are_in_flight_at_once_up_to_the_queue_depth() {
    for (depth, expected) in [("64", 16), ("4", 4), ("1", 1)] {
        for rw in ["read", "write"] {
            let plan = split("dc-express", &[("host.queue_depth", depth)]);
            let job = format!("[one]\nrw={rw}\nbs=256k\nsize=1m\nnumber_ios=4\n");
            assert_eq!(most_in_flight(&log_of(&plan, &job)), expected, "{rw}, depth {depth}");
        }
    }
}

/// An operation of eight commands takes less than half of eight operations of one.
#[test]
fn operation_of_eight_commands_overlaps_them() {
    let plan = split("small-flash", &[("medium.flash.start", "filled")]);
    let mean = |bytes: &str| {
        let job = work(&format!("[one]\nrw=randread\nbs={bytes}\nsize=4m\nnumber_ios=32\n"));
        only(&simulate_with(&plan, &job, Options::default())).stats.read.total.mean_ns()
    };
    let (long, short) = (mean("128k"), mean("16k"));
    assert!(long < 4.0 * short, "{long} ns, against {short} ns for one command");
}

const VERIFIED: &str = "[mixed]\nrw=randrw\nbssplit=4k/40:20k/30:100k/30\niodepth=8\nsize=4m\n\
    number_ios=400\nnorandommap=1\nfsync=32\nverify=crc32c\n";

#[test]
fn long_operations_verify_in_any_task_order_and_under_resets() {
    for (shuffle, resets) in [(None, 0), (Some(1), 0), (Some(2), 1)] {
        for depth in ["64", "3"] {
            let plan = split("gen4", &[("host.queue_depth", depth)]);
            let options = Options { shuffle, resets, ..Options::default() };
            let run_result = simulate_with(&plan, &work(VERIFIED), options);
            assert!(only(&run_result).blocks_verified > 300, "{shuffle:?}, depth {depth}");
            assert_eq!(run_result.resets, resets);
        }
    }
}

#[test]
fn long_operations_verify_live() {
    let _turn = turn();
    let plan = split("live", &[("host.queue_depth", "8")]);
    let run_result = world::live_in_threads(NVME, &plan, &work(VERIFIED), Options::default());
    let run_result = clean(run_result.expect("a run"));
    assert!(only(&run_result).blocks_verified > 300);
}

/// Blocks are of 512 bytes, commands of 32 blocks.
#[test]
fn error_names_lba_of_the_failed_command() {
    let fault = "[{ name = \"bad\", what = \"status\", status = \"Unrecovered Read Error\", dnr = true, \
        command = \"read\", first_lba = 100, last_lba = 200 }]";
    let sets = [("faults", fault), ("medium.block", "512 B"), ("host.queue_depth", "64")];
    let plan = split("dc-express", &sets);
    let job = work("[reads]\nrw=read\nbs=128k\nsize=256k\n");
    let run_result = world::simulate(NVME, &plan, &job, Options::default()).expect("a run");
    let job_result = only(&run_result);
    assert_eq!((job_result.errors(), operations(job_result)), (1, 1));
    let [message] = &job_result.messages[..] else { panic!("{:?}", job_result.messages) };
    // The fourth command has blocks 96 to 127; the next three fail too.
    assert!(message.contains("LBA 96"), "{message}");
}

/// The first failure of an operation ends it: no command begins after it.
#[test]
fn no_command_begins_after_a_failure() {
    let fault = "[{ name = \"bad\", what = \"status\", status = \"Unrecovered Read Error\", dnr = true, \
        command = \"read\", nth = 1 }]";
    let plan = split("dc-express", &[("faults", fault), ("host.queue_depth", "1")]);
    let log = Log::kept();
    let options = Options { log: log.clone(), ..Options::default() };
    let job = work("[reads]\nrw=read\nbs=256k\nsize=256k\n");
    let run_result = world::simulate(NVME, &plan, &job, options).expect("a run");
    assert_eq!(only(&run_result).errors(), 1);
    let entries = log.entries();
    let fetched = entries.iter().filter(|entry| entry.what == "fetched" && entry.a == 1);
    assert_eq!(fetched.count(), 1);
}

#[test]
fn job_ends_if_the_link_goes_down_under_long_operations() {
    let fault = "[{ name = \"gone\", what = \"link-down\", at = \"1 ms\" }]";
    let plan = split("dc-express", &[("faults", fault), ("host.timeout", "1 ms")]);
    let job = work("[reads]\nrw=randread\nbs=256k\nsize=4m\niodepth=4\nruntime=1\ntime_based=1\n");
    let run_result = world::simulate(NVME, &plan, &job, Options::default()).expect("a run");
    let job_result = only(&run_result);
    assert!(operations(job_result) > 0 && job_result.errors() > 0, "{:?}", job_result.messages);
}
