//! CPU cost of chips. Small in the suite, which checks only the work; large and timed on request:
//! `cargo test --release -p doorbell-device --test it flash_speed -- --ignored --nocapture`

use std::rc::Rc;
use std::time::Instant;

use flash::chips::{Chips, Options};
use ftl::{Blocks, Erase, Header, Page, PageRead, Pages, Part, Row, Source, Tag, Unit};
use media::contents::Keep;
use media::nand::{Geometry, Nand, Profile, Spec, Timing};
use runtime::{Log, Rng, Rt};

fn chips(rt: &Rt, blocks: u32, word_lines: u32, timed: bool) -> Rc<Chips> {
    let Profile { geometry, errors, timing, .. } = Profile::tlc();
    let errors = media::nand::Errors { factory_bad: 0, program_fails: [0; 2], ..errors };
    let geometry = Geometry { blocks, word_lines, ..geometry };
    let spec = Spec { geometry, keep: Keep::Stamps, block_bytes: 4096, errors, seed: 3 };
    let timing: Option<Timing> = timed.then_some(timing);
    let options = Options { timing, protected_buffer: false, nv_slots: None, held_up: false };
    Rc::new(Chips::new(rt, Nand::new(spec).unwrap(), options).unwrap())
}

/// Every die writes its blocks in turn: half of each row from slots, half copied from the row before, like GC
/// that moves as much as the host writes; a block is erased before it is reused. Returns the number of units
/// written.
fn write(rt: &Rt, chips: &Rc<Chips>, rounds: u32) -> u64 {
    let shape = chips.shape();
    let row_units = shape.row_units(0b1111);
    chips.slots(shape.dies * row_units);
    for die in 0..shape.dies {
        let chips = chips.clone();
        rt.spawn(async move {
            let mut units = Vec::with_capacity(row_units as usize);
            for round in 0..rounds {
                let blocks = Blocks { die, block: round % shape.blocks, planes: 0b1111 };
                chips.erase(&mut [Erase { blocks, failed: 0 }]).await;
                for page in (0..shape.pages).step_by(shape.group as usize) {
                    let row = Row { blocks, page };
                    let first = die * row_units;
                    units.clear();
                    for at in 0..row_units {
                        let slot = first + at;
                        let copy = (at % 2 == 1 && page > 0).then(|| place(row, at, shape.group));
                        let from = match copy {
                            Some(place) => Source::Flash(place),
                            None => {
                                let tag = Tag { logical: at, order: page.into() };
                                let stamp = u64::from(page) << 32 | u64::from(slot);
                                let mut block = [0; 4096];
                                block[..8].copy_from_slice(&stamp.to_le_bytes());
                                chips.stage(slot, tag, 0, &block);
                                Source::Slot(slot)
                            }
                        };
                        units.push(Unit { logical: slot ^ page << 8, from });
                    }
                    let header = Header { sequence: page.into(), erases: round };
                    chips.program(row, header, &units).await.unwrap();
                }
            }
        });
    }
    rt.block_on(rt.sleep(runtime::Span::s(1000)));
    u64::from(shape.dies * rounds * shape.pages / shape.group * row_units)
}

/// A unit of the previous row.
fn place(row: Row, at: u32, group: u32) -> ftl::Place {
    let page =
        Page { die: row.blocks.die, plane: 0, block: row.blocks.block, page: row.page - group };
    ftl::Place { page, unit: at % 4 }
}

/// Reads single units at random, 64 at a time; returns the number of good reads.
fn read(rt: &Rt, chips: &Rc<Chips>, count: u32) -> u64 {
    let shape = chips.shape();
    let good = Rc::new(std::cell::Cell::new(0));
    for task in 0..64 {
        let (chips, good) = (chips.clone(), good.clone());
        let mut rng = Rng::for_part(task, "reads");
        rt.spawn(async move {
            for _ in 0..count / 64 {
                let mut below = |n: u32| rng.below(n.into()) as u32;
                let page = Page {
                    die: below(shape.dies),
                    plane: below(shape.planes),
                    block: below(shape.blocks),
                    page: below(shape.pages),
                };
                let mut parts = [Part { page, units: 1 << below(4), seen: PageRead::Unreadable }];
                chips.read(&mut parts).await;
                good.set(good.get() + u64::from(matches!(parts[0].seen, PageRead::Good { .. })));
            }
        });
    }
    rt.block_on(rt.sleep(runtime::Span::s(1000)));
    good.get()
}

#[test]
fn all_written_units_read_good() {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, 1, 8, true);
    assert_eq!(write(&rt, &chips, 1), 16 * 4 * 24 * 4);
    assert_eq!(read(&rt, &chips, 640), 640);
}

#[test]
#[ignore = "a measurement, to be made in release and by itself"]
fn chips_cpu_ns_per_unit() {
    let each = |begun: Instant, count: u64| begun.elapsed().as_nanos() as f64 / count as f64;
    for timed in [false, true] {
        let rt = Rt::simulated(None, Log::Off);
        let chips = chips(&rt, 4, 384, timed);
        let begun = Instant::now();
        let units = write(&rt, &chips, 12);
        let world = if timed { "in time" } else { "without time" };
        println!("{world}: {:.0} ns a unit written, {units} of them", each(begun, units));
        let begun = Instant::now();
        let good = read(&rt, &chips, 1 << 20);
        println!("{world}: {:.0} ns a unit read, {good} good", each(begun, 1 << 20));
    }
}

/// CPU time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

#[test]
#[ignore = "a measurement, to be made in release and by itself"]
fn ftl_random_writes_per_cpu_second() {
    let blocks: Vec<u32> =
        std::env::var("BLOCKS").map_or(vec![16, 64, 256], |b| vec![b.parse().unwrap()]);
    for blocks in blocks {
        let rt = Rt::simulated(None, Log::Off);
        let chips = chips(&rt, blocks, 96, true);
        let options = ftl::Options {
            block_bytes: 4096,
            units: ftl::Options::units_for(&chips.shape(), 70, 2, 0),
            ..ftl::Options::new(&chips.shape())
        };
        rt.block_on(async {
            let layer = ftl::Ftl::mount(&rt, chips.clone(), &options).await.unwrap();
            layer.precondition(u64::from(options.units) / 2, 1).await.unwrap();
            let mut rng = Rng::for_part(1, "writes");
            let mut data = [0; 4096];
            let (before, begun) = (layer.stats().counters, cpu_seconds());
            let writes = 2_000_000;
            for _ in 0..writes {
                data[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
                layer.write(rng.below(layer.blocks()), &data).await.unwrap();
            }
            let copied = layer.stats().counters.copied_units - before.copied_units;
            let memory = chips.with_nand(|nand| nand.allocated_bytes());
            println!(
                "{} GiB: {:.0} writes per CPU second, {:.2} copies for each, {:.1} bytes a block",
                (layer.blocks() * 4096) >> 30,
                f64::from(writes) / (cpu_seconds() - begun),
                copied as f64 / f64::from(writes),
                memory as f64 / layer.blocks() as f64,
            );
        });
    }
}
