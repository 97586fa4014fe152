//! Write amplification against a closed form, and preconditioning against long random writes.

use std::collections::BTreeMap;

use crate::common::lean::Lean;
use ftl::{Error, Ftl, Options, Shape};
use runtime::{Log, Rng, Rt};

/// One superpage is one unit, so that there is no padding and hardly any merging in the buffer.
fn shape(blocks: u32, pages: u32) -> Shape {
    Shape { dies: 1, planes: 1, blocks, pages, group: 1, units: 1, unit_bytes: 4096, reach: 0 }
}

fn options(shape: &Shape, units: u32, seed: u64) -> Options {
    Options {
        block_bytes: 4096,
        units,
        slots: 2,
        separate_streams: false,
        checkpoint_rows: None,
        wear_spread: u32::MAX,
        seed,
        ..Options::new(shape)
    }
}

fn heavy(few: u32, many: u32) -> u32 {
    if std::env::var_os("DOORBELL_HEAVY").is_some() { many } else { few }
}

async fn write_at_random(ftl: &Ftl<Lean>, rng: &mut Rng, writes: u64) {
    let data = [0; 4096];
    for _ in 0..writes {
        ftl.write(rng.below(ftl.blocks()), &data).await.unwrap();
    }
}

/// Units programmed per unit written, over this many writes.
async fn amplification(ftl: &Ftl<Lean>, rng: &mut Rng, writes: u64) -> f64 {
    let before = ftl.stats().counters;
    write_at_random(ftl, rng, writes).await;
    let now = ftl.stats().counters;
    let programmed = now.programmed_units - before.programmed_units;
    let copied = now.copied_units - before.copied_units;
    (programmed + copied) as f64 / programmed as f64
}

/// The principal branch of Lambert's W, between -1/e and 0, by Newton's method.
fn lambert_w(x: f64) -> f64 {
    let mut w = -0.5_f64;
    for _ in 0..200 {
        let e = w.exp();
        w -= (w * e - x) / (e * (w + 1.0)).max(1e-12);
        w = w.max(-1.0 + 1e-12);
    }
    w
}

/// Greedy collection under uniform random writes: Desnoyers, "Analytic Models of SSD Write Performance" (ACM
/// Transactions on Storage 2014), with its term for the pages of a block. `alpha`: physical units per logical
/// unit.
fn desnoyers(alpha: f64, pages: f64) -> f64 {
    let b = (1.0 + 1.0 / (2.0 * pages)) * alpha;
    let x0 = 0.5 - pages / alpha * lambert_w(-b * (-b).exp());
    pages / (pages - (x0 - 1.0))
}

#[test]
fn greedy_gc_write_amplification_matches_closed_form() {
    // One superblock is open and one half collected at any time, which the model does not have.
    let shape = shape(heavy(1000, 2000), heavy(16, 128));
    for spare in [7, 15, 28] {
        let all = u64::from(shape.blocks - 2) * u64::from(shape.pages);
        // Free space held back for the collector contains no data and is not part of the model.
        let held = u64::from(2 * shape.pages + shape.pages / 2 + 2);
        let units = ((all - held) * 100 / (100 + spare)) as u32;
        let rt = Rt::simulated(None, Log::Off);
        let mut rng = Rng::for_part(spare, "writes");
        let (measured, alpha) = rt.block_on(async {
            let ftl = Ftl::mount(&rt, Lean::new(shape), &options(&shape, units, 1)).await.unwrap();
            let (warm_up, watched) = (heavy(2, 8) * units, heavy(2, 4) * units);
            ftl.precondition(warm_up.into(), spare).await.unwrap();
            let measured = amplification(&ftl, &mut rng, watched.into()).await;
            let stats = ftl.stats();
            (measured, (stats.good_units - stats.left_units) as f64 / f64::from(units))
        });
        let expected = desnoyers(alpha, f64::from(shape.pages));
        println!("{spare} %: alpha {alpha:.4}, measured {measured:.4}, closed form {expected:.4}");
        assert!((measured / expected - 1.0).abs() < 0.02, "{measured} instead of {expected}");
    }
}

/// Histogram of filled superblocks by valid share, summed over samples of a run, and its write amplification.
async fn watch(ftl: &Ftl<Lean>, rng: &mut Rng, writes: u64) -> (f64, [f64; 11]) {
    let mut shares = [0.0; 11];
    let mut sum = 0.0;
    const LOOKS: u64 = 16;
    for _ in 0..LOOKS {
        sum += amplification(ftl, rng, writes / LOOKS).await;
        let histogram = ftl.histogram();
        let all: u32 = histogram.iter().sum();
        for (share, count) in shares.iter_mut().zip(histogram) {
            *share += f64::from(count) / f64::from(all) / LOOKS as f64;
        }
    }
    (sum / LOOKS as f64, shares)
}

#[test]
fn precondition_matches_steady_state_of_random_writes() {
    let shape = shape(heavy(160, 800), heavy(16, 64));
    let units = (u64::from(shape.blocks * shape.pages) * 80 / 100) as u32;
    let (mut long_sum, mut short_sum) = ([0.0; 11], [0.0; 11]);
    let seeds = heavy(2, 5);
    for seed in 0..u64::from(seeds) {
        let run = |short: bool| {
            let rt = Rt::simulated(None, Log::Off);
            let mut rng = Rng::for_part(seed, if short { "short" } else { "long" });
            rt.block_on(async {
                let options = options(&shape, units, seed);
                let ftl = Ftl::mount(&rt, Lean::new(shape), &options).await.unwrap();
                if short {
                    ftl.precondition(u64::from(units) / 2, seed).await.unwrap();
                } else {
                    for block in 0..ftl.blocks() {
                        ftl.write(block, &[0; 4096]).await.unwrap();
                    }
                    write_at_random(&ftl, &mut rng, 6 * u64::from(units)).await;
                }
                watch(&ftl, &mut rng, 4 * u64::from(units)).await
            })
        };
        let ((long, long_shares), (short, short_shares)) = (run(false), run(true));
        println!(
            "seed {seed}: write amplification {long:.4} the long way, {short:.4} the short way"
        );
        assert!((short / long - 1.0).abs() < 0.02, "{short} instead of {long}");
        for at in 0..11 {
            let (long, short) = (long_shares[at], short_shares[at]);
            assert!((long - short).abs() < 0.02, "{at} tenths valid: {short} instead of {long}");
            long_sum[at] += long / f64::from(seeds);
            short_sum[at] += short / f64::from(seeds);
        }
    }
    println!("long  {long_sum:.3?}\nshort {short_sum:.3?}");
}

/// Of few superblocks, the collector's threshold is in the middle of one.
#[test]
fn drives_of_few_superblocks_precondition_and_take_writes() {
    for dies in [1, 2, 4] {
        for blocks in 7..14 {
            let shape =
                Shape { dies, planes: 2, pages: 32, group: 1, units: 2, ..shape(blocks, 32) };
            let spare = Options::least_spare(&shape, 2, 0);
            let spare = spare.unwrap_or_else(|| panic!("no safe drive of {shape:?}"));
            let units = Options::units_for(&shape, spare, 2, 0);
            let options = Options { block_bytes: 4096, units, ..Options::new(&shape) };
            let rt = Rt::simulated(None, Log::Off);
            rt.block_on(async {
                let ftl = Ftl::mount(&rt, Lean::new(shape), &options).await.expect("a drive");
                ftl.precondition(u64::from(units) / 8, 1).await.expect("a used drive");
                assert_eq!(ftl.stats().mapped_units, u64::from(units), "{shape:?}");
                write_at_random(&ftl, &mut Rng::new(1), u64::from(units)).await;
            });
            rt.drop_tasks();
        }
    }
}

/// The next overwrites find whole superblocks without valid units: nothing is copied from the first on.
#[test]
fn sequential_precondition_needs_no_copies_for_sequential_writes() {
    let shape = Shape { dies: 2, planes: 2, units: 2, ..shape(40, 16) };
    let units = Options::units_for(&shape, 150, 2, 0);
    let rt = Rt::simulated(None, Log::Off);
    rt.block_on(async {
        let options = Options { slots: 64, ..options(&shape, units, 1) };
        let ftl = Ftl::mount(&rt, Lean::new(shape), &options).await.unwrap();
        ftl.precondition_sequential(1).await.unwrap();
        assert_eq!(ftl.stats().mapped_units, u64::from(units));
        for block in (0..2 * ftl.blocks()).map(|block| block % ftl.blocks()) {
            ftl.write(block, &[0; 4096]).await.unwrap();
        }
        let counters = ftl.stats().counters;
        assert_eq!(counters.copied_units, 0, "{counters:?}");
        assert!(counters.erased > 40, "{counters:?}");
    });
}

/// A drive of four dies of two planes, on which each unit has been written once in this order.
fn laid_over_four_dies(
    precondition: impl AsyncFnOnce(&Ftl<Lean>) -> Result<(), Error>,
) -> (Rt, Ftl<Lean>, u32, BTreeMap<u32, u32>) {
    let shape = Shape { dies: 4, planes: 2, units: 4, ..shape(40, 16) };
    let units = Options::units_for(&shape, 150, 2, 0);
    let rt = Rt::simulated(None, Log::Off);
    let pages = Lean::new(shape);
    let ftl = rt.block_on(async {
        let options = Options { slots: 256, ..options(&shape, units, 1) };
        let ftl = Ftl::mount(&rt, pages.clone(), &options).await.unwrap();
        precondition(&ftl).await.unwrap();
        ftl
    });
    assert_eq!(ftl.stats().mapped_units, u64::from(units));
    let dies = pages.dies();
    assert_eq!(dies.len(), units as usize, "each unit is on one page");
    (rt, ftl, units, dies)
}

/// Two units in each plane of each die in turn, and then the next two in the first plane.
#[test]
fn striped_precondition_puts_runs_in_each_plane_in_turn() {
    let (rt, _ftl, units, dies) =
        laid_over_four_dies(async |ftl| ftl.precondition_striped(2, 1).await);
    // A superblock that is not full has its units anywhere.
    let of_superblock = 4 * 2 * 4 * 16;
    let right = (0..units).filter(|unit| dies[unit] == unit / 4 % 4).count();
    assert!(right + of_superblock >= units as usize, "{right} of {units}");
    rt.drop_tasks();
}

/// One random write of each unit: neighbours are on any die, with nothing to do for the collector.
#[test]
fn scattered_precondition_leaves_neighbours_on_independent_dies() {
    let (rt, ftl, units, dies) =
        laid_over_four_dies(async |ftl| ftl.precondition_scattered(1).await);
    for apart in 1..5 {
        let mut counts = [0; 4];
        for unit in 0..units - apart {
            counts[((4 + dies[&(unit + apart)] - dies[&unit]) % 4) as usize] += 1;
        }
        let quarter = (units - apart) / 4;
        let even = |count: &u32| count.abs_diff(quarter) < quarter / 10;
        assert!(counts.iter().all(even), "{apart} apart: {counts:?} of {units}");
    }
    // Nothing is left to erase, which reads would wait for.
    rt.block_on(async {
        for block in 0..ftl.blocks() / 16 {
            ftl.write(block, &[0; 4096]).await.unwrap();
        }
        ftl.flush().await.unwrap();
        ftl.settle().await.unwrap();
    });
    assert_eq!(ftl.stats().counters.erased, 0);
    rt.drop_tasks();
}
