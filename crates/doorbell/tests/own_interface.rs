//! An interface of another program goes in by its row: the command knows it everywhere, and nothing that is
//! here was changed for it.
//!
//! This program is both: the tests, and, told so by its first word, the command with a mailbox more. A
//! harness would take the command's words for its own.

use std::process::{Command, ExitCode, Stdio};

use testing::mailbox::{Mailbox, Table};
use testing::server::Server;
use testing::{Folder, Said, said};
use world::interfaces::{self, Interface};

/// The first word of a program that is the command.
const COMMAND: &str = "as-the-command";

const JOB: &str = "[mixed]\nrw=randrw\nbssplit=4k/60:16k/40\niodepth=8\nsize=4m\nnumber_ios=400\n\
    norandommap=1\nfsync=32\nverify=crc32c\n";

/// What is tried in a folder of its own.
type Test = fn(&Folder);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|word| word == COMMAND) {
        interfaces::add(Mailbox::ROW);
        plan::add_sections(&[plan::Section::of::<Table>()]);
        return doorbell::main_from(std::iter::once("doorbell".into()).chain(arguments));
    }
    let tests: [(&str, Test); 7] = [
        ("help_names_it", help_names_it),
        ("a_plan_has_its_table", a_plan_has_its_table),
        ("it_runs_in_both_worlds", it_runs_in_both_worlds),
        ("it_is_served", it_is_served),
        ("it_is_compared", it_is_compared),
        ("its_power_fails", its_power_fails),
        ("what_it_has_not_is_said", what_it_has_not_is_said),
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

/// The command with a mailbox, in this folder.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.current_dir(folder.at()).arg(COMMAND).args(arguments).stdin(Stdio::null());
    command
}

/// What it says, all of it going well.
fn well(folder: &Folder, arguments: &[&str]) -> String {
    let Said { code, out, err } = said(&mut command(folder, arguments));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}: {out}");
    out
}

/// What it says on standard error, and ends with 1.
fn badly(folder: &Folder, arguments: &[&str]) -> String {
    let Said { code, err, out } = said(&mut command(folder, arguments));
    assert_eq!(code, Some(1), "{arguments:?}: {out}");
    err
}

fn help_names_it(folder: &Folder) {
    for which in ["run", "serve", "power-cuts", "bench"] {
        let help = well(folder, &[which, "--help"]);
        let is_its = |line: &str| line.contains("- mailbox:") && line.ends_with(Mailbox::SUMMARY);
        assert!(help.lines().any(is_its), "{which}: {help}");
    }
}

fn a_plan_has_its_table(folder: &Folder) {
    well(folder, &["check", "dc-express", "--set", "mailbox.used=2"]);
    let said = badly(folder, &["check", "dc-express", "--set", "mailbox.used=9"]);
    let expected = "mailbox.used: found 9, expected a whole number from 1 to 8\n";
    assert!(said.ends_with(expected), "{said}");
}

fn it_runs_in_both_worlds(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let run = |used: &str| {
        let mailbox = ["--interface", "mailbox", "--set", used];
        let sets = ["--set", "medium.capacity=64 MiB", "--plan", "dc-express"];
        well(folder, &[&["run", "mixed.fio"], &mailbox[..], &sets].concat())
    };
    let (one, all) = (run("mailbox.used=1"), run("mailbox.used=8"));
    for said in [&one, &all] {
        assert!(said.contains("live, two threads, plan dc-express, mailbox"), "{said}");
        assert!(said.contains("simulated, plan dc-express, mailbox"), "{said}");
        assert_eq!(said.matches("blocks verified").count(), 2, "{said}");
    }
    // With one mailbox the others wait for it: the plan's table has its effect.
    let waits = |said: &str| {
        let simulated = said.split("simulated").nth(1).expect("the second run");
        simulated.lines().any(|line| line.contains("mailbox wait"))
    };
    assert!(waits(&one) && !waits(&all), "{one}{all}");
}

fn it_is_served(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let sets = ["--set", "medium.capacity=64 MiB"];
    let arguments = [&["serve", "live", "--shm", "./door", "--interface", "mailbox"], &sets[..]];
    let mut serve = command(folder, &arguments.concat());
    let _server = Server::listening(folder, &mut serve);
    let client = ["run", "mixed.fio", "--world", "live", "--socket", "./door"];
    let said = well(folder, &[&client, &["--interface", "mailbox"][..], &sets].concat());
    assert!(said.contains("live, two processes, plan live, mailbox"), "{said}");
}

fn it_is_compared(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let sets = ["--set", "medium.capacity=64 MiB", "--set", "medium.keep=everything"];
    let said =
        well(folder, &[&["compare", "mixed.fio", "--plan", "dc-express"], &sets[..]].concat());
    let named = said.lines().filter(|line| line.contains(" nvme ") && line.ends_with("mailbox"));
    assert!(named.count() >= 2, "{said}");
}

fn its_power_fails(folder: &Folder) {
    let cuts = ["power-cuts", "small-flash", "--cuts", "25", "--interface", "mailbox"];
    let said = well(folder, &cuts);
    assert!(said.starts_with("25 power cuts"), "{said}");
    assert!(said.contains("0 trims"), "{said}");
}

fn what_it_has_not_is_said(folder: &Folder) {
    folder.file("mixed.fio", JOB);
    let served = ["serve", "live", "--vfio-user", "./door", "--interface", "mailbox"];
    assert_eq!(badly(folder, &served), "doorbell: mailbox is not a PCI function\n");
    let fault = "faults=[{ name = \"x\", what = \"drop\", nth = 1 }]";
    let run = ["run", "mixed.fio", "--interface", "mailbox", "--set", fault];
    assert!(badly(folder, &run).contains("faults strike no commands of this interface (mailbox)"));
}
