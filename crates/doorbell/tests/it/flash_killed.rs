//! A device of flash in a process that is killed: its state and the journal beside it are what a power cut
//! would have left. `DOORBELL_KILLS=100` kills each plan and cache so often; without it, each is killed a few
//! times.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use std::rc::Rc;

use crate::common::flushed::{ALL_BLOCKS, check_all, write_until_killed};
use crate::common::{Folder, Server, doorbell, over_socket, plan, said};
use bus::vfio_user::{self, Sharing};
use plan::built_in;
use workload::verify::Ledger;
use world::interfaces::Driver;

/// Starts to serve a state, and waits until it listens.
fn serve(folder: &Folder, case: &Case, pace: &str) -> Server {
    serve_behind(folder, case, "--shm", pace)
}

fn serve_behind(folder: &Folder, case: &Case, front_end: &str, pace: &str) -> Server {
    let pace = [("medium.pace", pace), ("medium.flash.state", "drive.nand")];
    let sets = case.sets.iter().chain(&pace).map(|(key, value)| format!("{key}={value}"));
    let mut command = doorbell(folder, &["serve", case.plan, front_end, "socket"]);
    let command = command.args(sets.flat_map(|set| ["--set".to_owned(), set]));
    Server::listening(folder, command)
}

/// A plan of flash, and what is changed in it.
struct Case {
    name: &'static str,
    plan: &'static str,
    sets: &'static [(&'static str, &'static str)],
}

/// Kills a server of this plan again and again. What was flushed before is there, what was not is old or
/// new, and the drive becomes ready each time.
fn kill_again_and_again(case: &Case, kills: u64) {
    let wished = std::env::var("DOORBELL_KILLS");
    let kills = wished.map_or(kills, |kills| kills.parse().expect("kills"));
    let folder = Folder::new(case.name);
    let (plan, socket) = (plan(case.plan, case.sets), folder.path("socket"));
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    let mut server = None;
    for round in 0..kills {
        // The one that looked goes on: it has seen an orderly end, and is killed in the middle of work.
        let pace = if round % 4 == 3 { "modelled" } else { "immediate" };
        let mut serving = server.take().unwrap_or_else(|| serve(&folder, case, pace));
        let kept = ledger.clone();
        let flushed = over_socket(&plan, &socket, async |rt, driver| {
            let kill = || serving.kill();
            write_until_killed(rt, driver.disk(0), kept, 5 + round * 61 % 150, kill).await
        });
        assert!(flushed > 0, "nothing was flushed before the end");
        ledger.borrow_mut().power_cut();

        let mut looked = serve(&folder, case, pace);
        let kept = ledger.clone();
        over_socket(&plan, &socket, async |_, driver| {
            check_all(driver.disk(0), kept, &format!("{}, kill {round}", case.name)).await;
            if round % 3 == 0 {
                driver.stop().await.expect("an orderly end");
            }
        });
        looked.says("client connected");
        looked.says("client disconnected");
        if round % 3 == 0 {
            looked.says("waiting for a client");
            server = Some(looked);
        }
    }
}

/// All bytes of a block are kept: what is served is looked at byte for byte.
const WHOLE: (&str, &str) = ("medium.keep", "everything");
const THROUGH: (&str, &str) = ("medium.flash.cache", "through");

#[test]
fn what_was_flushed_before_flash_was_killed_is_there_and_nothing_is_torn() {
    let case = Case { name: "flash-killed", plan: "small-flash", sets: &[WHOLE] };
    kill_again_and_again(&case, 6);
    let case = Case { name: "flash-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_again_and_again(&case, 4);
}

/// Its chips end what they have begun, and its block is the smallest.
#[test]
fn what_was_flushed_before_flash_with_capacitors_was_killed_is_there() {
    let case = Case { name: "closer-killed", plan: "flash-closer", sets: &[WHOLE] };
    kill_again_and_again(&case, 4);
    let case = Case { name: "closer-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_again_and_again(&case, 4);
}

/// Its chips have errors, and it is the largest.
#[test]
fn what_was_flushed_before_a_large_drive_was_killed_is_there() {
    let case = Case { name: "tlc-killed", plan: "tlc", sets: &[WHOLE] };
    kill_again_and_again(&case, 2);
    let case = Case { name: "tlc-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_again_and_again(&case, 1);
}

/// Every built-in plan of flash is among those that are killed, or its state is refused.
#[test]
fn every_plan_of_flash_is_killed_or_refuses_a_state() {
    let of_flash = |name: &&str| plan(name, &[]).medium.flash.is_some();
    let found: Vec<&str> = built_in().iter().map(|one| one.0).filter(of_flash).collect();
    assert_eq!(found, ["flash-bridge", "flash-closer", "small-flash", "tlc"]);
    let folder = Folder::new("state-refused");
    let kept = ["--set", "medium.flash.state=drive.nand", "--set", "medium.keep=everything"];
    let refuses = |start: &[&str], set: &str, expected: &str| {
        let output =
            said(&mut doorbell(&folder, &[start, &kept[..], &["--set", set][..]].concat()));
        assert_ne!(output.code, Some(0), "{start:?} {set}");
        assert!(output.err.contains(expected), "{start:?} {set}: {}", output.err);
        assert!(!folder.path("drive.nand").exists(), "{start:?} {set}: refused, and made");
    };
    let protected = "medium.flash.cache: found protected, expected volatile or through with \
                     medium.flash.state";
    for end in ["--shm", "--vfio-user", "--nbd"] {
        let behind = "no medium.flash.state behind a bridge";
        refuses(&["serve", "flash-bridge", end, "s"], "medium.flash.cache=volatile", behind);
        for plan in found.iter().copied() {
            refuses(&["serve", plan, end, "s"], "medium.flash.cache=protected", protected);
        }
    }
    folder.file("write.fio", "[write]\nrw=write\nbs=64k\nsize=1m\n");
    for world in ["sim", "live"] {
        let run = ["run", "write.fio", "--plan", "small-flash", "--world", world];
        refuses(&run, "medium.flash.cache=protected", protected);
    }
}

/// A command that needs the state for itself ends, and says why.
fn is_refused(folder: &Folder, arguments: &[&str]) {
    let set = ["--set", "medium.flash.state=drive.nand"];
    let words = [arguments, &set].concat();
    let mut command = doorbell(folder, &words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be run");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    if said.any(|line| line.is_ok_and(|line| line.contains("waiting for"))) {
        let _ = child.kill();
        let _ = child.wait();
        panic!("{words:?} serves a state that another process has");
    }
    let ended = child.wait_with_output().expect("a child");
    let err = String::from_utf8_lossy(&ended.stderr);
    let expected = "drive.nand: found in use by another process, expected this one alone";
    assert_eq!(ended.status.code(), Some(1), "{words:?}: {err}");
    assert!(err.contains(expected), "{words:?}: {err}");
}

/// Two that write it would each replace what the other has flushed.
#[test]
fn a_state_has_one_process_at_every_front_end() {
    let folder = Folder::new("flash-locked");
    folder.file("write.fio", "[write]\nrw=write\nbs=64k\nsize=1m\n");
    let case = Case { name: "flash-locked", plan: "small-flash", sets: &[] };
    let mut server = serve(&folder, &case, "immediate");
    for end in [["--shm", "s"], ["--vfio-user", "v"], ["--nbd", "n"]] {
        is_refused(&folder, &["serve", "small-flash", end[0], end[1]]);
    }
    let shared = ["--vfio-user", "one", "--vfio-user", "two", "--shared"];
    is_refused(&folder, &[&["serve", "small-flash"][..], &shared].concat());
    for world in ["sim", "live", "both"] {
        is_refused(&folder, &["run", "write.fio", "--plan", "small-flash", "--world", world]);
    }
    is_refused(&folder, &["power-cuts", "small-flash", "--cuts", "1"]);
    let before = std::fs::read(folder.path("drive.nand")).expect("a state");
    // A process that is killed leaves it to the next.
    server.kill();
    let run = ["run", "write.fio", "--plan", "small-flash", "--world", "both"];
    let set = ["--set", "medium.flash.state=drive.nand"];
    let output = said(&mut doorbell(&folder, &[&run[..], &set].concat()));
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_ne!(std::fs::read(folder.path("drive.nand")).expect("a state"), before);
}

/// The bytes of a state and its journal, and which file the state is.
fn files(folder: &Folder) -> (u64, u64, u64) {
    let [state, journal] = ["drive.nand", "drive.nand.journal"]
        .map(|name| std::fs::metadata(folder.path(name)).expect("it is there"));
    for file in [&state, &journal] {
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "what hosts wrote is the owner's");
    }
    (state.ino(), state.len(), journal.len())
}

#[test]
fn clients_that_change_little_have_little_written_and_the_state_stays() {
    let folder = Folder::new("flash-clients");
    let case = Case { name: "flash-clients", plan: "small-flash", sets: &[] };
    let mut server = serve_behind(&folder, &case, "--vfio-user", "immediate");
    let (socket, base) = (folder.path("socket"), plan("small-flash", &[]).host.memory_base);
    let (state, bytes, mut journal) = files(&folder);
    for client in 0..4 {
        let connected = vfio_user::connect(&socket, 1 << 20, base, Sharing::Mapped);
        server.says("client connected");
        drop(connected.expect("the server accepts"));
        server.says("client disconnected");
        server.says("waiting for a client");
        let now = files(&folder);
        assert_eq!((now.0, now.1), (state, bytes), "client {client}: the state is another");
        let written = now.2 - journal;
        assert!(written < 2048, "client {client}: {written} bytes for a mount and an end");
        journal = now.2;
    }
}

/// What `doorbell state` says, and whether it ended well.
fn state(folder: &Folder, action: &str) -> (bool, String) {
    let mut command = doorbell(folder, &["state", action, "drive.nand"]);
    let done = command.output().expect("it runs");
    (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
}

#[test]
fn a_damaged_journal_is_refused_at_start_and_repaired_by_the_tool() {
    let folder = Folder::new("flash-damaged");
    let case = Case { name: "flash-damaged", plan: "small-flash", sets: &[] };
    let mut server = serve(&folder, &case, "immediate");
    // A host that comes has the drive mounted, and leaves batches.
    let plan = plan("small-flash", &[]);
    over_socket(&plan, &folder.path("socket"), async |_, driver| {
        driver.stop().await.expect("an orderly end");
    });
    server.says("client connected");
    server.says("client disconnected");
    for action in ["check", "repair", "upgrade"] {
        let (good, said) = state(&folder, action);
        assert!(!good && said.contains("in use by another process"), "{action}: {said}");
    }
    server.kill();
    assert!(state(&folder, "check").0);
    let journal = folder.path("drive.nand.journal");
    let mut bytes = std::fs::read(&journal).expect("a journal");
    // In the first batch behind the header.
    bytes[64 + 60] ^= 1;
    std::fs::write(&journal, &bytes).expect("written");
    let (good, said) = state(&folder, "check");
    assert!(!good && said.contains("damage: drive.nand.journal: damaged at byte 64"), "{said}");
    let words =
        ["serve", "small-flash", "--shm", "socket", "--set", "medium.flash.state=drive.nand"];
    let refused = doorbell(&folder, &words).output().expect("it ends");
    let error = String::from_utf8(refused.stderr).expect("text");
    assert!(!refused.status.success() && error.contains("doorbell state repair"), "{error}");
    assert_eq!(std::fs::read(&journal).expect("the evidence"), bytes);
    assert!(state(&folder, "repair").0 && state(&folder, "check").0);
    assert_eq!(std::fs::read(folder.path("drive.nand.journal.damaged")).expect("kept"), bytes);
    serve(&folder, &case, "immediate");
}
