//! Reads by place: whatever a host names, it gets the newest data of the unit that it asked for, or nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::oracle::{Oracle, part};
use crate::common::{Fake, Medium, SMALL};
use ftl::{Error, Ftl, Mistakes, Options, Shape, space};
use runtime::{Either, Log, Rng, Rt, Span, Time, race};

const CLIENTS: u32 = 3;
const NO_PLACE: u32 = u32::MAX;
const SHAPE: Shape = Shape { blocks: 24, ..SMALL };

/// Smallest possible map cache, so that most places are on flash only.
fn options() -> Options {
    let units = Options::units_for(&space::without_map(&SHAPE), 70, 2, 0);
    let map_cache = Some(space::least_map_cache(&SHAPE));
    let of = Options::new(&SHAPE);
    Options { units, map_cache, checkpoint_rows: Some(400), slots: 48, ..of }
}

/// Numbers of reads by place: answered, stale by a place that was meant well, stale by one that was not.
#[derive(Default)]
struct Seen {
    read: Cell<u32>,
    stale: Cell<u32>,
    caught: Cell<u32>,
}

fn add(to: &Cell<u32>) {
    to.set(to.get() + 1);
}

/// A host: its map outlives the drive's power cuts, and knows only what it was told.
struct Host {
    ftl: Ftl<Fake>,
    oracle: Rc<RefCell<Oracle>>,
    map: Rc<RefCell<Vec<u32>>>,
    seen: Rc<Seen>,
    client: u32,
}

impl Host {
    async fn run(&self, mut rng: Rng) -> Result<(), String> {
        loop {
            let units = self.oracle.borrow().units() / CLIENTS;
            let unit = rng.below(units.into()) as u32 * CLIENTS + self.client;
            let (first, blocks) = part(&mut rng);
            let at = u64::from(unit) * 2 + first as u64;
            match rng.below(16) {
                0 => {
                    let promise = self.oracle.borrow().flush();
                    self.ftl.flush().await.unwrap();
                    self.oracle.borrow_mut().flushed(&promise);
                }
                1 => {
                    self.oracle.borrow_mut().trim(unit, first, blocks);
                    self.ftl.trim(at, blocks as u32).await.unwrap();
                    self.oracle.borrow_mut().done(unit);
                }
                2 if rng.chance(1, 8) => self.ftl.checkpoint().await.unwrap(),
                3..10 => {
                    let data = self.oracle.borrow_mut().write(unit, first, blocks);
                    self.ftl.write(at, &data).await.unwrap();
                    self.oracle.borrow_mut().done(unit);
                }
                _ => self.read(&mut rng, unit).await?,
            }
            // Now and then: most moves are dropped, or read late.
            if rng.chance(1, 8) {
                while let Some((unit, place)) = self.ftl.take_move() {
                    self.map.borrow_mut()[unit as usize] = place;
                }
            }
        }
    }

    /// Reads a unit by its place, or by one that a malicious host would name.
    async fn read(&self, rng: &mut Rng, unit: u32) -> Result<(), String> {
        let all = self.map.borrow().len() as u64;
        let known = self.map.borrow()[unit as usize];
        let place = match rng.below(8) {
            0 => rng.below(SHAPE.all_units()) as u32,
            1 => self.map.borrow()[rng.below(all) as usize],
            2 => rng.below(1 << 32) as u32,
            3 => known ^ 1 << rng.below(32),
            _ => known,
        };
        match self.ftl.read_placed(u64::from(unit) * 2, 2, &[place]).await {
            Ok(()) => {
                add(&self.seen.read);
                self.check(unit, place)
            }
            Err(Error::Stale) if place != NO_PLACE => {
                add(if place == known { &self.seen.stale } else { &self.seen.caught });
                let mut now = Vec::new();
                self.ftl.places(u64::from(unit) * 2, 1, &mut |at| now.push(at)).await.unwrap();
                self.map.borrow_mut()[unit as usize] = now[0];
                Ok(())
            }
            Err(error) => Err(format!("unit {unit} at {place}: {error}")),
        }
    }

    fn check(&self, unit: u32, place: u32) -> Result<(), String> {
        let first = u64::from(unit) * 2;
        let mut bytes = [0; 1024];
        let mut put = |at: u32, run: &[u8]| bytes[at as usize..][..run.len()].copy_from_slice(run);
        let lent = self.ftl.lend_placed(first, 2, &[place], &mut put);
        lent.map_err(|error| format!("unit {unit} at {place}: {error}"))?;
        let oracle = self.oracle.borrow();
        (0..2).try_for_each(|at| oracle.is_newest(first + at as u64, &bytes[512 * at..][..512]))
    }
}

/// Lives of one drive, each ended by a power cut; the host's map goes on. `Err`: the wrong data.
fn lives(mistakes: Mistakes, seed: u64, cuts: u64) -> Result<Seen, String> {
    let options = Options { mistakes, seed, ..options() };
    let mut medium = Medium::new(SHAPE, seed).borrow().clone();
    let mut known = Oracle::new(options.units);
    let map = Rc::new(RefCell::new(vec![NO_PLACE; options.units as usize]));
    let seen = Rc::new(Seen::default());
    for life in 0..cuts {
        let mut rng = Rng::for_part(seed ^ life, "lives");
        let rt = Rt::simulated(None, Log::Off);
        let shared = Rc::new(RefCell::new(medium.clone()));
        let oracle = Rc::new(RefCell::new(known.clone()));
        let failure = Rc::new(RefCell::new(None));
        let work = async {
            let mounted = Ftl::mount(&rt, Fake::new(&rt, &shared), &options).await;
            let ftl = mounted.map_err(|error| format!("mount: {error}"))?;
            let mut settled = oracle.borrow().clone();
            settled.settle(&ftl).await?;
            *oracle.borrow_mut() = settled;
            ftl.keep_moves(64);
            for client in 0..CLIENTS {
                let (ftl, oracle, map) = (ftl.clone(), oracle.clone(), map.clone());
                let host = Host { ftl, oracle, map, seen: seen.clone(), client };
                let (failure, rng) =
                    (failure.clone(), Rng::for_part(seed ^ life << 8, &format!("{client}")));
                rt.spawn(async move {
                    if let Err(what) = host.run(rng).await {
                        failure.borrow_mut().get_or_insert(what);
                    }
                });
            }
            std::future::pending::<Result<(), String>>().await
        };
        let cut = Time::ZERO + Span::us(20_000 + rng.below(150_000));
        if let Either::First(done) = rt.block_on(race(work, rt.sleep_until(cut))) {
            done.map_err(|what| format!("seed {seed}, life {life}: {what}"))?;
        }
        rt.drop_tasks();
        if let Some(what) = failure.borrow_mut().take() {
            return Err(format!("seed {seed}, life {life}: {what}"));
        }
        medium = shared.borrow().clone();
        known = oracle.borrow().clone();
    }
    Ok(Rc::into_inner(seen).expect("all tasks are gone"))
}

fn heavy(few: u64, many: u64) -> u64 {
    if std::env::var_os("DOORBELL_HEAVY").is_some() { many } else { few }
}

#[test]
fn reads_by_any_place_return_newest_data_or_stale() {
    let (mut read, mut stale, mut caught) = (0, 0, 0);
    for seed in 0..heavy(3, 100) {
        let seen = lives(Mistakes::default(), seed, heavy(4, 20)).unwrap();
        (read, stale, caught) =
            (read + seen.read.get(), stale + seen.stale.get(), caught + seen.caught.get());
    }
    assert!(read > 1_000 && stale > 10 && caught > 100, "{read} {stale} {caught}");
}

#[test]
fn trusted_places_return_wrong_data() {
    let mistakes = Mistakes { places_are_trusted: true, ..Mistakes::default() };
    let found = lives(mistakes, 1, 4).err().expect("wrong data");
    assert!(found.contains("holds"), "{found}");
}

/// A read by place costs one sense, where the device alone also senses a part of the map.
#[test]
fn known_place_saves_map_read() {
    let options = options();
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SHAPE, 1);
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.expect("a new drive");
        for unit in 0..u64::from(options.units) {
            ftl.write(2 * unit, &[unit as u8; 1024]).await.expect("a write");
        }
        ftl.checkpoint().await.expect("a checkpoint");
        let mut places = Vec::new();
        let all = ftl.blocks() as u32;
        ftl.places(0, all, &mut |place| places.push(place)).await.expect("the map");
        assert!(places.iter().filter(|place| **place != NO_PLACE).count() > 100);
        // Far apart, so that no two are in one part of the map.
        let units = || (0..options.units).step_by(options.units as usize / 8);
        let before = ftl.stats().counters.map_reads;
        for unit in units() {
            ftl.read_placed(2 * u64::from(unit), 2, &[places[unit as usize]])
                .await
                .expect("a read");
        }
        assert_eq!(ftl.stats().counters.map_reads, before, "no read of the map");
        // One part is cached.
        let parts = u64::from(options.units.div_ceil(SHAPE.unit_bytes / 4));
        for unit in units() {
            ftl.read(2 * u64::from(unit), 2).await.expect("a read");
        }
        assert!(ftl.stats().counters.map_reads >= before + parts - 1);
        assert!(parts > 1, "of one part nothing would be read");
    });
    rt.drop_tasks();
}
