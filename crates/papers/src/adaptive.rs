//! Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device Driver
//! for PCIe-based SSDs" (RSP 2014): figures 5 to 8. The paper draws its curves without values: the checks are
//! of shapes, and all magnitudes are from this model.

use std::ops::Range;

use super::ExhibitError;
use super::changes::{Change, always, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::Machine;
use super::setup::Setup;
use super::sweep::{of_size, without_software};
use super::threads::{Done, Threads, run};
use report::model::paper::Rule;

/// Descriptors per block, as in figures 5 and 6.
pub(super) const SIZES: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Thread counts, as in figures 6 and 7.
pub(super) const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Bytes per request, as in figure 8, plus 512.
pub(super) const BYTES: [u32; 10] =
    [512, 4096, 8192, 16384, 32768, 65536, 1 << 17, 1 << 18, 1 << 19, 1 << 20];

pub(super) const PLANS: &[&str] = &["descriptor-blocks"];

pub(super) fn machine(setup: &Setup) -> Machine {
    setup.machine("descriptor-blocks")
}

/// A driver that always has full blocks: no software above it, and requests for three blocks. Returns the
/// machine and the number of threads.
pub(super) fn fed(machine: &Machine, size: u32) -> (Machine, u32) {
    (of_size(&without_software(machine), size), 3 * size)
}

/// The three modes of figure 5.
pub(super) const WAYS: [(char, &str, &str, &str); 3] = [
    ('W', "complete block", "whole", "1"),
    ('2', "each descriptor, double DMA", "each", "2"),
    ('1', "each descriptor, single DMA", "each", "1"),
];

pub(super) fn completing(machine: &Machine, way: usize) -> Machine {
    let (_, _, returned, engines) = WAYS[way];
    machine.with("block.returned", returned).with("block.engines", engines)
}

fn interface(machine: &Machine, way: usize, size: u32, write: bool) -> Result<Done, ExhibitError> {
    let (machine, threads) = fed(machine, size);
    let threads = if write { Threads::writing(threads) } else { Threads::reading(threads) };
    run(&completing(&machine, way), threads)
}

fn rising(values: &[Done]) -> bool {
    values.windows(2).all(|pair| pair[1].kiops > pair[0].kiops)
}

/// Reads in each mode, then writes, at each size.
pub(super) fn curves(machine: &Machine) -> Result<Vec<Vec<Done>>, ExhibitError> {
    let curve = |way: usize| -> Result<Vec<Done>, ExhibitError> {
        SIZES.iter().map(|size| interface(machine, way % 3, *size, way >= 3)).collect()
    };
    (0..6).map(curve).collect()
}

/// Returns true if, at these of [`SIZES`], each mode is at least as good as the next, to a hundredth, and the
/// last clearly worse.
fn ordered(curves: &[Vec<Done>], sizes: Range<usize>) -> bool {
    curves.chunks(3).all(|ways| {
        sizes.clone().all(|n| {
            let [whole, two, one] = [ways[0][n].kiops, ways[1][n].kiops, ways[2][n].kiops];
            let apart = SIZES[n] < 4 || one < 0.95 * two;
            whole >= 0.99 * two && two >= 0.99 * one && apart
        })
    })
}

fn whole_over_one(setup: &Setup) -> Result<f64, ExhibitError> {
    let machine = machine(setup);
    Ok(interface(&machine, 0, 8, false)?.kiops / interface(&machine, 2, 8, false)?.kiops)
}

pub(super) const POLICIES: Spec = Spec {
    subject: Subject {
        row: "A10",
        title: "complete blocks over single DMA, reads",
        claim: "completion policies: complete block, double DMA, single DMA (figure 5)",
        unit: "x",
    },
    mechanism: "descriptors that complete one by one take the one DMA engine from data",
    rule: Rule::Shape,
    shape: "complete block >= double DMA >= single DMA, to 1 %, from blocks of 4 on",
    paper: None,
    see: |setup| {
        let holds = ordered(&curves(&machine(setup))?, 2..SIZES.len());
        Ok(Seen::of(whole_over_one(setup)?, holds))
    },
    swung: Swung { plans: PLANS, number: Some(whole_over_one) },
    mutations: &[
        Mutation {
            change: "two DMA engines in every mode",
            settings: &[always("block.engines", "2")],
        },
        Mutation {
            change: "whole blocks returned in every mode",
            settings: &[always("block.returned", "whole")],
        },
    ],
    expected: Expected::Holds,
};

fn two_whole_over_one(setup: &Setup) -> Result<f64, ExhibitError> {
    let machine = machine(setup);
    Ok(interface(&machine, 0, 2, false)?.kiops / interface(&machine, 2, 2, false)?.kiops)
}

pub(super) const POLICIES_OF_TWO: Spec = Spec {
    subject: Subject {
        title: "complete blocks over single DMA, size 2",
        claim: "completion policies at blocks of two: complete block, double DMA, single DMA (figure 5)",
        ..POLICIES.subject
    },
    shape: "complete block >= double DMA >= single DMA, to 1 %, in blocks of 2",
    see: |setup| {
        let holds = ordered(&curves(&machine(setup))?, 1..2);
        Ok(Seen::of(two_whole_over_one(setup)?, holds))
    },
    swung: Swung { plans: PLANS, number: Some(two_whole_over_one) },
    mutations: &[],
    expected: Expected::Departs(
        "the interrupt of the first descriptor is being taken when the second one is back over the single \
         engine, and serves for both; a complete block waits for its own interrupt. An effect of the host, \
         whose \
         costs the paper does not give",
        &[Mutation {
            change: "interrupts that cost nothing",
            settings: &[set("host.interrupt", "\"0 ns\"")],
        }],
    ),
    ..POLICIES
};

fn read_over_write(setup: &Setup) -> Result<f64, ExhibitError> {
    let machine = machine(setup);
    Ok(interface(&machine, 0, 8, false)?.kiops / interface(&machine, 0, 8, true)?.kiops)
}

pub(super) const READS_OVER_WRITES: Spec = Spec {
    subject: Subject {
        row: "A10",
        title: "reads over writes, blocks of 8",
        claim: "reads are faster than writes, whose DMA is a read of host memory (figure 5, section IV)",
        unit: "x",
    },
    mechanism: "a device's write to the host is posted; its read waits for a round trip, and for \
        completions of 64 \
                bytes",
    rule: Rule::Shape,
    shape: "reads above writes by at least 1 %, for every policy and size",
    paper: None,
    see: |setup| {
        let all = curves(&machine(setup))?;
        let above = (0..3).all(|way| {
            all[way].iter().zip(&all[way + 3]).all(|(read, write)| read.kiops > 1.01 * write.kiops)
        });
        Ok(Seen::of(read_over_write(setup)?, above))
    },
    swung: Swung { plans: PLANS, number: Some(read_over_write) },
    mutations: &[Mutation {
        change: "a round trip that takes no time, and completions as long as packets",
        settings: &[
            set("link.latency", "\"0 ns\""),
            set("link.host_read", "\"0 ns\""),
            set("link.completion_bytes", "128 B"),
        ],
    }],
    expected: Expected::Holds,
};

fn rise(setup: &Setup) -> Result<f64, ExhibitError> {
    let machine = machine(setup);
    Ok(interface(&machine, 0, 32, false)?.kiops / interface(&machine, 0, 1, false)?.kiops)
}

pub(super) const RISING: Spec = Spec {
    subject: Subject {
        row: "A10",
        title: "blocks of 32 over blocks of 1, reads",
        claim: "throughput rises with the number of descriptors in a block (figure 5)",
        unit: "x",
    },
    mechanism: "a block's announcement, its way to the device and back, and its interrupt are paid once",
    rule: Rule::Shape,
    shape: "complete blocks give more the larger they are, reads and writes",
    paper: None,
    see: |setup| {
        let all = curves(&machine(setup))?;
        Ok(Seen::of(rise(setup)?, rising(&all[0]) && rising(&all[3])))
    },
    swung: Swung { plans: PLANS, number: Some(rise) },
    mutations: &[Mutation {
        change: "blocks of one, whatever the number of requests",
        settings: &[always("block.static_size", "1")],
    }],
    expected: Expected::Holds,
};

fn of_block(setup: &Setup, way: usize, size: u32) -> Result<f64, ExhibitError> {
    let (machine, _) = fed(&machine(setup), size);
    let done = run(&completing(&machine, way), Threads::reading(size))?;
    // A block that is never full returns nothing.
    Ok(if done.kiops > 0.0 { done.us } else { f64::INFINITY })
}

pub(super) const LOWEST: Spec = Spec {
    subject: Subject {
        row: "A10",
        title: "latency of a block of one",
        claim: "the latency of a block of one, returned at once, is the lowest (section IV)",
        unit: "us",
    },
    mechanism: "a descriptor waits for none behind it in its block",
    rule: Rule::Shape,
    shape: "lower than in blocks of 2, 8 and 32, for every policy",
    paper: None,
    see: |setup| {
        let one = of_block(setup, 1, 1)?;
        let mut lowest = f64::INFINITY;
        for (way, size) in
            [(0, 2), (0, 8), (0, 32), (1, 2), (1, 8), (1, 32), (2, 2), (2, 8), (2, 32)]
        {
            lowest = lowest.min(of_block(setup, way, size)?);
        }
        Ok(Seen::of(one, one < lowest).with(format!("the lowest of the others: {lowest:.3} us")))
    },
    swung: Swung { plans: PLANS, number: Some(|setup| of_block(setup, 1, 1)) },
    mutations: &[Mutation {
        change: "a block of one lingers for a second descriptor",
        settings: &[super::changes::instead("block.static_size", "1", "2")],
    }],
    expected: Expected::Holds,
};

/// Mutation: the static driver announces blocks that are not full.
const NOT_FULL: &str = "blocks that are not full";

/// Runs of the static driver by block size and number of threads.
pub(super) fn fixed(machine: &Machine, write: bool) -> Result<Vec<Vec<Done>>, ExhibitError> {
    let threads = |n| if write { Threads::writing(n) } else { Threads::reading(n) };
    SIZES
        .iter()
        .map(|size| {
            let of = match machine.is_switched(NOT_FULL) {
                true => machine.with("block.largest", &size.to_string()),
                false => of_size(machine, *size),
            };
            THREADS.iter().map(|number| run(&of, threads(*number))).collect()
        })
        .collect()
}

fn large_over_small(setup: &Setup) -> Result<f64, ExhibitError> {
    let at = |size| run(&of_size(&machine(setup), size), Threads::reading(64));
    Ok(at(32)?.kiops / at(8)?.kiops)
}

/// Whether the curves of figure 6 have their shape, and how far they are from flat.
fn is_static(curves: &[Vec<Done>]) -> (bool, f64) {
    let (mut holds, mut flat) = (true, 0.0_f64);
    for (curve, size) in curves.iter().zip(SIZES) {
        let last = curve[THREADS.len() - 1].kiops;
        for (done, threads) in curve.iter().zip(THREADS) {
            // Zero where no block is ever full.
            holds &= (done.kiops > 0.0) == (threads >= size);
            if threads > 2 * size {
                flat = flat.max((done.kiops / last - 1.0).abs());
            }
        }
    }
    let last = |curve: &[Done]| curve[THREADS.len() - 1].kiops;
    holds &= curves.windows(2).all(|pair| last(&pair[1]) > last(&pair[0]));
    // With just enough threads to fill a block: larger blocks, longer waits.
    let alone = |n: usize| curves[n][n].us;
    holds &= (1..SIZES.len()).all(|n| alone(n) > alone(n - 1));
    (holds && flat < 0.02, flat)
}

pub(super) const STATIC: Spec = Spec {
    subject: Subject {
        row: "A11",
        title: "static driver: blocks of 32 over 8",
        claim: "the static driver, throughput against threads by block size (figure 6)",
        unit: "x",
    },
    mechanism: "only full blocks are announced",
    rule: Rule::Shape,
    shape: "nothing below threads = size; flat, to 2 %, past twice the size; larger blocks higher, and with \
            more latency",
    paper: None,
    see: |setup| {
        let machine = machine(setup);
        let (reads, one) = is_static(&fixed(&machine, false)?);
        let (writes, other) = is_static(&fixed(&machine, true)?);
        let flat = 100.0 * one.max(other);
        Ok(Seen::of(large_over_small(setup)?, reads && writes)
            .with(format!("flat within {flat:.1} %")))
    },
    swung: Swung { plans: PLANS, number: Some(large_over_small) },
    mutations: &[Mutation {
        change: "a block that is not full goes when the device is idle",
        settings: &[Change::Switch(NOT_FULL)],
    }],
    expected: Expected::Holds,
};

/// Runs of the adaptive driver by number of threads.
pub(super) fn adaptive(machine: &Machine, write: bool) -> Result<Vec<Done>, ExhibitError> {
    let threads = |n| if write { Threads::writing(n) } else { Threads::reading(n) };
    THREADS.iter().map(|number| run(machine, threads(*number))).collect()
}

fn by_load(setup: &Setup) -> Result<f64, ExhibitError> {
    let at = |n| run(&machine(setup), Threads::reading(n));
    Ok(at(64)?.us / at(1)?.us)
}

pub(super) const ADAPTIVE: Spec = Spec {
    subject: Subject {
        row: "A12",
        title: "adaptive: latency, 64 threads over 1",
        claim: "the adaptive driver: latency of small blocks at low load, throughput of the largest at high \
                load (figure 7)",
        unit: "x",
    },
    mechanism: "the block's size is chosen at each interrupt from what is pending",
    rule: Rule::Shape,
    shape: "one thread has the latency of a block of one; 64 have at least 98 % of full blocks' rate; past \
            saturation latency nearly doubles with the threads",
    paper: None,
    see: |setup| {
        let machine = machine(setup);
        let best = run(&of_size(&machine, 32), Threads::reading(64))?;
        let alone = run(&of_size(&machine, 1), Threads::reading(1))?;
        let mut holds = true;
        for write in [false, true] {
            let curve = adaptive(&machine, write)?;
            let (first, last) = (curve[0], curve[THREADS.len() - 1]);
            let saturated = curve[THREADS.len() - 2];
            holds &= write || first.kiops > 0.0 && first.us <= 1.001 * alone.us;
            holds &= write || last.kiops >= 0.98 * best.kiops;
            holds &= curve.windows(2).all(|pair| pair[1].us > pair[0].us);
            // Past saturation, twice the threads add less than a tenth of throughput.
            holds &= last.kiops < 1.1 * saturated.kiops && last.us > 1.7 * saturated.us;
        }
        Ok(Seen::of(by_load(setup)?, holds))
    },
    swung: Swung { plans: PLANS, number: Some(by_load) },
    mutations: FIXED_BLOCKS,
    expected: Expected::Holds,
};

/// Runs of one thread by bytes of a request.
pub(super) fn by_bytes(machine: &Machine, write: bool) -> Result<Vec<Done>, ExhibitError> {
    let threads = if write { Threads::writing(1) } else { Threads::reading(1) };
    let at = |bytes: &u32| run(machine, Threads { bytes: *bytes, ..threads });
    BYTES.iter().map(at).collect()
}

fn bytes_over(setup: &Setup) -> Result<f64, ExhibitError> {
    let at = |bytes: u32| -> Result<f64, ExhibitError> {
        Ok(run(&machine(setup), Threads { bytes, ..Threads::reading(1) })?.mib_s(bytes))
    };
    Ok(at(1 << 20)? / at(4096)?)
}

pub(super) const REQUESTS: Spec = Spec {
    subject: Subject {
        row: "A13",
        title: "one thread: bytes a second, 1 MiB over 4K",
        claim: "one thread, request size from 4 KiB upward (figure 8)",
        unit: "x",
    },
    mechanism: "a larger request is split into descriptors of one block",
    rule: Rule::Shape,
    shape: "throughput and latency both rise with each size, and 1 MiB has at least three times the \
        throughput \
            of 4 KiB",
    paper: None,
    see: |setup| {
        let mut holds = true;
        for write in [false, true] {
            let curve = by_bytes(&machine(setup), write)?;
            let rates: Vec<_> =
                curve.iter().zip(BYTES).map(|(done, bytes)| done.mib_s(bytes)).collect();
            // From 4 KiB on: smaller requests are padded.
            holds &= rates[1..].windows(2).all(|pair| pair[1] > pair[0]);
            holds &= curve[1..].windows(2).all(|pair| pair[1].us > pair[0].us);
        }
        let ratio = bytes_over(setup)?;
        Ok(Seen::of(ratio, holds && ratio >= 3.0))
    },
    swung: Swung { plans: PLANS, number: Some(bytes_over) },
    mutations: &[Mutation {
        change: "a block for each descriptor",
        settings: &[
            set("block.sizing", "static"),
            set("block.static_size", "1"),
            set("block.linger", "\"0 ns\""),
        ],
    }],
    expected: Expected::Holds,
};

/// Blocks whose size does not follow the load.
pub(super) const FIXED_BLOCKS: &[Mutation] = &[
    Mutation {
        change: "blocks of one at every load",
        settings: &[
            set("block.sizing", "static"),
            set("block.static_size", "1"),
            set("block.linger", "\"0 ns\""),
        ],
    },
    Mutation {
        change: "only full blocks of 32",
        settings: &[
            set("block.sizing", "static"),
            set("block.static_size", "32"),
            set("block.linger", "\"1 s\""),
        ],
    },
];
