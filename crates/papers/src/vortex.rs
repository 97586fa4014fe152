//! Elsebø, "Improving Disk Performance in Vortex With NVMe" (2015): statements of its text about figures 5.1
//! to 5.7.
//!
//! Values of the bars and curves are not in the text: the paper's numbers here are those stated in words.

use host::nvme::Policy;
use runtime::Span;

use super::measure::Machine;
use super::plot::{Plot, Series};
use super::{Claim, Exhibit, Row, Table, Validated};
use campaign::diskhog::{Hog, HogStats, simulated};
use plan::POLICIES;
use world::RunError;

/// Cores of the blade server.
const CORES: u32 = 8;
/// Measurement time for the SSD; the disks are about ten times slower and take longer.
const WINDOW: Span = Span::ms(100);
const DISKS_WINDOW: Span = Span::s(2);
/// Measurement time for exhibits that vary many costs.
const SHORT: Span = Span::ms(20);

/// The thesis's numbers of commands outstanding (4.5, 5.4), for eight cores and 31 queues of 4096 entries.
const COUNTS: [(Policy, &str, u64); 4] = [
    (Policy::RoundRobin, "round robin: commands outstanding (4.5.1)", 126_945),
    (Policy::PerCore, "per core: commands outstanding (4.5.2)", 32_760),
    (Policy::Pool, "per core pool: commands outstanding (4.5.3)", 98_280),
    (Policy::Single, "one queue like the RAID controller's: commands outstanding (5.4)", 128),
];

pub(super) fn exhibits() -> Result<Vec<Exhibit>, RunError> {
    let mut exhibits = vec![what_is_whose()];
    exhibits.extend(counts()?);
    exhibits.extend(beside_disks()?);
    let curves = Curves::measure(&ssd())?;
    exhibits.extend(curves.shares());
    exhibits.extend(curves.policies());
    exhibits.extend(curves.saturation());
    exhibits.extend(operations()?);
    exhibits.extend(written()?);
    exhibits.push(one_thing_changed()?);
    exhibits.push(chipset()?);
    Ok(exhibits)
}

fn ssd() -> Machine {
    Machine::of("vortex")
}

fn disks() -> Machine {
    Machine::of("vortex-disks")
}

fn word(policy: Policy) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).expect("all have words").0
}

fn hogged(machine: &Machine, policy: Policy, hog: &Hog) -> Result<HogStats, RunError> {
    simulated(&machine.with("host.sharing.policy", word(policy)).open()?, hog)
}

/// Sequential requests of 4 MiB, one at a time per core.
fn sequential(cores: u32, write: bool, time: Span) -> Hog {
    Hog { write, time, interval: time, ..Hog::sequential(cores) }
}

fn read(machine: &Machine, policy: Policy, cores: u32) -> Result<HogStats, RunError> {
    hogged(machine, policy, &sequential(cores, false, WINDOW))
}

/// Throughput of random 4 KiB reads, in kIOPS.
fn kiops(machine: &Machine, policy: Policy, cores: u32, time: Span) -> Result<f64, RunError> {
    let hog = Hog { time, interval: time, ..Hog::operations(cores) };
    Ok(hogged(machine, policy, &hog)?.kiops())
}

/// The lowest number of cores whose result is within a twentieth of the highest.
fn knee(by_cores: &[f64]) -> usize {
    let highest = by_cores.iter().copied().fold(0.0, f64::max);
    1 + by_cores.iter().position(|value| *value >= 0.95 * highest).expect("the highest")
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn table(what: &str, columns: &[&str], lines: Vec<Vec<String>>, notes: &[&str]) -> Exhibit {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    Exhibit::Table(Table { what: what.into(), columns: owned(columns), lines, notes: owned(notes) })
}

fn what_is_whose() -> Exhibit {
    let line = |what: &str, whose: &str| vec![what.to_owned(), whose.to_owned()];
    table(
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

/// D6: commands outstanding by policy.
fn counts() -> Result<Vec<Exhibit>, RunError> {
    let plan = ssd().open()?;
    let row = |(policy, what, paper): (Policy, &'static str, u64)| {
        let shape = policy.shape(
            plan.host.cores as u16,
            plan.host.queues as u16,
            plan.host.queue_depth as u16,
        );
        Exhibit::Row(Row {
            what,
            unit: "",
            paper: paper as f64,
            ours: shape.outstanding() as f64,
            validated: Validated::Within(0),
            shape: "",
            parts: Vec::new(),
            assumed: Vec::new(),
        })
    };
    Ok(COUNTS.map(row).into())
}

/// Throughput of the SSD and of the disks, each with one queue of 128, for this number of cores.
fn pair(cores: u32, write: bool) -> Result<(HogStats, HogStats), RunError> {
    let ssd = hogged(&ssd(), Policy::Single, &sequential(cores, write, WINDOW))?;
    let disks = hogged(&disks(), Policy::Single, &sequential(cores, write, DISKS_WINDOW))?;
    Ok((ssd, disks))
}

/// D9: figures 5.1 and 5.2.
fn beside_disks() -> Result<Vec<Exhibit>, RunError> {
    let mut lines = Vec::new();
    let mut ratios = Vec::new();
    for (what, cores, write) in [
        ("reads, 1 core", 1, false),
        ("reads, 8 cores", CORES, false),
        ("writes, 1 core", 1, true),
        ("writes, 8 cores", CORES, true),
    ] {
        let (ssd, disks) = pair(cores, write)?;
        let (ssd, disks) = (ssd.megabytes_s(), disks.megabytes_s());
        lines.push(vec![what.into(), whole(ssd), whole(disks), format!("{:.1}", ssd / disks)]);
        ratios.push(ssd / disks);
    }
    let row = |what, paper, ours, holds, shape| {
        let validated = Validated::Shape(holds);
        let (parts, assumed) = (Vec::new(), Vec::new());
        Exhibit::Row(Row { what, unit: "times", paper, ours, validated, shape, parts, assumed })
    };
    Ok(vec![
        table(
            "Figures 5.1 and 5.2: one queue of 128, requests of 4 MiB, MB/s",
            &["", "SSD", "disks", "times"],
            lines,
            &["writes count when they lie in the kernel's buffers, which are the queue's 128"],
        ),
        row(
            "Figure 5.1: the SSD gives almost three times what the disks do, one core reading (5.4)",
            3.0,
            ratios[0],
            ratios[0] > 1.0,
            "the SSD above the disks",
        ),
        row(
            "Figure 5.2: almost five times, eight cores reading (5.4)",
            5.0,
            ratios[1],
            ratios[1] > ratios[0],
            "the SSD further above the disks than with one core",
        ),
    ])
}

/// Results of 4 MiB reads by policy and number of cores.
struct Curves {
    /// By policy in the order of [`Policy::ALL`], then by number of cores from one.
    stats: Vec<Vec<HogStats>>,
}

impl Curves {
    fn measure(machine: &Machine) -> Result<Curves, RunError> {
        let of = |policy| (1..=CORES).map(|cores| read(machine, policy, cores)).collect();
        Ok(Curves { stats: Policy::ALL.into_iter().map(of).collect::<Result<_, RunError>>()? })
    }

    fn of(&self, policy: Policy) -> &[HogStats] {
        let place = Policy::ALL.iter().position(|known| *known == policy);
        &self.stats[place.expect("one of all")]
    }

    fn megabytes(&self, policy: Policy) -> Vec<f64> {
        self.of(policy).iter().map(HogStats::megabytes_s).collect()
    }

    fn with_all(&self, policy: Policy) -> &HogStats {
        &self.of(policy)[CORES as usize - 1]
    }

    /// Figures 5.3 and 5.4.
    fn shares(&self) -> Vec<Exhibit> {
        let line = |policy: Policy| {
            let stats = self.with_all(policy);
            let rate = |core: &campaign::diskhog::CoreStats| {
                core.bytes as f64 / stats.measured.as_us_f64()
            };
            let cores = stats.cores.iter().map(|core| whole(rate(core)));
            std::iter::once(word(policy).to_owned()).chain(cores).collect()
        };
        let single = self.with_all(Policy::Single).shares().1;
        let (least, most) = self.with_all(Policy::RoundRobin).shares();
        vec![
            table(
                "Figures 5.3 and 5.4: what each of eight cores gets, MB/s",
                &["policy", "0", "1", "2", "3", "4", "5", "6", "7"],
                Policy::ALL.into_iter().map(line).collect(),
                &[],
            ),
            claim(
                "Figure 5.3: with one queue and a spin lock, one core gets more than the other seven (5.4)",
                "the favoured core has at least twice an even share",
                single > 2.0,
                ("its share, of an even one", single),
            ),
            claim(
                "Figure 5.4: round robin over all queues spreads load evenly (5.5)",
                "every core within a quarter of an even share, and the most favoured below half the single \
                 queue's",
                least > 0.75 && most < 1.25 && most < single / 2.0,
                ("the most that a core gets, of an even share", most),
            ),
        ]
    }

    /// Figure 5.6.
    fn policies(&self) -> Vec<Exhibit> {
        let all = |policy| self.with_all(policy).megabytes_s();
        let (shared, each, pool) =
            (all(Policy::RoundRobin), all(Policy::PerCore), all(Policy::Pool));
        let single = all(Policy::Single);
        vec![
            claim(
                "Round robin gives not much more than one queue (5.5)",
                "within a fifth of it",
                (shared / single - 1.0).abs() < 0.2,
                ("round robin, of what one queue gives", shared / single),
            ),
            claim(
                "Figure 5.6: both policies with queues of each core's own give the same (5.5.1)",
                "within a twentieth of each other",
                (each / pool - 1.0).abs() < 0.05,
                ("per core, of what the pool gives", each / pool),
            ),
            departs(
                "Figure 5.6: and more than round robin, which pays for sharing (5.5.1)",
                "both more than a hundredth above it",
                each.min(pool) > 1.01 * shared,
                ("per core, of what round robin gives", each / shared),
                "at eight cores the drive's banks are what limits, and not the cores: no policy of a host \
                 moves it. The thesis has one number of each for the minute, and no lock's cost",
            ),
        ]
    }

    /// Figure 5.5.
    fn saturation(&self) -> Vec<Exhibit> {
        let megabytes = self.megabytes(Policy::RoundRobin);
        let knee = knee(&megabytes);
        vec![
            Exhibit::Plot(Plot {
                what: "Figure 5.5: reads of 4 MiB by cores, MB/s".into(),
                across: "cores".into(),
                places: (1..=CORES).map(|cores| cores.to_string()).collect(),
                series: vec![
                    series('r', Policy::RoundRobin, &megabytes),
                    series('p', Policy::PerCore, &self.megabytes(Policy::PerCore)),
                    series('s', Policy::Single, &self.megabytes(Policy::Single)),
                ],
            }),
            departs(
                "Figure 5.5: the most is reached with three cores (5.5)",
                "the fewest cores within a twentieth of the highest are three",
                knee == 3,
                ("the fewest cores", knee as f64),
                "one core keeps this link and these banks busy; what one change does to that is below",
            ),
        ]
    }
}

fn series(letter: char, policy: Policy, values: &[f64]) -> Series {
    Series {
        letter,
        name: word(policy).into(),
        values: values.iter().map(|value| Some(*value)).collect(),
    }
}

fn shape_of(
    what: &'static str,
    shape: &str,
    holds: bool,
    (number, ours): (&'static str, f64),
) -> Claim {
    Claim { what, shape: shape.into(), holds, number, ours, assumed: Vec::new() }
}

fn claim(what: &'static str, shape: &str, holds: bool, ours: (&'static str, f64)) -> Exhibit {
    Exhibit::Claim(shape_of(what, shape, holds, ours))
}

fn departs(
    what: &'static str,
    shape: &str,
    holds: bool,
    ours: (&'static str, f64),
    why: &'static str,
) -> Exhibit {
    Exhibit::Departure(Box::new(claim(what, shape, holds, ours)), why)
}

/// Figure 5.7, reads.
fn operations() -> Result<Vec<Exhibit>, RunError> {
    let machine = ssd();
    let at = |cores| kiops(&machine, Policy::RoundRobin, cores, WINDOW);
    let curve = (1..=CORES).map(at).collect::<Result<Vec<_>, _>>()?;
    let knee = knee(&curve);
    let two = curve[1];
    let number = |machine: &Machine| kiops(machine, Policy::RoundRobin, 2, SHORT);
    let short = number(&machine)?;
    let swings = machine.swings(number)?.into_iter();
    let assumed = swings.filter(|swing| moves(short, swing)).collect();
    Ok(vec![
        Exhibit::Plot(Plot {
            what: "Figure 5.7: random reads of 4 KiB by cores, 1000 before a wait, kIOPS".into(),
            across: "cores".into(),
            places: (1..=CORES).map(|cores| cores.to_string()).collect(),
            series: vec![series('r', Policy::RoundRobin, &curve)],
        }),
        Exhibit::Row(Row {
            what: "Figure 5.7: close to 50,000 of at most 70,000 reads a second, with two cores (5.5.2)",
            unit: "kIOPS",
            paper: 50.0,
            ours: two,
            validated: Validated::Shape(two < 70.0),
            shape: "below the drive's own 70",
            parts: Vec::new(),
            assumed,
        }),
        claim(
            "Figure 5.7: two cores are enough for the most (5.5.2)",
            "the fewest cores within a twentieth of the highest are at most two",
            knee <= 2,
            ("the fewest cores", knee as f64),
        ),
    ])
}

fn moves(number: f64, (_, low, high): &(String, f64, f64)) -> bool {
    [low, high].iter().any(|value| (*value - number).abs() > 0.02 * number)
}

/// Figures 5.1 and 5.7, writes, which count when their data have been copied.
fn written() -> Result<Vec<Exhibit>, RunError> {
    let (read, _) = pair(1, false)?;
    let (write, _) = pair(1, true)?;
    let (read, write) = (read.megabytes_s(), write.megabytes_s());
    // Samples of a run that begins with empty queues.
    let interval = Span::ms(20);
    let hog = Hog { write: true, time: interval * 10, interval, ..Hog::operations(2) };
    let stats = hogged(&ssd(), Policy::PerCore, &hog)?;
    let at = |sample: usize| -> f64 {
        let bytes: u64 =
            stats.cores.iter().map(|core| core.series.get(sample).copied().unwrap_or(0)).sum();
        bytes as f64 / 4096.0 / interval.as_us_f64() * 1e3
    };
    let (first, last) = (at(0), at(9));
    let samples = (0..10).map(|sample| format!("{:.0}", at(sample)));
    Ok(vec![
        departs(
            "Figure 5.1: one core writes much faster than it reads (5.4)",
            "by a tenth at least",
            write > 1.1 * read,
            ("writes, of what reads give", write / read),
            "a queue of 128 pieces of 32 KB holds one request: from the second on, a copy waits for the \
             drive. \
             That the thesis's writes stayed above needs a drive that writes as fast as it reads, or more \
             buffers than the text says",
        ),
        table(
            "Figure 5.7: writes of 4 KiB by two cores, per core, from empty queues on: kIOPS each 20 ms",
            &["20", "40", "60", "80", "100", "120", "140", "160", "180", "200 ms"],
            vec![samples.collect()],
            &["30 is the drive's own most (5.5.2); the rest lies in buffers, 4,095 for each core"],
        ),
        claim(
            "Figure 5.7: writes count far above the drive's 30,000, as fast as they are enqueued (5.5.2)",
            "more than twice that while there are buffers, and the drive's when they are full",
            first > 60.0 && last < 40.0,
            ("the first 20 ms, kIOPS", first),
        ),
    ])
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

fn one_thing_changed() -> Result<Exhibit, RunError> {
    let disks = [1, CORES]
        .map(|cores| hogged(&disks(), Policy::Single, &sequential(cores, false, DISKS_WINDOW)));
    let [one, eight] = disks;
    let (one, eight) = (one?.megabytes_s(), eight?.megabytes_s());
    let line = |what: &str, machine: &Machine| -> Result<Vec<String>, RunError> {
        let curve = curve(machine)?;
        let single = |cores| -> Result<f64, RunError> {
            Ok(read(machine, Policy::Single, cores)?.megabytes_s())
        };
        let mut line = vec![what.to_owned()];
        line.extend([curve[0], curve[2], curve[CORES as usize - 1]].map(whole));
        line.push(knee(&curve).to_string());
        line.extend([single(1)? / one, single(CORES)? / eight].map(|times| format!("{times:.1}")));
        Ok(line)
    };
    let mut lines = vec![line("as planned", &ssd())?];
    for (what, sets) in CHANGES {
        let changed = sets.iter().fold(ssd(), |machine, (key, value)| machine.with(key, value));
        lines.push(line(what, &changed)?);
    }
    Ok(table(
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

fn curve(machine: &Machine) -> Result<Vec<f64>, RunError> {
    (1..=CORES).map(|cores| Ok(read(machine, Policy::RoundRobin, cores)?.megabytes_s())).collect()
}

/// A slower link is the only change that restores the knee.
fn chipset() -> Result<Exhibit, RunError> {
    let curve = curve(&ssd().with("link.generation", "gen1"))?;
    let knee = knee(&curve);
    let most = curve.iter().copied().fold(0.0, f64::max);
    Ok(claim(
        "With PCIe 1.x, and nothing else changed, figure 5.5 comes out",
        "one core does not fill it, three come within a twentieth of the most",
        knee > 1 && curve[0] < 0.95 * most && curve[2] >= 0.95 * most,
        ("the most, MB/s", most),
    ))
}
