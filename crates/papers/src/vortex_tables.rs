//! Figures and tables of the Vortex exhibits.

use host::nvme::Policy;

use super::ExhibitError;
use super::measure::Machine;
use super::setup::Setup;
use super::vortex::{
    CORES, DISKS_WINDOW, by_cores, disks, enqueued, hogged, knee, operations, pair, read,
    sequential, ssd, word,
};
use report::model::paper::{Axis, Exhibit, Figure, Series, Table};

pub(super) fn all(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    Ok(vec![
        sources(),
        beside_disks(setup)?,
        shares(&ssd(setup))?,
        figure_5(&ssd(setup))?,
        figure_7(&ssd(setup))?,
        writes(setup)?,
        one_thing_changed(setup)?,
    ])
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn series(letter: char, name: &str, by_cores: &[f64]) -> Series {
    let points = by_cores.iter().enumerate().map(|(n, value)| ((n + 1) as f64, *value));
    Series::ours(letter, name, points)
}

fn sources() -> Exhibit {
    let line = |what: &str, whose: &str| vec![what.to_owned(), whose.to_owned()];
    Table::exhibit(
        "What is the thesis's, and what is ours alone",
        &["", "whose"],
        vec![
            line(
                "eight cores, PCIe 2.0, buffers of 32 KB, the copy, four policies, 31 queues",
                "the thesis's",
            ),
            line(
                "at most 70,000 reads and 30,000 writes of 4 KiB a second",
                "the thesis's, put in",
            ),
            line(
                "three times, five times, 50,000, three cores, two cores",
                "the thesis's, in words",
            ),
            line("what its kernel's code costs; every MB/s below", "ours alone: it gives none"),
            line("the disks: one manual of their kind, as it names no model", "ours alone"),
        ],
        &[
            "no cost was chosen to meet a result; what departs from the thesis is said to, with what one \
           change would do",
        ],
    )
}

fn beside_disks(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for (what, cores, write) in [
        ("reads, 1 core", 1, false),
        ("reads, 8 cores", CORES, false),
        ("writes, 1 core", 1, true),
        ("writes, 8 cores", CORES, true),
    ] {
        let (ssd, disks) = pair(setup, cores, write)?;
        lines.push(vec![what.into(), whole(ssd), whole(disks), format!("{:.1}", ssd / disks)]);
    }
    Ok(Table::exhibit(
        "Figures 5.1 and 5.2: one queue of 128, requests of 4 MiB, MB/s",
        &["", "SSD", "disks", "times"],
        lines,
        &["writes count when they lie in the kernel's buffers, which are the queue's 128"],
    ))
}

fn shares(machine: &Machine) -> Result<Exhibit, ExhibitError> {
    let line = |policy: Policy| -> Result<Vec<String>, ExhibitError> {
        let stats = read(machine, policy, CORES)?;
        let rate =
            |core: &campaign::diskhog::CoreStats| core.bytes as f64 / stats.measured.as_us_f64();
        let cores = stats.cores.iter().map(|core| whole(rate(core)));
        Ok(std::iter::once(word(policy).to_owned()).chain(cores).collect())
    };
    Ok(Table::exhibit(
        "Figures 5.3 and 5.4: what each of eight cores gets, MB/s",
        &["policy", "0", "1", "2", "3", "4", "5", "6", "7"],
        Policy::ALL.into_iter().map(line).collect::<Result<_, _>>()?,
        &[],
    ))
}

fn figure_5(machine: &Machine) -> Result<Exhibit, ExhibitError> {
    let of = |letter, policy| -> Result<Series, ExhibitError> {
        Ok(series(letter, word(policy), &by_cores(machine, policy)?))
    };
    Ok(Figure::exhibit(
        "Figure 5.5",
        "Figure 5.5: reads of 4 MiB",
        (Axis::linear("cores", ""), Axis::linear("throughput", "MB/s")),
        vec![of('r', Policy::RoundRobin)?, of('p', Policy::PerCore)?, of('s', Policy::Single)?],
    ))
}

fn figure_7(machine: &Machine) -> Result<Exhibit, ExhibitError> {
    Ok(Figure::exhibit(
        "Figure 5.7",
        "Figure 5.7: random reads of 4 KiB, 1000 before a wait",
        (Axis::linear("cores", ""), Axis::linear("throughput", "kIOPS")),
        vec![
            series('r', word(Policy::RoundRobin), &operations(machine)?),
            Series::paper('T', "the most with two cores, in words", vec![(2.0, 50.0)]),
        ],
    ))
}

fn writes(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let samples = enqueued(setup)?;
    Ok(Table::exhibit(
        "Figure 5.7: writes of 4 KiB by two cores, from empty queues on: kIOPS each 20 ms",
        &["20", "40", "60", "80", "100", "120", "140", "160", "180", "200 ms"],
        vec![samples.iter().map(|value| whole(*value)).collect()],
        &["30 is the drive's own most (5.5.2); the rest lies in buffers, 4,095 for each core"],
    ))
}

/// One changed parameter set: its name, and the overrides.
type Change = (&'static str, &'static [(&'static str, &'static str)]);

/// Changes applied one at a time to the sequential figures.
const CHANGES: [Change; 8] = [
    ("PCIe 1.x, as Intel's 5000 chipset has (the thesis: 2.0)", &[("link.generation", "gen1")]),
    ("the copy at 1 GB/s", &[("host.kernel.copy", "\"4 us\"")]),
    ("the copy at 0.5 GB/s", &[("host.kernel.copy", "\"8 us\"")]),
    ("no copy", &[("host.kernel.copy", "\"0 ns\"")]),
    ("a piece costs four times", &[("host.costs.\"block driver\"", "\"15.6 us\"")]),
    ("an interrupt costs four times", &[("host.interrupt", "\"6 us\"")]),
    (
        "pieces of 128 KiB (512 in a queue)",
        &[
            ("host.kernel.buffer", "128 KiB"),
            ("device.mdts", "128 KiB"),
            ("host.queue_depth", "512"),
        ],
    ),
    ("twice the drive's banks", &[("medium.timing.banks", "14")]),
];

fn one_thing_changed(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let disks = [1, CORES].map(|cores| {
        hogged(&disks(setup), Policy::Single, &sequential(cores, false, DISKS_WINDOW))
    });
    let [one, eight] = disks;
    let (one, eight) = (one?.megabytes_s(), eight?.megabytes_s());
    let line = |what: &str, machine: &Machine| -> Result<Vec<String>, ExhibitError> {
        let curve = by_cores(machine, Policy::RoundRobin)?;
        let single = |cores| -> Result<f64, ExhibitError> {
            Ok(read(machine, Policy::Single, cores)?.megabytes_s())
        };
        let mut line = vec![what.to_owned()];
        line.extend([curve[0], curve[2], curve[CORES as usize - 1]].map(whole));
        line.push(knee(&curve).to_string());
        line.extend([single(1)? / one, single(CORES)? / eight].map(|times| format!("{times:.1}")));
        Ok(line)
    };
    let mut lines = vec![line("as planned", &ssd(setup))?];
    for (what, sets) in CHANGES {
        let changed =
            sets.iter().fold(ssd(setup), |machine, (key, value)| machine.with(key, value));
        lines.push(line(what, &changed)?);
    }
    Ok(Table::exhibit(
        "One thing changed at a time: reads of 4 MiB, round robin, MB/s; and the SSD by the disks, one queue",
        &["", "1 core", "3 cores", "8 cores", "most at", "times, 1 core", "times, 8"],
        lines,
        &[
            "the thesis: most at 3 cores, 3 times, 5 times; more than a SATA link takes (6.1), bursts up to \
             about 720 MB/s, 11 % less than Linux (5.5.1)",
            "no line is taken into the plan",
        ],
    ))
}
