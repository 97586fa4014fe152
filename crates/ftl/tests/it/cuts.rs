//! Power cuts at any moment: flushed data are present, all other data are old or new, and never mixed.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::oracle::{Oracle, part};
use crate::common::{Fake, Medium, SMALL, TINY};
use crate::hints::{hint_at_random, small};
use ftl::policy::GcControl;
use ftl::{Cache, Ftl, Mistakes, NotCollected, Options, Shape, space};
use runtime::{Either, Log, Rng, Rt, Span, Time, race};

const CLIENTS: u32 = 3;

/// A drive and its oracle, between two lives.
#[derive(Clone)]
struct Drive {
    medium: Medium,
    oracle: Oracle,
    options: Options,
    seed: u64,
    /// True for runs with host-directed GC.
    led: bool,
    /// True for runs with hints.
    hinted: bool,
}

impl Drive {
    fn new(shape: Shape, options: Options, seed: u64) -> Drive {
        let medium = Medium::new(shape, seed);
        medium.borrow_mut().protected = options.cache == Cache::Protected;
        medium.borrow_mut().nv_slots = options.nv_slots;
        let medium = medium.borrow().clone();
        Drive {
            medium,
            oracle: Oracle::new(options.units),
            options,
            seed,
            led: false,
            hinted: false,
        }
    }

    /// One life, until the power fails or each client has issued `things` operations. Returns the times at
    /// which operations began or ended.
    fn live(&mut self, things: u32, life: u64, cut: Option<Time>) -> Result<Vec<Time>, String> {
        let rt = Rt::simulated(None, Log::Off);
        rt.shuffle_ready_tasks(Rng::for_part(self.seed ^ life, "tasks"));
        self.medium.moments.clear();
        let medium = Rc::new(RefCell::new(self.medium.clone()));
        let oracle = Rc::new(RefCell::new(self.oracle.clone()));
        let work = async {
            let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &self.options)
                .await
                .map_err(|error| format!("mount: {error}"))?;
            settle(&ftl, &oracle).await?;
            if self.led {
                rt.spawn(lead(rt.clone(), ftl.clone(), self.seed ^ life));
            }
            if self.hinted {
                rt.spawn(hint(rt.clone(), ftl.clone(), self.seed ^ life));
            }
            let left = Rc::new(RefCell::new(CLIENTS));
            for client in 0..CLIENTS {
                let seed = self.seed ^ life << 8 ^ u64::from(client) << 56;
                let one = Client { ftl: ftl.clone(), oracle: oracle.clone(), client, seed };
                let (left, ended) = (left.clone(), things);
                rt.spawn(async move {
                    one.run(ended).await;
                    *left.borrow_mut() -= 1;
                });
            }
            while *left.borrow() > 0 {
                rt.sleep(Span::us(100)).await;
                if rt.now() > Time::ZERO + Span::us(100_000_000) {
                    return Err(format!("stuck: {:?}", ftl.stats()));
                }
            }
            Ok(())
        };
        let done = match cut {
            None => rt.block_on(work),
            Some(cut) => match rt.block_on(race(work, rt.sleep_until(cut))) {
                Either::First(done) => done,
                Either::Second(()) => Ok(()),
            },
        };
        rt.drop_tasks();
        self.medium = medium.borrow().clone();
        self.oracle = oracle.borrow().clone();
        done.map(|()| self.medium.moments.clone())
    }
}

/// A misbehaving host-directed collector: requests valid and invalid superblocks, old and new ones, at any
/// rate, drops requests, and stops responding.
async fn lead(rt: Rt, ftl: Ftl<Fake>, seed: u64) {
    let mut rng = Rng::for_part(seed, "lead");
    loop {
        let below = rng.below(4 * u64::from(ftl.superblock_units()));
        ftl.lead(if rng.chance(1, 8) { GcControl::Own } else { GcControl::Named(below) });
        let superblock = rng.below(u64::from(ftl.superblocks()) + 1) as u32;
        let erases = match ftl.candidate(superblock) {
            Some(one) if rng.chance(7, 8) => one.erases,
            _ => rng.below(4) as u32,
        };
        let rows = rng.below(5) as u32;
        let patience = rt.sleep(Span::us(rng.below(9_000)));
        match race(ftl.collect(superblock, erases, rows), patience).await {
            Either::First(Err(NotCollected::Number { superblocks })) => {
                assert_eq!(superblocks, superblock, "the others are there");
            }
            Either::First(_) | Either::Second(()) => {}
        }
        rt.sleep(Span::us(rng.below(2_000))).await;
    }
}

/// A host that changes its mind about every range.
async fn hint(rt: Rt, ftl: Ftl<Fake>, seed: u64) {
    let mut rng = Rng::for_part(seed, "hints");
    loop {
        hint_at_random(&ftl, &mut rng);
        rt.sleep(Span::us(rng.below(2_000))).await;
    }
}

/// Checks all units without borrowing the oracle across an await.
async fn settle(ftl: &Ftl<Fake>, oracle: &Rc<RefCell<Oracle>>) -> Result<(), String> {
    let mut known = oracle.borrow().clone();
    let done = known.settle(ftl).await;
    *oracle.borrow_mut() = known;
    done
}

struct Client {
    ftl: Ftl<Fake>,
    oracle: Rc<RefCell<Oracle>>,
    client: u32,
    seed: u64,
}

impl Client {
    async fn run(&self, things: u32) {
        let mut rng = Rng::for_part(self.seed, "client");
        for _ in 0..things {
            let units = self.oracle.borrow().units() / CLIENTS;
            // Half of the writes go to few units, so that versions follow each other closely.
            let few = if rng.chance(1, 2) { 3 } else { units };
            let unit = rng.below(few.into()) as u32 * CLIENTS + self.client;
            let (first, blocks) = part(&mut rng);
            let at = u64::from(unit) * 2 + first as u64;
            match rng.below(20) {
                0 | 1 => {
                    let promise = self.oracle.borrow().flush();
                    self.ftl.flush().await.unwrap();
                    self.oracle.borrow_mut().flushed(&promise);
                }
                2 | 3 => {
                    self.oracle.borrow_mut().trim(unit, first, blocks);
                    self.ftl.trim(at, blocks as u32).await.unwrap();
                    self.done(unit);
                }
                4 => {
                    let known = self.oracle.borrow().clone();
                    known.check(&self.ftl, unit).await.unwrap();
                }
                5 if rng.chance(1, 6) => self.ftl.checkpoint().await.unwrap(),
                _ => {
                    let data = self.oracle.borrow_mut().write(unit, first, blocks);
                    self.ftl.write(at, &data).await.unwrap();
                    self.done(unit);
                }
            }
        }
    }

    fn done(&self, unit: u32) {
        let mut oracle = self.oracle.borrow_mut();
        oracle.done(unit);
        if self.ftl_promises() {
            oracle.all_promised();
        }
    }

    fn ftl_promises(&self) -> bool {
        self.ftl.pages().medium.borrow().protected
    }
}

/// Lives of random length on one drive, each ended by a power cut. `Err`: description of the data lost.
fn campaign(options: Options, seed: u64, cuts: u64, faults: u64) -> Result<(), String> {
    let shape = if options.map_cache.is_some() { CACHED } else { SMALL };
    run(Drive::new(shape, options.clone(), seed), cuts, faults)
}

fn run(mut drive: Drive, cuts: u64, faults: u64) -> Result<(), String> {
    let (options, seed) = (drive.options.clone(), drive.seed);
    drive.medium.program_fails = faults;
    drive.medium.erase_fails = faults;
    let mut rng = Rng::for_part(seed, "cuts");
    for life in 0..cuts {
        // With a cached map, power cuts often follow each other before a checkpoint has ended.
        let short = options.map_cache.is_some() && rng.chance(1, 2);
        let longest = if short { 6_000 } else { 60_000 };
        let cut = Time::ZERO + Span::us(rng.below(longest)) + Span(1);
        let done = drive.live(u32::MAX, life, Some(cut));
        done.map_err(|what| format!("seed {seed}, life {life}, after {cut}: {what}"))?;
    }
    Ok(())
}

fn heavy(few: u64, many: u64) -> u64 {
    if std::env::var_os("DOORBELL_HEAVY").is_some() { many } else { few }
}

fn options(cache: Cache) -> Options {
    let of = Options::new(&SMALL);
    Options { cache, checkpoint_rows: Some(150), slots: 48, ..of }
}

#[test]
fn flushed_data_survives_random_power_cuts() {
    for seed in 0..heavy(1, 40) {
        for cache in [Cache::Volatile, Cache::Protected, Cache::Through] {
            campaign(options(cache), seed, heavy(25, 100), 0).unwrap();
        }
    }
}

/// Sizes from one unit to more than a superpage, with failing programs, and with word lines that stay open.
#[test]
fn acknowledged_data_survives_power_cuts_in_small_nv_sram() {
    for (seed, nv_slots) in (900..).zip([1, 3, 8, 17, 47]) {
        for faults in [0, 300] {
            let options = Options { nv_slots: Some(nv_slots), ..spacious(Cache::Protected) };
            campaign(options, seed, heavy(25, 100), faults).unwrap();
        }
        let shape = Shape { reach: 1, ..SMALL };
        let options = Options { nv_slots: Some(nv_slots), ..options(Cache::Protected) };
        let units = Options::units_for(&shape, 150, 2, 0);
        let options = Options { units: options.units.min(units), ..options };
        run(Drive::new(shape, options, seed), heavy(25, 100), 0).unwrap();
        let options = Options { nv_slots: Some(nv_slots), ..small(Cache::Protected, false) };
        run(Drive { hinted: true, ..Drive::new(SMALL, options, seed) }, heavy(25, 100), 0).unwrap();
    }
}

#[test]
fn flushed_data_survives_power_cuts_with_program_and_erase_faults() {
    for seed in 0..heavy(1, 40) {
        for cache in [Cache::Volatile, Cache::Protected] {
            campaign(spacious(cache), 100 + seed, heavy(25, 100), 300).unwrap();
        }
    }
}

#[test]
fn flushed_data_survives_power_cuts_under_host_directed_gc() {
    for seed in 0..heavy(1, 40) {
        for (cache, faults) in [(Cache::Volatile, 0), (Cache::Protected, 300), (Cache::Through, 0)]
        {
            let options = if faults > 0 { spacious(cache) } else { options(cache) };
            let drive = Drive { led: true, ..Drive::new(SMALL, options, 400 + seed) };
            run(drive, heavy(25, 100), faults).unwrap();
        }
        let options = with_cached_map(Cache::Volatile);
        let drive = Drive { led: true, ..Drive::new(CACHED, options, 500 + seed) };
        run(drive, heavy(25, 100), 0).unwrap();
    }
}

#[test]
fn flushed_data_survives_power_cuts_under_hints() {
    for seed in 0..heavy(1, 40) {
        for (cache, faults) in [(Cache::Volatile, 0), (Cache::Protected, 300), (Cache::Through, 0)]
        {
            let drive = Drive::new(SMALL, small(cache, faults > 0), 600 + seed);
            run(Drive { hinted: true, ..drive }, heavy(25, 100), faults).unwrap();
        }
        let drive = Drive::new(CACHED, hinted(with_cached_map(Cache::Volatile)), 700 + seed);
        run(Drive { hinted: true, led: true, ..drive }, heavy(25, 100), 0).unwrap();
    }
}

/// With hints, and the reserve that they need.
fn hinted(options: Options) -> Options {
    let reserve = space::reserve_min(true);
    let units = Options::units_for(&space::without_map(&CACHED), 70, reserve, 0);
    Options { hints: true, reserve, units, ..options }
}

/// More superblocks, for map parts.
const CACHED: Shape = Shape { blocks: 24, ..SMALL };

/// Smallest possible map cache: one part, and 64 changes.
fn with_cached_map(cache: Cache) -> Options {
    let of = Options::new(&CACHED);
    let units = Options::units_for(&space::without_map(&CACHED), 70, 2, 0);
    let map_cache = Some(space::least_map_cache(&CACHED));
    Options { cache, units, map_cache, checkpoint_rows: Some(400), slots: 48, ..of }
}

#[test]
fn flushed_data_survives_power_cuts_with_cached_map() {
    for seed in 0..heavy(1, 40) {
        for cache in [Cache::Volatile, Cache::Protected, Cache::Through] {
            campaign(with_cached_map(cache), 200 + seed, heavy(25, 100), 0).unwrap();
        }
    }
}

#[test]
fn flushed_data_survives_power_cuts_with_cached_map_and_faults() {
    for seed in 0..heavy(1, 40) {
        for cache in [Cache::Volatile, Cache::Protected] {
            let options = with_cached_map(cache);
            let options = Options { units: options.units / 2, ..options };
            campaign(options, 300 + seed, heavy(25, 100), 300).unwrap();
        }
    }
}

/// Space for blocks that go bad.
fn spacious(cache: Cache) -> Options {
    let options = options(cache);
    Options { units: options.units / 2, ..options }
}

/// Units of several superpages are read before the first of them is copied.
#[test]
fn flushed_data_survives_power_cuts_while_the_collector_reads_ahead() {
    for (seed, gc_reads) in (1000..).zip([2, 7, 64]) {
        for cache in [Cache::Volatile, Cache::Protected] {
            campaign(Options { gc_reads, ..options(cache) }, seed, heavy(25, 100), 0).unwrap();
            campaign(Options { gc_reads, ..spacious(cache) }, seed, heavy(25, 100), 300).unwrap();
            let cached = with_cached_map(cache);
            campaign(Options { gc_reads, ..cached }, seed, heavy(25, 100), 0).unwrap();
        }
    }
}

/// The host waits while the collector frees less than a superblock, several of them, or more than there is.
#[test]
fn flushed_data_survives_power_cuts_while_the_collector_runs() {
    for (seed, gc_run) in (1100..).zip([1, 40, 200, 1 << 20]) {
        for cache in [Cache::Volatile, Cache::Protected] {
            campaign(Options { gc_run, ..options(cache) }, seed, heavy(25, 100), 0).unwrap();
            campaign(Options { gc_run, ..spacious(cache) }, seed, heavy(25, 100), 300).unwrap();
            let cached = with_cached_map(cache);
            campaign(Options { gc_run, ..cached }, seed, heavy(25, 100), 0).unwrap();
        }
    }
}

/// Cuts the power at every moment at which an operation began or ended.
#[test]
fn flushed_data_survives_power_cut_at_every_moment() {
    for cache in [Cache::Volatile, Cache::Protected, Cache::Through] {
        let shape = if heavy(0, 1) == 1 { SMALL } else { TINY };
        let options =
            Options { checkpoint_rows: Some(60), slots: 48, cache, ..Options::new(&shape) };
        let mut drive = Drive::new(shape, options, 11);
        // Enough that collector and checkpoint have work when the short script begins.
        drive.live(400, 0, None).unwrap();
        let mut moments = drive.clone().live(heavy(3, 40) as u32, 1, None).unwrap();
        moments.dedup();
        assert!(moments.len() > 40, "{} moments", moments.len());
        for moment in moments {
            let mut cut = drive.clone();
            cut.live(u32::MAX, 1, Some(moment + Span(1))).unwrap();
            let done = cut.live(3, 2, None);
            done.unwrap_or_else(|what| panic!("{cache:?}, cut after {moment}: {what}"));
        }
    }
}

/// Open superblocks are padded on all dies in parallel, so a mount does not take longer with many dies.
#[test]
fn mount_after_power_cut_pads_all_dies_in_parallel() {
    let shape = Shape { dies: 16, planes: 1, pages: 16, group: 1, ..SMALL };
    let options = Options { checkpoint_rows: None, ..Options::new(&shape) };
    let mut drive = Drive::new(shape, options, 1);
    drive.live(u32::MAX, 0, Some(Time::ZERO + Span::us(40_000))).unwrap();
    let rt = Rt::simulated(None, Log::Off);
    let medium = Rc::new(RefCell::new(drive.medium.clone()));
    let programs = medium.borrow().programs;
    let mounted = rt.block_on(Ftl::mount(&rt, Fake::new(&rt, &medium), &drive.options));
    assert!(mounted.is_ok());
    let (padded, took) = (medium.borrow().programs - programs, rt.now());
    // Each program takes 600 us.
    assert!(padded >= 16, "{padded} rows of padding");
    assert!(took < Time::ZERO + Span::us(padded * 600), "{padded} rows, {took}");
    rt.drop_tasks();
}

/// Runs the campaign with a deliberate bug, which it must detect.
fn is_found(mistakes: Mistakes, cache: Cache) {
    let found = (0..40).any(|seed| {
        let options = Options { mistakes, ..options(cache) };
        campaign(options, seed, 25, 0).is_err()
    });
    assert!(found, "{mistakes:?} goes unseen");
}

#[test]
fn campaign_detects_map_parts_released_before_root() {
    let mistakes = Mistakes { parts_are_released_early: true, ..Mistakes::default() };
    let found = (0..40).any(|seed| {
        let options = Options { mistakes, ..with_cached_map(Cache::Volatile) };
        campaign(options, seed, 25, 0).is_err()
    });
    assert!(found, "goes unseen");
}

#[test]
fn campaign_detects_flush_without_wait() {
    let mistakes = Mistakes { flush_returns_at_once: true, ..Mistakes::default() };
    is_found(mistakes, Cache::Volatile);
}

/// Without the bound a write returns before it has room, and is lost; the flash holds no more than the bound.
#[test]
fn campaign_detects_nv_sram_without_bound() {
    let mistakes = Mistakes { nv_sram_has_no_bound: true, ..Mistakes::default() };
    let found = (0..40).any(|seed| {
        let options = Options { mistakes, nv_slots: Some(2), ..options(Cache::Protected) };
        campaign(options, seed, 25, 0).is_err()
    });
    assert!(found, "goes unseen");
}

#[test]
fn campaign_detects_missing_trim_records() {
    let mistakes = Mistakes { trims_are_not_logged: true, ..Mistakes::default() };
    is_found(mistakes, Cache::Volatile);
    is_found(mistakes, Cache::Protected);
}

#[test]
fn campaign_detects_out_of_order_replay() {
    let mistakes = Mistakes { replay_out_of_order: true, ..Mistakes::default() };
    is_found(mistakes, Cache::Volatile);
}

#[test]
fn campaign_detects_checkpoint_without_in_flight_superpages() {
    let mistakes = Mistakes { checkpoint_forgets_flying_rows: true, ..Mistakes::default() };
    is_found(mistakes, Cache::Volatile);
}
