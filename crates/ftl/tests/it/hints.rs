//! Placement by hints: write amplification of skewed writes, and hints that are wrong, hostile, or come while
//! space is short.

use crate::common::lean::Lean;
use crate::common::oracle::Oracle;
use crate::common::{Fake, Medium, SMALL};
use ftl::policy::{Choice, Heat};
use ftl::{Cache, Error, Ftl, MountError, Options, Shape, space};
use runtime::{Log, Rng, Rt};

const SHAPE: Shape = Shape {
    dies: 1,
    planes: 1,
    blocks: 128,
    pages: 16,
    group: 1,
    units: 4,
    unit_bytes: 4096,
    reach: 0,
};

/// Hints of a host whose first fifth of the units takes four fifths of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    Right,
    Inverted,
    /// For one unit in two, whatever its heat.
    AtRandom,
}

fn options(choice: Choice) -> Options {
    let units = (u64::from(SHAPE.blocks) * 64 * 80 / 100) as u32;
    let of = Options::new(&SHAPE);
    Options {
        block_bytes: 4096,
        units,
        slots: space::hinted_slots_min(&SHAPE),
        hints: true,
        reserve: space::reserve_min(true),
        choice,
        checkpoint_rows: None,
        wear_spread: u32::MAX,
        ..of
    }
}

fn give(ftl: &Ftl<Lean>, given: Given) {
    let all = ftl.blocks();
    let fifth = all / 5;
    let (first, rest) = match given {
        Given::Nothing => return,
        Given::Right => (Heat::Hot, Heat::Cold),
        Given::Inverted => (Heat::Cold, Heat::Hot),
        Given::AtRandom => {
            // In stretches, as more ranges than the table holds would be forgotten.
            for (number, from) in (0..all).step_by(64).enumerate() {
                let heat = if number % 2 == 0 { Heat::Hot } else { Heat::Cold };
                ftl.hint(from, 64.min(all - from), heat).unwrap();
            }
            return;
        }
    };
    ftl.hint(0, fifth, first).unwrap();
    ftl.hint(fifth, all - fifth, rest).unwrap();
}

/// Units programmed per unit that the host wrote, in thousandths, once that is steady.
fn amplification(options: &Options, given: Given) -> u64 {
    let rt = Rt::simulated(None, Log::Off);
    let mut rng = Rng::for_part(1, "skewed");
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Lean::new(SHAPE), options).await.unwrap();
        give(&ftl, given);
        let (data, all) = ([0; 4096], ftl.blocks());
        for block in 0..all {
            ftl.write(block, &data).await.unwrap();
        }
        let mut before = ftl.stats().counters;
        for number in 0..6 * all {
            if number == 3 * all {
                before = ftl.stats().counters;
            }
            let hot = rng.chance(4, 5);
            let block = if hot { rng.below(all / 5) } else { all / 5 + rng.below(all - all / 5) };
            ftl.write(block, &data).await.unwrap();
        }
        let now = ftl.stats().counters;
        let all = |c: &ftl::Counters| {
            c.programmed_units + c.copied_units + c.meta_units + c.padding_units
        };
        (all(&now) - all(&before)) * 1000 / (now.host_units - before.host_units)
    })
}

/// Only the partition into classes matters, and not their names; classes that say nothing of the writes cost
/// the separation of copies from new data.
#[test]
fn right_hints_lower_write_amplification_and_random_ones_raise_it() {
    for (choice, at_most) in [(Choice::CostBenefit, 850), (Choice::Greedy, 970)] {
        let of = |given| amplification(&options(choice), given);
        let (none, right) = (of(Given::Nothing), of(Given::Right));
        let (inverted, at_random) = (of(Given::Inverted), of(Given::AtRandom));
        println!("{choice:?}: none {none}, right {right}, inverted {inverted}, random {at_random}");
        assert!(right * 1000 <= none * at_most, "{right} instead of {none}");
        assert!(inverted.abs_diff(right) * 100 <= right * 3, "{inverted}, not {right}");
        assert!(at_random > none, "{at_random} instead of {none}");
        let unused = amplification(&Options { hints: false, ..options(choice) }, Given::Right);
        assert!(unused.abs_diff(none) * 100 <= none * 3, "{unused}, not {none}");
    }
}

/// Ranges at random, also past the end, while the drive is filled and overwritten.
#[test]
fn random_overwrites_under_changing_hints_read_back_newest_data() {
    for cache in [Cache::Volatile, Cache::Protected, Cache::Through] {
        for faults in [0, 300] {
            let options = small(cache, faults > 0);
            let rt = Rt::simulated(None, Log::Off);
            let medium = Medium::new(SMALL, 5);
            medium.borrow_mut().program_fails = faults;
            medium.borrow_mut().protected = cache == Cache::Protected;
            let (mut rng, mut oracle) = (Rng::for_part(5, "script"), Oracle::new(options.units));
            rt.block_on(async {
                let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
                for _ in 0..6 * options.units {
                    if rng.chance(1, 4) {
                        hint_at_random(&ftl, &mut rng);
                    }
                    let unit = rng.below(options.units.into()) as u32;
                    let data = oracle.write(unit, 0, 2);
                    ftl.write(u64::from(unit) * 2, &data).await.unwrap();
                    let any = rng.below(options.units.into()) as u32;
                    oracle.check(&ftl, any).await.unwrap();
                }
                for unit in 0..options.units {
                    oracle.check(&ftl, unit).await.unwrap();
                }
                assert!(ftl.stats().counters.collected > 0);
            });
        }
    }
}

/// The smallest reserve, and half of the units if programs fail.
pub fn small(cache: Cache, spacious: bool) -> Options {
    let reserve = space::reserve_min(true);
    let of = Options::new(&SMALL);
    let units = Options::units_for(&SMALL, 70, reserve, 0);
    let units = if spacious { units / 2 } else { units };
    Options { cache, units, reserve, hints: true, checkpoint_rows: Some(150), slots: 48, ..of }
}

/// A hint for any blocks, some past the end.
pub fn hint_at_random(ftl: &Ftl<Fake>, rng: &mut Rng) {
    let all = ftl.blocks();
    let (block, blocks) = (rng.below(all + 2), rng.below(all / 2));
    let heat = [Heat::Typical, Heat::Hot, Heat::Cold][rng.below(3) as usize];
    let given = ftl.hint(block, blocks, heat);
    assert_eq!(given, if block + blocks > all { Err(Error::Range) } else { Ok(()) });
}

#[test]
fn hints_past_the_end_are_refused_and_ranges_are_bounded() {
    let rt = Rt::simulated(None, Log::Off);
    rt.block_on(async {
        let options = options(Choice::Greedy);
        let ftl = Ftl::mount(&rt, Lean::new(SHAPE), &options).await.unwrap();
        for (block, blocks) in [(ftl.blocks(), 1), (u64::MAX, u64::MAX), (1, ftl.blocks())] {
            assert_eq!(ftl.hint(block, blocks, Heat::Hot), Err(Error::Range));
        }
        ftl.hint(ftl.blocks(), 0, Heat::Hot).unwrap();
        assert_eq!(ftl.hinted_ranges(), 0);
        let memory = ftl.stats().memory_bytes;
        for block in (0..ftl.blocks()).step_by(2) {
            ftl.hint(block, 1, Heat::Hot).unwrap();
        }
        assert_eq!(ftl.hinted_ranges(), ftl::HINTED_RANGES_MAX);
        assert_eq!(ftl.stats().memory_bytes, memory);
        ftl.hint(0, ftl.blocks(), Heat::Typical).unwrap();
        assert_eq!(ftl.hinted_ranges(), 0);
    });
}

/// More superblocks may be open, and more superpages incomplete.
#[test]
fn hints_need_reserve_buffer_and_separate_streams() {
    let rt = Rt::simulated(None, Log::Off);
    let good = options(Choice::Greedy);
    let mount =
        |options: Options| rt.block_on(Ftl::mount(&rt, Lean::new(SHAPE), &options)).map(drop).err();
    assert_eq!(mount(good.clone()), None);
    let slots = space::hinted_slots_min(&SHAPE);
    for bad in [
        Options { reserve: good.reserve - 1, ..good.clone() },
        Options { slots: slots - 1, ..good.clone() },
        Options { separate_streams: false, ..good.clone() },
    ] {
        assert_eq!(mount(bad.clone()), Some(MountError::Options));
        assert_eq!(mount(Options { hints: false, ..bad }), None);
    }
}
