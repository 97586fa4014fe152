//! An interface defined in another program is added by its row: every command supports it, and nothing in
//! this crate was changed for it.
//!
//! This program has two roles: by its first argument it is either the tests or the command with the
//! mailbox interface added. It has no test harness, which would parse the command's arguments.

use std::process::{Command, ExitCode, Stdio};

use testing::mailbox::{MAILBOX, Table};
use testing::server::Server;
use testing::{CommandOutput, Folder, output_of};
use world::interfaces::{self};

/// First argument that selects the role of the command.
const COMMAND: &str = "as-the-command";

const JOB: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/40\niodepth=8\nsize=4m\nnumber_ios=400\n\
    norandommap=1\nfsync=32\nverify=crc32c\n";

/// A test, run in a folder of its own.
type Test = fn(&Folder);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|word| word == COMMAND) {
        interfaces::add(MAILBOX);
        plan::add_sections(&[plan::Section::of::<Table>()]);
        return doorbell::main_from(std::iter::once("doorbell".into()).chain(arguments));
    }
    let tests: [(&str, Test); 7] = [
        ("help_lists_mailbox", help_lists_mailbox),
        ("plan_accepts_mailbox_table", plan_accepts_mailbox_table),
        ("mailbox_runs_in_both_worlds", mailbox_runs_in_both_worlds),
        ("mailbox_is_served", mailbox_is_served),
        ("compare_includes_mailbox", compare_includes_mailbox),
        ("mailbox_power_cuts", mailbox_power_cuts),
        ("unsupported_features_are_rejected", unsupported_features_are_rejected),
    ];
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, test) in tests {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            test(&Folder::new(&format!("own-{name}")));
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

/// The command with the mailbox interface, run in this folder.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.current_dir(folder.at()).arg(COMMAND).args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command that must succeed; returns its standard output.
fn succeed(folder: &Folder, arguments: &[&str]) -> String {
    let CommandOutput { code, out, err } = output_of(&mut command(folder, arguments));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}: {out}");
    out
}

/// Runs a command that must exit with 1; returns its standard error.
fn fail(folder: &Folder, arguments: &[&str]) -> String {
    let CommandOutput { code, err, out } = output_of(&mut command(folder, arguments));
    assert_eq!(code, Some(1), "{arguments:?}: {out}");
    err
}

fn help_lists_mailbox(folder: &Folder) {
    for which in ["run", "serve", "power-cuts", "bench"] {
        let help = succeed(folder, &[which, "--help"]);
        let is_its = |line: &str| line.contains("- mailbox:") && line.ends_with(MAILBOX.summary);
        assert!(help.lines().any(is_its), "{which}: {help}");
    }
}

fn plan_accepts_mailbox_table(folder: &Folder) {
    succeed(folder, &["check", "dc-express", "--set", "mailbox.used=2"]);
    let output = fail(folder, &["check", "dc-express", "--set", "mailbox.used=9"]);
    let expected = "mailbox.used: found 9, expected a whole number from 1 to 8\n";
    assert!(output.ends_with(expected), "{output}");
}

fn mailbox_runs_in_both_worlds(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let run = |used: &str| {
        let mailbox = ["--interface", "mailbox", "--set", used];
        let sets = ["--set", "medium.capacity=64 MiB", "--plan", "dc-express"];
        succeed(folder, &[&["run", "mixed.fio", "--verbose"], &mailbox[..], &sets].concat())
    };
    let (one, all) = (run("mailbox.used=1"), run("mailbox.used=8"));
    for output in [&one, &all] {
        assert!(output.contains("live, two threads, plan dc-express, mailbox"), "{output}");
        assert!(output.contains("simulated, plan dc-express, mailbox"), "{output}");
        assert_eq!(output.matches("blocks verified").count(), 2, "{output}");
    }
    // With one mailbox, requests wait for it: the plan's table takes effect.
    let waits = |output: &str| {
        let simulated = output.rsplit("simulated, plan").next().expect("the second run");
        simulated.lines().any(|line| line.contains("mailbox wait"))
    };
    assert!(waits(&one) && !waits(&all), "{one}{all}");
}

fn mailbox_is_served(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let sets = ["--set", "medium.capacity=64 MiB"];
    let arguments = [&["serve", "live", "--shm", "./door", "--interface", "mailbox"], &sets[..]];
    let mut serve = command(folder, &arguments.concat());
    let _server = Server::listening(folder, &mut serve);
    let client = ["run", "mixed.fio", "--verbose", "--world", "live", "--socket", "./door"];
    let output = succeed(folder, &[&client, &["--interface", "mailbox"][..], &sets].concat());
    assert!(output.contains("live, two processes, plan live, mailbox"), "{output}");
}

fn compare_includes_mailbox(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let sets = ["--set", "medium.capacity=64 MiB", "--set", "medium.keep=everything"];
    let output =
        succeed(folder, &[&["compare", "mixed.fio", "--plan", "dc-express"], &sets[..]].concat());
    // A row for reads, one for writes and one for flushes, with numbers of both worlds.
    let is_full = |line: &&str| line.starts_with("mailbox ") && !line.contains(" - ");
    assert_eq!(output.lines().filter(is_full).count(), 3, "{output}");
}

fn mailbox_power_cuts(folder: &Folder) {
    let cuts = ["power-cuts", "small-flash", "--cuts", "25", "--interface", "mailbox"];
    let output = succeed(folder, &cuts);
    assert!(output.starts_with("25 power cuts"), "{output}");
    assert!(output.contains("0 trims"), "{output}");
}

fn unsupported_features_are_rejected(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let served = ["serve", "live", "--vfio-user", "./door", "--interface", "mailbox"];
    assert_eq!(fail(folder, &served), "doorbell: mailbox is not a PCI function\n");
    let fault = "faults=[{ name = \"x\", what = \"drop\", nth = 1 }]";
    let run = ["run", "mixed.fio", "--interface", "mailbox", "--set", fault];
    assert!(
        fail(folder, &run)
            .contains("no faults can be injected into commands of this interface (mailbox)")
    );
}
