//! Power cuts as a campaign: nothing that was flushed is lost, the same seed repeats, and software that
//! makes a mistake on purpose is found out.
//!
//! `DOORBELL_CUTS=N` makes each of the clean campaigns that long.

use campaign::power_cuts::{self, Campaign, Failure, Survived};
use ftl::Mistakes;
use plan::Plan;
use testing::plan;
use world::interfaces::NVME;

fn flash(sets: &[(&str, &str)]) -> Plan {
    plan("small-flash", sets)
}

fn cut(plan: &Plan, seed: u64, from: u64, cuts: u64) -> Result<Survived, Failure> {
    power_cuts::run(NVME, plan, Campaign { seed, from, cuts }, |_| {})
}

fn cuts() -> u64 {
    std::env::var("DOORBELL_CUTS").map_or(6, |cuts| cuts.parse().expect("a number of cuts"))
}

/// Chips that program page by page, with word lines enough for what the proof of `ftl::space` asks.
const MLC: [(&str, &str); 2] = [("medium.flash.profile", "mlc"), ("medium.flash.word_lines", "16")];

/// As small a cache of the map as can be, and superblocks for what it leaves on flash.
const CACHED: [(&str, &str); 2] =
    [("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "40")];

/// Each cache, fresh and used drives, whole contents and stamps, the least reserve.
#[test]
fn nothing_that_was_flushed_is_lost() {
    for (seed, sets) in [
        (1, &[][..]),
        (2, &[("medium.flash.start", "steady")][..]),
        (3, &[("medium.flash.cache", "protected"), ("medium.flash.start", "filled")][..]),
        (4, &[("medium.flash.cache", "through")][..]),
        (5, &[("medium.keep", "stamps"), ("medium.flash.collector", "cost-benefit")][..]),
        (6, &[MLC[0], MLC[1], ("medium.flash.held_up", "true")][..]),
        (7, &[("medium.flash.reserve", "2"), ("medium.flash.start", "steady")][..]),
        (8, &[MLC[0], MLC[1]][..]),
        (9, &[MLC[0], MLC[1], ("medium.flash.cache", "through")][..]),
        (
            10,
            &[MLC[0], MLC[1], ("medium.flash.start", "steady"), ("medium.flash.reserve", "2")][..],
        ),
        (11, &[CACHED[0], CACHED[1], ("medium.flash.start", "steady")][..]),
        (12, &[CACHED[0], CACHED[1], MLC[0], MLC[1]][..]),
    ] {
        let survived = cut(&flash(sets), seed, 0, cuts());
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: seed {seed} {failure}"));
        assert_eq!(survived.cuts, cuts());
        assert!(survived.trims > 10, "{sets:?}: {survived:?}");
        assert!(survived.writes > 100 && survived.blocks > 1000, "{sets:?}: {survived:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_campaign_and_another_another() {
    let plan = flash(&[]);
    let survived = |seed| cut(&plan, seed, 0, 4).expect("a clean campaign");
    assert_eq!(survived(7), survived(7));
    assert_ne!(survived(7), survived(8));
}

/// Cuts until the mistake is found; the cut that found it finds it again when it is asked for alone.
fn found(sets: &[(&str, &str)], make: impl Fn(&mut Mistakes), most: u64) {
    let mut plan = flash(sets);
    let flash = plan.medium.flash.as_mut().expect("flash");
    make(&mut flash.software.mistakes);
    let failure = cut(&plan, 1, 0, most).expect_err("the mistake is found");
    let again = cut(&plan, 1, failure.cut, 2).expect_err("and again");
    // The last check looks at more, and may come upon something else first.
    assert_eq!(again.cut, failure.cut);
}

#[test]
fn a_dropped_barrier_is_found_out() {
    found(&[], |mistakes| mistakes.flush_returns_at_once = true, 100);
}

#[test]
fn a_broken_journal_is_found_out() {
    found(&[], |mistakes| mistakes.replay_out_of_order = true, 100);
}

#[test]
fn a_trim_that_is_not_noted_is_found_out() {
    found(&[], |mistakes| mistakes.trims_are_not_logged = true, 100);
}

/// A torn page takes the lower page of its word line with it, flushed or not, unless that was closed.
#[test]
fn word_lines_that_stay_open_are_found_out() {
    found(&MLC, |mistakes| mistakes.word_lines_stay_open = true, 100);
}

#[test]
fn what_has_no_flash_is_refused() {
    let said = power_cuts::check(NVME, &plan("gen4", &[])).expect_err("DRAM").to_string();
    let expected =
        "plans/gen4.toml: medium.kind: expected flash: other media lose nothing with their power";
    assert_eq!(said, expected);
    let faults = r#"[{ name = "x", what = "drop", nth = 1 }]"#;
    let said =
        power_cuts::check(NVME, &flash(&[("faults", faults)])).expect_err("faults").to_string();
    assert!(said.starts_with("plans/small-flash.toml: faults: found some"), "{said}");
}
