//! The translation layer on chips that wear, fail and lose power: flushed data survive.

use std::cell::RefCell;
use std::rc::Rc;

use flash::chips::{ChipState, Chips, Options as ChipOptions};
use ftl::{Cache, Ftl, Options, Pages};
use media::contents::Keep;
use media::nand::{Cell, Errors, Geometry, Nand, Order, Spec, Suspend, Timing};
use runtime::{Log, Rng, Rt, Span, Time};

use super::{spec, timing};

/// Versions that a block may hold: from the guaranteed one to the newest begun.
#[derive(Clone, Copy, Default)]
struct Known {
    promised: u64,
    done: u64,
    newest: u64,
}

fn stamp(block: u64, version: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    if version > 0 {
        bytes[..8].copy_from_slice(&(block << 32 | version).to_le_bytes());
    }
    bytes
}

async fn version(ftl: &Ftl<Chips>, block: u64) -> u64 {
    ftl.read(block, 1).await.unwrap();
    let mut found = 0;
    let put = &mut |at: u32, run: &[u8]| {
        if at == 0 && run.len() >= 8 {
            found = u64::from_le_bytes(run[..8].try_into().unwrap());
        }
    };
    ftl.lend(block, 1, put).unwrap();
    assert!(found == 0 || found >> 32 == block, "block {block} holds {found:x}");
    found & 0xffff_ffff
}

/// One power cycle: checks everything, then writes at random until the power fails.
fn live(
    remains: ChipState,
    chips: &ChipOptions,
    options: &Options,
    known: &Rc<RefCell<Vec<Known>>>,
    seed: u64,
    cut: Span,
) -> ChipState {
    let rt = Rt::simulated(None, Log::Off);
    let chips = Rc::new(Chips::new(&rt, remains, chips.clone()).unwrap());
    let (rt_, chips_, known_, options) =
        (rt.clone(), chips.clone(), known.clone(), options.clone());
    let mounted = Rc::new(RefCell::new(None));
    let mounted_ = mounted.clone();
    rt.spawn(async move {
        let within = ftl::mount_time(&*chips_, &options);
        let ftl = Ftl::mount(&rt_, chips_, &options).await.unwrap();
        let took = rt_.now().since(Time::ZERO);
        assert!(took <= within, "seed {seed}: the mount took {took}, at most {within} was said");
        let count = known_.borrow().len() as u64;
        for block in 0..count {
            let found = version(&ftl, block).await;
            let one = &mut known_.borrow_mut()[block as usize];
            let may = one.promised..=one.newest;
            assert!(may.contains(&found), "seed {seed}: block {block} holds {found}, not {may:?}");
            *one = Known { promised: found, done: found, newest: one.newest };
        }
        *mounted_.borrow_mut() = Some(rt_.now());
        let mut rng = Rng::for_part(seed, "layer");
        loop {
            let block = rng.below(count);
            let version = {
                let one = &mut known_.borrow_mut()[block as usize];
                one.newest += 1;
                one.newest
            };
            ftl.write(block, &stamp(block, version)).await.unwrap();
            {
                let one = &mut known_.borrow_mut()[block as usize];
                one.done = version;
                if options.cache != Cache::Volatile {
                    one.promised = version;
                }
            }
            if rng.chance(1, 40) {
                let done: Vec<u64> = known_.borrow().iter().map(|one| one.done).collect();
                ftl.flush().await.unwrap();
                for (one, done) in known_.borrow_mut().iter_mut().zip(done) {
                    one.promised = one.promised.max(done);
                }
            }
        }
    });
    rt.block_on(async {
        // A mount that is cut off proves nothing about the cycle before, but must do no harm.
        let end = rt.now() + cut;
        while rt.now() < end || (cut > Span::ms(1) && mounted.borrow().is_none()) {
            rt.sleep(Span(cut.0 / 16 + 1)).await;
            assert!(rt.now() < Time::ZERO + Span::s(1000), "the mount never ends");
        }
    });
    rt.drop_tasks();
    Rc::into_inner(chips).expect("the tasks are gone").cut()
}

/// Configuration of a drive under test.
struct Drive {
    cache: Cache,
    geometry: Geometry,
    errors: Errors,
    timing: Timing,
    held_up: bool,
}

/// TLC, programmed in whole word lines.
fn drive(cache: Cache) -> Drive {
    let geometry = Geometry { blocks: 24, ..spec().geometry };
    Drive { cache, geometry, errors: spec().errors, timing: timing(), held_up: false }
}

fn campaign(drive: Drive, seed: u64, cuts: u64) {
    let Drive { cache, geometry, errors, timing, held_up } = drive;
    let nand = Nand::new(Spec { geometry, errors, keep: Keep::Stamps, seed, ..spec() }).unwrap();
    let rt = Rt::simulated(None, Log::Off);
    let protected_buffer = cache == Cache::Protected;
    let chips = ChipOptions { timing: Some(timing), protected_buffer, nv_slots: None, held_up };
    let mut remains = ChipState::from(nand);
    let shape = Chips::new(&rt, Nand::new(remains.nand().spec().clone()).unwrap(), chips.clone())
        .unwrap()
        .shape();
    let options = Options {
        block_bytes: 4096,
        units: Options::units_for(&shape, 150, 2, 3),
        cache,
        seed,
        ..Options::new(&shape)
    };
    let known = Rc::new(RefCell::new(vec![Known::default(); options.units as usize]));
    let mut rng = Rng::for_part(seed, "layer cuts");
    for life in 0..cuts {
        let long = if rng.chance(1, 4) { 1_000 } else { 200_000 };
        let cut = Span::us(rng.below(long)) + Span(rng.below(1_000_000));
        remains = live(remains, &chips, &options, &known, seed << 16 | life, cut);
    }
    let written: u64 = known.borrow().iter().map(|one| one.newest).sum();
    assert!(written > 10 * cuts, "{written} writes in {cuts} lives");
}

fn cuts() -> u64 {
    std::env::var("DOORBELL_CUTS").map_or(6, |count| count.parse().expect("a number of cuts"))
}

fn stopping() -> Timing {
    let us = Span::us;
    let suspend = Suspend { program: us(10), erase: us(20), resume: us(5), most: 4 };
    Timing { suspend: Some(suspend), ..timing() }
}

#[test]
fn flushed_data_survive_power_cuts() {
    campaign(drive(Cache::Volatile), 1, cuts());
    campaign(Drive { timing: stopping(), ..drive(Cache::Volatile) }, 2, cuts());
}

#[test]
fn write_through_and_protected_data_survive_power_cuts() {
    campaign(drive(Cache::Through), 3, cuts());
    campaign(Drive { timing: stopping(), ..drive(Cache::Protected) }, 4, cuts());
}

#[test]
fn bad_blocks_and_program_failures_lose_no_data() {
    let errors = Errors {
        factory_bad: 20_000,
        program_fails: [20_000, 0],
        erase_fails: [100_000, 0],
        ..spec().errors
    };
    campaign(Drive { errors, ..drive(Cache::Volatile) }, 5, cuts());
}

/// Planar MLC shares cells between pages that are programmed far apart: either capacitors let the chips
/// finish, or word lines are closed before their data count as safe.
#[test]
fn shared_cell_programming_loses_no_data_at_power_cut() {
    let geometry = Geometry {
        blocks: 24,
        word_lines: 24,
        cell: Cell::Mlc,
        order: Order::Diagonal,
        group: 1,
        ..spec().geometry
    };
    assert_eq!(geometry.reach(), 3);
    let caches = [Cache::Volatile, Cache::Protected, Cache::Through];
    for (held_up, first) in [(true, 6), (false, 9)] {
        for (cache, seed) in caches.into_iter().zip(first..) {
            let drive = Drive { geometry: geometry.clone(), held_up, ..drive(cache) };
            campaign(drive, seed, cuts());
        }
    }
}
