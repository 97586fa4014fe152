//! Tables of the flash exhibits that take seconds.

use super::ExhibitError;
use super::flash_figures::{by_size, queueing};
use super::flash_pairs::{Pair, sweep};
use super::flash_ssds::{HAND_OVER, Load, Measured, SCALE, Ssd, run};
use super::flash_workers::{WORKERS, by_workers, modes};
use super::setup::Setup;
use report::model::paper::{Axis, Exhibit, Figure, Series, Table};

const NO_COPY: &str = "{ value = \"0 ns\", source = \"assumed: zero copy\" }";

pub(super) fn all(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let pairs = sweep(setup)?;
    let mut exhibits = vec![
        sources(),
        speed(&pairs),
        by_other_maps(setup)?,
        memory(setup, &pairs)?,
        memory_parts(setup)?,
        cores(&pairs),
        legacy(setup)?,
        own_cores(setup)?,
        completions(setup)?,
        copies(setup)?,
    ];
    exhibits.extend(by_size(&pairs));
    exhibits.extend(workers(setup)?);
    exhibits.extend(queueing(setup)?);
    Ok(exhibits)
}

fn sources() -> Exhibit {
    let line = |what: &str, whose: &str| vec![what.to_owned(), whose.to_owned()];
    Table::exhibit(
        "What is the paper's, and what is ours alone",
        &["", "whose"],
        vec![
            line(
                "both architectures; host, PCIe 2.0, 512 B, 128 entries, 1 to 8 workers",
                "the paper's",
            ),
            line("a buffer of 2 GB and non-volatile memory behind the bridge", "the paper's"),
            line(
                "chips, dies, controllers, over-provisioning, every cost but the host's cores",
                "assumed",
            ),
            line("order, sign and knee of each figure's text", "the paper's, checked"),
        ],
        &[
            "all by 1024: 256 MiB of chips, and as many capacities written in a 1024th of the time",
            "plans flash-bridge (by nvme) and flash-closer (by host-flash); each run on a new drive, as \
             after a secure erase; for reads a quarter of it is written before, in order",
        ],
    )
}

fn speed(pairs: &[Pair]) -> Exhibit {
    let line = |pair: &Pair| {
        let mut line = vec![format!("{} {}", pair.load.rw, pair.load.bytes)];
        for measured in [&pair.bridge, &pair.closer] {
            line.push(format!("{:.0}", measured.us));
            line.push(format!("{:.0}", measured.iops));
        }
        line.push(format!("{:.2}", pair.closer.iops / pair.bridge.iops));
        line
    };
    Table::exhibit(
        "Figure 6: latency and IOPS, one worker, 128 entries",
        &["bytes", "bridge us", "IOPS", "closer us", "IOPS", "closer/bridge"],
        pairs.iter().map(line).collect(),
        &["the figure's points are not in the text: its means are, in the checks"],
    )
}

fn cores(pairs: &[Pair]) -> Exhibit {
    let line = |pair: &Pair| {
        let mut line = vec![format!("{} {}", pair.load.rw, pair.load.bytes)];
        for measured in [&pair.bridge, &pair.closer] {
            line.push(format!("{:.1}", 100.0 * measured.cores));
            line.push(format!("{:.2}", measured.core_us));
        }
        line
    };
    Table::exhibit(
        "Figure 5: the host's four cores, one worker, 128 entries",
        &["bytes", "bridge %", "us each", "closer %", "us each"],
        pairs.iter().map(line).collect(),
        &["%: of the time of all four; us each: of a core, for each request"],
    )
}

/// Host memory by access size, kind of access and number of workers.
fn memory(setup: &Setup, pairs: &[Pair]) -> Result<Exhibit, ExhibitError> {
    let mib =
        |measured: &Measured| format!("{:.0}", measured.memory_in_full() / f64::from(1 << 20));
    let mut lines = Vec::new();
    for pair in pairs {
        // Memory depends on what is under way, not on how long: enough that all entries are in use.
        let amount = 8 * 2 * u64::from(pair.load.depth * pair.load.bytes);
        let eight = Pair::of(setup, Load { amount, ..pair.load }.by(8))?;
        let mut line = vec![format!("{} {}", pair.load.rw, pair.load.bytes)];
        line.extend([&pair.bridge, &eight.bridge, &pair.closer, &eight.closer].map(mib));
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Figure 3: host memory in full size, MiB, by 1 and by 8 workers",
        &["bytes", "bridge, 1", "8", "closer, 1", "8"],
        lines,
        &[
            "of the bridge: queues and callers' buffers. The paper's 0.6 GB is all that Windows has in use",
        ],
    ))
}

/// Section 4.1: parts of the host memory of the from-scratch SSD.
fn memory_parts(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let measured = run(&Ssd::Closer.machine(setup), &Load::queued("randwrite", 4096))?;
    let parts = measured.parts;
    let callers = measured.memory - parts.bytes() as f64;
    let line = |what: &str, law: &str, bytes: f64, scale: f64| {
        let mib = |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 20));
        vec![what.to_owned(), law.to_owned(), mib(bytes), mib(scale * bytes)]
    };
    Ok(Table::exhibit(
        "Host memory of the from-scratch SSD by part, random writes of 4 KiB by one worker: MiB",
        &["", "grows with", "the model's", "in full size"],
        vec![
            line("map", "capacity: 4 B for each 512", parts.map as f64, SCALE),
            line("tables", "capacity", parts.tables as f64, SCALE),
            line("write buffer and its tables", "its size, 2 GB", parts.write_buffer as f64, SCALE),
            line("pages that are read", "dies and link", parts.read_pages as f64, 1.0),
            line("commands", "endpoints, depth", parts.commands as f64, 1.0),
            line("callers' buffers", "workers, depth, size", callers, 1.0),
        ],
        &[
            "the model has a 1024th of the capacity and of the buffer, and all dies, links and queues",
        ],
    ))
}

/// The flash software on cores of its own, of the host's four, instead of its callers'.
fn own_cores(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for cores in ["0", "1", "2"] {
        let machine = match cores {
            "0" => Ssd::Closer.machine(setup),
            cores => Ssd::Closer
                .machine(setup)
                .with("pages.cores", cores)
                .with("pages.costs.hand over", HAND_OVER),
        };
        for (rw, bytes) in [("randwrite", 512), ("randread", 512), ("randread", 4096)] {
            let queued = run(&machine, &Load::queued(rw, bytes))?;
            let load = Load { amount: 1024 * u64::from(bytes), ..Load::legacy(rw, bytes) };
            let one = run(&machine, &load)?;
            lines.push(vec![
                format!("{rw} {bytes}, {cores}"),
                format!("{:.1}", queued.us),
                format!("{:.1}", 100.0 * queued.cores),
                format!("{:.1}", one.us),
                format!("{:.1}", 100.0 * one.cores),
                format!("{:.1}", queued.us / one.us),
                format!("{:.2}", queued.cores / one.cores),
            ]);
        }
    }
    Ok(Table::exhibit(
        "Flash software on cores of its own: from-scratch, one worker, queue and legacy mode",
        &[
            "bytes, cores",
            "queue us",
            "cores %",
            "legacy us",
            "cores %",
            "us, ratio",
            "cores, ratio",
        ],
        lines,
        &[
            "0: on its callers' core. A request that is handed over costs its caller 100 ns twice (assumed)",
        ],
    ))
}

/// Future work of the paper: interrupts against polling.
fn completions(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for ssd in [Ssd::Bridge, Ssd::Closer] {
        for (rw, bytes, is_queued) in
            [("randread", 512, false), ("randread", 4096, false), ("randread", 4096, true)]
        {
            let (machine, load, mode) = match is_queued {
                true => (ssd.machine(setup), Load::queued(rw, bytes), "queue"),
                false => {
                    let amount = 1024 * u64::from(bytes);
                    (ssd.legacy(setup), Load { amount, ..Load::legacy(rw, bytes) }, "legacy")
                }
            };
            let mut line = vec![format!("{}, {bytes}, {mode}", ssd.name())];
            for completion in ["interrupt", "polled"] {
                let machine = machine.clone().with("host.completion", completion);
                let measured = run(&machine, &load)?;
                line.push(format!("{:.1}", measured.us));
                line.push(format!("{:.2}", measured.core_us));
            }
            lines.push(line);
        }
    }
    Ok(Table::exhibit(
        "Interrupts against polling: random reads by one worker",
        &["bytes, mode", "interrupt us", "of a core", "polled us", "of a core"],
        lines,
        &[
            "of a core: us of work for each request; the rest of a core that polls is lost beside it",
        ],
    ))
}

/// Future work of the paper: what zero copy would save, at most.
fn copies(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for (rw, bytes) in
        [("randread", 512), ("randread", 65_536), ("randwrite", 512), ("write", 65_536)]
    {
        let mut line = vec![format!("{rw} {bytes}")];
        let with = Ssd::Closer.machine(setup);
        let without = with.clone().with("pages.costs.copy", NO_COPY);
        for machine in [with, without] {
            let measured = run(&machine, &Load::queued(rw, bytes))?;
            line.push(format!("{:.1}", measured.us));
            line.push(format!("{:.0}", measured.iops));
            line.push(format!("{:.2}", measured.core_us));
        }
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Copies against none: from-scratch, one worker, 128 entries",
        &["bytes", "copied us", "IOPS", "of a core", "without us", "IOPS", "of a core"],
        lines,
        &["the most that zero copy can save: buffers, link and flash are the same"],
    ))
}

fn legacy(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for ssd in [Ssd::Closer, Ssd::Bridge] {
        let (queued, one) = modes(setup, ssd)?;
        for (mode, measured) in [("queue", &queued), ("legacy", &one)] {
            lines.push(vec![
                format!("{}, {mode}", ssd.name()),
                format!("{:.1}", measured.us),
                format!("{:.0}", measured.iops),
                format!("{:.1}", 100.0 * measured.cores),
            ]);
        }
    }
    Ok(Table::exhibit(
        "Figure 9: random writes of 512 B by one worker, in queue and in legacy mode",
        &["", "us", "IOPS", "cores %"],
        lines,
        &["legacy: the next request when the one before is done, and one tag at each controller"],
    ))
}

/// Figures 7 and 8.
fn workers(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let mut exhibits = Vec::new();
    let mut series = Vec::new();
    for (ssd, letter, figure) in [(Ssd::Closer, 'F', "Figure 7"), (Ssd::Bridge, 'B', "Figure 8")] {
        let measured = by_workers(setup, ssd)?;
        let lines = WORKERS.iter().zip(&measured).map(|(workers, measured)| {
            vec![
                workers.to_string(),
                format!("{:.0}", measured.us),
                format!("{:.0}", measured.iops),
                format!("{:.1}", 100.0 * measured.cores),
                format!("{:.0}", measured.memory_in_full() / f64::from(1 << 20)),
            ]
        });
        exhibits.push(Table::exhibit(
            &format!("{figure}: workers, random writes of 512 B, 128 entries each: {}", ssd.name()),
            &["workers", "us", "IOPS", "cores %", "memory MiB"],
            lines.collect(),
            &["memory: in full size"],
        ));
        let points = WORKERS.iter().zip(&measured).map(|(w, m)| (f64::from(*w), m.iops / 1e3));
        series.push(Series::ours(letter, ssd.name(), points));
    }
    exhibits.push(Figure::exhibit(
        "Figures 7, 8",
        "Figures 7 and 8: random writes of 512 B by workers",
        (Axis::logarithmic("workers", ""), Axis::linear("throughput", "kIOPS")),
        series,
    ));
    Ok(exhibits)
}

/// Each SSD with the other's map and no other change.
fn by_other_maps(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for (rw, bytes, workers) in [
        ("randread", 512, 1),
        ("randread", 4096, 1),
        ("randread", 16_384, 1),
        ("write", 512, 2),
        ("randwrite", 512, 2),
    ] {
        let load = Load::queued(rw, bytes).by(workers);
        let mut line = vec![format!("{rw} {bytes}")];
        for ssd in [Ssd::Bridge, Ssd::Closer] {
            for unit in ["512 B", "4 KiB"] {
                let machine = ssd.machine(setup).with("medium.flash.unit", unit);
                line.push(format!("{:.0}", run(&machine, &load)?.iops));
            }
        }
        lines.push(line);
    }
    Ok(Table::exhibit(
        "The map's unit, swapped alone: IOPS, 128 entries, reads by one worker and writes by two",
        &["bytes", "bridge 512 B", "4 KiB", "closer 512 B", "4 KiB"],
        lines,
        &["the bridge has 4 KiB and the from-scratch SSD 512 B everywhere else"],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `DOORBELL_HEAVY=1`, as these runs are long without optimisation.
    fn is_short() -> bool {
        std::env::var_os("DOORBELL_HEAVY").is_none()
    }

    /// Numbers of a table's lines, without their headings.
    fn numbers(exhibit: Exhibit) -> Vec<Vec<f64>> {
        let Exhibit::Table(table) = exhibit else { panic!("a table") };
        let line =
            |line: &Vec<String>| line[1..].iter().map(|n| n.parse().expect("a number")).collect();
        table.lines.iter().map(line).collect()
    }

    #[test]
    fn polled_reads_are_shorter_than_interrupted_ones() {
        if is_short() {
            return;
        }
        for line in numbers(completions(&Setup::new()).expect("runs")) {
            let [interrupt, its_core, polled, core] = line[..] else { panic!("{line:?}") };
            assert!(polled < interrupt && core < its_core, "{line:?}");
        }
    }

    #[test]
    fn copies_cost_more_of_a_core_the_longer_requests_are() {
        if is_short() {
            return;
        }
        let saved = |line: &Vec<f64>| line[2] - line[5];
        let lines = numbers(copies(&Setup::new()).expect("runs"));
        assert!(lines.iter().all(|line| saved(line) > 0.0), "{lines:?}");
        assert!(saved(&lines[1]) > 64.0 * saved(&lines[0]), "{lines:?}");
    }
}
