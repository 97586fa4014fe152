//! Rejected `[medium.flash]` tables.

use media::nand::Cell;

use super::parse_errors;
use crate::{Plan, Start};

/// Checks the error of the plan `small-flash` with this value, without its position.
#[track_caller]
fn assert_rejected(key: &str, value: &str, expected: &str) {
    let key = format!("medium.{key}");
    let errors = Plan::open("small-flash", &[(key.as_str(), value)]).expect_err(value).to_string();
    let place = format!("plans/small-flash.toml, --set {key}={value}: ");
    assert_eq!(errors.strip_prefix(&place).unwrap_or(&errors), expected, "{key}={value}");
}

#[test]
fn flash_table_parses() {
    let plan = Plan::open("small-flash", &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let flash = plan.medium.flash.as_ref().expect("flash");
    let read = (plan.medium.kind.name, flash.profile, flash.start);
    assert_eq!(read, ("flash", "tlc", Start::Fresh));
    let geometry = &flash.spec.geometry;
    assert_eq!((geometry.channels, geometry.blocks, geometry.cell), (2, 16, Cell::Tlc));
    assert_eq!(geometry.page_bytes, 16_384, "the profile's");
    assert_eq!(flash.software.slots, 96, "384 KiB of units");
    assert_eq!(plan.medium.contents.capacity_bytes, flash.capacity_bytes());
    let more =
        Plan::open("small-flash", &[("medium.flash.spare_per_mille", "70")]).expect("a plan");
    assert!(more.medium.contents.capacity_bytes > plan.medium.contents.capacity_bytes);
}

#[test]
fn flash_keys_have_their_values_and_ranges() {
    assert_rejected(
        "flash.profile",
        "tcl",
        "medium.flash.profile: found \"tcl\", \
         expected \"tlc\" or \"qlc\" or \"mlc\" or \"slc\" or \"test\"",
    );
    assert_rejected(
        "flash.channels",
        "65",
        "medium.flash.channels: found 65, expected a whole number from 1 to 64",
    );
    assert_rejected(
        "flash.blocks",
        "2",
        "medium.flash.blocks: found chips of 1536 KiB, expected more blocks: none are left for data",
    );
    assert_rejected(
        "flash.errors",
        "some",
        "medium.flash.errors: found \"some\", expected \"profile\" or \"none\"",
    );
    assert_rejected(
        "flash.spare_per_mille",
        "0",
        "medium.flash.spare_per_mille: found 0, expected a whole number from 1 to 1000",
    );
    assert_rejected(
        "flash.spare_per_mille",
        "1",
        "medium.flash.spare_per_mille: found 1, expected at least 50: \
         superblocks have 8 rows, and a reserve of 4",
    );
    assert_rejected(
        "flash.reserve",
        "1",
        "medium.flash.reserve: found 1, expected a whole number from 2 to 64",
    );
    assert_rejected(
        "flash.cache",
        "write-back",
        "medium.flash.cache: found \"write-back\", \
         expected \"volatile\" or \"protected\" or \"through\"",
    );
    assert_rejected(
        "flash.buffer",
        "64 KiB",
        "medium.flash.buffer: found 64 KiB, expected at least 96 KiB, the size of one program operation",
    );
    assert_rejected(
        "flash.map_cache",
        "4 KiB",
        "medium.flash.map_cache: found 4 KiB, expected at least 8 KiB",
    );
    assert_rejected(
        "flash.unit",
        "1000 B",
        "medium.flash.unit: found \"1000 B\", \
         expected a power of two from \"512 B\" to \"16 KiB\", whole blocks",
    );
}

/// More superblocks may be open, and more rows incomplete.
#[test]
fn hints_need_reserve_buffer_and_separate_streams() {
    let with = |sets: &[(&str, &str)]| {
        let sets = [&[("medium.flash.hints", "true")], sets].concat();
        Plan::open("small-flash", &sets).map(drop).map_err(|errors| errors.to_string())
    };
    assert_eq!(with(&[("medium.flash.reserve", "4")]), Ok(()));
    for (key, value, expected) in [
        (
            "medium.flash.reserve",
            "3",
            "medium.flash.reserve: found 3, expected at least 4 with medium.flash.hints = true",
        ),
        (
            "medium.flash.streams",
            "mixed",
            "medium.flash.streams: found mixed, expected separate, with medium.flash.hints = true",
        ),
        (
            "medium.flash.buffer",
            "96 KiB",
            "medium.flash.buffer: found 96 KiB, expected at least 384 KiB with medium.flash.hints = true",
        ),
    ] {
        let errors = with(&[(key, value)]).expect_err(key);
        assert!(errors.ends_with(expected), "{errors}");
    }
    let bridge = "{controllers=3, stripe='8 KiB', queue=128, conversion='2 us', command='0 ns', \
                  link='600 MB/s'}";
    let errors = with(&[("medium.bridge", bridge)]).expect_err("no hints there");
    let expected = "medium.bridge: found medium.flash.hints = true, \
                    expected false: a bridge passes no hints to its controllers";
    assert!(errors.ends_with(expected), "{errors}");
    let short = [("medium.flash.word_lines", "2"), ("medium.flash.spare_per_mille", "900")];
    let errors = with(&short).expect_err("superblocks of few rows");
    let expected = "medium.flash.hints: found true, with superblocks of 4 rows, \
                    expected false, or superblocks of at least 5 rows";
    assert!(errors.ends_with(expected), "{errors}");
}

#[test]
fn flash_start_must_be_known_and_unknown_keys_are_rejected() {
    assert_rejected(
        "flash.start",
        "old",
        "medium.flash.start: found \"old\", expected \"fresh\", \"filled\", \"scattered\", \"steady\", or \
         \"striped:\" and whole mapping units, of which a page has a whole number",
    );
    for wrong in ["striped:", "striped:0 B", "striped:6 KiB", "striped:32 KiB", "steady:4 KiB"] {
        assert_rejected(
            "flash.start",
            wrong,
            &format!(
                "medium.flash.start: found \"{wrong}\", expected \"fresh\", \"filled\", \"scattered\", \
                 \"steady\", or \"striped:\" and whole mapping units, of which a page has a whole number"
            ),
        );
    }
    assert_rejected(
        "flash.steady",
        "true",
        "medium.flash.steady: found an unknown key, expected one of profile, channels, packages, \
         dies, planes, blocks, word_lines, unit, times, independent_planes, suspensions, \
         errors, held_up, processing, spare_per_mille, cache, buffer, nv_sram, collector, collector_reads, \
         collector_run, streams, hints, reserve, wear_spread, map_cache, capacity, start, steady_for, state",
    );
    assert_rejected(
        "flash.steady_for",
        "\"zipf:1.2\"",
        "medium.flash.steady_for: found \"zipf:1.2\", expected no such key, or start = \"steady\"",
    );
}

#[test]
fn chip_times_have_units_and_ranges() {
    assert_rejected(
        "flash.times.read",
        "\"11 s\"",
        "medium.flash.times.read: found \"11 s\", expected a span from 0 ps to 10 s, such as \"110 ns\"",
    );
    assert_rejected(
        "flash.times.bus",
        "\"0 B/s\"",
        "medium.flash.times.bus: found \"0 B/s\", expected a rate from 1 B/s to 10 TB/s, such as \"2 GB/s\"",
    );
    assert_rejected(
        "flash.times.reads",
        "\"1 us\"",
        "medium.flash.times.reads: found an unknown key, expected one of read, read_lower, \
         read_middle, read_upper, program, program_lower, program_middle, program_upper, read_unit, erase, \
         command, decode, suspend_program, suspend_erase, resume, bus: did you mean read?",
    );
}

#[test]
fn capacity_of_flash_is_limited_by_the_least_spare_space() {
    assert_rejected(
        "flash.capacity",
        "\"1000 B\"",
        "medium.flash.capacity: found 1000 B, expected whole units of 4 KiB, at most 7448 KiB",
    );
}

#[test]
fn flash_rejects_capacity_and_dram_rejects_chips() {
    assert_rejected(
        "capacity",
        "1 GiB",
        "medium.capacity: found an unknown key, expected one of kind, block, keep, pace, \
         flash, bridge, resident",
    );
    let errors =
        parse_errors(&super::PLAN.replace("[medium.timing]", "[medium.flash]\n[medium.timing]"));
    assert!(errors.contains("medium.flash: found an unknown key"), "{errors}");
}

#[test]
fn nv_sram_is_some_of_a_protected_buffer() {
    let with = |cache: &str, size: &str| {
        let sets = [("medium.flash.cache", cache), ("medium.flash.nv_sram", size)];
        let plan = Plan::open("small-flash", &sets).map_err(|errors| errors.to_string())?;
        Ok(plan.medium.flash.expect("flash").software.nv_slots)
    };
    assert_eq!(with("protected", "4 KiB"), Ok(Some(1)));
    assert_eq!(with("protected", "384 KiB"), Ok(Some(96)));
    let sizes = "expected whole units of 4 KiB, at most 384 KiB, the write buffer";
    for (cache, size, expected) in [
        ("protected", "0 B", format!("found 0 B, {sizes}")),
        ("protected", "2 KiB", format!("found 2 KiB, {sizes}")),
        ("protected", "388 KiB", format!("found 388 KiB, {sizes}")),
        (
            "volatile",
            "64 KiB",
            "found 64 KiB, expected no such key, or medium.flash.cache = \"protected\"".to_owned(),
        ),
    ] {
        let errors: String = with(cache, size).expect_err(size);
        assert!(errors.ends_with(&format!("medium.flash.nv_sram: {expected}")), "{errors}");
    }
}

/// The state file does not include the write buffer, so a protected buffer would lose its data at exit.
#[test]
fn protected_buffer_is_rejected_with_a_state_file() {
    let protected = ("medium.flash.cache", "protected");
    let errors = Plan::open("small-flash", &[protected, ("medium.flash.state", "drive.nand")]);
    let errors = errors.expect_err("a buffer that is lost").to_string();
    let expected = "medium.flash.cache: found protected, expected volatile or through: \
                    medium.flash.state does not include the write buffer";
    assert!(errors.ends_with(expected), "{errors}");
    for cache in ["volatile", "through"] {
        let sets = [("medium.flash.cache", cache), ("medium.flash.state", "drive.nand")];
        Plan::open("small-flash", &sets).unwrap_or_else(|errors| panic!("{errors}"));
    }
    Plan::open("small-flash", &[protected]).unwrap_or_else(|errors| panic!("{errors}"));
}

/// Random contents are generated: they take no memory that a bound could be for.
#[test]
fn resident_is_refused_for_random_contents() {
    let sets =
        [("medium.fill_seed", "7"), ("medium.keep", "everything"), ("medium.resident", "1 MiB")];
    Plan::open("gen4", &sets[..2]).unwrap_or_else(|errors| panic!("{errors}"));
    let errors = Plan::open("gen4", &sets).expect_err("a bound without a file").to_string();
    assert!(errors.contains("medium.file or medium.flash.state"), "{errors}");
}
