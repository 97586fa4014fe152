//! `doorbell run --threads`: what several host threads write and read is verified, under resets and through
//! groups of jobs; and what is not to be had is said.

mod common;

use std::process::{Command, Output};

use common::{plan, work};
use machine::world::{Options, live_in_host_threads};
use workload::pattern::OpKind;

/// Clones that all write over each other's blocks, and then others that read.
const JOB: &str = "[global]\nbs=4k\niodepth=4\nsize=1m\nverify=crc32c\n\
    [mixed]\nrw=randrw\nnumjobs=3\nio_size=512k\n\
    [after]\nstonewall\nrw=randread\nnumjobs=2\nio_size=256k\n";

#[test]
fn two_threads_verify_each_others_blocks_under_resets() {
    let plan = plan("live", &[("medium.capacity", "16 MiB"), ("run.breakdown_sample", "1")]);
    let options = Options { resets: 1, ..Options::default() };
    let outcome = live_in_host_threads(&plan, &work(JOB), options.clone(), 2).unwrap();
    assert_eq!(outcome.resets, 1);
    let [(_, mixed), (_, after)] = &outcome.jobs[..] else { panic!("two jobs") };
    assert_eq!((mixed.errors(), &mixed.messages), (0, &vec![]));
    assert_eq!((after.errors(), &after.messages), (0, &vec![]));
    // Each clone's share, whichever thread it was dealt to.
    let done = mixed.seen.read.total.count() + mixed.seen.write.total.count();
    assert_eq!((done, after.seen.read.total.count()), (3 * 128, 2 * 64));
    assert!(after.blocks_verified >= 2 * 64, "{}", after.blocks_verified);
    // Each thread's commands are followed, as they are with one.
    let followed = after.seen.breakdowns[&OpKind::Read].mean().count;
    assert_eq!(followed, 2 * 64);
    assert_eq!(options.progress.operations(), 3 * 128 + 2 * 64);
}

fn doorbell(arguments: &[&str]) -> Output {
    let mut doorbell = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    doorbell.current_dir(common::root()).arg("run").args(arguments).output().unwrap()
}

fn complaint(arguments: &[&str]) -> String {
    let output = doorbell(arguments);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_cannot_be_is_said() {
    let job = "jobs/classes.fio";
    let live = ["--world", "live", "--threads", "2", job];
    let queues = complaint(&[&live[..], &["--set", "device.queues=1"]].concat());
    assert!(queues.contains("I/O queue 2 was asked for, the controller grants 1"), "{queues}");
    let others: [(&[&str], &str); 4] = [
        (&["--world", "sim", "--threads", "2", job], "found --world sim"),
        (&["--threads", "2", "--interface", "dcx", job], "found another interface than nvme"),
        (&["--threads", "2", "--socket", "nowhere", job], "found --socket"),
        (&["--threads", "2", "--series", "target/series", job], "found --series"),
    ];
    for (arguments, expected) in others {
        let said = complaint(arguments);
        assert!(said.contains(expected) && said.contains("--world live or both"), "{said}");
    }
    let one = doorbell(&["--world", "live", "--threads", "3", "jobs/one-read.fio"]);
    let said = String::from_utf8(one.stdout).unwrap();
    assert!(said.contains("note: 3 threads were asked for, and 1 clones run at once"), "{said}");
}
