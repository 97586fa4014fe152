//! Purge: no data remain, wear counts are kept, and after a power cut during a purge it can be repeated.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::oracle::Oracle;
use crate::common::{Fake, Medium, SMALL, TINY};
use ftl::{Cache, Ftl, Options, Shape, space};
use runtime::{Either, Log, Rng, Rt, Span, Time, race};

const CACHED: Shape = Shape { blocks: 24, ..SMALL };

fn drive(shape: Shape, cache: Cache, has_cached_map: bool) -> (Medium, Options) {
    let of = Options::new(&shape);
    let (units, map_cache) = if has_cached_map {
        let units = Options::units_for(&space::without_map(&shape), 70, 2, 0);
        (units, Some(space::least_map_cache(&shape)))
    } else {
        (of.units, None)
    };
    let medium = Medium::new(shape, 5);
    medium.borrow_mut().protected = cache == Cache::Protected;
    let medium = medium.borrow().clone();
    (medium, Options { cache, units, map_cache, checkpoint_rows: Some(60), slots: 48, ..of })
}

fn all() -> impl Iterator<Item = (Medium, Options)> {
    [Cache::Volatile, Cache::Protected, Cache::Through].into_iter().flat_map(|cache| {
        [drive(SMALL, cache, false), drive(CACHED, cache, true), drive(TINY, cache, false)]
    })
}

/// Runs a script on this flash until it ends or the power fails.
fn live<T>(
    medium: &mut Medium,
    options: &Options,
    cut: Option<Time>,
    work: impl AsyncFnOnce(&Rt, &Ftl<Fake>) -> T,
) -> Option<T> {
    let rt = Rt::simulated(None, Log::Off);
    medium.moments.clear();
    let shared = Rc::new(RefCell::new(medium.clone()));
    let life = async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &shared), options).await.expect("a mount");
        work(&rt, &ftl).await
    };
    let done = match cut {
        None => Some(rt.block_on(life)),
        Some(cut) => match rt.block_on(race(life, rt.sleep_until(cut))) {
            Either::First(done) => Some(done),
            Either::Second(()) => None,
        },
    };
    rt.drop_tasks();
    *medium = shared.borrow().clone();
    done
}

/// Writes `count` units at random, the last of them not yet on flash.
async fn write(ftl: &Ftl<Fake>, oracle: &mut Oracle, count: u32, seed: u64) {
    let mut rng = Rng::for_part(seed, "writes");
    for _ in 0..count {
        let unit = rng.below(oracle.units().into()) as u32;
        let data = oracle.write(unit, 0, 2);
        ftl.write(u64::from(unit) * 2, &data).await.expect("a write");
        oracle.done(unit);
    }
}

async fn check(ftl: &Ftl<Fake>, oracle: &Oracle) {
    for unit in 0..oracle.units() {
        oracle.check(ftl, unit).await.unwrap();
    }
}

async fn purge(ftl: &Ftl<Fake>) {
    let mut seen = Vec::new();
    ftl.purge(&mut |done, of| seen.push((done, of))).await.expect("a purge");
    let of = ftl.superblocks();
    assert_eq!(seen, (1..=of).map(|done| (done, of)).collect::<Vec<_>>());
    let medium = ftl.pages().medium.borrow();
    assert!(medium.is_erased() && !medium.holds_data());
}

#[test]
fn purge_erases_all_data_and_keeps_wear_counts() {
    for (mut medium, options) in all() {
        let worn = live(&mut medium, &options, None, async |_, ftl| {
            let mut oracle = Oracle::new(options.units);
            write(ftl, &mut oracle, 6 * options.units, 1).await;
            let before = ftl.stats();
            assert!(before.counters.collected > 0);
            purge(ftl).await;
            let after = ftl.stats();
            assert!(after.erases >= before.erases + u64::from(ftl.superblocks()) - 1, "{after:?}");
            assert_eq!((after.mapped_units, after.good_units), (0, before.good_units));
            check(ftl, &Oracle::new(options.units)).await;
            after.erases
        });
        let remounted = live(&mut medium, &options, None, async |_, ftl| {
            let stats = ftl.stats();
            assert_eq!(Some(stats.erases), worn, "what is erased has no rows that would say so");
            check(ftl, &Oracle::new(options.units)).await;
            let mut oracle = Oracle::new(options.units);
            write(ftl, &mut oracle, 3 * options.units, 2).await;
            purge(ftl).await;
            let mut oracle = Oracle::new(options.units);
            write(ftl, &mut oracle, 6 * options.units, 3).await;
            check(ftl, &oracle).await;
            ftl.flush().await.expect("a flush");
            oracle
        });
        let oracle = remounted.expect("it was not cut");
        live(&mut medium, &options, None, async |_, ftl| check(ftl, &oracle).await);
    }
}

#[test]
fn purge_can_be_repeated_after_power_cut_at_any_moment() {
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    for (medium, options) in all() {
        let mut used = medium.clone();
        let worn = live(&mut used, &options, None, async |_, ftl| {
            write(ftl, &mut Oracle::new(options.units), 3 * options.units, 1).await;
            let worn = ftl.stats().erases;
            // Without a checkpoint, the wear of blocks erased later is unknown after a power cut.
            ftl.checkpoint().await.expect("a checkpoint");
            worn
        });
        let mut whole = used.clone();
        let begun = live(&mut whole, &options, None, async |rt, ftl| {
            write(ftl, &mut Oracle::new(options.units), 20, 2).await;
            let begun = rt.now();
            purge(ftl).await;
            begun
        });
        let mut moments = whole.moments.clone();
        moments.dedup();
        moments.retain(|moment| Some(*moment) >= begun);
        assert!(moments.len() > 15, "{} moments", moments.len());
        let step = if heavy { 1 } else { moments.len().div_ceil(12) };
        for moment in moments.into_iter().step_by(step) {
            let mut medium = used.clone();
            let cut = Some(moment + Span(1));
            live(&mut medium, &options, cut, async |rt, ftl| {
                write(ftl, &mut Oracle::new(options.units), 20, 2).await;
                purge(ftl).await;
                rt.sleep(Span::s(1)).await;
            });
            let oracle = live(&mut medium, &options, None, async |_, ftl| {
                assert!(Some(ftl.stats().erases) >= worn, "cut after {moment}");
                purge(ftl).await;
                check(ftl, &Oracle::new(options.units)).await;
                let mut oracle = Oracle::new(options.units);
                write(ftl, &mut oracle, options.units, 3).await;
                ftl.flush().await.expect("a flush");
                oracle
            });
            let oracle = oracle.expect("it was not cut");
            live(&mut medium, &options, None, async |_, ftl| check(ftl, &oracle).await);
        }
    }
}

#[test]
fn purge_erases_retired_blocks() {
    let (mut medium, options) = drive(SMALL, Cache::Volatile, false);
    let options = Options { units: options.units / 2, ..options };
    (medium.program_fails, medium.erase_fails) = (150, 30);
    for life in 0..4 {
        live(&mut medium, &options, None, async |_, ftl| {
            let mut oracle = Oracle::new(options.units);
            write(ftl, &mut oracle, 2 * options.units, life).await;
            check(ftl, &oracle).await;
            purge(ftl).await;
            check(ftl, &Oracle::new(options.units)).await;
        });
    }
    assert!(medium.bad_blocks() > 2, "{} blocks have failed", medium.bad_blocks());
}
