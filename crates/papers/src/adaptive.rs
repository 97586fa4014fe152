//! Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device Driver
//! for PCIe-based SSDs" (RSP 2014): figures 5 to 8. The paper draws its curves without values: the exhibits
//! check shapes, and all magnitudes are from this model.

use super::measure::Machine;
use super::plot::{Plot, Series};
use super::threads::{Done, Threads, run};
use super::{Claim, Exhibit, Table, blocks};
use world::RunError;

/// Descriptors per block, as in figures 5 and 6.
const SIZES: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Thread counts, as in figures 6 and 7.
const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Bytes per request, as in figure 8, plus 512.
const BYTES: [u32; 10] = [512, 4096, 8192, 16384, 32768, 65536, 1 << 17, 1 << 18, 1 << 19, 1 << 20];

pub(super) type Shown = Result<Exhibit, RunError>;

pub(super) fn exhibits() -> Result<Vec<Exhibit>, RunError> {
    let machine = Machine::of("descriptor-blocks");
    let mut exhibits = vec![what_is_whose()];
    exhibits.extend(figure_5(&machine)?);
    exhibits.extend(figure_6(&machine)?);
    exhibits.extend(figure_7(&machine)?);
    exhibits.extend(figure_8(&machine)?);
    exhibits.extend(blocks::exhibits(&machine)?);
    Ok(exhibits)
}

fn what_is_whose() -> Exhibit {
    let line = |what: &str, whose: &str| vec![what.to_owned(), whose.to_owned()];
    Exhibit::Table(Table {
        what: "What is the paper's, and what is ours alone".into(),
        columns: ["", "whose"].map(String::from).into(),
        lines: vec![
            line(
                "the mechanism, its parts and their names; PCIe Gen2 x4; one processor",
                "the paper's",
            ),
            line(
                "the order of curves, where they rise and where they are flat",
                "the paper's, checked",
            ),
            line("every kIOPS, us and MiB/s below", "ours alone: the paper prints none"),
            line("fixed against adaptive by turnaround, gathering, prefetch by link", "ours alone"),
        ],
        notes: vec![
            "with no number of the paper's there is nothing to be unexplained, and nothing is"
                .into(),
        ],
    })
}

/// A driver that always has full blocks: no software above it, and requests for three blocks. Returns the
/// machine and the number of threads.
fn fed(machine: &Machine, size: u32) -> (Machine, u32) {
    (of_size(&without_software(machine), size), 3 * size)
}

/// Sets the cost of all software above the driver to zero.
pub(super) fn without_software(machine: &Machine) -> Machine {
    ["benchmark", "\"system call\"", "\"block driver\"", "\"context switch\""]
        .iter()
        .fold(machine.clone(), |machine, cost| {
            machine.with(&format!("host.costs.{cost}"), "\"0 ns\"")
        })
}

/// Uses full blocks of this size only.
pub(super) fn of_size(machine: &Machine, size: u32) -> Machine {
    let sized = machine.with("block.sizing", "static").with("block.static_size", &size.to_string());
    sized.with("block.linger", "\"1 s\"")
}

/// The three modes of figure 5.
const WAYS: [(char, &str, &str, &str); 3] = [
    ('W', "complete block", "whole", "1"),
    ('2', "each descriptor, double DMA", "each", "2"),
    ('1', "each descriptor, single DMA", "each", "1"),
];

fn completing(machine: &Machine, way: usize) -> Machine {
    let (_, _, returned, engines) = WAYS[way];
    machine.with("block.returned", returned).with("block.engines", engines)
}

fn interface(machine: &Machine, way: usize, size: u32, write: bool) -> Result<Done, RunError> {
    let (machine, threads) = fed(machine, size);
    let threads = if write { Threads::writing(threads) } else { Threads::reading(threads) };
    run(&completing(&machine, way), threads)
}

pub(super) fn places<T: ToString>(of: &[T]) -> Vec<String> {
    of.iter().map(T::to_string).collect()
}

/// A table of numbers: a line per row name, a column per place.
pub(super) fn table(
    what: &str,
    head: &str,
    at: Vec<String>,
    rows: &[(String, Vec<String>)],
) -> Exhibit {
    let lines = rows
        .iter()
        .map(|(name, cells)| std::iter::once(name.clone()).chain(cells.iter().cloned()).collect());
    Exhibit::Table(Table {
        what: what.into(),
        columns: std::iter::once(head.to_owned()).chain(at).collect(),
        lines: lines.collect(),
        notes: Vec::new(),
    })
}

pub(super) fn kiops(done: &Done) -> String {
    if done.kiops == 0.0 { "-".into() } else { format!("{:.1}", done.kiops) }
}

fn us(done: &Done) -> String {
    if done.kiops == 0.0 { "-".into() } else { format!("{:.1}", done.us) }
}

fn rising(values: &[Done]) -> bool {
    values.windows(2).all(|pair| pair[1].kiops > pair[0].kiops)
}

/// Reads in each mode, then writes, at each size.
fn curves(machine: &Machine) -> Result<Vec<Vec<Done>>, RunError> {
    let curve = |way: usize| -> Result<Vec<Done>, RunError> {
        SIZES.iter().map(|size| interface(machine, way % 3, *size, way >= 3)).collect()
    };
    (0..6).map(curve).collect()
}

/// Returns true if, from this size on, each mode is at least as good as the next, to a hundredth, and the
/// last clearly worse.
fn ordered(curves: &[Vec<Done>], from: usize) -> bool {
    curves.chunks(3).all(|ways| {
        (from..SIZES.len()).all(|n| {
            let [whole, two, one] = [ways[0][n].kiops, ways[1][n].kiops, ways[2][n].kiops];
            let apart = SIZES[n] < 4 || one < 0.95 * two;
            whole >= 0.99 * two && two >= 0.99 * one && apart
        })
    })
}

fn figure_5(machine: &Machine) -> Result<Vec<Exhibit>, RunError> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let all = curves(machine)?;
    for (way, curve) in all.iter().enumerate() {
        let (letter, name, ..) = WAYS[way % 3];
        let name = format!("{}, {name}", if way >= 3 { "write" } else { "read" });
        rows.push((name.clone(), curve.iter().map(kiops).collect()));
        if way < 3 {
            let values = curve.iter().map(|done| Some(done.kiops)).collect();
            series.push(Series { letter, name, values });
        }
    }
    let what =
        "Figure 5: the interface alone, constantly fed, 4 KiB, kIOPS by descriptors in a block";
    let plot = Plot {
        what: format!("{what}: reads"),
        across: "descriptors in a block".into(),
        places: places(&SIZES),
        series,
    };
    let reads = (0..3).all(|way| {
        all[way].iter().zip(&all[way + 3]).all(|(read, write)| read.kiops > write.kiops)
    });
    let whole_over_one = |machine: &Machine| {
        Ok(interface(machine, 0, 8, false)?.kiops / interface(machine, 2, 8, false)?.kiops)
    };
    let read_over_write = |machine: &Machine| {
        Ok(interface(machine, 0, 8, false)?.kiops / interface(machine, 0, 8, true)?.kiops)
    };
    let ours = whole_over_one(machine)?;
    // In blocks of two the last descriptor completes while the first one's interrupt is being served, and
    // needs none of its own: that is an effect of the host, not of the interface.
    let at_once = curves(&machine.with("host.interrupt", "\"0 ns\""))?;
    Ok(vec![
        table(what, "descriptors", places(&SIZES), &rows),
        Exhibit::Plot(plot),
        Exhibit::Claim(Claim {
            what: "Figure 5, completion policies (row A10)",
            shape: "complete block >= double DMA >= single DMA, to 1 %, from blocks of 4 on; at every size \
                    where taking an interrupt costs nothing"
                .into(),
            holds: ordered(&all, 2) && ordered(&at_once, 0),
            number: "complete block over single DMA, reads, 8",
            ours,
            assumed: machine.swings(whole_over_one)?,
        }),
        Exhibit::Claim(Claim {
            what: "Figure 5, reads and writes (row A10)",
            shape: "reads above writes, for every policy and size".into(),
            holds: reads,
            number: "reads over writes, complete block, 8",
            ours: read_over_write(machine)?,
            assumed: machine.swings(read_over_write)?,
        }),
        Exhibit::Claim(Claim {
            what: "Figure 5, size (row A10)",
            shape: "complete blocks give more the larger they are, reads and writes".into(),
            holds: rising(&all[0]) && rising(&all[3]),
            number: "32 over 1, reads, complete block",
            ours: all[0][5].kiops / all[0][0].kiops,
            assumed: Vec::new(),
        }),
        lowest_latency(machine)?,
    ])
}

/// One request at a time in a block of its own, compared with the same request in fuller blocks.
fn lowest_latency(machine: &Machine) -> Shown {
    let at = |machine: &Machine, way, size| -> Result<f64, RunError> {
        let (machine, _) = fed(machine, size);
        Ok(run(&completing(&machine, way), Threads::reading(size))?.us)
    };
    let one = at(machine, 1, 1)?;
    let mut lowest = f64::INFINITY;
    for (way, size) in [(0, 2), (0, 8), (0, 32), (1, 2), (1, 8), (1, 32), (2, 2), (2, 8), (2, 32)] {
        lowest = lowest.min(at(machine, way, size)?);
    }
    Ok(Exhibit::Claim(Claim {
        what: "Latency of blocks (section IV, row A10)",
        shape: "lowest for a block of one, returned at once".into(),
        holds: one < lowest,
        number: "us, a block of one",
        ours: one,
        assumed: machine.swings(|machine| at(machine, 1, 1))?,
    }))
}

fn figure_6(machine: &Machine) -> Result<Vec<Exhibit>, RunError> {
    let (mut exhibits, mut holds, mut flat) = (Vec::new(), true, 0.0_f64);
    for write in [false, true] {
        let (mut rows, mut latency, mut curves) = (Vec::new(), Vec::new(), Vec::new());
        for size in SIZES {
            let of = of_size(machine, size);
            let threads = |n| if write { Threads::writing(n) } else { Threads::reading(n) };
            let curve = THREADS.iter().map(|number| run(&of, threads(*number)));
            let curve = curve.collect::<Result<Vec<_>, _>>()?;
            rows.push((format!("blocks of {size}"), curve.iter().map(kiops).collect()));
            latency.push((format!("blocks of {size}"), curve.iter().map(us).collect()));
            curves.push(curve);
        }
        for (curve, size) in curves.iter().zip(SIZES) {
            for (done, threads) in curve.iter().zip(THREADS) {
                // Zero where no block is ever full.
                holds &= (done.kiops > 0.0) == (threads >= size);
            }
            let last = curve[THREADS.len() - 1].kiops;
            for (done, threads) in curve.iter().zip(THREADS).filter(|(_, n)| *n >= 2 * size) {
                let away = (done.kiops / last - 1.0).abs();
                if threads > 2 * size {
                    flat = flat.max(away);
                }
            }
        }
        let last = |curve: &[Done]| curve[THREADS.len() - 1];
        holds &= curves.windows(2).all(|pair| last(&pair[1]).kiops > last(&pair[0]).kiops);
        // With just enough threads to fill a block: larger blocks, longer waits.
        let alone = |n: usize| curves[n][n].us;
        holds &= (1..SIZES.len()).all(|n| alone(n) > alone(n - 1));
        let kind = if write { "writes" } else { "reads" };
        let what = format!("Figure 6: only full blocks, 4 KiB {kind}, kIOPS by threads");
        exhibits.push(table(&what, "threads", places(&THREADS), &rows));
        let what = format!("Figure 6, the same runs: mean latency of {kind}, us by threads");
        exhibits.push(table(&what, "threads", places(&THREADS), &latency));
        if !write {
            let series =
                curves.iter().zip(SIZES).zip("abcdef".chars()).map(|((curve, size), letter)| {
                    let drawn = |done: &Done| Some(done.kiops).filter(|kiops| *kiops > 0.0);
                    let values = curve.iter().map(drawn).collect();
                    Series { letter, name: format!("blocks of {size}"), values }
                });
            exhibits.push(Exhibit::Plot(Plot {
                what: "Figure 6: only full blocks, 4 KiB reads, kIOPS".into(),
                across: "threads".into(),
                places: places(&THREADS),
                series: series.collect(),
            }));
        }
    }
    let number = |machine: &Machine| {
        let at = |size| run(&of_size(machine, size), Threads::reading(64));
        Ok(at(32)?.kiops / at(8)?.kiops)
    };
    exhibits.push(Exhibit::Claim(Claim {
        what: "Figure 6, the static driver (row A11)",
        shape: format!(
            "nothing below threads = size; flat from there (past 2 x size within {:.1} %); larger blocks \
             higher, and with more latency",
            100.0 * flat
        ),
        holds: holds && flat < 0.02,
        number: "blocks of 32 over blocks of 8, 64 threads",
        ours: number(machine)?,
        assumed: machine.swings(number)?,
    }));
    Ok(exhibits)
}

fn figure_7(machine: &Machine) -> Result<Vec<Exhibit>, RunError> {
    let (mut rows, mut series, mut holds) = (Vec::new(), Vec::new(), true);
    let best = run(&of_size(machine, 32), Threads::reading(64))?;
    for write in [false, true] {
        let threads = |n| if write { Threads::writing(n) } else { Threads::reading(n) };
        let curve = THREADS.iter().map(|number| run(machine, threads(*number)));
        let curve = curve.collect::<Result<Vec<_>, _>>()?;
        let kind = if write { "write" } else { "read" };
        rows.push((format!("{kind}, kIOPS"), curve.iter().map(kiops).collect()));
        rows.push((format!("{kind}, us"), curve.iter().map(us).collect()));
        let (first, last) = (curve[0], curve[THREADS.len() - 1]);
        let saturated = curve[THREADS.len() - 2];
        if !write {
            // Latency of blocks of one at low load, and throughput of the largest blocks at high load.
            let alone = run(&of_size(machine, 1), Threads::reading(1))?;
            holds &= first.us <= 1.001 * alone.us && last.kiops >= 0.98 * best.kiops;
        }
        holds &= curve.windows(2).all(|pair| pair[1].us > pair[0].us);
        // Past saturation, twice the threads add less than a tenth of throughput, and nearly double the
        // latency.
        holds &= last.kiops < 1.1 * saturated.kiops && last.us > 1.7 * saturated.us;
        let letter = if write { 'w' } else { 'r' };
        let values = curve.iter().map(|done| Some(done.kiops)).collect();
        series.push(Series { letter, name: format!("{kind}, kIOPS"), values });
    }
    let number = |machine: &Machine| {
        let at = |n| run(machine, Threads::reading(n));
        Ok(at(64)?.us / at(1)?.us)
    };
    Ok(vec![
        table("Figure 7: the adaptive driver, 4 KiB, by threads", "threads", places(&THREADS), &rows),
        Exhibit::Plot(Plot {
            what: "Figure 7: the adaptive driver, 4 KiB".into(),
            across: "threads".into(),
            places: places(&THREADS),
            series,
        }),
        Exhibit::Claim(Claim {
            what: "Figure 7, the adaptive driver (row A12)",
            shape: "the latency of a block of one at low load; at least 98 % of full blocks' rate at high \
                    load; latency nearly doubles with the threads past saturation"
                .into(),
            holds,
            number: "latency at 64 threads over that at 1",
            ours: number(machine)?,
            assumed: machine.swings(number)?,
        }),
    ])
}

fn figure_8(machine: &Machine) -> Result<Vec<Exhibit>, RunError> {
    let (mut rows, mut holds, mut series) = (Vec::new(), true, Vec::new());
    for (write, letter) in [(false, 'r'), (true, 'w')] {
        let at = |bytes| run(machine, Threads { bytes, write, ..Threads::reading(1) });
        let curve = BYTES.iter().map(|bytes| at(*bytes)).collect::<Result<Vec<_>, _>>()?;
        let kind = if write { "write" } else { "read" };
        let rates: Vec<_> =
            curve.iter().zip(BYTES).map(|(done, bytes)| done.mib_s(bytes)).collect();
        rows.push((format!("{kind}, MiB/s"), rates.iter().map(|r| format!("{r:.0}")).collect()));
        rows.push((format!("{kind}, us"), curve.iter().map(us).collect()));
        // From 4 KiB on: smaller requests are padded.
        holds &= rates[1..].windows(2).all(|pair| pair[1] > pair[0]);
        holds &= curve[1..].windows(2).all(|pair| pair[1].us > pair[0].us);
        let values = rates.into_iter().map(Some).collect();
        series.push(Series { letter, name: format!("{kind}, MiB/s"), values });
    }
    let names = BYTES.iter().map(|b| match *b {
        b if b < 1024 => format!("{b}B"),
        b if b < 1 << 20 => format!("{}K", b >> 10),
        b => format!("{}M", b >> 20),
    });
    let names: Vec<String> = names.collect();
    let number = |machine: &Machine| {
        let at = |bytes: u32| -> Result<f64, RunError> {
            let done = run(machine, Threads { bytes, ..Threads::reading(1) })?;
            Ok(done.mib_s(bytes))
        };
        Ok(at(1 << 20)? / at(4096)?)
    };
    Ok(vec![
        table("Figure 8: one thread, by bytes of a request", "bytes", names.clone(), &rows),
        Exhibit::Plot(Plot {
            what: "Figure 8: one thread".into(),
            across: "a request".into(),
            places: names,
            series,
        }),
        Exhibit::Claim(Claim {
            what: "Figure 8, the size of requests (row A13)",
            shape: "from 4 KiB upward throughput and latency both rise".into(),
            holds,
            number: "1 MiB over 4 KiB, bytes a second, reads",
            ours: number(machine)?,
            assumed: machine.swings(number)?,
        }),
    ])
}
