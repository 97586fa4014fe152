//! Jung and Kandemir, "Challenges in Getting Flash Drives Closer to CPU" (HotStorage 2013): sections 4.1 to
//! 4.3. The paper measured two closed products: the exhibits check shapes, and print magnitudes next to the
//! paper's.

use super::flash_ssds::{Load, Measured, Ssd, run};
use super::{Claim, Exhibit, Row, Table, Validated};
use world::RunError;

/// Request sizes in bytes: from the default block to more than a flash page.
const SIZES: [u32; 4] = [512, 4096, 16_384, 65_536];
/// Workers, as in figures 7 and 8.
const WORKERS: [u32; 4] = [1, 2, 4, 8];
/// Largest size for which the paper gives the host core usage of small accesses.
const SMALL: u32 = 16_384;
/// Scale of capacity, buffers and tables between a real drive and the model.
pub(super) const SCALE: f64 = 1024.0;

/// Reason for which reads differ from the paper.
const SCATTERED: &str = "a map by 512 B scatters what is written together over pages, \
    each a command and a sense: by 4 KiB, below, small reads come out as the paper has them; long ones \
    do not";
/// Reason for which host core usage differs.
const SCSI: &str = "the bridge's requests go through SCSI, at 7.5 us of a core by what Huffman \
    (2013) counted; what the flash software takes of the host is assumed, and the paper does not take it \
    apart";
/// Reason for which the bridge's random writes differ.
const MERGED: &str = "sequential ones are merged into 4 KiB in the buffer, and each random \
    one costs a page: see the map by 512 B above";
/// Reason for which queue mode does not use more host cores.
const MODES: &str = "one worker has one core, and takes all of it in either mode: \
    what it writes is in the buffer before the next is asked for";

pub(super) fn exhibits() -> Result<Vec<Exhibit>, RunError> {
    let sweep = Sweep::of()?;
    let mut exhibits = vec![what_is_whose(), sweep.speed_table()];
    exhibits.extend(sweep.speed_rows());
    exhibits.push(by_other_maps()?);
    exhibits.extend(memory(&sweep)?);
    exhibits.extend(sweep.cores());
    exhibits.extend(legacy()?);
    exhibits.extend(workers()?);
    exhibits.push(random_and_sequential()?);
    Ok(exhibits)
}

pub(super) fn table(
    what: &str,
    columns: &[&str],
    lines: Vec<Vec<String>>,
    notes: &[&str],
) -> Exhibit {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    Exhibit::Table(Table { what: what.into(), columns: owned(columns), lines, notes: owned(notes) })
}

fn what_is_whose() -> Exhibit {
    let line = |what: &str, whose: &str| vec![what.to_owned(), whose.to_owned()];
    table(
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

/// A row of the paper that is checked by shape.
pub(super) fn row(
    what: &'static str,
    unit: &'static str,
    paper: f64,
    ours: f64,
    shape: (&'static str, bool),
) -> Exhibit {
    Exhibit::Row(Row {
        what,
        unit,
        paper,
        ours,
        validated: Validated::Shape(shape.1),
        shape: shape.0,
        parts: Vec::new(),
        assumed: Vec::new(),
    })
}

/// Results of one kind of access at one size, on both SSDs.
struct Pair {
    load: Load,
    bridge: Measured,
    closer: Measured,
}

impl Pair {
    fn of(load: Load) -> Result<Pair, RunError> {
        let on = |ssd: Ssd| run(ssd, &ssd.machine(), &load);
        Ok(Pair { bridge: on(Ssd::Bridge)?, closer: on(Ssd::Closer)?, load })
    }

    fn is_read(&self) -> bool {
        self.load.rw.ends_with("read")
    }
}

/// Every kind of access at every size, in queue mode with one worker.
struct Sweep {
    pairs: Vec<Pair>,
}

impl Sweep {
    fn of() -> Result<Sweep, RunError> {
        let mut pairs = Vec::new();
        for rw in ["read", "randread", "write", "randwrite"] {
            for bytes in SIZES {
                pairs.push(Pair::of(Load::queued(rw, bytes))?);
            }
        }
        Ok(Sweep { pairs })
    }

    fn speed_table(&self) -> Exhibit {
        let line = |pair: &Pair| {
            let mut line = vec![format!("{} {}", pair.load.rw, pair.load.bytes)];
            for measured in [&pair.bridge, &pair.closer] {
                line.push(format!("{:.0}", measured.us));
                line.push(format!("{:.0}", measured.iops));
            }
            line.push(format!("{:.2}", pair.closer.iops / pair.bridge.iops));
            line
        };
        table(
            "Figure 6: latency and IOPS, one worker, 128 entries",
            &["bytes", "bridge us", "IOPS", "closer us", "IOPS", "closer/bridge"],
            self.pairs.iter().map(line).collect(),
            &["the figure's points are not in the text: its means are, below"],
        )
    }

    /// Mean over sizes and patterns of the ratio of closer to bridge.
    fn mean(&self, reads: bool, of: impl Fn(&Measured) -> f64) -> f64 {
        let pairs = || self.pairs.iter().filter(|pair| pair.is_read() == reads);
        pairs().map(|pair| of(&pair.closer) / of(&pair.bridge)).sum::<f64>()
            / pairs().count() as f64
    }

    fn speed_rows(&self) -> Vec<Exhibit> {
        let shorter = |reads| 100.0 * (1.0 - self.mean(reads, |measured| measured.us));
        let more = |reads| 100.0 * (self.mean(reads, |measured| measured.iops) - 1.0);
        let validate = |ours: f64| ("the from-scratch SSD is the better", ours > 0.0);
        let one = |what, paper, ours| row(what, "%", paper, ours, validate(ours));
        let scattered = |row| Exhibit::Departure(Box::new(row), SCATTERED);
        vec![
            scattered(one("C5: latency of reads, from-scratch below bridge", 29.0, shorter(true))),
            one("C5: latency of writes, from-scratch below bridge", 39.0, shorter(false)),
            scattered(one("C5: throughput of reads, from-scratch above bridge", 21.0, more(true))),
            one("C5: throughput of writes, from-scratch above bridge", 81.0, more(false)),
        ]
    }

    /// Section 4.2.
    fn cores(&self) -> Vec<Exhibit> {
        let line = |pair: &Pair| {
            let mut line = vec![format!("{} {}", pair.load.rw, pair.load.bytes)];
            for measured in [&pair.bridge, &pair.closer] {
                line.push(format!("{:.1}", 100.0 * measured.cores));
                line.push(format!("{:.2}", measured.core_us));
            }
            line
        };
        let small = || self.pairs.iter().filter(|pair| pair.load.bytes < SMALL);
        let least = small()
            .map(|pair| pair.closer.core_us / pair.bridge.core_us)
            .fold(f64::INFINITY, f64::min);
        let long = self.pairs.iter().filter(|pair| pair.load.bytes > SMALL);
        let longest = long
            .map(|pair| pair.closer.core_us / pair.bridge.core_us)
            .fold(f64::INFINITY, f64::min);
        let mean =
            |of: &dyn Fn(&Pair) -> f64| small().map(of).sum::<f64>() / small().count() as f64;
        let times = mean(&|pair| pair.closer.cores / pair.bridge.cores);
        vec![
            table(
                "Figure 5: the host's four cores, one worker, 128 entries",
                &["bytes", "bridge %", "us each", "closer %", "us each"],
                self.pairs.iter().map(line).collect(),
                &["%: of the time of all four; us each: of a core, for each request"],
            ),
            Exhibit::Departure(
                Box::new(row(
                    "C7: host CPU, from-scratch over bridge below 16 KiB (section 4.2: about three times)",
                    "x",
                    3.0,
                    times,
                    ("the from-scratch SSD takes more of the host's cores", times > 1.0),
                )),
                SCSI,
            ),
            Exhibit::Claim(Claim {
                what: "C7: what a request takes of a core, below 16 KiB and above",
                shape: "by the from-scratch SSD more, the longer it is: each page is a command"
                    .into(),
                holds: longest > 2.0 * least,
                number: "from-scratch over bridge, 64 KiB",
                ours: longest,
                assumed: Vec::new(),
            }),
        ]
    }
}

/// Section 4.1: host memory of the flash software, and of queues and callers.
fn memory(sweep: &Sweep) -> Result<Vec<Exhibit>, RunError> {
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let most = |of: &dyn Fn(&Pair) -> f64| sweep.pairs.iter().map(of).fold(0.0, f64::max);
    let least =
        |of: &dyn Fn(&Pair) -> f64| sweep.pairs.iter().map(of).fold(f64::INFINITY, f64::min);
    let bridge = |pair: &Pair| pair.bridge.memory;
    let closer = |pair: &Pair| pair.closer.memory;
    // The size-dependent part is the excess of one over the other under the same load.
    let drive = |pair: &Pair| (pair.closer.memory - pair.bridge.memory).max(0.0);
    let mut lines = Vec::new();
    for (name, of) in [("bridge", &bridge as &dyn Fn(&Pair) -> f64), ("from-scratch", &closer)] {
        let mib = |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 20));
        lines.push(vec![name.to_owned(), mib(least(of)), mib(most(of))]);
    }
    let coarse = Ssd::Closer.machine().with("medium.flash.unit", "4 KiB");
    let load = Load::queued("randwrite", 4096);
    let with_coarse = run(Ssd::Closer, &coarse, &load)?.memory;
    let fine = run(Ssd::Closer, &Ssd::Closer.machine(), &load)?.memory;
    let scaled = gib(SCALE * most(&drive));
    Ok(vec![
        table(
            "Figure 3: host memory over all of these runs, MiB",
            &["", "least", "most"],
            lines,
            &[
                "of the bridge: queues and callers' buffers; of the other also map, tables, write buffer, \
                 pages that were read. The paper's 0.6 GB is all that Windows has in use",
            ],
        ),
        row(
            "C6: what the from-scratch SSD takes more, by 1024 (section 4.1: about 10 GB less 0.6 GB)",
            "GiB",
            9.4,
            scaled,
            ("more than the bridge's, by gigabytes", scaled > 1.0),
        ),
        Exhibit::Claim(Claim {
            what: "C6: fine-grained mapping is a large part of it",
            shape: format!(
                "by 512 B more than by 4 KiB: {:.2} GiB instead of {:.2}, by 1024",
                gib(SCALE * fine),
                gib(SCALE * with_coarse)
            ),
            holds: fine > with_coarse,
            number: "host memory by 512 B over by 4 KiB",
            ours: fine / with_coarse,
            assumed: Vec::new(),
        }),
    ])
}

/// Queue mode against legacy mode, for writes of 512 bytes: latency and cores.
fn legacy() -> Result<Vec<Exhibit>, RunError> {
    let mut lines = Vec::new();
    let mut exhibits = Vec::new();
    for (ssd, paper, what) in [
        (
            Ssd::Closer,
            106.0,
            "C9: write latency, queue over legacy mode, from-scratch (section 4.3)",
        ),
        (Ssd::Bridge, 99.0, "C9: write latency, queue over legacy mode, bridge (section 4.3)"),
    ] {
        let queued = run(ssd, &ssd.machine(), &Load::queued("randwrite", 512))?;
        let one = run(ssd, &ssd.legacy(), &Load::legacy("randwrite", 512))?;
        let ratio = queued.us / one.us;
        for (mode, measured) in [("queue", &queued), ("legacy", &one)] {
            lines.push(vec![
                format!("{}, {mode}", ssd.name()),
                format!("{:.1}", measured.us),
                format!("{:.0}", measured.iops),
                format!("{:.1}", 100.0 * measured.cores),
            ]);
        }
        let shape = "queue mode waits longer, at most by its 128 entries";
        exhibits.push(row(what, "x", paper, ratio, (shape, ratio > 1.0 && ratio <= 128.0 * 1.2)));
        if ssd == Ssd::Closer {
            let more = queued.cores / one.cores;
            let shape = ("queue mode takes more of the cores", more > 1.05);
            let what =
                "C7: host CPU, from-scratch, queue over legacy mode (section 4.2: 50 % more)";
            exhibits.push(Exhibit::Departure(Box::new(row(what, "x", 1.5, more, shape)), MODES));
        }
    }
    exhibits.insert(
        0,
        table(
            "Figure 9: random writes of 512 B by one worker, in queue and in legacy mode",
            &["", "us", "IOPS", "cores %"],
            lines,
            &["legacy: the next request when the one before is done, and one tag at each controller"],
        ),
    );
    Ok(exhibits)
}

/// Figures 7 and 8.
fn workers() -> Result<Vec<Exhibit>, RunError> {
    let mut exhibits = Vec::new();
    let mut all = Vec::new();
    for ssd in [Ssd::Closer, Ssd::Bridge] {
        let by = |workers| run(ssd, &ssd.machine(), &Load::queued("randwrite", 512).by(workers));
        let measured = WORKERS.iter().map(|workers| by(*workers)).collect::<Result<Vec<_>, _>>()?;
        let lines = WORKERS.iter().zip(&measured).map(|(workers, measured)| {
            vec![
                workers.to_string(),
                format!("{:.0}", measured.us),
                format!("{:.0}", measured.iops),
                format!("{:.1}", 100.0 * measured.cores),
                format!("{:.2}", measured.memory / f64::from(1 << 20)),
            ]
        });
        let figure = if ssd == Ssd::Closer { "Figure 7" } else { "Figure 8" };
        exhibits.push(table(
            &format!("{figure}: workers, random writes of 512 B, 128 entries each: {}", ssd.name()),
            &["workers", "us", "IOPS", "cores %", "memory MiB"],
            lines.collect(),
            &[],
        ));
        all.push(measured);
    }
    let [closer, bridge] = &all[..] else { unreachable!("both") };
    exhibits.extend(of_workers(closer, bridge));
    Ok(exhibits)
}

/// Row C8, and the parts of C6 and C7 about workers.
fn of_workers(closer: &[Measured], bridge: &[Measured]) -> Vec<Exhibit> {
    let more =
        |measured: &[Measured], from: usize| 100.0 * (measured[3].us / measured[from].us - 1.0);
    let grows =
        |measured: &[Measured], from| ("the more workers, the longer", more(measured, from) > 0.0);
    let gain = |measured: &[Measured]| measured[2].iops / measured[0].iops;
    vec![
        row(
            "C8: latency by 8 workers over 4, from-scratch",
            "%",
            118.0,
            more(closer, 2),
            grows(closer, 2),
        ),
        row(
            "C8: latency by 8 workers over 4, bridge",
            "%",
            108.0,
            more(bridge, 2),
            grows(bridge, 2),
        ),
        row(
            "C8: latency by 8 workers over 1, from-scratch",
            "%",
            289.0,
            more(closer, 0),
            grows(closer, 0),
        ),
        row(
            "C8: latency by 8 workers over 1, bridge",
            "%",
            704.0,
            more(bridge, 0),
            grows(bridge, 0),
        ),
        row(
            "C8: IOPS by 4 workers over 1, from-scratch",
            "x",
            2.2,
            gain(closer),
            ("workers bring it more IOPS", gain(closer) > 1.2),
        ),
        row(
            "C8: IOPS by 4 workers over 1, bridge",
            "x",
            1.0,
            gain(bridge),
            ("workers bring it none: within a fifth", (gain(bridge) - 1.0).abs() < 0.2),
        ),
        row(
            "C7: host CPU of the from-scratch SSD by 8 workers over 1 (section 1: 160 % more)",
            "x",
            2.6,
            closer[3].cores / closer[0].cores,
            ("more of the cores", closer[3].cores > closer[0].cores),
        ),
        row(
            "C6: host memory of the from-scratch SSD by 8 workers over 1 (section 1: 32 % more)",
            "x",
            1.32,
            closer[3].memory / closer[0].memory,
            ("more memory", closer[3].memory > closer[0].memory),
        ),
    ]
}

/// Section 4.3: the bridge's writes of 512 bytes.
fn random_and_sequential() -> Result<Exhibit, RunError> {
    let machine = Ssd::Bridge.machine();
    let by = |rw| run(Ssd::Bridge, &machine, &Load::queued(rw, 512).by(2));
    let ours = by("randwrite")?.iops / by("write")?.iops;
    let row = row(
        "C11: random writes of 512 B over sequential ones, bridge (section 4.3)",
        "x",
        7.2,
        ours,
        ("random ones are the faster", ours > 1.0),
    );
    Ok(Exhibit::Departure(Box::new(row), MERGED))
}

/// Each SSD with the other's map and no other change.
fn by_other_maps() -> Result<Exhibit, RunError> {
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
                let machine = ssd.machine().with("medium.flash.unit", unit);
                line.push(format!("{:.0}", run(ssd, &machine, &load)?.iops));
            }
        }
        lines.push(line);
    }
    Ok(table(
        "The map's unit, swapped alone: IOPS, 128 entries, reads by one worker and writes by two",
        &["bytes", "bridge 512 B", "4 KiB", "closer 512 B", "4 KiB"],
        lines,
        &["the bridge has 4 KiB and the from-scratch SSD 512 B everywhere else"],
    ))
}
