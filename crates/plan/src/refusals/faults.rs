//! Rejected `[[faults]]` tables.

use ::device::faults::{FOREVER, Match, What, When, Which};
use runtime::Span;
use wire::nvme::status::Status;

use super::{PLAN, parse_errors};
use crate::Plan;

/// The base plan with only these faults.
fn with(faults: &str) -> String {
    let (before, _) = PLAN.split_once("[[faults]]").expect("the plan has faults");
    format!("{before}{faults}")
}

/// Checks the error of a plan with one fault.
#[track_caller]
fn assert_rejected(lines: &str, expected: &str) {
    assert_eq!(
        parse_errors(&with(&format!("[[faults]]\nname = \"x\"\n{lines}"))),
        expected,
        "{lines:?}"
    );
}

fn read(faults: &str) -> Plan {
    Plan::parse(&with(faults), "p.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn fault_tables_parse() {
    let plan = Plan::parse(PLAN, "p.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let [slow] = &plan.faults[..] else { panic!("one fault") };
    let when = Match {
        opcode: Some(2),
        queue: None,
        lbas: Some(8..=15),
        from: Span::ZERO,
        until: FOREVER,
        which: Which::Every(10),
        times: u64::MAX,
    };
    assert_eq!((slow.name.as_str(), &slow.what), ("slow", &What::Delay(Span::us(1))));
    assert_eq!(slow.when, When::Commands(when));
    let plan = read(
        "[[faults]]\nname = \"a\"\nwhat = \"status\"\nstatus = \"write fault\"\ndnr = true\n\
         [[faults]]\nname = \"b\"\nwhat = \"status\"\nstatus = { sct = 7, sc = 0xc1 }\n\
         [[faults]]\nname = \"c\"\nwhat = \"link-down\"\nat = \"3 ms\"\n\
         [[faults]]\nname = \"d\"\nwhat = \"stuck-medium\"\nnth = 3\n",
    );
    let what: Vec<_> = plan.faults.iter().map(|fault| fault.what.clone()).collect();
    assert_eq!(what[0], What::Status(Status::WRITE_FAULT.with_dnr()));
    assert_eq!(what[1], What::Status(Status::from_bits(0x7c1)));
    assert_eq!(plan.faults[2].when, When::At(Span::ms(3)));
    assert_eq!(what[3], What::StuckMedium(FOREVER));
    assert!(read("").faults.is_empty());
}

#[test]
fn fault_kind_must_be_known_and_have_its_keys() {
    assert_rejected(
        "what = \"dealy\"\n",
        "p.toml:117:8: faults.0.what: found \"dealy\", expected \"delay\" or \"drop\" or \"hang\" or \
         \"reorder\" or \"status\" or \"corrupt-data\" or \"corrupt-metadata\" or \
         \"corrupt-medium\" or \"stuck-medium\" or \"stuck-die\" or \"slow-die\" or \
         \"unreadable-die\" or \"ignore-flush\" or \"lost-interrupt\" or \
         \"duplicate-interrupt\" or \"completion-timeout\" or \"poisoned-tlp\" or \
         \"link-retrain\" or \"link-down\" or \"fatal\"",
    );
    assert_rejected(
        "what = \"delay\"\n",
        "p.toml:115:1: faults.0.span: found nothing, \
         expected a span from 1 ps to 86400 s, such as \"110 ns\"",
    );
    assert_rejected(
        "what = \"reorder\"\nbehind = 0\nspan = \"1 us\"\n",
        "p.toml:118:10: faults.0.behind: found 0, expected a whole number from 1 to 1024",
    );
    assert_rejected(
        "what = \"drop\"\nspan = \"1 us\"\n",
        "p.toml:118:1: faults.0.span: found an unknown key, expected one of name, what, queue, \
         command, first_lba, last_lba, from, until, nth, every, one_in, times",
    );
    assert_rejected(
        "what = \"hang\"\nat = \"1 us\"\n",
        "p.toml:118:1: faults.0.at: found an unknown key, expected one of name, what, queue, \
         command, first_lba, last_lba, from, until, nth, every, one_in, times",
    );
    assert_rejected(
        "what = \"fatal\"\nat = \"1 us\"\nnth = 3\n",
        "p.toml:119:1: faults.0.nth: found an unknown key, expected one of name, what, at",
    );
}

#[test]
fn fault_status_must_be_a_known_error() {
    let expected = "expected a name of NVMe base 2.0, 3.3.3.2.1, such as \"Write Fault\", or \
        { sct = ..., sc = ... }";
    assert_rejected(
        "what = \"status\"\nstatus = \"Write Fualt\"\n",
        &format!(
            "p.toml:118:10: faults.0.status: found \"Write Fualt\", {expected}: \
             did you mean Write Fault?"
        ),
    );
    assert_rejected(
        "what = \"status\"\nstatus = \"Successful Completion\"\n",
        &format!("p.toml:118:10: faults.0.status: found \"Successful Completion\", {expected}"),
    );
    assert_rejected(
        "what = \"status\"\n",
        &format!("p.toml:115:1: faults.0.status: found nothing, {expected}"),
    );
    assert_rejected(
        "what = \"status\"\nstatus = { sct = 0, sc = 0 }\n",
        "p.toml:118:10: faults.0.status: found success, expected an error status",
    );
    assert_rejected(
        "what = \"status\"\nstatus = { sct = 8, sc = 0 }\n",
        "p.toml:118:18: faults.0.status.sct: found 8, expected a whole number from 0 to 7",
    );
}

#[test]
fn fault_trigger_keys_must_be_consistent() {
    let drop = |lines: &str| format!("what = \"drop\"\n{lines}");
    assert_rejected(
        &drop("command = \"raed\"\n"),
        "p.toml:118:11: faults.0.command: found \"raed\", expected \"read\" or \"write\" or \"flush\" \
         or \"compare\" or \"write-zeroes\" or \"dataset-management\" or \"copy\"",
    );
    assert_rejected(
        &drop("command = 256\n"),
        "p.toml:118:11: faults.0.command: found 256, expected a whole number from 0 to 255",
    );
    assert_rejected(
        &drop("queue = 64\n"),
        "p.toml:118:9: faults.0.queue: found 64, expected a whole number from 0 to 63",
    );
    let no_block = "expected no LBA range, or a command that has one: \
        read, write, compare or write-zeroes";
    assert_rejected(
        &drop("command = \"flush\"\nfirst_lba = 3\n"),
        &format!("p.toml:119:13: faults.0.first_lba: found an LBA range, {no_block}"),
    );
    assert_rejected(
        &drop("queue = 0\nlast_lba = 3\n"),
        &format!("p.toml:119:12: faults.0.last_lba: found an LBA range, {no_block}"),
    );
    assert_rejected(
        &drop("first_lba = 9\nlast_lba = 8\n"),
        "p.toml:119:12: faults.0.last_lba: found 8, expected at least first_lba, which is 9",
    );
    assert_rejected(
        &drop("from = \"2 ms\"\nuntil = \"1 ms\"\n"),
        "p.toml:119:9: faults.0.until: found 1.000ms, expected more than from, which is 2.000ms",
    );
    assert_rejected(
        &drop("nth = 1\nevery = 2\n"),
        "p.toml:119:9: faults.0.every: found a second selector, expected one of nth, every, one_in",
    );
    assert_rejected(
        &drop("one_in = 0\n"),
        "p.toml:118:10: faults.0.one_in: found 0, expected a whole number from 1 to 1099511627776",
    );
}

#[test]
fn fault_names_must_be_unique() {
    let one = "[[faults]]\nname = \"x\"\nwhat = \"drop\"\n";
    assert_eq!(
        parse_errors(&with(&format!("{one}{one}"))),
        "p.toml:119:8: faults.1.name: found \"x\", expected a unique name: faults.0 has it"
    );
}
