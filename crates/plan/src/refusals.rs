//! Rejected plans: every kind of error with its exact message.

mod faults;
mod flash;
mod ranges;

use std::path::Path;

use media::contents::{Backing, Contents, Spec};
use proptest::prelude::*;

use super::*;

/// A complete plan, which the tests modify.
const PLAN: &str = r#"version = 1
name = "base"
about = "Base of the tests."

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

/// The plan with its line of `key = ` in `table` replaced, or removed if `line` is empty.
fn changed(table: &str, key: &str, line: &str) -> String {
    let heading = if table.is_empty() { "version".to_owned() } else { format!("[{table}]") };
    let start = PLAN.find(&format!("\n{heading}")).map_or(0, |at| at + 1);
    let at = start + PLAN[start..].find(&format!("\n{key} = ")).expect("the key is there") + 1;
    let end = at + PLAN[at..].find('\n').expect("the line ends");
    format!("{}{line}{}", &PLAN[..at], &PLAN[end..])
}

fn parse_errors(text: &str) -> String {
    Plan::parse(text, "p.toml").err().map_or("no error".to_owned(), |errors| errors.to_string())
}

#[track_caller]
fn assert_rejected(table: &str, key: &str, line: &str, expected: &str) {
    assert_eq!(parse_errors(&changed(table, key, line)), expected, "{table}: {line:?}");
}

#[test]
fn base_plan_is_valid() {
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
fn tags_and_random_contents_are_validated() {
    let errors = |sets: &[(&str, &str)]| match Plan::open("dc-express", sets) {
        Ok(_) => "no error".to_owned(),
        Err(errors) => errors.to_string(),
    };
    let compared = [("dcx.tags", "compared"), ("dcx.grain", "128 B"), ("dcx.tag_bits", "48")];
    for (sets, expected) in [
        (vec![("dcx.tag_bits", "64")], "no error"),
        (
            vec![("dcx.tag_bits", "65")],
            "dcx.tag_bits: found 65, expected a whole number from 1 to 64",
        ),
        (compared.to_vec(), "dcx.candidates"),
        ([&compared[..], &[("dcx.candidates", "8")]].concat(), "no error"),
        ([&compared[..], &[("dcx.candidates", "0")]].concat(), "dcx.candidates: found 0"),
        (
            [&compared[..], &[("dcx.candidates", "8"), ("dcx.tag_bits", "31")]].concat(),
            "dcx.tag_bits: found 31, expected a whole number from 32 to 64",
        ),
        (vec![("dcx.poll_above", "0")], "dcx.poll_above: found 0"),
        (vec![("medium.fill_seed", "1")], "no error"),
        (
            vec![("medium.fill_seed", "1"), ("medium.keep", "stamps")],
            "medium.fill_seed: found 1, expected no medium.file",
        ),
        (
            vec![("medium.fill_seed", "1"), ("medium.file", "a.img")],
            "medium.fill_seed: found 1, expected no medium.file",
        ),
    ] {
        let found = errors(&sets);
        assert!(found.contains(expected), "{sets:?}: {found}");
    }
}

#[test]
fn quantities_need_a_unit_and_whole_multiples_of_its_resolution() {
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
        assert_rejected("link", "latency", &latency(value), &expected);
    }
    assert_rejected(
        "link",
        "mps",
        "mps = 256",
        "p.toml:8:7: link.mps: found 256, without a unit, \
         expected a power of two from \"128 B\" to \"4 KiB\"",
    );
    assert_rejected(
        "medium.timing",
        "bandwidth",
        "bandwidth = { value = \"25 GHz\", source = \"a table\" }",
        "p.toml:81:23: medium.timing.bandwidth: found \"25 GHz\", which has the unknown unit \
         \"GHz\", expected a rate from 1 B/s to 10 TB/s, such as \"2 GB/s\"",
    );
}

#[test]
fn costs_need_a_source() {
    let whole = "expected { value = ..., source = \"...\" } whose value is \
        a span from 0 ps to 1 s, such as \"110 ns\"";
    assert_rejected(
        "host",
        "poll",
        "poll = \"20 ns\"",
        &format!("p.toml:37:8: host.poll: found \"20 ns\" without a source, {whole}"),
    );
    assert_rejected("host", "poll", "", &format!("p.toml:32:1: host.poll: found nothing, {whole}"));
    assert_rejected(
        "host",
        "poll",
        "poll = { value = \"20 ns\" }",
        "p.toml:37:8: host.poll.source: found nothing, \
         expected the source of the value, or \"assumed: \" and the reason",
    );
    assert_rejected(
        "host",
        "poll",
        "poll = { value = \"20 ns\", source = \" \" }",
        "p.toml:37:36: host.poll.source: found \" \", \
         expected the source of the value, or \"assumed: \" and the reason",
    );
    assert_rejected(
        "host",
        "poll",
        "poll = { source = \"a table\" }",
        "p.toml:37:8: host.poll.value: found nothing, \
         expected a span from 0 ps to 1 s, such as \"110 ns\"",
    );
    assert_rejected(
        "host",
        "poll",
        "poll = { value = \"20 ns\", sauce = \"\", source = \"a table\" }",
        "p.toml:37:27: host.poll.sauce: found an unknown key, \
         expected one of value, source: did you mean source?",
    );
}

/// The plan without the table `[medium.timing]`.
fn without_timing() -> String {
    let (before, rest) = PLAN.split_once("[medium.timing]").unwrap();
    let (_, after) = rest.split_once("[run]").unwrap();
    format!("{before}[run]{after}")
}

#[test]
fn modelled_pace_needs_a_timing_table() {
    assert_eq!(
        parse_errors(&without_timing()),
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
         a simulated medium takes the time of its model, regardless of medium.pace"
    );
}

#[test]
fn unknown_keys_are_reported_with_line_and_suggestion_in_every_table() {
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
        let errors = parse_errors(&text);
        assert!(errors.starts_with(&start) && errors.lines().count() == 1, "{start} in {errors}");
    }
    assert_eq!(
        parse_errors(&PLAN.replace("version = 1\n", "version = 1\nnmae = 2\n")),
        "p.toml:2:1: nmae: found an unknown key, expected one of version, name, about, drive, link, host, \
         device, medium, dcx, block, fastpath, pages, \
         collector, map, arbitration, power, array, run, \
         faults: did you mean name?"
    );
}

#[test]
fn unknown_and_missing_costs_are_rejected() {
    assert_rejected(
        "host.costs",
        "submit",
        "submitt = { value = \"1 ns\", source = \"a table\" }",
        "p.toml:46:1: host.costs.submitt: found an unknown key, expected one of submit, complete, \
         context switch, system call, block driver, benchmark: did you mean submit?",
    );
}

#[test]
fn missing_table_is_one_error() {
    for table in ["link", "host", "device", "medium", "run"] {
        let text = PLAN.replace(&format!("[{table}]\n"), &format!("[x.{table}]\n"));
        let errors = parse_errors(
            &text.replace(&format!("[{table}."), "[x.").replace(&format!("[[{table}."), "[[x."),
        );
        let expected = format!("p.toml:1:1: {table}: found nothing, expected the table [{table}]");
        assert_eq!(
            errors.lines().filter(|line| line.contains("found nothing")).count(),
            1,
            "{errors}"
        );
        assert!(errors.lines().any(|line| line == expected), "{errors}");
    }
    let text = format!("run = 5\n{}", PLAN.split("[run]").next().unwrap());
    assert_eq!(parse_errors(&text), "p.toml:1:7: run: found 5, expected a table");
}

#[test]
fn unknown_version_is_the_only_error() {
    let expected = "expected 1, the version of the format that this program reads";
    let text = "version = 2\nwhatever = 3\n";
    assert_eq!(parse_errors(text), format!("p.toml:1:11: version: found 2, {expected}"));
    assert_eq!(parse_errors(""), format!("p.toml:1:1: version: found nothing, {expected}"));
}

#[test]
fn name_and_about_must_be_text() {
    assert_rejected("", "name", "name = 5", "p.toml:2:8: name: found 5, expected the plan's name");
    assert_rejected(
        "",
        "about",
        "",
        "p.toml:1:1: about: found nothing, expected what the plan is, in a sentence or two",
    );
}

#[test]
fn all_errors_are_reported_in_line_order() {
    let text = PLAN
        .replace("lanes = 4", "lanes = 5")
        .replace("\"27.5 ns\"", "27.5")
        .replace("cores = 4", "cores = 400")
        .replace("kind = \"dram\"", "kind = \"core\"");
    let errors = parse_errors(&text);
    let keys: Vec<_> = errors.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(keys, ["link.lanes", "host.cores", "medium.kind", "medium.timing.first_byte"]);
}

#[test]
fn invalid_toml_is_rejected_with_its_position() {
    let errors = parse_errors(&PLAN.replace("lanes = 4", "lanes = "));
    let expected = "p.toml:7:9: found what is no TOML (";
    assert!(errors.starts_with(expected), "{errors}");
    assert!(errors.ends_with("), expected a TOML document"), "{errors}");
}

/// Only the plan of a drive may have fitted values, whatever its base.
#[test]
fn fitted_values_need_a_drive() {
    let fitted = [("host.poll", "{ value = \"30 ns\", source = \"fitted: to reads\" }")];
    let error = Plan::parse_with(PLAN, "p.toml", &fitted).unwrap_err().to_string();
    assert!(error.contains("host.poll: found a fitted value, expected a source, or"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let plan = Plan::parse_with(PLAN, "p.toml", &[fitted[0], ("drive", "mine.tsv")]).unwrap();
    let of_key = plan.sources.iter().find(|of| of.key == "host.poll").unwrap();
    assert!(of_key.is_fitted() && of_key.assumed, "{of_key:?}");
    let report = plan.report();
    assert!(report.contains("  drive: mine.tsv\n"), "{report}");
    let (_, rest) = report.split_once("\nfitted: 1\n").expect("a list of fitted values");
    assert!(rest.starts_with("  host.poll  30 ns  to reads\n"), "{rest}");
    // A text that only begins with the letters is a source.
    let known = [("host.poll", "{ value = \"30 ns\", source = \"fittedness, 2020\" }")];
    let plan = Plan::parse_with(PLAN, "p.toml", &known).unwrap();
    assert!(plan.sources.iter().all(|of| !of.is_fitted()), "{:?}", plan.sources);
}

#[test]
fn settings_are_validated_and_named_in_errors() {
    let with = |sets: &[(&str, &str)]| Plan::parse_with(PLAN, "p.toml", sets);
    let rejection = |sets: &[(&str, &str)]| with(sets).unwrap_err().to_string();
    let plan = with(&[("link.lanes", "8"), ("host.poll", "30 ns")]).unwrap();
    assert_eq!((plan.link.lanes, plan.host.poll), (8, runtime::Span::ns(30)));
    let assumed: Vec<_> = plan.sources.iter().filter(|s| s.assumed).map(|s| &s.key).collect();
    assert_eq!(assumed, ["link.lanes", "host.poll"]);
    assert_eq!(
        rejection(&[("link.lanes", "7")]),
        "p.toml, --set link.lanes=7: link.lanes: found 7, expected 1, 2, 4, 8, 16 or 32 lanes"
    );
    assert_eq!(
        rejection(&[("run.sead", "7")]),
        "p.toml, --set run.sead=7: run.sead: found an unknown key, \
         expected one of seed, breakdown_sample: did you mean seed?"
    );
}

#[test]
fn unknown_plan_lists_the_built_in_plans() {
    let names: Vec<&str> = built_in().iter().map(|(name, _)| *name).collect();
    assert!(names.is_sorted() && names.contains(&"gen4"), "{names:?}");
    assert_eq!(
        Plan::open("gen44", &[]).unwrap_err().to_string(),
        format!(
            "gen44: found nothing, expected a file, or one of the built-in plans {}",
            names.join(", ")
        )
    );
    let missing = Plan::load(Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such.toml: found No such file"), "{missing}");
    assert!(missing.ends_with(", expected the text of a plan"), "{missing}");
    let directory = Plan::load(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err().to_string();
    assert!(directory.ends_with(", expected the text of a plan"), "{directory}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Replaces a random piece of the plan's text.
    #[test]
    fn corrupted_plan_parses_or_is_rejected(
        at in 0..PLAN.len(), length in 0..40_usize, with in "[\\[\\]={}\"'0-9a-z.\n -]{0,12}",
    ) {
        let end = (at + length).min(PLAN.len());
        let text = format!("{}{with}{}", &PLAN[..at], &PLAN[end..]);
        if let Err(errors) = Plan::parse(&text, "p.toml") {
            prop_assert!(!errors.errors.is_empty());
        }
    }

    /// Applies a random setting to a random path.
    #[test]
    fn any_setting_is_applied_or_rejected(
        path in "(link|host|medium|device|x)?(\\.(lanes|hops|0|costs|timing|value)){0,3}",
        value in "(\\[|\\{|\"|-)?[0-9a-zA-Z =.\n]{0,8}(\\]|\\}|\")?",
    ) {
        let sets = [(path.as_str(), value.as_str())];
        if let Err(errors) = Plan::parse_with(PLAN, "p.toml", &sets) {
            prop_assert!(errors.errors.iter().all(|error| !error.expected.is_empty()));
        }
    }
}
