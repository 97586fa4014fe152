//! Faults that make no sense.

use ::device::faults::{FOREVER, Match, What, When, Which};
use runtime::Span;
use wire::nvme::status::Status;

use super::{PLAN, said};
use crate::Plan;

/// The plan with these faults alone.
fn with(faults: &str) -> String {
    let (before, _) = PLAN.split_once("[[faults]]").expect("the plan has faults");
    format!("{before}{faults}")
}

/// One fault, whose heading is line 98.
#[track_caller]
fn refused(lines: &str, expected: &str) {
    assert_eq!(said(&with(&format!("[[faults]]\nname = \"x\"\n{lines}"))), expected, "{lines:?}");
}

fn read(faults: &str) -> Plan {
    Plan::parse(&with(faults), "p.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn a_fault_is_read_as_it_is_written() {
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
fn what_a_fault_does_is_one_of_some_words() {
    refused(
        "what = \"dealy\"\n",
        "p.toml:117:8: faults.0.what: found \"dealy\", expected \"delay\" or \"drop\" or \"hang\" or \
         \"reorder\" or \"status\" or \"corrupt-data\" or \"corrupt-metadata\" or \
         \"corrupt-medium\" or \"stuck-medium\" or \"stuck-die\" or \"slow-die\" or \
         \"unreadable-die\" or \"lost-interrupt\" or \
         \"link-down\" or \"fatal\"",
    );
    refused(
        "what = \"delay\"\n",
        "p.toml:115:1: faults.0.span: found nothing, \
         expected a span from 1 ps to 86400 s, such as \"110 ns\"",
    );
    refused(
        "what = \"reorder\"\nbehind = 0\nspan = \"1 us\"\n",
        "p.toml:118:10: faults.0.behind: found 0, expected a whole number from 1 to 1024",
    );
    refused(
        "what = \"drop\"\nspan = \"1 us\"\n",
        "p.toml:118:1: faults.0.span: found an unknown key, expected one of name, what, queue, \
         command, first_lba, last_lba, from, until, nth, every, one_in, times",
    );
    refused(
        "what = \"hang\"\nat = \"1 us\"\n",
        "p.toml:118:1: faults.0.at: found an unknown key, expected one of name, what, queue, \
         command, first_lba, last_lba, from, until, nth, every, one_in, times",
    );
    refused(
        "what = \"fatal\"\nat = \"1 us\"\nnth = 3\n",
        "p.toml:119:1: faults.0.nth: found an unknown key, expected one of name, what, at",
    );
}

#[test]
fn a_status_has_a_name_or_two_numbers_and_is_no_success() {
    let expected = "expected a name of NVMe base 2.0, 3.3.3.2.1, such as \"Write Fault\", or \
        { sct = ..., sc = ... }";
    refused(
        "what = \"status\"\nstatus = \"Write Fualt\"\n",
        &format!(
            "p.toml:118:10: faults.0.status: found \"Write Fualt\", {expected}: \
             did you mean Write Fault?"
        ),
    );
    refused(
        "what = \"status\"\nstatus = \"Successful Completion\"\n",
        &format!("p.toml:118:10: faults.0.status: found \"Successful Completion\", {expected}"),
    );
    refused(
        "what = \"status\"\n",
        &format!("p.toml:115:1: faults.0.status: found nothing, {expected}"),
    );
    refused(
        "what = \"status\"\nstatus = { sct = 0, sc = 0 }\n",
        "p.toml:118:10: faults.0.status: found success, expected a status that is no success",
    );
    refused(
        "what = \"status\"\nstatus = { sct = 8, sc = 0 }\n",
        "p.toml:118:18: faults.0.status.sct: found 8, expected a whole number from 0 to 7",
    );
}

#[test]
fn a_fault_says_which_commands_in_ways_that_go_together() {
    let drop = |lines: &str| format!("what = \"drop\"\n{lines}");
    refused(
        &drop("command = \"raed\"\n"),
        "p.toml:118:11: faults.0.command: found \"raed\", expected \"read\" or \"write\" or \"flush\" \
         or \"compare\" or \"write-zeroes\" or \"dataset-management\" or \"copy\"",
    );
    refused(
        &drop("command = 256\n"),
        "p.toml:118:11: faults.0.command: found 256, expected a whole number from 0 to 255",
    );
    refused(
        &drop("queue = 64\n"),
        "p.toml:118:9: faults.0.queue: found 64, expected a whole number from 0 to 63",
    );
    let no_block = "expected no block, or a command whose entry names blocks: \
        read, write, compare or write-zeroes";
    refused(
        &drop("command = \"flush\"\nfirst_lba = 3\n"),
        &format!("p.toml:119:13: faults.0.first_lba: found blocks, {no_block}"),
    );
    refused(
        &drop("queue = 0\nlast_lba = 3\n"),
        &format!("p.toml:119:12: faults.0.last_lba: found blocks, {no_block}"),
    );
    refused(
        &drop("first_lba = 9\nlast_lba = 8\n"),
        "p.toml:119:12: faults.0.last_lba: found 8, expected at least first_lba, which is 9",
    );
    refused(
        &drop("from = \"2 ms\"\nuntil = \"1 ms\"\n"),
        "p.toml:119:9: faults.0.until: found 1.000ms, expected more than from, which is 2.000ms",
    );
    refused(
        &drop("nth = 1\nevery = 2\n"),
        "p.toml:119:9: faults.0.every: found a second way to count, expected one of nth, every, one_in",
    );
    refused(
        &drop("one_in = 0\n"),
        "p.toml:118:10: faults.0.one_in: found 0, expected a whole number from 1 to 1099511627776",
    );
}

#[test]
fn a_name_is_its_own() {
    let one = "[[faults]]\nname = \"x\"\nwhat = \"drop\"\n";
    assert_eq!(
        said(&with(&format!("{one}{one}"))),
        "p.toml:119:8: faults.1.name: found \"x\", expected a name of its own: faults.0 has it"
    );
}
