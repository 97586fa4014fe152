//! What is refused, and in which words: every kind of error, with its exact message.

mod faults;
mod flash;
mod ranges;

use std::path::Path;

use media::contents::{Backing, Contents, Spec};
use proptest::prelude::*;

use super::*;

/// A whole plan, of which the tests change one thing or another.
const PLAN: &str = r#"version = 1
name = "base"
about = "What the tests change."

[link]
generation = "gen3"
lanes = 4
mps = "256 B"
mrrs = "512 B"
rcb = "64 B"
completion_bytes = "256 B"
ecrc = false
latency = { value = "100 ns", source = "a table" }
host_read = { value = "200 ns", source = "a table" }
device_read = { value = "50 ns", source = "a table" }
tlps_per_dllp = { value = 4, source = "a table" }
relaxed_ordering = true

[[link.hops]]
name = "switch"
latency = { value = "75 ns", source = "a table" }

[link.credits]
posted_headers = { value = 32, source = "a table" }
posted_data = { value = 256, source = "a table" }
return_after = { value = "30 ns", source = "a table" }

[link.held_up]
one_in = { value = 10, source = "a table" }
span = { value = "500 ns", source = "a table" }

[host]
memory_base = "0x1_0000_0000"
memory = "64 MiB"
cores = 4
completion = "polled"
poll = { value = "20 ns", source = "a table" }
interrupt = { value = "1 us", source = "a table" }
doorbell = "batched"
queue_depth = 64
queues = 2
timeout = "1 s"
retries = 3

[host.costs]
submit = { value = "1 ns", source = "a table" }
complete = { value = "2 ns", source = "a table" }
"context switch" = { value = "3 ns", source = "a table" }
"system call" = { value = "4 ns", source = "a table" }
"block driver" = { value = "5 ns", source = "a table" }
benchmark = { value = "6 ns", source = "a table" }

[device]
processors = 2
command_slots = 64
fetchers = 1
fetch_max = 8
queues = 8
queue_entries = 256
mdts = "128 KiB"
arbitration_burst = 0

[device.costs]
parse = { value = "40 ns", source = "a table" }
"post completion" = { value = "20 ns", source = "a table" }

[medium]
kind = "dram"
capacity = "1 GiB"
block = "4 KiB"
keep = "everything"
file = "disk.img"
pace = "modelled"

[medium.timing]
channels = { value = 2, source = "a table" }
banks = { value = 16, source = "a table" }
row = { value = "8 KiB", source = "a table" }
first_byte = { value = "27.5 ns", source = "a table" }
next_row = { value = "0 ns", source = "a table" }
bandwidth = { value = "25.6 GB/s", source = "a table" }
write_factor = { value = 1, source = "a table" }

[run]
seed = 7
breakdown_sample = 1

[dcx]
tags = "device"
grain = "64 B"
max_latency = "1 ms"
fetch_max = 8
anticipate = true
sleep_after = 1000
writes = "polled"
mark = { value = "5 ns", source = "a table" }

[block]
ring = 128
largest = 32
returned = "subsets"
subset = 8
engines = 2
ahead = 4
sizing = "static"
static_size = 8
linger = "100 us"

[block.costs]
announce = { value = "20 ns", source = "a table" }
"take block" = { value = "20 ns", source = "a table" }
return = { value = "20 ns", source = "a table" }
"dma start" = { value = "20 ns", source = "a table" }

[[faults]]
name = "slow"
what = "delay"
span = "1 us"
command = "read"
first_lba = 8
last_lba = 15
every = 10
"#;

/// The plan with its line of `key = ` in `table` replaced, or dropped where `line` is empty.
fn changed(table: &str, key: &str, line: &str) -> String {
    let heading = if table.is_empty() { "version".to_owned() } else { format!("[{table}]") };
    let start = PLAN.find(&format!("\n{heading}")).map_or(0, |at| at + 1);
    let at = start + PLAN[start..].find(&format!("\n{key} = ")).expect("the key is there") + 1;
    let end = at + PLAN[at..].find('\n').expect("the line ends");
    format!("{}{line}{}", &PLAN[..at], &PLAN[end..])
}

fn said(text: &str) -> String {
    Plan::parse(text, "p.toml").err().map_or("no error".to_owned(), |errors| errors.to_string())
}

#[track_caller]
fn refused(table: &str, key: &str, line: &str, expected: &str) {
    assert_eq!(said(&changed(table, key, line)), expected, "{table}: {line:?}");
}

#[test]
fn the_plan_that_the_tests_change_is_good() {
    let plan = Plan::parse(PLAN, "p.toml").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(plan.link.latency, runtime::Span::ns(175), "the hop is folded in");
    assert_eq!(plan.link.credits.map(|c| (c.headers, c.data)), Some((32, 256)));
    assert_eq!(plan.link.held_up.map(|h| h.one_in), Some(10));
    assert!(plan.relaxed_ordering);
    assert_eq!(plan.device.arbitration_burst, None);
    assert_eq!(plan.run, Run { seed: 7, breakdown_sample: 1 });
    let keys = |plan: &Plan| plan.sources.iter().filter(|s| s.source == "a table").count();
    assert_eq!((keys(&plan), plan.sources.len()), (PLAN.matches("a table").count(), keys(&plan)));
}

#[test]
fn a_quantity_has_its_unit_and_nothing_finer_than_its_atom() {
    let span = "expected a span from 0 ps to 1 s, such as \"110 ns\"";
    let latency = |value: &str| format!("latency = {{ value = {value}, source = \"a table\" }}");
    for (value, found) in [
        ("100", "100, without a unit"),
        ("0.1", "0.1, without a unit"),
        ("\"100\"", "\"100\", which has no unit"),
        ("\"ns\"", "\"ns\", which does not begin with a decimal number"),
        ("\"100 nsec\"", "\"100 nsec\", which has the unknown unit \"nsec\""),
        ("\"0.1234 ns\"", "\"0.1234 ns\", which is no whole multiple of 1 ps"),
        ("\"1.1 s\"", "\"1.1 s\""),
        ("\"99999999 s\"", "\"99999999 s\", which is too large"),
        ("true", "true"),
        ("1979-05-27", "the date 1979-05-27, without a unit"),
    ] {
        let expected = format!("p.toml:13:21: link.latency: found {found}, {span}");
        refused("link", "latency", &latency(value), &expected);
    }
    refused(
        "link",
        "mps",
        "mps = 256",
        "p.toml:8:7: link.mps: found 256, without a unit, \
         expected a power of two from \"128 B\" to \"4 KiB\"",
    );
    refused(
        "medium.timing",
        "bandwidth",
        "bandwidth = { value = \"25 GHz\", source = \"a table\" }",
        "p.toml:81:23: medium.timing.bandwidth: found \"25 GHz\", which has the unknown unit \
         \"GHz\", expected a rate from 1 B/s to 10 TB/s, such as \"2 GB/s\"",
    );
}

#[test]
fn what_costs_time_says_where_it_comes_from() {
    let whole = "expected { value = ..., source = \"...\" } whose value is \
        a span from 0 ps to 1 s, such as \"110 ns\"";
    refused(
        "host",
        "poll",
        "poll = \"20 ns\"",
        &format!("p.toml:37:8: host.poll: found \"20 ns\" without a source, {whole}"),
    );
    refused("host", "poll", "", &format!("p.toml:32:1: host.poll: found nothing, {whole}"));
    refused(
        "host",
        "poll",
        "poll = { value = \"20 ns\" }",
        "p.toml:37:8: host.poll.source: found nothing, \
         expected where the value comes from, or \"assumed\" and why",
    );
    refused(
        "host",
        "poll",
        "poll = { value = \"20 ns\", source = \" \" }",
        "p.toml:37:36: host.poll.source: found \" \", \
         expected where the value comes from, or \"assumed\" and why",
    );
    refused(
        "host",
        "poll",
        "poll = { source = \"a table\" }",
        "p.toml:37:8: host.poll.value: found nothing, \
         expected a span from 0 ps to 1 s, such as \"110 ns\"",
    );
    refused(
        "host",
        "poll",
        "poll = { value = \"20 ns\", sauce = \"\", source = \"a table\" }",
        "p.toml:37:27: host.poll.sauce: found an unknown key, \
         expected one of value, source: did you mean source?",
    );
}

/// The timing's table, taken out of the plan.
fn without_timing() -> String {
    let (before, rest) = PLAN.split_once("[medium.timing]").unwrap();
    let (_, after) = rest.split_once("[run]").unwrap();
    format!("{before}[run]{after}")
}

#[test]
fn a_modelled_pace_needs_its_timing() {
    assert_eq!(
        said(&without_timing()),
        "p.toml:67:1: medium.timing: found nothing, \
         expected the table [medium.timing], since medium.pace is \"modelled\""
    );
    let immediate = without_timing().replace("pace = \"modelled\"", "pace = \"immediate\"");
    let plan = Plan::parse(&immediate, "p.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let rt = runtime::Rt::simulated(None, runtime::Log::Off);
    let spec =
        Spec { capacity_bytes: 4096, backing: Backing::Memory, ..plan.medium.contents.clone() };
    let contents = || Contents::new(spec.clone()).unwrap();
    assert!(plan.start_blocks(&rt, contents(), false).is_ok(), "not live");
    assert_eq!(
        plan.start_blocks(&rt, contents(), true).err().unwrap().to_string(),
        "p.toml: medium.timing: found nothing, expected the table [medium.timing]: \
         a simulated medium takes the time of its model, whatever medium.pace says"
    );
}

#[test]
fn an_unknown_key_is_named_with_its_line_in_every_table() {
    let tables = [
        "link",
        "[link.hops]",
        "link.credits",
        "link.held_up",
        "host",
        "host.costs",
        "device",
        "device.costs",
        "medium",
        "medium.timing",
        "dcx",
        "block",
        "block.costs",
        "run",
        "[faults]",
    ];
    for table in tables {
        let heading = format!("[{table}]\n");
        let text = PLAN.replace(&heading, &format!("{heading}  qqq = 1\n"));
        let before = PLAN.split(&heading).next().unwrap();
        let line = before.matches('\n').count() + 2;
        let path = table.trim_matches(['[', ']']);
        let path = path.replace("hops", "hops.0").replace("faults", "faults.0");
        let start = format!("p.toml:{line}:3: {path}.qqq: found an unknown key, expected one of ");
        let said = said(&text);
        assert!(said.starts_with(&start) && said.lines().count() == 1, "{start} in {said}");
    }
    assert_eq!(
        said(&PLAN.replace("version = 1\n", "version = 1\nnmae = 2\n")),
        "p.toml:2:1: nmae: found an unknown key, expected one of version, name, about, link, host, \
         device, medium, dcx, block, fastpath, pages, \
         collector, arbitration, power, array, run, \
         faults: did you mean name?"
    );
}

#[test]
fn a_cost_that_no_driver_spends_is_refused_and_one_that_lacks_too() {
    refused(
        "host.costs",
        "submit",
        "submitt = { value = \"1 ns\", source = \"a table\" }",
        "p.toml:45:1: host.costs.submit: found nothing, expected { value = ..., source = \"...\" } \
         whose value is a span from 0 ps to 1 s, such as \"110 ns\"\n\
         p.toml:46:1: host.costs.submitt: found an unknown key, expected one of submit, complete, \
         context switch, system call, block driver, benchmark: did you mean submit?",
    );
}

#[test]
fn a_table_that_lacks_is_one_error() {
    for table in ["link", "host", "device", "medium", "run"] {
        let text = PLAN.replace(&format!("[{table}]\n"), &format!("[x.{table}]\n"));
        let said = said(
            &text.replace(&format!("[{table}."), "[x.").replace(&format!("[[{table}."), "[[x."),
        );
        let expected = format!("p.toml:1:1: {table}: found nothing, expected the table [{table}]");
        assert_eq!(said.lines().filter(|line| line.contains("found nothing")).count(), 1, "{said}");
        assert!(said.lines().any(|line| line == expected), "{said}");
    }
    let text = format!("run = 5\n{}", PLAN.split("[run]").next().unwrap());
    assert_eq!(said(&text), "p.toml:1:7: run: found 5, expected a table");
}

#[test]
fn another_version_is_all_that_is_told() {
    let expected = "expected 1, the version of the format that this program reads";
    let text = "version = 2\nwhatever = 3\n";
    assert_eq!(said(text), format!("p.toml:1:11: version: found 2, {expected}"));
    assert_eq!(said(""), format!("p.toml:1:1: version: found nothing, {expected}"));
}

#[test]
fn a_name_is_a_text() {
    refused("", "name", "name = 5", "p.toml:2:8: name: found 5, expected the plan's name");
    refused(
        "",
        "about",
        "",
        "p.toml:1:1: about: found nothing, expected what the plan is, in a sentence or two",
    );
}

#[test]
fn all_errors_are_told_at_once_in_the_order_of_their_lines() {
    let text = PLAN
        .replace("lanes = 4", "lanes = 5")
        .replace("\"27.5 ns\"", "27.5")
        .replace("cores = 4", "cores = 400")
        .replace("kind = \"dram\"", "kind = \"core\"");
    let said = said(&text);
    let keys: Vec<_> = said.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(keys, ["link.lanes", "host.cores", "medium.kind", "medium.timing.first_byte"]);
}

#[test]
fn no_toml_is_refused_where_it_ends_to_be_some() {
    let said = said(&PLAN.replace("lanes = 4", "lanes = "));
    let expected = "p.toml:7:9: found what is no TOML (";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.ends_with("), expected a TOML document"), "{said}");
}

#[test]
fn settings_are_validated_like_the_rest_and_named_as_such() {
    let with = |sets: &[(&str, &str)]| Plan::parse_with(PLAN, "p.toml", sets);
    let said = |sets: &[(&str, &str)]| with(sets).unwrap_err().to_string();
    let plan = with(&[("link.lanes", "8"), ("host.poll", "30 ns")]).unwrap();
    assert_eq!((plan.link.lanes, plan.host.poll), (8, runtime::Span::ns(30)));
    let assumed: Vec<_> = plan.sources.iter().filter(|s| s.assumed).map(|s| &s.key).collect();
    assert_eq!(assumed, ["link.lanes", "host.poll"]);
    assert_eq!(
        said(&[("link.lanes", "7")]),
        "p.toml, --set link.lanes=7: link.lanes: found 7, expected 1, 2, 4, 8, 16 or 32 lanes"
    );
    assert_eq!(
        said(&[("run.sead", "7")]),
        "p.toml, --set run.sead=7: run.sead: found an unknown key, \
         expected one of seed, breakdown_sample: did you mean seed?"
    );
}

#[test]
fn a_plan_that_is_not_there_says_what_there_is() {
    assert_eq!(
        Plan::open("gen44", &[]).unwrap_err().to_string(),
        "gen44: found nothing, expected a file, or one of the built-in plans \
         dc-express, dc-express-linux, descriptor-blocks, fastpath, flash-bridge, flash-closer, gen4, \
         live, small-flash, tlc, vortex, \
         vortex-disks"
    );
    let missing = Plan::load(Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such.toml: found No such file"), "{missing}");
    assert!(missing.ends_with(", expected the text of a plan"), "{missing}");
    let directory = Plan::load(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err().to_string();
    assert!(directory.ends_with(", expected the text of a plan"), "{directory}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever is done to a plan, it is read or refused: here a piece of it is replaced.
    #[test]
    fn a_damaged_plan_is_read_or_refused(
        at in 0..PLAN.len(), length in 0..40_usize, with in "[\\[\\]={}\"'0-9a-z.\n -]{0,12}",
    ) {
        let end = (at + length).min(PLAN.len());
        let text = format!("{}{with}{}", &PLAN[..at], &PLAN[end..]);
        if let Err(errors) = Plan::parse(&text, "p.toml") {
            prop_assert!(!errors.errors.is_empty());
        }
    }

    /// A setting too, wherever it leads.
    #[test]
    fn a_setting_is_taken_or_refused(
        path in "(link|host|medium|device|x)?(\\.(lanes|hops|0|costs|timing|value)){0,3}",
        value in "(\\[|\\{|\"|-)?[0-9a-zA-Z =.\n]{0,8}(\\]|\\}|\")?",
    ) {
        let sets = [(path.as_str(), value.as_str())];
        if let Err(errors) = Plan::parse_with(PLAN, "p.toml", &sets) {
            prop_assert!(errors.errors.iter().all(|error| !error.expected.is_empty()));
        }
    }
}
