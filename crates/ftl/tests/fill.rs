//! Drives filled and overwritten at random with the collector at work, and what they hold checked.

mod common;

use common::oracle::Oracle;
use common::{Fake, Medium, SMALL};
use ftl::{Cache, Ftl, Options, Shape};
use runtime::{Dice, Log, Rt};

/// Fills and overwrites a drive `times` over, and checks all it holds.
fn overwrite(shape: Shape, options: &Options, times: u32, seed: u64, faults: u64) {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(shape, seed);
    medium.borrow_mut().program_fails = faults;
    medium.borrow_mut().erase_fails = faults / 8;
    medium.borrow_mut().protected = options.cache == Cache::Protected;
    let mut dice = Dice::for_part(seed, "script");
    let mut oracle = Oracle::new(options.units);
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), options).await.unwrap();
        for round in 0..=times {
            for at in 0..options.units {
                let unit = if round == 0 { at } else { dice.below(options.units.into()) as u32 };
                let data = oracle.write(unit, 0, 2);
                ftl.write(u64::from(unit) * 2, &data).await.unwrap();
                let any = dice.below(options.units.into()) as u32;
                if dice.chance(1, 8) {
                    oracle.check(&ftl, any).await.unwrap();
                }
            }
        }
        for unit in 0..options.units {
            oracle.check(&ftl, unit).await.unwrap();
        }
        let stats = ftl.stats();
        assert!(stats.counters.collected > 0 && stats.mapped_units == options.units.into());
        assert_eq!(stats.counters.retired > 0, faults > 0);
    });
}

#[test]
fn a_drive_overwritten_many_times_holds_what_was_written_last() {
    for cache in [Cache::Volatile, Cache::Protected] {
        for separate_streams in [true, false] {
            let options = Options { cache, separate_streams, ..Options::new(&SMALL) };
            overwrite(SMALL, &options, 6, 7, 0);
        }
    }
}
