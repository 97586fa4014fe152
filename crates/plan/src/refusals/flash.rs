//! Flash that makes no sense.

use media::nand::Cell;

use super::said;
use crate::{Plan, Start};

/// What is said of small flash with this value, without the place.
#[track_caller]
fn refused(key: &str, value: &str, expected: &str) {
    let key = format!("medium.{key}");
    let said = Plan::open("small-flash", &[(key.as_str(), value)]).expect_err(value).to_string();
    let place = format!("plans/small-flash.toml, --set {key}={value}: ");
    assert_eq!(said.strip_prefix(&place).unwrap_or(&said), expected, "{key}={value}");
}

#[test]
fn flash_is_read_as_it_is_written() {
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
fn what_flash_is_made_of_has_its_words_and_ranges() {
    refused(
        "flash.profile",
        "tcl",
        "medium.flash.profile: found \"tcl\", \
         expected \"tlc\" or \"qlc\" or \"mlc\" or \"slc\" or \"test\"",
    );
    refused(
        "flash.channels",
        "65",
        "medium.flash.channels: found 65, expected a whole number from 1 to 64",
    );
    refused(
        "flash.blocks",
        "2",
        "medium.flash.blocks: found chips of 1536 KiB, expected more of them: none are left for data",
    );
    refused(
        "flash.errors",
        "some",
        "medium.flash.errors: found \"some\", expected \"profile\" or \"none\"",
    );
    refused(
        "flash.spare_per_mille",
        "0",
        "medium.flash.spare_per_mille: found 0, expected a whole number from 1 to 1000",
    );
    refused(
        "flash.spare_per_mille",
        "1",
        "medium.flash.spare_per_mille: found 1, expected at least 50: \
         superblocks have 8 rows, and a reserve of 4",
    );
    refused(
        "flash.reserve",
        "1",
        "medium.flash.reserve: found 1, expected a whole number from 2 to 64",
    );
    refused(
        "flash.cache",
        "write-back",
        "medium.flash.cache: found \"write-back\", \
         expected \"volatile\" or \"protected\" or \"through\"",
    );
    refused(
        "flash.buffer",
        "64 KiB",
        "medium.flash.buffer: found 64 KiB, expected at least 96 KiB, what one program writes",
    );
    refused(
        "flash.map_cache",
        "4 KiB",
        "medium.flash.map_cache: found 4 KiB, expected at least 8 KiB",
    );
    refused(
        "flash.unit",
        "1000 B",
        "medium.flash.unit: found \"1000 B\", \
         expected a power of two from \"512 B\" to \"16 KiB\", whole blocks",
    );
}

#[test]
fn flash_begins_as_it_can_and_has_no_other_keys() {
    refused(
        "flash.start",
        "old",
        "medium.flash.start: found \"old\", expected \"fresh\" or \"filled\" or \"steady\"",
    );
    refused(
        "flash.steady",
        "true",
        "medium.flash.steady: found an unknown key, expected one of profile, channels, packages, \
         dies, planes, blocks, word_lines, unit, errors, held_up, spare_per_mille, cache, \
         buffer, collector, streams, reserve, wear_spread, map_cache, start, state",
    );
}

#[test]
fn flash_has_no_capacity_of_its_own_and_no_other_medium_has_chips() {
    refused(
        "capacity",
        "1 GiB",
        "medium.capacity: found an unknown key, expected one of kind, block, keep, pace, \
         flash, bridge",
    );
    let said = said(&super::PLAN.replace("[medium.timing]", "[medium.flash]\n[medium.timing]"));
    assert!(said.contains("medium.flash: found an unknown key"), "{said}");
}

/// What a protected buffer holds is not in the file: neither a kill nor an orderly end would keep it.
#[test]
fn a_protected_buffer_is_refused_with_a_state() {
    let protected = ("medium.flash.cache", "protected");
    let said = Plan::open("small-flash", &[protected, ("medium.flash.state", "drive.nand")]);
    let said = said.expect_err("a buffer that is lost").to_string();
    let expected = "medium.flash.cache: found protected, expected volatile or through with \
                    medium.flash.state, where what a buffer holds is not kept";
    assert!(said.ends_with(expected), "{said}");
    for cache in ["volatile", "through"] {
        let sets = [("medium.flash.cache", cache), ("medium.flash.state", "drive.nand")];
        Plan::open("small-flash", &sets).unwrap_or_else(|errors| panic!("{errors}"));
    }
    Plan::open("small-flash", &[protected]).unwrap_or_else(|errors| panic!("{errors}"));
}
