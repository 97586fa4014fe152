//! CPU speed of the flash translation layer: printed, never asserted. Run it in a release build:
//! `cargo test --release -p doorbell-ftl --test it speed -- --ignored --nocapture`

use crate::common::lean::Lean;
use ftl::{Ftl, Options, Shape};
use runtime::{Log, Rng, Rt};

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

#[test]
#[ignore = "printed, not asserted"]
fn random_writes_per_cpu_second_under_gc() {
    for blocks in [64, 256, 1024] {
        let shape = Shape {
            dies: 8,
            planes: 2,
            blocks,
            pages: 96,
            group: 3,
            units: 4,
            unit_bytes: 4096,
            reach: 0,
        };
        let options = Options {
            block_bytes: 4096,
            units: Options::units_for(&shape, 70, 2, 0),
            checkpoint_rows: None,
            ..Options::new(&shape)
        };
        let rt = Rt::simulated(None, Log::Off);
        rt.block_on(async {
            let ftl = Ftl::mount(&rt, Lean::new(shape), &options).await.unwrap();
            ftl.precondition(u64::from(options.units), 1).await.unwrap();
            let data = [0; 4096];
            let mut rng = Rng::new(1);
            for round in 0..3 {
                let before = (ftl.stats().counters, cpu_seconds());
                let writes = 1_000_000;
                for _ in 0..writes {
                    ftl.write(rng.below(ftl.blocks()), &data).await.unwrap();
                }
                let (now, spent) = (ftl.stats().counters, cpu_seconds() - before.1);
                let copied = now.copied_units - before.0.copied_units;
                println!(
                    "{} GiB, round {round}: {:.0} writes per CPU second, {:.2} copies for each",
                    (ftl.blocks() * 4096) >> 30,
                    f64::from(writes) / spent,
                    copied as f64 / f64::from(writes),
                );
            }
        });
    }
}

#[test]
#[ignore = "printed, not asserted"]
fn cpu_seconds_of_precondition_and_mount_without_checkpoint() {
    let shape = Shape {
        dies: 32,
        planes: 4,
        blocks: 100,
        pages: 384,
        group: 3,
        units: 4,
        unit_bytes: 4096,
        reach: 0,
    };
    let options = Options {
        block_bytes: 4096,
        units: Options::units_for(&shape, 70, 2, 0),
        checkpoint_rows: None,
        ..Options::new(&shape)
    };
    let gib = (u64::from(options.units) * 4096) >> 30;
    let pages = Lean::new(shape);
    for what in ["preconditioned", "mounted"] {
        let rt = Rt::simulated(None, Log::Off);
        let before = cpu_seconds();
        rt.block_on(async {
            let ftl = Ftl::mount(&rt, pages.clone(), &options).await.unwrap();
            if what == "preconditioned" {
                ftl.precondition(0, 1).await.unwrap();
            }
        });
        println!("{gib} GiB {what} in {:.1} CPU seconds", cpu_seconds() - before);
        rt.drop_tasks();
    }
}
