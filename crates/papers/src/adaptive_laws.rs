//! Laws of the descriptor-block paper: where curves have their knee, what sets the time of a command, what
//! lies between reads and writes, and what more than the maximum of requests does.

use runtime::Span;

use super::ExhibitError;
use super::adaptive::{FIXED_BLOCKS, PLANS, SIZES, WAYS, completing, fed, machine};
use super::changes::{always, instead, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::Machine;
use super::setup::Setup;
use super::sweep::{of_size, places, table};
use super::threads::{Done, Threads, run};
use report::model::paper::{Exhibit, Quotation, Rule};

/// A short window: the loops repeat themselves after a few blocks.
const BRIEF: Span = Span::ms(3);

/// The static driver at every number of threads to 2.5 times the size of its blocks.
fn fine(machine: &Machine, size: u32) -> Result<Vec<Done>, ExhibitError> {
    let of = of_size(machine, size);
    let at = |threads| run(&of, Threads { window: BRIEF, ..Threads::reading(threads) });
    (1..=(5 * size).div_ceil(2)).map(at).collect()
}

/// The least number of threads from which on throughput stays within 2 % of the last.
fn knee(curve: &[Done]) -> u32 {
    let last = curve.last().map_or(0.0, |done| done.kiops);
    let below = curve.iter().rposition(|done| done.kiops < 0.98 * last);
    below.map_or(1, |at| at as u32 + 2)
}

fn knees(setup: &Setup) -> Result<Vec<u32>, ExhibitError> {
    let of = |size: &u32| Ok(knee(&fine(&machine(setup), *size)?));
    SIZES.iter().map(of).collect()
}

fn by_size(knees: &[u32]) -> String {
    let of = |(size, knee): (&u32, &u32)| format!("{knee} at {size}");
    SIZES.iter().zip(knees).map(of).collect::<Vec<_>>().join(", ")
}

pub(super) const FILLED: Spec = Spec {
    subject: Subject {
        row: "A11",
        title: "threads at the knee, blocks of 32",
        claim: "the maximum needs a full block pending at each interrupt: more threads than the block's size \
                (section IV, figure 6)",
        unit: "",
    },
    mechanism: "while a block is with the device, the next one is filled by other threads",
    rule: Rule::Shape,
    shape: "nothing below the size; the knee above the size and at most at twice it, for sizes of 1 to 32",
    paper: None,
    see: |setup| {
        let (mut holds, mut knees) = (true, Vec::new());
        for size in SIZES {
            let curve = fine(&machine(setup), size)?;
            let none = curve.iter().take(size as usize - 1).all(|done| done.kiops == 0.0);
            let at = knee(&curve);
            holds &= none && at > size && at <= 2 * size;
            knees.push(at);
        }
        Ok(Seen::of(f64::from(knees[SIZES.len() - 1]), holds)
            .with(format!("knees by size: {}", by_size(&knees))))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "blocks that are not full go after 1 us",
        settings: &[instead("block.linger", "\"1 s\"", "\"1 us\"")],
    }],
    expected: Expected::Holds,
};

/// From command to command within a block, us: the difference of blocks of 32 and of 16.
fn command_us(machine: &Machine, write: bool) -> Result<f64, ExhibitError> {
    let period = |size: u32| -> Result<f64, ExhibitError> {
        let (machine, threads) = fed(machine, size);
        let threads = if write { Threads::writing(threads) } else { Threads::reading(threads) };
        Ok(1e3 * f64::from(size) / run(&machine, threads)?.kiops)
    };
    Ok((period(32)? - period(16)?) / 16.0)
}

/// Processing times of a command that are tried, ns.
const PROCESSING: [u32; 5] = [500, 1500, 2500, 4000, 6000];

fn processing(machine: &Machine, ns: u32) -> Machine {
    // Nothing else of the processor is for each command but this.
    let parse = machine.with("device.costs.parse", &format!("\"{ns} ns\""));
    parse.with("device.costs.\"post completion\"", "\"0 ns\"")
}

pub(super) const SLOWER: Spec = Spec {
    subject: Subject {
        row: "A7",
        title: "command to command, 4 us of processing",
        claim: "the time between commands is the DMA's or the processing's, whichever is more (section IV)",
        unit: "us",
    },
    mechanism: "the processor starts the next command while a DMA engine is at work",
    rule: Rule::Shape,
    shape: "the greater of both, to 4 %, for 0.5 to 6 us of processing, reads and writes",
    paper: None,
    see: |setup| {
        let machine = machine(setup);
        let (mut holds, mut seen, mut details) = (true, 0.0, Vec::new());
        for (write, kind) in [(false, "reads"), (true, "writes")] {
            let dma = command_us(&processing(&machine, 0), write)?;
            let mut text = format!("{kind}, DMA {dma:.2} us:");
            for ns in PROCESSING {
                let us = f64::from(ns) / 1e3;
                let found = command_us(&processing(&machine, ns), write)?;
                holds &= (found / dma.max(us) - 1.0).abs() <= 0.04;
                text += &format!(" {us} us -> {found:.2};");
                if ns == 4000 && !write {
                    seen = found;
                }
            }
            details.push(text);
        }
        Ok(details.into_iter().fold(Seen::of(seen, holds), Seen::with))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "blocks of one, in which no command overlaps another's DMA",
        settings: &[always("block.static_size", "1")],
    }],
    expected: Expected::Holds,
};

fn mixed(machine: &Machine, writes: u8) -> Result<Done, ExhibitError> {
    let (machine, threads) = fed(machine, 32);
    run(&machine, Threads { writes, ..Threads::reading(threads) })
}

pub(super) const MIXED: Spec = Spec {
    subject: Subject {
        row: "A10",
        title: "half writes: between writes and reads",
        claim: "mixed workloads perform between all reads and all writes (section IV)",
        unit: "kIOPS",
    },
    mechanism: "each descriptor has its own DMA, of the length of its kind",
    rule: Rule::Shape,
    shape: "25, 50 and 75 % of writes lie between, each at least 2 % below the one before",
    paper: None,
    see: |setup| {
        let machine = machine(setup);
        let mut rates = Vec::new();
        for writes in [0, 25, 50, 75, 100] {
            rates.push(mixed(&machine, writes)?.kiops);
        }
        let holds = rates.windows(2).all(|pair| pair[1] < 0.98 * pair[0]);
        let all: Vec<_> = rates.iter().map(|rate| format!("{rate:.1}")).collect();
        Ok(Seen::of(rates[2], holds).with(format!("0, 25, 50, 75, 100 %: {}", all.join(", "))))
    },
    swung: Swung { plans: PLANS, number: Some(|setup| Ok(mixed(&machine(setup), 50)?.kiops)) },
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

/// Packets for a read beyond those of its 4 KiB of data, in the ways of figure 5.
fn packets(machine: &Machine, size: u32) -> Result<[f64; 3], ExhibitError> {
    let mut all = [0.0; 3];
    for (way, count) in all.iter_mut().enumerate() {
        let (fed, threads) = fed(machine, size);
        let done = run(&completing(&fed, way), Threads::reading(threads))?;
        *count = done.tlps.0 + done.tlps.1 - 4096.0 / 128.0;
    }
    Ok(all)
}

pub(super) const TRANSACTIONS: Spec = Spec {
    subject: Subject {
        row: "A10",
        title: "packets of a read beyond data, size 8",
        claim: "as the number of PCIe transactions for the same descriptors rises, the rate falls (section \
                 IV)",
        unit: "",
    },
    mechanism: "a block is announced, fetched, returned and signalled once; by itself each descriptor is \
             returned \
                and signalled",
    rule: Rule::Shape,
    shape: "fewer packets a read the larger the block; from blocks of 2 on fewer in complete blocks than \
             one by one",
    paper: None,
    see: |setup| {
        let machine = machine(setup);
        let mut all = Vec::new();
        for size in SIZES {
            all.push(packets(&machine, size)?);
        }
        let falls = all.windows(2).all(|pair| pair[1][0] < pair[0][0]);
        let fewer = all[1..].iter().all(|[whole, two, one]| whole < two && whole < one);
        let [whole, two, one] = all[3];
        Ok(Seen::of(whole, falls && fewer).with(format!(
            "complete block {whole:.2}, each over a second engine {two:.2}, each over one engine {one:.2}: \
                     as many \
             packets, and another rate: what the rate falls by is the engine's time, not the link's"
        )))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[
        Mutation {
            change: "whole blocks returned in every mode",
            settings: &[always("block.returned", "whole")],
        },
        Mutation {
            change: "blocks of one, whatever the number of requests",
            settings: &[always("block.static_size", "1")],
        },
    ],
    expected: Expected::Holds,
};

/// Threads of an open loop: more than the ring has places.
const TAKERS: u32 = 512;

/// An open loop of reads at this percentage of `capacity` (kIOPS).
fn open(machine: &Machine, capacity: f64, percent: u32, ms: u64) -> Result<Done, ExhibitError> {
    let every = Span((1e9 / (capacity * f64::from(percent) / 100.0)) as u64);
    let window = Span::ms(ms);
    run(machine, Threads { every: Some(every), window, ..Threads::reading(TAKERS) })
}

/// The rate of full blocks, kIOPS: of the plan as it is, so that a changed driver is measured against the
/// same.
fn capacity(setup: &Setup) -> Result<f64, ExhibitError> {
    let full = of_size(&setup.unchanged().machine("descriptor-blocks"), 32);
    Ok(run(&full, Threads::reading(96))?.kiops)
}

const LOADS: [u32; 6] = [20, 50, 80, 95, 105, 120];

pub(super) const SATURATED: Spec = Spec {
    subject: Subject {
        row: "A12",
        title: "open loop: latency at 120 % over 20 %",
        claim: "as the offered load exceeds the capability, latency rises exponentially (section IV.A)",
        unit: "x",
    },
    mechanism: "blocks grow with what is pending, up to the largest; beyond it requests queue without bound",
    rule: Rule::Shape,
    shape: "nine tenths and more of what is offered are served up to 95 % of the rate of full blocks, with \
             at most \
            20 times the latency of 20 %; at 120 % the rate of full blocks, to 5 %, and 1.7 times the \
            latency \
            in twice the time",
    paper: None,
    see: |setup| {
        let (machine, most) = (machine(setup), capacity(setup)?);
        let mut all = Vec::new();
        for percent in LOADS {
            all.push(open(&machine, most, percent, 10)?);
        }
        let served = |n: usize| all[n].kiops / most * 100.0 / f64::from(LOADS[n]);
        let longer = open(&machine, most, 120, 20)?;
        let rises = all.windows(2).all(|pair| pair[1].us > pair[0].us);
        let below = (0..4).all(|n| served(n) > 0.9) && all[3].us < 20.0 * all[0].us;
        let above = all[5].kiops > 0.95 * most && longer.us > 1.7 * all[5].us;
        let text =
            LOADS.iter().zip(&all).map(|(percent, done)| format!("{percent} % {:.1}", done.us));
        let text: Vec<_> = text.collect();
        Ok(Seen::of(all[5].us / all[0].us, rises && below && above).with(format!(
            "us by load: {}; at 120 % for 20 ms {:.1}",
            text.join(", "),
            longer.us
        )))
    },
    swung: Swung { plans: &[], number: None },
    mutations: FIXED_BLOCKS,
    expected: Expected::Holds,
};

/// The knees, the packets, and what is left of the axis of figure 5.
pub(super) fn exhibits(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let machine = machine(setup);
    let knees = knees(setup)?;
    let rows = [("threads".to_owned(), knees.iter().map(u32::to_string).collect())];
    let mut of_packets: Vec<(String, Vec<String>)> =
        WAYS.iter().map(|(_, name, ..)| ((*name).to_owned(), Vec::new())).collect();
    for size in SIZES {
        for ((_, cells), count) in of_packets.iter_mut().zip(packets(&machine, size)?) {
            cells.push(format!("{count:.2}"));
        }
    }
    let (best, threads) = fed(&machine, 32);
    let most = run(&best, Threads::reading(threads))?.kiops;
    Ok(vec![
        table("Figure 6: threads at the knee, by block size", "block", places(&SIZES), &rows),
        table(
            "PCIe packets of a read of 4 KiB beyond the 32 of its data, by descriptors in a block",
            "descriptors",
            places(&SIZES),
            &of_packets,
        ),
        Exhibit::Quotation(Quotation {
            subject: Subject {
                row: "A10",
                title: "figure 5: the highest tick that survives",
                claim: "the axis of figure 5 has ticks of 0, 20, 40 and 60 in the text, and more above that \
                         are not \
                        legible; its unit is not legible either, elsewhere it is kIOPS",
                unit: "kIOPS",
            }
            .into(),
            paper: Some(60.0),
            ours: Some(most),
            why: "no curve's value is in the text. If the axis is of kIOPS and ends near its highest \
                     legible tick, the \
                  prototype gives about a fifth of ours: an embedded processor that takes about 15 us for a \
                  descriptor, where the plan assumes 1.3 us, would be enough"
                .into(),
        }),
    ])
}

/// The checks of this file with their mutations and swaps: those of the whole paper take minutes in a debug
/// build.
#[cfg(test)]
mod tests {
    use super::super::adaptive::POLICIES_OF_TWO;
    use super::*;
    use report::model::paper::Verdict;

    fn is_earned(spec: &Spec) {
        let setup = Setup::new();
        let check = spec.run(&setup, false).expect("runs");
        assert!(check.is_as_expected(), "{check}");
        for (changes, verdict) in
            [(spec.mutations(), Verdict::Departs), (spec.swaps(), Verdict::Holds)]
        {
            for change in changes {
                let changed = spec.changed(&setup, change).expect("a valid change");
                assert_eq!(changed.verdict, verdict, "{}: {}", spec.name(), change.change);
            }
        }
    }

    #[test]
    fn knees_fail_with_their_mutations() {
        is_earned(&FILLED);
    }

    #[test]
    fn time_between_commands_fails_with_its_mutation() {
        is_earned(&SLOWER);
    }

    #[test]
    fn mixed_loads_and_packets_fail_with_their_mutations() {
        is_earned(&MIXED);
        is_earned(&TRANSACTIONS);
        is_earned(&POLICIES_OF_TWO);
    }

    #[test]
    fn open_loop_fails_with_its_mutations() {
        is_earned(&SATURATED);
    }
}
