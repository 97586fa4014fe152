//! Fills drives and overwrites them at random under garbage collection, then checks their contents.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::lean::Lean;
use crate::common::oracle::Oracle;
use crate::common::{Fake, Medium, SMALL};
use ftl::policy::{self, Choice, GcControl, Limits};
use ftl::{Cache, Error, Ftl, NotCollected, Options, Page, Shape, space};
use runtime::{Log, Rng, Rt, Span};

/// Fills a drive and overwrites it `times` times, then checks all of it.
fn overwrite(shape: Shape, options: &Options, times: u32, seed: u64, faults: u64) {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(shape, seed);
    medium.borrow_mut().program_fails = faults;
    medium.borrow_mut().erase_fails = faults / 8;
    medium.borrow_mut().protected = options.cache == Cache::Protected;
    let mut rng = Rng::for_part(seed, "script");
    let mut oracle = Oracle::new(options.units);
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), options).await.unwrap();
        for round in 0..=times {
            for at in 0..options.units {
                let unit = if round == 0 { at } else { rng.below(options.units.into()) as u32 };
                let data = oracle.write(unit, 0, 2);
                ftl.write(u64::from(unit) * 2, &data).await.unwrap();
                let any = rng.below(options.units.into()) as u32;
                if rng.chance(1, 8) {
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
fn random_overwrites_under_gc_read_back_newest_data() {
    for cache in [Cache::Volatile, Cache::Protected] {
        for separate_streams in [true, false] {
            let options = Options { cache, separate_streams, ..Options::new(&SMALL) };
            overwrite(SMALL, &options, 4, 7, 0);
        }
    }
}

/// With one setting for the whole run, and with settings that change all the time.
#[test]
fn gc_start_threshold_follows_lead_without_data_loss() {
    let leads = [GcControl::Held, GcControl::Own, GcControl::Early(1), GcControl::Early(2)];
    let mut began = Vec::new();
    for first in leads {
        let rt = Rt::simulated(None, Log::Off);
        let medium = Medium::new(SMALL, 3);
        let options = Options::new(&SMALL);
        let (mut rng, mut oracle) = (Rng::for_part(3, "script"), Oracle::new(options.units));
        rt.block_on(async {
            let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
            ftl.lead(first);
            let mut slack = None;
            for round in 0..4 * options.units {
                let unit = rng.below(options.units.into()) as u32;
                ftl.write(u64::from(unit) * 2, &oracle.write(unit, 0, 2)).await.unwrap();
                if ftl.stats().counters.collected > 0 {
                    slack = slack.or(Some(ftl.slack()));
                    ftl.lead(leads[round as usize % leads.len()]);
                }
            }
            began.push(slack.expect("something was collected"));
            for unit in 0..options.units {
                oracle.check(&ftl, unit).await.unwrap();
            }
        });
    }
    assert!(began.is_sorted() && began[0] < 0 && began[3] > 0, "{began:?}");
}

/// Once space is short, the collector frees its share while no more of the host arrives than was on its way.
/// Without runs, both take turns, and not even half of that share is ever free.
#[test]
fn host_waits_until_a_run_of_the_collector_has_freed_its_share() {
    let shape = Shape { dies: 8, ..SMALL };
    let runs = |gc_run: u32, share: u32| {
        let rt = Rt::simulated(None, Log::Off);
        let medium = Medium::new(shape, 3);
        let units = Options::units_for(&shape, 400, 2, 0);
        let options = Options { units, gc_run, ..Options::new(&shape) };
        let (mut rng, mut oracle) = (Rng::for_part(4, "script"), Oracle::new(options.units));
        let seen = Rc::new(RefCell::new(Vec::new()));
        rt.block_on(async {
            let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
            let (observer, observed, clock) = (ftl.clone(), seen.clone(), rt.clone());
            rt.spawn(async move {
                loop {
                    let host = observer.stats().counters.programmed_units;
                    observed.borrow_mut().push((observer.slack(), host));
                    clock.sleep(Span::us(1)).await;
                }
            });
            for _ in 0..6 * options.units {
                let unit = rng.below(options.units.into()) as u32;
                ftl.write(u64::from(unit) * 2, &oracle.write(unit, 0, 2)).await.unwrap();
            }
            for unit in 0..options.units {
                oracle.check(&ftl, unit).await.unwrap();
            }
        });
        rt.drop_tasks();
        // From below the threshold of the collector to the end of its share, and the host's units meanwhile.
        let (mut since, mut runs) = (None, Vec::new());
        for (slack, host) in seen.take() {
            match since {
                None if slack < 0 => since = Some(host),
                Some(before) if slack >= i64::from(share) => {
                    runs.push(host - before);
                    since = None;
                }
                _ => {}
            }
        }
        runs
    };
    assert_eq!(runs(0, 150), []);
    let found = runs(300, 300);
    // Superpages of the host in the queues of dies when a run begins, and those formed until it is seen to.
    let on_its_way = u64::from(shape.dies * 4 * 8);
    assert!(found.len() > 10 && found.iter().all(|host| *host < on_its_way), "{found:?}");
    let found = runs(900, 900);
    assert!(!found.is_empty() && found.iter().all(|host| *host < on_its_way), "{found:?}");
}

/// The host applies the same policy to fresh counts, so it chooses equally well. Also with a host that sends
/// nothing.
#[test]
fn host_directed_gc_matches_built_in_amplification() {
    let amplification = |led: Option<bool>| {
        let rt = Rt::simulated(None, Log::Off);
        let options =
            Options { units: Options::units_for(&SMALL, 150, 2, 0), ..Options::new(&SMALL) };
        let (mut rng, mut oracle) = (Rng::for_part(5, "script"), Oracle::new(options.units));
        let done = rt.block_on(async {
            let medium = Medium::new(SMALL, 3);
            let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
            if led.is_some() {
                ftl.lead(GcControl::Named(ftl.space().start));
            }
            if led == Some(true) {
                rt.spawn(lead(rt.clone(), ftl.clone()));
            }
            for _ in 0..8 * options.units {
                let unit = rng.below(options.units.into()) as u32;
                ftl.write(u64::from(unit) * 2, &oracle.write(unit, 0, 2)).await.unwrap();
            }
            for unit in 0..options.units {
                oracle.check(&ftl, unit).await.unwrap();
            }
            ftl.stats().counters
        });
        rt.drop_tasks();
        let named = if led == Some(true) { done.collected / 2..=done.collected } else { 0..=0 };
        assert!(named.contains(&done.named), "{led:?}: {done:?}");
        done.write_amplification_per_mille().expect("something was written")
    };
    let (own, led, silent) =
        (amplification(None), amplification(Some(true)), amplification(Some(false)));
    assert!(led.abs_diff(own) * 20 < own, "within 5 %: {own} by itself, {led} led");
    assert!(silent.abs_diff(own) * 10 < own, "{own} by itself, {silent} where nobody names");
}

/// Host-directed greedy GC: one superblock at a time while space is short.
async fn lead(rt: Rt, ftl: Ftl<Fake>) {
    let mut rng = Rng::for_part(1, "nothing is drawn");
    loop {
        ftl.short().await;
        let candidates = (0..ftl.superblocks()).map(|superblock| ftl.candidate(superblock));
        let chosen = policy::victim(Choice::Greedy, candidates, &mut rng);
        // `None` if only the reserve superblock is left and no superblock fits it. Then the collector starts
        // on its own.
        let Some(superblock) = chosen.map(|at| at as u32) else {
            rt.sleep(Span::us(100)).await;
            continue;
        };
        let one = ftl.candidate(superblock).expect("as it was");
        match ftl.collect(superblock, one.erases, ftl.gc_parallelism()).await {
            Ok(valid) => assert!(valid <= one.valid, "{valid} of {one:?}"),
            // The collector has started on its own.
            Err(why) => {
                assert_eq!(why, NotCollected::Changed);
                rt.sleep(Span::us(100)).await;
            }
        }
    }
}

#[test]
fn random_overwrites_with_cached_map_read_back_newest_data() {
    let shape = Shape { blocks: 24, ..SMALL };
    for (cache, separate_streams) in [(Cache::Volatile, true), (Cache::Protected, false)] {
        let options = Options { cache, separate_streams, ..with_cached_map(&shape, 70) };
        overwrite(shape, &options, 3, 7, 0);
    }
}

/// Options with the smallest possible map cache.
fn with_cached_map(shape: &Shape, spare_per_mille: u32) -> Options {
    let units = Options::units_for(&space::without_map(shape), spare_per_mille, 2, 0);
    let map_cache = Some(space::least_map_cache(shape));
    Options { units, map_cache, ..Options::new(shape) }
}

#[test]
fn failing_blocks_are_retired_without_data_loss() {
    let options = Options { checkpoint_rows: Some(200), ..Options::new(&SMALL) };
    let options = Options { units: options.units / 2, ..options };
    overwrite(SMALL, &options, 8, 3, 150);
}

#[test]
fn every_gc_policy_survives_overwrites() {
    for choice in [Choice::CostBenefit, Choice::Sample(3), Choice::Oldest] {
        overwrite(SMALL, &Options { choice, ..Options::new(&SMALL) }, 3, 5, 0);
    }
}

/// Runs a script on a new drive, and returns the script's result.
fn on_a_drive<T>(
    options: &Options,
    prepare: impl FnOnce(&mut Medium),
    script: impl AsyncFnOnce(&Rt, &Ftl<Fake>, &mut Oracle) -> T,
) -> T {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 1);
    prepare(&mut medium.borrow_mut());
    let mut oracle = Oracle::new(options.units);
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), options).await.unwrap();
        script(&rt, &ftl, &mut oracle).await
    })
}

async fn write(ftl: &Ftl<Fake>, oracle: &mut Oracle, unit: u32) {
    let data = oracle.write(unit, 0, 2);
    ftl.write(u64::from(unit) * 2, &data).await.unwrap();
}

#[test]
fn factory_bad_blocks_are_never_touched() {
    let options = Options { units: Options::units_for(&SMALL, 70, 2, 1), ..Options::new(&SMALL) };
    let bad = |medium: &mut Medium| {
        for (die, plane, block) in [(0, 0, 3), (1, 1, 3), (1, 0, 9), (0, 1, 0)] {
            medium.set_bad(Page { die, plane, block, page: 0 });
        }
    };
    on_a_drive(&options, bad, async |_, ftl, oracle| {
        for round in 0..4 {
            for unit in 0..options.units {
                write(ftl, oracle, (unit * 7 + round) % options.units).await;
            }
        }
        for unit in 0..options.units {
            oracle.check(ftl, unit).await.unwrap();
        }
    });
}

#[test]
fn trim_frees_space_at_once() {
    let options = Options::new(&SMALL);
    let copied = |trim: bool| {
        on_a_drive(
            &options,
            |_| {},
            async |_, ftl, oracle| {
                let mut rng = Rng::new(2);
                for round in 0..5 {
                    for _ in 0..options.units {
                        write(ftl, oracle, rng.below(options.units.into()) as u32).await;
                    }
                    if trim {
                        ftl.trim(0, options.units * 2).await.unwrap();
                        (0..options.units).for_each(|unit| oracle.trim(unit, 0, 2));
                        assert_eq!(ftl.stats().mapped_units, 0);
                        oracle.check(ftl, round).await.unwrap();
                    }
                }
                ftl.stats().counters.copied_units
            },
        )
    };
    let (with, without) = (copied(true), copied(false));
    // Only trim records and the map are ever copied.
    assert!(with * 4 < without, "{with} units copied with trims, {without} without");
}

#[test]
fn patrol_refreshes_blocks_with_many_corrected_bits() {
    let limits = Limits { corrected: 30, reads: u64::MAX, age: u64::MAX };
    let options = Options { limits, ..Options::new(&SMALL) };
    on_a_drive(
        &options,
        |_| {},
        async |rt, ftl, oracle| {
            for unit in 0..options.units / 2 {
                write(ftl, oracle, unit).await;
            }
            ftl.flush().await.unwrap();
            let before = ftl.locate(0).unwrap();
            ftl.pages().medium.borrow_mut().corrected = 30;
            oracle.check(ftl, 0).await.unwrap();
            ftl.pages().medium.borrow_mut().corrected = 0;
            rt.sleep(Span::us(1_000_000)).await;
            assert_ne!(ftl.locate(0).unwrap().block, before.block);
            assert_eq!(ftl.stats().counters.refreshed, 1);
            for unit in 0..options.units / 2 {
                oracle.check(ftl, unit).await.unwrap();
            }
        },
    );
}

#[test]
fn gc_of_unreadable_page_reads_as_error_not_old_data() {
    let options = Options::new(&SMALL);
    on_a_drive(
        &options,
        |_| {},
        async |_, ftl, oracle| {
            for unit in 0..options.units {
                write(ftl, oracle, unit).await;
            }
            ftl.flush().await.unwrap();
            let page = ftl.locate(100).unwrap();
            let lost: Vec<u32> = (0..options.units)
                .filter(|unit| ftl.locate(u64::from(*unit) * 2) == Some(page))
                .collect();
            ftl.pages().medium.borrow_mut().spoil(page);
            // Overwrite the others until the collector has processed every superblock.
            for round in 0..6 {
                let mixed = (0..options.units).map(|unit| (unit * 7 + round) % options.units);
                for unit in mixed.filter(|unit| !lost.contains(unit)) {
                    write(ftl, oracle, unit).await;
                }
            }
            for unit in &lost {
                assert_eq!(ftl.read(u64::from(*unit) * 2, 2).await, Err(Error::Unreadable));
            }
            assert_eq!(ftl.stats().counters.lost_units, lost.len() as u64);
            write(ftl, oracle, lost[0]).await;
            oracle.check(ftl, lost[0]).await.unwrap();
        },
    );
}

#[test]
fn static_wear_levelling_limits_erase_spread() {
    let spread = |wear_spread| {
        let options = Options { wear_spread, slots: 16, ..Options::new(&SMALL) };
        let options = Options { units: options.units * 3 / 4, ..options };
        on_a_drive(
            &options,
            |_| {},
            async |_, ftl, oracle| {
                for unit in 0..options.units {
                    write(ftl, oracle, unit).await;
                }
                let mut rng = Rng::new(3);
                for _ in 0..12_000 {
                    write(ftl, oracle, rng.below(options.units as u64 / 8) as u32).await;
                }
                let stats = ftl.stats();
                stats.erases_most - stats.erases_least
            },
        )
    };
    let (levelled, not) = (spread(4), spread(u32::MAX));
    assert!(levelled * 2 < not, "{levelled} erases apart, {not} without levelling");
}

/// Two dies of two planes each, whose blocks hold 32 units of 4 KiB: filled, overwritten at random, read
/// back. Returns the copies per write. `reach` is [`Shape::reach`]; if it is not zero, many writes are
/// followed by a flush.
fn overwrite_lean(blocks: u32, spare: u32, times: u32, reach: u32) -> f64 {
    overwrite_lean_with(blocks, spare, times, reach, None)
}

/// As `overwrite_lean`, with a map cache of this size.
fn overwrite_lean_with(
    blocks: u32,
    spare_per_mille: u32,
    times: u32,
    reach: u32,
    map_cache: Option<u64>,
) -> f64 {
    let shape = Shape {
        dies: 2,
        planes: 2,
        blocks,
        pages: 32,
        group: 1,
        units: 1,
        unit_bytes: 4096,
        reach,
    };
    let for_data = if map_cache.is_some() { space::without_map(&shape) } else { shape };
    let units = Options::units_for(&for_data, spare_per_mille, 2, 0);
    let options = Options { block_bytes: 4096, units, map_cache, ..Options::new(&shape) };
    let rt = Rt::simulated(None, Log::Off);
    rt.block_on(async {
        let pages = if map_cache.is_some() { Lean::with_parts(shape) } else { Lean::new(shape) };
        let ftl = Ftl::mount(&rt, pages, &options).await.unwrap();
        let mut rng = Rng::for_part(spare_per_mille.into(), "script");
        let (mut newest, mut data, mut version) = (vec![0_u32; units as usize], [0; 4096], 0);
        for at in 0..units * (times + 1) {
            let unit = if at < units { at } else { rng.below(units.into()) as u32 };
            version += 1;
            newest[unit as usize] = version;
            data[..4].copy_from_slice(&version.to_le_bytes());
            ftl.write(unit.into(), &data).await.unwrap();
            if reach > 0 && rng.chance(1, 40) {
                ftl.flush().await.unwrap();
            }
        }
        for (unit, version) in (0..).zip(newest) {
            ftl.read(unit, 1).await.unwrap();
            let mut found = None;
            ftl.lend(unit, 1, &mut |_, run| found = run.first_chunk().copied()).unwrap();
            assert_eq!(found.map(u32::from_le_bytes), Some(version), "unit {unit}");
        }
        let counters = ftl.stats().counters;
        assert!(counters.collected > 0);
        let copies = counters.copied_units as f64 / f64::from(units * times);
        println!(
            "{blocks} blocks a plane, {spare_per_mille} per mille: {units} units, {} written, \
             {copies:.2} copied for each, {} superblocks collected, parts of the map: {} written, {} read",
            counters.host_units, counters.collected, counters.map_units, counters.map_reads
        );
        copies
    })
}

/// At full length (`DOORBELL_HEAVY=1`) ten times.
#[test]
fn overwrites_complete_on_drives_of_many_sizes() {
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    let (sizes, times): (&[u32], u32) =
        if heavy { (&[24, 64, 256, 1024, 4096], 10) } else { (&[24, 64], 1) };
    for blocks in sizes {
        let copies = [70, 150, 280].map(|spare| overwrite_lean(*blocks, spare, times, 0));
        assert!(copies.is_sorted_by(|a, b| a >= b), "{blocks} blocks: {copies:?}");
    }
}

/// Smallest possible map cache: on the largest drive, one part of 477. At full length (`DOORBELL_HEAVY=1`)
/// ten times.
#[test]
fn overwrites_complete_with_cached_map_on_drives_of_many_sizes() {
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    if !heavy {
        overwrite_lean_with(64, 150, 1, 0, Some(8192));
        overwrite_lean_with(32, 280, 1, 3, Some(8192));
        return;
    }
    for blocks in [24, 64, 256, 1024, 4096] {
        for spare in [70, 150, 280] {
            overwrite_lean_with(blocks, spare, 10, 0, Some(8192));
        }
    }
    overwrite_lean_with(48, 280, 10, 3, Some(8192));
}

/// Closing word lines takes space, which must not stall any request.
#[test]
fn overwrites_complete_with_word_line_reach() {
    for spare in [70, 280] {
        overwrite_lean(24, spare, 2, 3);
    }
}

#[test]
fn worn_out_drive_fails_writes_without_hanging() {
    for seed in 0..4 {
        let options = Options { seed, ..Options::new(&SMALL) };
        let often = |medium: &mut Medium| medium.program_fails = 20;
        on_a_drive(&options, often, async |_, ftl, oracle| {
            let mut rng = Rng::new(seed);
            for _ in 0..100_000 {
                let unit = rng.below(options.units.into()) as u32;
                let data = oracle.write(unit, 0, 2);
                if let Err(error) = ftl.write(u64::from(unit) * 2, &data).await {
                    assert_eq!(error, Error::WornOut);
                    assert_eq!(ftl.flush().await, Err(Error::WornOut));
                    assert!(ftl.stats().counters.retired > 0);
                    return;
                }
            }
            panic!("it never wears out");
        });
    }
}
