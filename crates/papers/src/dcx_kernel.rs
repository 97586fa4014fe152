//! Vučinić et al., "DC Express" (FAST 2014): the ways in of table 5, as work of the caller's core.

use super::ExhibitError;
use super::changes::{Change, of};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::dcx_ways::{CALL, DRIVER, LINUX, layers, looped, sum, through_linux};
use super::measure::{Machine, Reads};
use super::setup::Setup;
use report::model::paper::{Exhibit, Rule, Table};

const SWUNG: Swung = Swung { plans: &[LINUX], number: None };

fn without(machine: &Machine, costs: &[&str]) -> Machine {
    costs.iter().fold(machine.clone(), |machine, cost| machine.with(cost, "\"0 ns\""))
}

const ENTRY: &str = "host.path.costs.\"call entry\"";
const FILE: &str = "host.path.costs.\"file layer\"";
const EXIT: &str = "host.path.costs.\"call exit\"";
const FIO: &str = "host.costs.benchmark";

/// Reads of 4 KiB by each way in: user space, the block driver, read(), fio.
fn ways(setup: &Setup) -> Result<[Reads; 4], ExhibitError> {
    let fio = through_linux(setup);
    let read = without(&fio, &[FIO]);
    let driver = without(&read, &[ENTRY, FILE, EXIT]);
    Ok([
        looped(&setup.machine("dc-express"), 4096)?,
        looped(&driver, 4096)?,
        looped(&read, 4096)?,
        looped(&fio, 4096)?,
    ])
}

const fn linux(key: &'static str, value: &'static str) -> Change {
    of(LINUX, key, value)
}

const UNTAKEN: &str = "the paper gives a sum and does not take it apart; the work is counted here in cycles \
    that are assumed, a few hundred for each layer, and the remainder is unexplained";

pub(super) const BLOCK_DRIVER: Spec = Spec {
    subject: Subject {
        row: "B9",
        title: "block driver, 4 KiB: latency added",
        claim: "block driver 0.99 us over user space, one memory copy in it (table 5, section 4)",
        unit: "us",
    },
    mechanism: "block layer, driver and one copy are work of the core, for each piece of 4 KiB",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(0.99),
    see: |setup| {
        let [user, driver, ..] = ways(setup)?;
        let parts = DRIVER.map(|stage| (stage, driver.part(stage)));
        Ok(Seen::number(driver.total_us - user.total_us).parts(&parts))
    },
    swung: SWUNG,
    mutations: &[],
    expected: Expected::Departs(
        UNTAKEN,
        &[Mutation {
            change: "a block layer of 650 ns, which would be about what is left of 0.99 us",
            settings: &[linux("host.path.costs.\"block layer\"", "\"650 ns\"")],
        }],
    ),
};

pub(super) const READ_CALL: Spec = Spec {
    subject: Subject {
        row: "B9",
        title: "read() call, 4 KiB: latency added",
        claim: "read() call, kernel entry and exit, 1.17 us over the block driver (table 5)",
        unit: "us",
    },
    mechanism: "entry, file layer and exit are work of the core, for each call",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(1.17),
    see: |setup| {
        let [_, driver, read, _] = ways(setup)?;
        let parts = CALL.map(|stage| (stage, read.part(stage)));
        Ok(Seen::number(read.total_us - driver.total_us).parts(&parts))
    },
    swung: SWUNG,
    mutations: &[],
    expected: Expected::Departs(
        UNTAKEN,
        &[Mutation {
            change: "a file layer of 1.1 us, which would be about what is left of 1.17 us",
            settings: &[linux("host.path.costs.\"file layer\"", "\"1.1 us\"")],
        }],
    ),
};

pub(super) const FIO_ITSELF: Spec = Spec {
    subject: Subject {
        row: "B9",
        title: "fio, 4 KiB: latency added",
        claim: "fio adds 0.506 us of its own over read() (table 5)",
        unit: "us",
    },
    mechanism: "the load generator is work of the core, for each read",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(0.506),
    see: |setup| {
        let [_, _, read, fio] = ways(setup)?;
        Ok(Seen::number(fio.total_us - read.total_us))
    },
    swung: SWUNG,
    mutations: &[],
    expected: Expected::Departs(
        UNTAKEN,
        &[Mutation {
            change: "500 ns for an I/O of fio, which would be about the paper's",
            settings: &[linux(FIO, "\"500 ns\"")],
        }],
    ),
};

pub(super) const PIECES: Spec = Spec {
    subject: Subject {
        row: "B6",
        title: "commands of a read of 16 KiB",
        claim: "the read block size was limited to 4 kiB (section 4): a longer read is several, one after \
                the other",
        unit: "",
    },
    mechanism: "a call is split into pieces of 4 KiB, each with its own work, command and copy",
    rule: Rule::Shape,
    shape: "four, each submitted by the core, and at least four times the time but for the call itself",
    paper: None,
    see: |setup| {
        let linux = through_linux(setup);
        let (long, short) = (looped(&linux, 16 << 10)?, looped(&linux, 4 << 10)?);
        let pieces = |read: &Reads| read.total_us - sum(read, &CALL) - read.part("benchmark");
        let (commands, ratio) =
            (long.part("submit") / short.part("submit"), pieces(&long) / pieces(&short));
        let holds = (commands - 4.0).abs() < 0.01 && ratio >= 4.0;
        Ok(Seen::of(commands, holds).with(format!(
            "{:.3} us and {:.3} us: {ratio:.2} times as long; a device that anticipates a loop of reads does \
             not anticipate the pieces of one",
            pieces(&long),
            pieces(&short)
        )))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "pieces of up to 1 MiB",
        settings: &[linux("host.path.piece", "1 MiB")],
    }],
    expected: Expected::Holds,
};

pub(super) const SHARE_OF_COPY: Spec = Spec {
    subject: Subject {
        row: "B6",
        title: "copy: share of the block driver",
        claim: "one memory-to-memory copy accounts for a small fraction of the time inside the block driver \
                (section 4)",
        unit: "%",
    },
    mechanism: "a copy at the rate of the last cache, among the work of block layer and driver",
    rule: Rule::Shape,
    shape: "at most a third",
    paper: None,
    see: |setup| {
        let [_, driver, ..] = ways(setup)?;
        let share = 100.0 * driver.part("copy") / sum(&driver, &DRIVER);
        Ok(Seen::of(share, share <= 100.0 / 3.0))
    },
    swung: SWUNG,
    mutations: &[],
    expected: Expected::Departs(
        "the block layer and the driver take less here than the paper's 0.99 us leave for them",
        &[Mutation {
            change: "a block layer of 650 ns, which would be about what is left of 0.99 us",
            settings: &[linux("host.path.costs.\"block layer\"", "\"650 ns\"")],
        }],
    ),
};

pub(super) const WAYS: Spec = Spec {
    subject: Subject {
        row: "B6",
        title: "ways in: user space over fio",
        claim: "273 kIOPS from a user space process, 158 kIOPS by fio through the block driver (table 5): \
                1.73 times",
        unit: "x",
    },
    mechanism: "each layer is work of the one core that waits for the read",
    rule: Rule::Shape,
    shape: "each way in takes longer than the one before, and all of it is its layers' work, within 5 %",
    paper: Some(273.0 / 158.0),
    see: |setup| {
        let [user, driver, read, fio] = ways(setup)?;
        let rising = [&user, &driver, &read, &fio];
        let rising = rising.windows(2).all(|pair| pair[0].total_us < pair[1].total_us);
        let added = fio.total_us - user.total_us;
        let work = layers(&fio);
        let holds = rising && (added - work).abs() <= 0.05 * work;
        Ok(Seen::of(fio.total_us / user.total_us, holds).with(format!(
            "kIOPS: user space {:.0} (the paper 273), fio {:.0} (158); {added:.3} us added, of which \
             {work:.3} us are work of the layers",
            1e3 / user.total_us,
            1e3 / fio.total_us
        )))
    },
    swung: SWUNG,
    mutations: &[
        Mutation {
            change: "read() that costs nothing",
            settings: &[linux(ENTRY, "\"0 ns\""), linux(FILE, "\"0 ns\""), linux(EXIT, "\"0 ns\"")],
        },
        Mutation {
            change: "a driver that sleeps until an interrupt",
            settings: &[Change::Instead("host.completion", "polled", "interrupt")],
        },
    ],
    expected: Expected::Holds,
};

/// Table 5: the layers of a read of 4 KiB, and the ways in.
pub(super) fn table_5(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let [user, driver, read, fio] = ways(setup)?;
    let (transfer, media) = (user.part("data transfer"), user.part("media"));
    let us = |value: f64| format!("{value:.3}");
    let line = |what: &str, paper: f64, ours: f64| {
        vec![what.into(), us(paper), us(ours), us(paper - ours)]
    };
    let part =
        |what: &str, ours: f64| vec![format!("  {what}"), String::new(), us(ours), String::new()];
    let mut lines = vec![
        line("data transfer (4 KiB)", 2.432, transfer),
        line("PCM read", 0.368, media),
        line("protocol + command parsing", 0.863, user.total_us - transfer - media),
        line("= user space", 3.663, user.total_us),
        line("block driver", 0.99, driver.total_us - user.total_us),
    ];
    lines.extend(DRIVER.map(|stage| part(stage, driver.part(stage))));
    lines.push(line("= through the block driver", 4.653, driver.total_us));
    lines.push(line("read() call", 1.17, read.total_us - driver.total_us));
    lines.extend(CALL.map(|stage| part(stage, read.part(stage))));
    lines.push(line("= through read()", 5.823, read.total_us));
    lines.push(line("fio", 0.506, fio.total_us - read.total_us));
    lines.push(line("= fio on the block device", 6.329, fio.total_us));
    for (what, paper, ours) in
        [("kIOPS, user space", 273.0, user.total_us), ("kIOPS, fio", 158.0, fio.total_us)]
    {
        let ours = 1e3 / ours;
        let cells = [paper, ours, paper - ours].map(|value| format!("{value:.1}"));
        lines.push(std::iter::once(what.to_owned()).chain(cells).collect());
    }
    Ok(Table::exhibit(
        "Table 5: 4 KiB random reads at depth 1 by each way in, us",
        &["component", "paper", "ours", "unexplained"],
        lines,
        &[
            "each way is a run of its own; a component is the difference of two of them, and the lines below \
             it are its work",
            "PCM read is the paper's own number, put in: no check",
        ],
    ))
}
