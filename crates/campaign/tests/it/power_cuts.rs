//! Power-loss campaigns: flushed data survive, equal seeds repeat, and deliberate bugs are detected.
//!
//! `DOORBELL_CUTS=N` sets the length of each clean campaign.

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

/// Chips that program page by page, with enough word lines for the proof in `ftl::space`.
const MLC: [(&str, &str); 2] = [("medium.flash.profile", "mlc"), ("medium.flash.word_lines", "16")];

/// Smallest possible map cache, and superblocks for the map parts on flash.
const CACHED: [(&str, &str); 2] =
    [("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "40")];

/// Less NV-SRAM than a superpage has units.
const NV_SRAM: [(&str, &str); 2] =
    [("medium.flash.cache", "protected"), ("medium.flash.nv_sram", "12 KiB")];

const HINTS: (&str, &str) = ("medium.flash.hints", "true");

/// Each cache mode, fresh and used drives, full contents and stamps, the minimum reserve.
#[test]
fn flushed_data_survives_power_loss_campaign() {
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
        (13, &[HINTS][..]),
        (14, &[HINTS, ("medium.flash.start", "steady")][..]),
        (15, &[HINTS, CACHED[0], CACHED[1], ("medium.flash.cache", "protected")][..]),
        (16, &[NV_SRAM[0], NV_SRAM[1], ("medium.flash.start", "steady")][..]),
        (17, &[NV_SRAM[0], NV_SRAM[1], MLC[0], MLC[1]][..]),
    ] {
        let survived = cut(&flash(sets), seed, 0, cuts());
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: seed {seed} {failure}"));
        assert_eq!(survived.cuts, cuts());
        assert!(survived.trims > 10, "{sets:?}: {survived:?}");
        assert_eq!(survived.hints > 50, sets.contains(&HINTS), "{sets:?}: {survived:?}");
        assert!(survived.writes > 100 && survived.blocks > 1000, "{sets:?}: {survived:?}");
    }
}

#[test]
fn power_loss_campaign_is_deterministic_by_seed() {
    let plan = flash(&[]);
    let survived = |seed| cut(&plan, seed, 0, 4).expect("a clean campaign");
    assert_eq!(survived(7), survived(7));
    assert_ne!(survived(7), survived(8));
}

/// Runs power cuts until the bug is detected; repeating only that cut must detect it again.
fn found(sets: &[(&str, &str)], make: impl Fn(&mut Mistakes), most: u64) {
    let mut plan = flash(sets);
    let flash = plan.medium.flash.as_mut().expect("flash");
    make(&mut flash.software.mistakes);
    let failure = cut(&plan, 1, 0, most).expect_err("the mistake is found");
    let again = cut(&plan, 1, failure.cut, 2).expect_err("and again");
    // The last check reads more, and may detect another failure first.
    assert_eq!(again.cut, failure.cut);
}

#[test]
fn power_loss_campaign_detects_flush_without_wait() {
    found(&[], |mistakes| mistakes.flush_returns_at_once = true, 100);
}

/// At a reset, and at the stop of a server, controllers still serve their host.
#[test]
fn power_loss_campaign_detects_writes_during_power_off() {
    found(&[], |mistakes| mistakes.stays_open_at_power_off = true, 100);
}

#[test]
fn power_loss_campaign_detects_out_of_order_replay() {
    found(&[], |mistakes| mistakes.replay_out_of_order = true, 100);
}

#[test]
fn power_loss_campaign_detects_missing_trim_record() {
    found(&[], |mistakes| mistakes.trims_are_not_logged = true, 100);
}

#[test]
fn power_loss_campaign_detects_nv_sram_without_bound() {
    found(&NV_SRAM, |mistakes| mistakes.nv_sram_has_no_bound = true, 100);
}

/// A torn page destroys the lower page of its word line, flushed or not, unless the word line was closed.
#[test]
fn power_loss_campaign_detects_open_word_lines() {
    found(&MLC, |mistakes| mistakes.word_lines_stay_open = true, 100);
}

#[test]
fn power_loss_campaign_rejects_plan_without_flash_or_with_faults() {
    let said = power_cuts::check(NVME, &plan("gen4", &[])).expect_err("DRAM").to_string();
    let expected =
        "plans/gen4.toml: medium.kind: expected flash: other media lose nothing with their power";
    assert_eq!(said, expected);
    let faults = r#"[{ name = "x", what = "drop", nth = 1 }]"#;
    let said =
        power_cuts::check(NVME, &flash(&[("faults", faults)])).expect_err("faults").to_string();
    assert!(said.starts_with("plans/small-flash.toml: faults: found some"), "{said}");
}

/// Cuts, kills, stops and power losses of the host in any order, with pages in memory and in a file.
#[test]
fn flushed_data_survives_sequences_of_cuts_kills_and_stops() {
    for sets in [&[][..], &[("medium.flash.cache", "through")][..]] {
        let plan = flash(sets);
        power_cuts::check_sequences(NVME, &plan).expect("a plan for a state");
        let campaign = Campaign { seed: 1, from: 37, cuts: 3.max(cuts() / 10) };
        let survived = power_cuts::run_sequences(NVME, &plan, campaign, |_| {});
        let survived = survived.unwrap_or_else(|failure| panic!("{sets:?}: {failure}"));
        assert_eq!(survived.sequences, campaign.cuts);
        assert!(survived.kills > 0 && survived.hosts > 0 && survived.blocks > 1000, "{survived:?}");
        assert!(survived.disk_failures > 0, "{survived:?}");
    }
    for (seed, from, what) in [
        (4, 253, "operations of the journal stay open across a power cut"),
        (1, 53, "blocks are retired for a disk of the host that is full after a power cut"),
    ] {
        let campaign = Campaign { seed, from, cuts: 1 };
        let survived = power_cuts::run_sequences(NVME, &flash(&[]), campaign, |_| {});
        survived.unwrap_or_else(|failure| panic!("{what}: {failure}"));
    }
    let refused = flash(&[("medium.flash.cache", "protected")]);
    let error = power_cuts::check_sequences(NVME, &refused).expect_err("no state has its buffer");
    assert!(error.to_string().contains("medium.flash.cache"), "{error}");
}
