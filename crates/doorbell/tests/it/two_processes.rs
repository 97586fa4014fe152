//! A device in one process, its host in another: they share memory, and either may be killed.
//!
//! `DOORBELL_HEAVY=1` makes the runs as long as in the nightly tests of a release build.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use crate::common::flushed::{ALL_BLOCKS, check_all, write_until_killed};
use crate::common::system::{self, Limit};
use crate::common::{
    CommandOutput, Folder, Server, assert_verified, doorbell, mixed, output_of, over_socket, plan,
};
use workload::verify::Ledger;

fn heavy() -> bool {
    std::env::var_os("DOORBELL_HEAVY").is_some()
}

/// Values set in the plan of both processes: blocks of 512 B, and memory for 128 operations of 1 MiB.
const SETS: [&str; 8] = [
    "--set",
    "medium.block=512 B",
    "--set",
    "medium.capacity=128 MiB",
    "--set",
    "host.memory=192 MiB",
    "--set",
    "host.retries=100",
];

/// More operations than any machine completes before the process is ended.
const ENDLESS: u64 = 1_000_000_000;

/// Serves in memory or on an image.
fn serve(folder: &Folder, image: Option<&Path>) -> Server {
    crate::common::serve(folder, "--shm", &SETS, image)
}

/// The command of the host's process.
fn client(folder: &Folder, job: &Path, more: &[&str]) -> std::process::Command {
    let job = job.display().to_string();
    let mut command =
        doorbell(folder, &["run", &job, "--verbose", "--world", "live", "--socket", "socket"]);
    command.args(SETS).args(more);
    command
}

fn assert_clean(output: &CommandOutput) {
    assert_verified(output, 10_000);
}

/// The number of resets during the run.
fn resets(output: &CommandOutput) -> u32 {
    let note = output.out.lines().find(|line| line.ends_with("resets came under the work"));
    let words = note.and_then(|line| line.strip_prefix("note: ")).expect("a note on resets");
    words.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn verified_across_two_processes_under_resets() {
    let folder = Folder::new("resets");
    let (ios, times) = if heavy() { (200_000, 100) } else { (4_000, 10) };
    let job = mixed(&folder, ios);
    let image = folder.path("image");
    for image in [None, Some(image.as_path())] {
        let mut server = serve(&folder, image);
        let run = output_of(&mut client(&folder, &job, &["--resets", &times.to_string()]));
        assert_clean(&run);
        assert_eq!(resets(&run), times, "{}", run.out);
        server.expect_event("client connected");
        server.expect_event("client disconnected");
        assert!(server.lives());
    }
}

#[test]
fn host_exits_with_error_when_device_is_killed() {
    let folder = Folder::new("killed");
    let job = mixed(&folder, ENDLESS);
    let mut server = serve(&folder, None);
    let mut command = client(&folder, &job, &[]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    server.expect_event("client connected");
    std::thread::sleep(Duration::from_millis(700));
    server.kill();
    let output = running.wait_with_output().expect("the host ends");
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr);
    // On a busy machine the device may exit before the driver has begun its work.
    let said_so = |line: &str| line.starts_with("error: ") || line.starts_with("doorbell: ");
    assert!(err.lines().all(said_so), "{err}");
    assert!(err.contains("the device is gone"), "{err}");
    assert!(!err.contains("verify"), "nothing was wrong with the data: {err}");
}

#[test]
fn device_serves_next_host_after_host_kill() {
    let folder = Folder::new("next");
    let mut server = serve(&folder, None);
    let job = mixed(&folder, ENDLESS);
    for _ in 0..3 {
        let mut killed =
            client(&folder, &job, &[]).stdout(Stdio::null()).spawn().expect("the host starts");
        server.expect_event("client connected");
        std::thread::sleep(Duration::from_millis(300));
        killed.kill().expect("the host lives");
        killed.wait().expect("the host has ended");
        server.expect_event("client disconnected");
        server.expect_event("waiting for a client");
    }
    let job = mixed(&folder, 1_000);
    assert_clean(&output_of(&mut client(&folder, &job, &[])));
    server.expect_event("client connected");
    server.expect_event("client disconnected");
    assert!(server.lives());
}

#[test]
fn second_verified_run_on_same_device_is_clean() {
    let folder = Folder::new("again");
    let _server = serve(&folder, None);
    let job = mixed(&folder, 1_000);
    assert_clean(&output_of(&mut client(&folder, &job, &[])));
    assert_clean(&output_of(&mut client(&folder, &job, &[])));
}

#[test]
fn image_or_socket_in_use_rejects_second_server() {
    let folder = Folder::new("busy");
    let _server = serve(&folder, None);
    let second = output_of(&mut doorbell(&folder, &["serve", "live", "--shm", "socket"]));
    assert_eq!(second.code, Some(1));
    assert_eq!(second.err, "doorbell: socket: binding: another server listens here\n");
}

#[test]
fn flushed_data_survives_device_kill() {
    let folder = Folder::new("flushed");
    let image = folder.path("image");
    let plan = plan("live", &[("host.memory", "64 MiB")]);
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    for round in 1..=if heavy() { 20 } else { 4 } {
        let mut server = serve(&folder, Some(&image));
        let socket = server.socket.clone();
        let kept = ledger.clone();
        let flushed = over_socket(&plan, &socket, async |rt, driver| {
            let kill = || server.kill();
            write_until_killed(rt, Rc::new(driver.disk(0)), kept, 400 * round + 123, kill).await
        });
        assert!(flushed > 0, "nothing was flushed before the end");
        ledger.borrow_mut().power_cut();

        let mut server = serve(&folder, Some(&image));
        let kept = ledger.clone();
        over_socket(&plan, &socket, async |_, driver| {
            check_all(driver.disk(0), kept, &format!("round {round}")).await;
            driver.stop().await.expect("an orderly end");
        });
        server.expect_event("client connected");
        server.expect_event("client disconnected");
    }
}

#[test]
fn silent_hosts_do_not_delay_others() {
    let folder = Folder::new("silence");
    let mut server = serve(&folder, None);
    // 5 s for each would exceed the time that a host waits for the server's greeting.
    let crowd: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(&server.socket).expect("the server listens"))
        .collect();
    let job = mixed(&folder, 1_000);
    assert_clean(&output_of(&mut client(&folder, &job, &[])));
    server.expect_event("client connected");
    drop(crowd);
    assert!(server.lives());
}

#[test]
fn accept_backs_off_at_fd_limit_and_resumes() {
    let folder = Folder::new("emfile");
    let mut server = serve(&folder, None);
    let before = system::limit(&server.child, Limit::Descriptors, 4);
    let crowd: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(&server.socket).expect("the kernel takes connections"))
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    drop(crowd);
    system::limit(&server.child, Limit::Descriptors, before);
    let job = mixed(&folder, 1_000);
    assert_clean(&output_of(&mut client(&folder, &job, &[])));
    assert!(server.lives());
    let lines = server.log_has_within("client connected");
    // It logs the accept error once, each disconnected client, and that it waits.
    assert!(lines <= 2 * 21, "{lines} lines");
}

/// A host by hand: its memory is a huge page, in which it punches a hole after it has shared it.
#[test]
fn punched_host_memory_disconnects_host_and_serves_next() {
    let test = "memory that is taken away";
    let Some((memory, _turn)) = system::huge_or_skip(1, test) else { return };
    let folder = Folder::new("taken");
    let mut server = serve(&folder, None);
    system::seal_length(&memory);
    let host = UnixStream::connect(&server.socket).expect("the server listens");
    const BASE: u64 = 1 << 32;
    let mut greeting = [&b"DOOR"[..], &1_u32.to_le_bytes(), &BASE.to_le_bytes()].concat();
    greeting.extend((1_u64 << 20).to_le_bytes());
    let window = system::exchange(&host, &greeting, &memory);
    server.expect_event("client connected");
    let set = |at, value: u64| {
        use std::os::unix::fs::FileExt;
        window
            .write_all_at(&value.to_le_bytes()[..if at < 0x28 { 4 } else { 8 }], at)
            .expect("ours");
    };
    let ready = || {
        use std::os::unix::fs::FileExt;
        let mut word = [0; 4];
        window.read_exact_at(&mut word, 0x1c).expect("ours");
        word[0] & 1 != 0
    };
    set(0x24, 0x000f_000f);
    set(0x28, BASE);
    set(0x30, BASE + 4096);
    set(0x14, 0x0046_0001);
    while !ready() {
        assert!(server.lives());
        std::thread::yield_now();
    }
    let Some(taken) = system::take_away(&memory, 0) else { return };
    set(0x1000, 1);
    server.expect_event("client dropped: its memory has no more pages");
    server.expect_event("waiting for a client");
    drop((taken, host));
    let job = mixed(&folder, 1_000);
    assert_clean(&output_of(&mut client(&folder, &job, &[])));
    assert!(server.lives());
}
