//! A device in one process, its host in another: they share memory, and either may die.
//!
//! `DOORBELL_HEAVY=1` makes the runs as long as they are in a release build's nightly tests.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use crate::common::flushed::{ALL_BLOCKS, check_all, write_until_killed};
use crate::common::system::{self, Limit};
use crate::common::{
    Folder, Said, Server, assert_verified, doorbell, mixed, over_socket, plan, said,
};
use workload::verify::Ledger;
use world::interfaces::Driver;

fn heavy() -> bool {
    std::env::var_os("DOORBELL_HEAVY").is_some()
}

/// What both processes are told of the plan: blocks of 512 B, and memory for 128 operations of 1 MiB.
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

/// More than any machine does before it is told to stop.
const ENDLESS: u64 = 1_000_000_000;

/// Serves in memory or on an image.
fn serve(folder: &Folder, image: Option<&Path>) -> Server {
    crate::common::serve(folder, "--shm", &SETS, image)
}

/// The host's process, to be started.
fn client(folder: &Folder, job: &Path, more: &[&str]) -> std::process::Command {
    let job = job.display().to_string();
    let mut command = doorbell(folder, &["run", &job, "--world", "live", "--socket", "socket"]);
    command.args(SETS).args(more);
    command
}

fn assert_clean(said: &Said) {
    assert_verified(said, 10_000);
}

/// The resets that came under the work.
fn resets(said: &Said) -> u32 {
    let note = said.out.lines().find(|line| line.ends_with("resets came under the work"));
    let words = note.and_then(|line| line.strip_prefix("note: ")).expect("a note on resets");
    words.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn every_block_is_right_across_two_processes_and_under_resets() {
    let folder = Folder::new("resets");
    let (ios, times) = if heavy() { (200_000, 100) } else { (4_000, 10) };
    let job = mixed(&folder, ios);
    let image = folder.path("image");
    for image in [None, Some(image.as_path())] {
        let mut server = serve(&folder, image);
        let run = said(&mut client(&folder, &job, &["--resets", &times.to_string()]));
        assert_clean(&run);
        assert_eq!(resets(&run), times, "{}", run.out);
        server.says("client connected");
        server.says("client disconnected");
        assert!(server.lives());
    }
}

#[test]
fn a_host_whose_device_is_killed_says_so_and_ends() {
    let folder = Folder::new("killed");
    let job = mixed(&folder, ENDLESS);
    let mut server = serve(&folder, None);
    let mut command = client(&folder, &job, &[]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    server.says("client connected");
    std::thread::sleep(Duration::from_millis(700));
    server.kill();
    let output = running.wait_with_output().expect("the host ends");
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8_lossy(&output.stderr);
    // On a busy machine the device may die before the driver has begun its work.
    let said_so = |line: &str| line.starts_with("error: ") || line.starts_with("doorbell: ");
    assert!(err.lines().all(said_so), "{err}");
    assert!(err.contains("the device is gone"), "{err}");
    assert!(!err.contains("verify"), "nothing was wrong with the data: {err}");
}

#[test]
fn a_device_whose_host_is_killed_serves_the_next() {
    let folder = Folder::new("next");
    let mut server = serve(&folder, None);
    let job = mixed(&folder, ENDLESS);
    for _ in 0..3 {
        let mut killed =
            client(&folder, &job, &[]).stdout(Stdio::null()).spawn().expect("the host starts");
        server.says("client connected");
        std::thread::sleep(Duration::from_millis(300));
        killed.kill().expect("the host lives");
        killed.wait().expect("the host has ended");
        server.says("client disconnected");
        server.says("waiting for a client");
    }
    let job = mixed(&folder, 1_000);
    assert_clean(&said(&mut client(&folder, &job, &[])));
    server.says("client connected");
    server.says("client disconnected");
    assert!(server.lives());
}

#[test]
fn a_second_verified_run_on_the_same_device_is_clean() {
    let folder = Folder::new("again");
    let _server = serve(&folder, None);
    let job = mixed(&folder, 1_000);
    assert_clean(&said(&mut client(&folder, &job, &[])));
    assert_clean(&said(&mut client(&folder, &job, &[])));
}

#[test]
fn one_device_is_for_one_server_and_one_socket() {
    let folder = Folder::new("busy");
    let _server = serve(&folder, None);
    let second = said(&mut doorbell(&folder, &["serve", "live", "--shm", "socket"]));
    assert_eq!(second.code, Some(1));
    assert_eq!(second.err, "doorbell: socket: binding: another server listens here\n");
}

#[test]
fn what_was_flushed_before_the_device_was_killed_is_there_afterwards() {
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
            write_until_killed(rt, driver.disk(0), kept, 400 * round + 123, kill).await
        });
        assert!(flushed > 0, "nothing was flushed before the end");
        ledger.borrow_mut().power_cut();

        let mut server = serve(&folder, Some(&image));
        let kept = ledger.clone();
        over_socket(&plan, &socket, async |_, driver| {
            check_all(driver.disk(0), kept, &format!("round {round}")).await;
            driver.stop().await.expect("an orderly end");
        });
        server.says("client connected");
        server.says("client disconnected");
    }
}

#[test]
fn silent_hosts_keep_nobody_waiting() {
    let folder = Folder::new("silence");
    let mut server = serve(&folder, None);
    // 5 s for each would be longer than a host waits for its welcome.
    let crowd: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(&server.socket).expect("the server listens"))
        .collect();
    let job = mixed(&folder, 1_000);
    assert_clean(&said(&mut client(&folder, &job, &[])));
    server.says("client connected");
    drop(crowd);
    assert!(server.lives());
}

#[test]
fn without_descriptors_it_rests_and_goes_on_when_there_are_some() {
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
    assert_clean(&said(&mut client(&folder, &job, &[])));
    assert!(server.lives());
    let lines = server.log_has_within("client connected");
    // What it says of accepting, once, and of each that has gone; and that it waits.
    assert!(lines <= 2 * 21, "{lines} lines");
}

/// A host by hand: its memory is a huge page, of which it gives back what it has promised to keep.
#[test]
fn a_host_that_takes_its_memory_away_is_let_go_and_the_next_is_served() {
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
    server.says("client connected");
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
    server.says("client dropped: its memory has no more pages");
    server.says("waiting for a client");
    drop((taken, host));
    let job = mixed(&folder, 1_000);
    assert_clean(&said(&mut client(&folder, &job, &[])));
    assert!(server.lives());
}
