//! `doorbell run --threads`: data written and read by several host threads are verified, under resets and
//! through groups of jobs; unsupported combinations are rejected.

use std::process::{Command, Output, Stdio};

use crate::common::{CommandOutput, Folder, output_of, plan, serve, work};
use workload::pattern::OpKind;
use world::{Options, Where, live_in_host_threads};

/// Clones that overwrite each other's blocks, then others that read.
const JOB: &str = "[global]\nbs=4k\niodepth=4\nsize=1m\nverify=crc32c\n\
    [mixed]\nrw=randrw\nnumjobs=3\nio_size=512k\n\
    [after]\nstonewall\nrw=randread\nnumjobs=2\nio_size=256k\n";

#[test]
fn two_threads_verify_each_others_blocks_under_resets() {
    let plan = plan("live", &[("medium.capacity", "16 MiB"), ("run.breakdown_sample", "1")]);
    let options = Options { resets: 1, ..Options::default() };
    let run_result =
        live_in_host_threads(&plan, &work(JOB), options.clone(), 2, Where::Thread).unwrap();
    assert_eq!(run_result.resets, 1);
    let [(_, mixed), (_, after)] = &run_result.jobs[..] else { panic!("two jobs") };
    assert_eq!((mixed.errors(), &mixed.messages), (0, &vec![]));
    assert_eq!((after.errors(), &after.messages), (0, &vec![]));
    // The share of each clone, independent of its thread.
    let done = mixed.stats.read.total.count() + mixed.stats.write.total.count();
    assert_eq!((done, after.stats.read.total.count()), (3 * 128, 2 * 64));
    assert!(after.blocks_verified >= 2 * 64, "{}", after.blocks_verified);
    // Commands of each thread are traced, as they are with one thread.
    let followed = after.stats.breakdowns[&OpKind::Read].mean().count;
    assert_eq!(followed, 2 * 64);
    assert_eq!(options.progress.operations(), 3 * 128 + 2 * 64);
}

const SETS: [&str; 4] = ["--set", "medium.capacity=16 MiB", "--set", "host.memory=64 MiB"];

/// Two threads of this process, and a device in another.
fn run_with(folder: &Folder, to: &str, job: &str, more: &[&str]) -> CommandOutput {
    let job = folder.file("job.fio", job).display().to_string();
    let run = ["run", &job, "--verbose", "--world", "live", "--threads", "2", to, "socket"];
    output_of(crate::common::doorbell(folder, &run).args(SETS).args(more))
}

#[test]
fn threads_drive_device_in_another_process() {
    for (bus, to, world) in [
        ("--shm", "--socket", "live, two processes, 2 host threads"),
        ("--vfio-user", "--vfio-user", "live, over vfio-user, 2 host threads"),
    ] {
        let folder = Folder::new(&format!("threads{bus}"));
        let _server = serve(&folder, bus, &SETS, None);
        let output = run_with(&folder, to, JOB, &["--resets", "1"]);
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
        assert!(output.out.contains(world), "{}", output.out);
        assert!(output.out.contains("note: 1 of 1 resets came under the work"), "{}", output.out);
        let verified = output.out.lines().filter(|line| line.ends_with(" blocks verified")).count();
        assert_eq!(verified, 2, "{}", output.out);
    }
}

/// No thread waits for a device whose process has exited.
#[test]
fn threads_end_when_device_process_is_killed() {
    const ENDLESS: &str = "[reads]\nrw=randread\nbs=4k\niodepth=4\nnumjobs=2\nsize=1m\n\
        time_based\nruntime=1h\n";
    for (bus, to) in [("--shm", "--socket"), ("--vfio-user", "--vfio-user")] {
        let folder = Folder::new(&format!("threads-killed{bus}"));
        let mut server = serve(&folder, bus, &SETS, None);
        let job = folder.file("job.fio", ENDLESS).display().to_string();
        let run = ["run", &job, "--verbose", "--world", "live", "--threads", "2", to, "socket"];
        let mut host = crate::common::doorbell(&folder, &run);
        let host = host.args(SETS).stdout(Stdio::piped()).stderr(Stdio::piped());
        let host = host.spawn().expect("the host starts");
        server.log_mentions(" connected\n");
        drop(server);
        let output = host.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

fn doorbell(arguments: &[&str]) -> Output {
    let mut doorbell = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    doorbell.current_dir(crate::common::root()).arg("run").args(arguments).output().unwrap()
}

fn error_of(arguments: &[&str]) -> String {
    let output = doorbell(arguments);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn unsupported_thread_options_are_rejected() {
    let job = "jobs/classes.fio";
    let live = ["--world", "live", "--threads", "2", job];
    let queues = error_of(&[&live[..], &["--set", "device.queues=1"]].concat());
    assert!(queues.contains("I/O queue 2 was asked for, the controller grants 1"), "{queues}");
    let others: [(&[&str], &str); 4] = [
        (&["--world", "sim", "--threads", "2", job], "found --world sim"),
        (&["--threads", "2", "--interface", "dcx", job], "found another interface than nvme"),
        (&["--threads", "2", "--vfio", "0000:01:00.0", job], "found --vfio"),
        (&["--threads", "2", "--series", "target/series", job], "found --series"),
    ];
    for (arguments, expected) in others {
        let output = error_of(arguments);
        assert!(output.contains(expected) && output.contains("--world live or both"), "{output}");
    }
    let one = doorbell(&["--verbose", "--world", "live", "--threads", "3", "jobs/one-read.fio"]);
    let output = String::from_utf8(one.stdout).unwrap();
    assert!(
        output.contains("note: 3 threads were asked for, and 1 clones run at once"),
        "{output}"
    );
}
