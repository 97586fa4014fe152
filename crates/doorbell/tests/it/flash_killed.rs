//! A flash device in a process that is killed: its state and the journal are what a power cut would have
//! left. `DOORBELL_KILLS=100` sets the number of kills for each plan and cache; the default is a few.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use std::rc::Rc;

use crate::common::flushed::{ALL_BLOCKS, check_all, write_until_killed};
use crate::common::{Folder, Server, doorbell, output_of, over_socket, plan};
use bus::vfio_user::{self, Sharing};
use plan::built_in;
use wire::pci::FunctionKind;
use workload::verify::Ledger;

/// Starts to serve a state, and waits until the server listens.
fn serve(folder: &Folder, case: &Case, pace: &str) -> Server {
    serve_behind(folder, case, "--shm", pace)
}

fn serve_behind(folder: &Folder, case: &Case, front_end: &str, pace: &str) -> Server {
    let pace = [("medium.pace", pace), ("medium.flash.state", "drive.nand")];
    let resident = case.resident.map(|size| ("medium.resident", size));
    let sets =
        case.sets.iter().chain(&pace).chain(&resident).map(|(key, value)| format!("{key}={value}"));
    let mut command = doorbell(folder, &["serve", case.plan, front_end, "socket"]);
    let command = command.args(sets.flat_map(|set| ["--set".to_owned(), set]));
    Server::listening(folder, command)
}

/// A flash plan, and the values set in it.
struct Case {
    name: &'static str,
    plan: &'static str,
    sets: &'static [(&'static str, &'static str)],
    /// Most memory for pages that are in a file; none: pages are in memory.
    resident: Option<&'static str>,
}

/// Kills a server of this plan `kills` times. Each time flushed data are there, unflushed data are old or
/// new, and the drive becomes ready.
fn kill_repeatedly(case: &Case, kills: u64) {
    let requested = std::env::var("DOORBELL_KILLS");
    let kills = requested.map_or(kills, |kills| kills.parse().expect("kills"));
    let folder = Folder::new(case.name);
    let (plan, socket) = (plan(case.plan, case.sets), folder.path("socket"));
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    let mut server = None;
    for round in 0..kills {
        // The server that was checked continues: it has seen an orderly shutdown, and is killed under
        // load.
        let pace = if round % 4 == 3 { "modelled" } else { "immediate" };
        let mut serving = server.take().unwrap_or_else(|| serve(&folder, case, pace));
        let records = ledger.clone();
        let flushed = over_socket(&plan, &socket, async |rt, driver| {
            let kill = || serving.kill();
            write_until_killed(rt, Rc::new(driver.disk(0)), records, 5 + round * 61 % 150, kill)
                .await
        });
        assert!(flushed > 0, "nothing was flushed before the end");
        ledger.borrow_mut().power_cut();

        let mut checked = serve(&folder, case, pace);
        let records = ledger.clone();
        over_socket(&plan, &socket, async |_, driver| {
            check_all(driver.disk(0), records, &format!("{}, kill {round}", case.name)).await;
            if round % 3 == 0 {
                driver.stop().await.expect("an orderly end");
            }
        });
        checked.expect_event("client connected");
        checked.expect_event("client disconnected");
        if round % 3 == 0 {
            checked.expect_event("waiting for a client");
            server = Some(checked);
        }
    }
}

/// All bytes of a block are kept, so that reads are compared byte by byte.
const WHOLE: (&str, &str) = ("medium.keep", "everything");
const THROUGH: (&str, &str) = ("medium.flash.cache", "through");

#[test]
fn flash_flushed_data_survives_kill_without_torn_blocks() {
    let case = Case { name: "flash-killed", plan: "small-flash", sets: &[WHOLE], resident: None };
    kill_repeatedly(&case, 6);
    let case = Case { name: "flash-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_repeatedly(&case, 4);
}

/// The drive has twelve times as many bytes as may be in memory.
#[test]
fn flash_with_pages_in_a_file_flushed_data_survives_kill() {
    let resident = Some("\"1 MiB\"");
    let case = Case { name: "pages-killed", plan: "small-flash", sets: &[WHOLE], resident };
    kill_repeatedly(&case, 6);
    let case = Case { name: "pages-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_repeatedly(&case, 4);
}

/// Its chips complete what they have begun, and its block is the smallest.
#[test]
fn flash_with_capacitors_flushed_data_survives_kill() {
    let case = Case { name: "closer-killed", plan: "flash-closer", sets: &[WHOLE], resident: None };
    kill_repeatedly(&case, 4);
    let case = Case { name: "closer-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_repeatedly(&case, 4);
}

/// Its chips have bit errors, and it is the largest.
#[test]
fn large_flash_flushed_data_survives_kill() {
    let case = Case { name: "tlc-killed", plan: "tlc", sets: &[WHOLE], resident: None };
    kill_repeatedly(&case, 2);
    let case = Case { name: "tlc-killed-through", sets: &[WHOLE, THROUGH], ..case };
    kill_repeatedly(&case, 1);
}

/// Its requests and its collector take turns at one processor.
#[test]
fn flash_of_many_dies_flushed_data_survives_kill() {
    let case = Case { name: "many-killed", plan: "many-dies", sets: &[WHOLE], resident: None };
    kill_repeatedly(&case, 2);
}

/// Every built-in flash plan is killed here, or rejects a state.
#[test]
fn every_flash_plan_is_kill_tested_or_rejects_state() {
    let of_flash = |name: &&str| plan(name, &[]).medium.flash.is_some();
    let found: Vec<&str> = built_in().iter().map(|one| one.0).filter(of_flash).collect();
    // Real drives have the chips and the software of `tlc`.
    let is_real = |name: &&str| plan(name, &[]).drive.is_some();
    let (real, others): (Vec<&str>, Vec<&str>) = found.iter().partition(|name| is_real(name));
    assert_eq!(others, ["flash-bridge", "flash-closer", "many-dies", "small-flash", "tlc"]);
    for name in &real {
        let text = built_in().iter().find(|one| one.0 == *name).expect("it is built in").1;
        assert!(text.contains("\nbase = \"tlc\"\n"), "{name}: of other chips");
    }
    let folder = Folder::new("state-refused");
    let records = ["--set", "medium.flash.state=drive.nand", "--set", "medium.keep=everything"];
    let refuses = |start: &[&str], set: &str, expected: &str| {
        let output =
            output_of(&mut doorbell(&folder, &[start, &records[..], &["--set", set][..]].concat()));
        assert_ne!(output.code, Some(0), "{start:?} {set}");
        assert!(output.err.contains(expected), "{start:?} {set}: {}", output.err);
        assert!(!folder.path("drive.nand").exists(), "{start:?} {set}: refused, and made");
    };
    let protected = "medium.flash.cache: found protected, expected volatile or through: \
                     medium.flash.state does not include the write buffer";
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

/// Asserts that a command that needs the state exclusively fails and gives the reason.
fn is_refused(folder: &Folder, arguments: &[&str]) {
    let set = ["--set", "medium.flash.state=drive.nand"];
    let words = [arguments, &set].concat();
    let mut command = doorbell(folder, &words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be run");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    if output.any(|line| line.is_ok_and(|line| line.contains("waiting for"))) {
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

/// Two writers would each overwrite what the other has flushed.
#[test]
fn state_file_is_locked_at_every_front_end() {
    let folder = Folder::new("flash-locked");
    folder.file("write.fio", "[write]\nrw=write\nbs=64k\nsize=1m\n");
    let case = Case { name: "flash-locked", plan: "small-flash", sets: &[], resident: None };
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
    // A killed process releases the lock.
    server.kill();
    let run = ["run", "write.fio", "--plan", "small-flash", "--world", "both"];
    let set = ["--set", "medium.flash.state=drive.nand"];
    let output = output_of(&mut doorbell(&folder, &[&run[..], &set].concat()));
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_ne!(std::fs::read(folder.path("drive.nand")).expect("a state"), before);
}

/// The lengths of a state and its journal, and the inode of the state.
fn files(folder: &Folder) -> (u64, u64, u64) {
    let [state, journal] = ["drive.nand", "drive.nand.journal"]
        .map(|name| std::fs::metadata(folder.path(name)).expect("it is there"));
    for file in [&state, &journal] {
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "what hosts wrote is the owner's");
    }
    (state.ino(), state.len(), journal.len())
}

#[test]
fn small_changes_go_to_journal_and_state_file_stays() {
    let folder = Folder::new("flash-clients");
    let case = Case { name: "flash-clients", plan: "small-flash", sets: &[], resident: None };
    let mut server = serve_behind(&folder, &case, "--vfio-user", "immediate");
    let (socket, base) = (folder.path("socket"), plan("small-flash", &[]).host.memory_base);
    let (state, bytes, mut journal) = files(&folder);
    for client in 0..4 {
        let connected =
            vfio_user::connect(&socket, FunctionKind::NVME, 1 << 20, base, Sharing::Mapped);
        server.expect_event("client connected");
        drop(connected.expect("the server accepts"));
        server.expect_event("client disconnected");
        server.expect_event("waiting for a client");
        let now = files(&folder);
        assert_eq!((now.0, now.1), (state, bytes), "client {client}: the state is another");
        let written = now.2 - journal;
        assert!(written < 2048, "client {client}: {written} bytes for a mount and an end");
        journal = now.2;
    }
}

/// Runs `doorbell state`: whether it succeeded, and its output.
fn state(folder: &Folder, action: &str) -> (bool, String) {
    let mut command = doorbell(folder, &["state", action, "drive.nand"]);
    let done = command.output().expect("it runs");
    (done.status.success(), String::from_utf8([done.stdout, done.stderr].concat()).expect("text"))
}

#[test]
fn damaged_journal_is_rejected_at_start_and_repaired_by_state_repair() {
    let folder = Folder::new("flash-damaged");
    let case = Case { name: "flash-damaged", plan: "small-flash", sets: &[], resident: None };
    let mut server = serve(&folder, &case, "immediate");
    // A connecting host mounts the drive, and leaves batches in the journal.
    let plan = plan("small-flash", &[]);
    over_socket(&plan, &folder.path("socket"), async |_, driver| {
        driver.stop().await.expect("an orderly end");
    });
    server.expect_event("client connected");
    server.expect_event("client disconnected");
    for action in ["check", "repair", "upgrade"] {
        let (good, output) = state(&folder, action);
        assert!(!good && output.contains("in use by another process"), "{action}: {output}");
    }
    server.kill();
    assert!(state(&folder, "check").0);
    let journal = folder.path("drive.nand.journal");
    let mut bytes = std::fs::read(&journal).expect("a journal");
    // In the first batch after the header.
    bytes[64 + 60] ^= 1;
    std::fs::write(&journal, &bytes).expect("written");
    let (good, output) = state(&folder, "check");
    assert!(!good && output.contains("damage: drive.nand.journal: damaged at byte 64"), "{output}");
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
