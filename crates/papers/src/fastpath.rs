//! Stratikopoulos et al., "FastPath" (2018): table III, and the text about figures 2, 4 and 5.

use std::path::Path;

use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::ExhibitError;
use super::changes::{Change, set};
use super::check::{Expected, Mutation, Seen, Spec, Swung};
use super::exhibit::{Axis, Exhibit, Figure, Rule, Series, Subject, Table};
use super::measure::Machine;
use super::setup::Setup;
use world::interfaces::FASTPATH;
use world::work::Work;
use world::{self, Options};

/// A kind of access: its job-file keyword, and table III: the baseline and FastPath, us.
struct Kind {
    rw: &'static str,
    baseline: f64,
    paper: f64,
}

const KINDS: [Kind; 4] = [
    Kind { rw: "read", baseline: 328.9, paper: 105.4 },
    Kind { rw: "randread", baseline: 321.8, paper: 105.7 },
    Kind { rw: "write", baseline: 350.6, paper: 100.0 },
    Kind { rw: "randwrite", baseline: 352.3, paper: 100.67 },
];

/// Block sizes of figures 4 and 5, KiB.
const SIZES: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Queue depth for asynchronous requests: the paper does not give one.
const DEEP: u32 = 32;

/// Stages of a request by the columns of the first table.
const DEVICE: &[&str] = &["media", "media wait", "parse", "post completion"];
const ENGINE: &[&str] =
    &["control", "turn wait", "submit", "poll", "complete", "respond", "core wait"];
const CALLER: &[&str] = &["request", "take response"];
/// Link, root complex and host memory.
const ROOT: &[&str] =
    &["doorbell", "fetch", "host read", "link wait", "data transfer", "completion"];

const PLANS: &[&str] = &["fastpath"];

/// 90 % of the baseline of random reads, 321.8 us (table III), which is not the device's.
const KERNEL: Mutation = Mutation {
    change: "each request through the kernel: 90 % of the baseline's 321.8 us",
    settings: &[set("fastpath.costs.request", "\"290 us\"")],
};

fn board(setup: &Setup) -> Machine {
    setup.machine("fastpath")
}

pub(super) fn figures(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let board = board(setup);
    let mut exhibits = vec![table_iii(&board)?, figure_2()];
    exhibits.extend(figure_4(&board)?);
    exhibits.push(figure_5(&board)?);
    exhibits.push(blocks_in_one_fpga(&board)?);
    Ok(exhibits)
}

/// Results of requests of one kind.
#[derive(Clone)]
struct Done {
    us: f64,
    parts: Vec<(&'static str, f64)>,
    /// Throughput in 10^6 bytes per second.
    megabytes: f64,
    iops: f64,
}

impl Done {
    fn of(&self, stages: &[&str]) -> f64 {
        self.parts.iter().filter(|(stage, _)| stages.contains(stage)).map(|(_, us)| us).sum()
    }
}

/// Runs requests of `bytes` bytes at queue depth `depth`. For writes, the drive's bandwidth is its advertised
/// write bandwidth.
fn run(machine: &Machine, rw: &str, bytes: u32, depth: u32) -> Result<Done, ExhibitError> {
    let writes = rw.ends_with("write");
    let machine = match writes {
        true => &machine.with("medium.timing.bandwidth", "800 MB/s"),
        false => machine,
    };
    let count = 20 * depth + 100;
    let job = format!(
        "[j]\nrw={rw}\nbs={bytes}\niodepth={depth}\nsize=64m\nio_size=1t\nnorandommap=1\n\
         number_ios={count}\n"
    );
    machine.once(&job, |machine| run_once(machine, writes, bytes, &job))
}

fn run_once(machine: &Machine, writes: bool, bytes: u32, job: &str) -> Result<Done, ExhibitError> {
    let work = Work::parse(Path::new("papers"), job, Mapping::default())?;
    let mut run_result = world::simulate(FASTPATH, &machine.open()?, &work, Options::default())?;
    let job_result = run_result.jobs.remove(0).1;
    if job_result.errors() > 0 {
        return Err(ExhibitError::Job(job_result.messages));
    }
    let kind = if writes { OpKind::Write } else { OpKind::Read };
    let (mean, stats) = (job_result.stats.breakdowns[&kind].mean(), job_result.stats.of(kind));
    let iops = stats.iops(job_result.measured);
    Ok(Done {
        us: mean.total_ps / 1e6,
        parts: FASTPATH
            .stages
            .iter()
            .copied()
            .zip(mean.stages_ps.iter().map(|ps| ps / 1e6))
            .collect(),
        megabytes: iops * f64::from(bytes) / 1e6,
        iops,
    })
}

fn cells(values: &[f64]) -> Vec<String> {
    values.iter().map(|value| format!("{value:.2}")).collect()
}

fn table_iii(board: &Machine) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for kind in &KINDS {
        let done = run(board, kind.rw, 4096, 1)?;
        let parts = [DEVICE, ROOT, ENGINE, CALLER].map(|stages| done.of(stages));
        let mut line = vec![kind.rw.to_owned()];
        line.extend(cells(&parts));
        line.extend(cells(&[done.us, kind.paper, kind.paper - done.us]));
        line.push(format!("{:.0}", done.of(&["control", "submit", "complete", "respond"]) * 125.0));
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Table III: 4 KiB through FastPath at depth 1, us",
        &[
            "",
            "device",
            "root complex",
            "engine",
            "caller",
            "ours",
            "paper",
            "unexplained",
            "cycles",
        ],
        lines,
        &[
            "device: the paper's own share of its baseline, put in (C). root complex: the link, the bridge \
             to AXI, and DDR3 behind it; engine: with its polling; both assumed, in cycles of 125 MHz",
            "caller: the words of a request and of a response over AXI, assumed. Nothing is chosen to meet \
             the paper's totals",
            "cycles: those of Control, Submit and Complete for one command, without waiting",
        ],
    ))
}

/// A latency of table III.
fn latency(setup: &Setup, kind: &Kind) -> Result<Seen, ExhibitError> {
    let done = run(&board(setup), kind.rw, 4096, 1)?;
    let below = done.us < kind.paper && done.us < kind.baseline;
    Ok(Seen::of(done.us, below).parts(&done.parts))
}

pub(super) const RANDOM_READS: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "random reads of 4 KiB",
        claim: "random reads of 4 KiB through FastPath (table III)",
        unit: "us",
    },
    mechanism: "requests go to the engine, past the kernel",
    rule: Rule::Shape,
    shape: "below the baseline, and our sum of known costs stays below the paper's",
    paper: Some(KINDS[1].paper),
    see: |setup| latency(setup, &KINDS[1]),
    swung: Swung { plans: PLANS, number: None },
    mutations: &[KERNEL],
    expected: Expected::Holds,
};

pub(super) const RANDOM_WRITES: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "random writes of 4 KiB",
        claim: "random writes of 4 KiB through FastPath (table III)",
        unit: "us",
    },
    mechanism: "requests go to the engine, past the kernel",
    rule: Rule::Shape,
    shape: "below the baseline, and our sum of known costs stays below the paper's",
    paper: Some(KINDS[3].paper),
    see: |setup| latency(setup, &KINDS[3]),
    swung: Swung { plans: PLANS, number: None },
    mutations: &[KERNEL],
    expected: Expected::Holds,
};

/// The paper's own numbers: its baseline minus the device.
fn figure_2() -> Exhibit {
    let line = |kind: &Kind| {
        let (low, high) = (0.09 * kind.baseline, 0.10 * kind.baseline);
        let mut line = vec![kind.rw.to_owned()];
        line.extend(cells(&[kind.baseline, low, high, kind.baseline - high, kind.baseline - low]));
        line
    };
    Table::exhibit(
        "Figure 2's text: the baseline, 4 KiB, us; 9 to 10 % are the device's (C)",
        &["", "baseline", "device, least", "most", "software, least", "most"],
        KINDS.iter().map(line).collect(),
        &["how the software's part divides is in the figure only; no part of it is modelled"],
    )
}

fn shorter(setup: &Setup, kind: &Kind) -> Result<f64, ExhibitError> {
    Ok(100.0 * (1.0 - run(&board(setup), kind.rw, 4096, 1)?.us / kind.baseline))
}

pub(super) const LESS: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "random reads: less than the baseline",
        claim: "up to 67 % less for reads and 71 % less for writes (section IV.A), of the paper's baseline",
        unit: "%",
    },
    mechanism: "requests go to the engine, past the kernel",
    rule: Rule::Shape,
    shape: "less by at least as much for each of the four, as the remainder of table III is missing here",
    paper: Some(67.0),
    see: |setup| {
        let mut holds = true;
        for kind in &KINDS {
            holds &= shorter(setup, kind)? >= 100.0 * (1.0 - kind.paper / kind.baseline);
        }
        Ok(Seen::of(shorter(setup, &KINDS[1])?, holds))
    },
    swung: Swung { plans: PLANS, number: Some(|setup| shorter(setup, &KINDS[1])) },
    mutations: &[KERNEL],
    expected: Expected::Holds,
};

fn figure_4(board: &Machine) -> Result<Vec<Exhibit>, ExhibitError> {
    const WAYS: [(char, &str, &str, u32); 4] = [
        ('r', "read, 1", "randread", 1),
        ('w', "write, 1", "randwrite", 1),
        ('R', "read, 32 in flight", "randread", DEEP),
        ('W', "write, 32", "randwrite", DEEP),
    ];
    let mut lines = Vec::new();
    let mut series: Vec<_> = WAYS.map(|way| Series::ours(way.0, way.1, Vec::new())).into();
    for size in SIZES {
        let mut line = vec![format!("{size}")];
        for ((_, _, rw, depth), series) in WAYS.iter().zip(&mut series) {
            let megabytes = run(board, rw, size << 10, *depth)?.megabytes;
            line.push(format!("{megabytes:.0}"));
            series.points.push((f64::from(size << 10), megabytes));
        }
        lines.push(line);
    }
    let ends = vec![(4096.0, 160.0), (f64::from(128 << 10), 575.0)];
    series.push(Series::paper('P', "the least (random write) and the most (random read)", ends));
    Ok(vec![
        Table::exhibit(
            "Figure 4: bandwidth by KiB of a request, MB/s",
            &["KiB", "read, 1", "write, 1", "read, 32 in flight", "write, 32"],
            lines,
            &[
                "the paper: from 160 MB/s (random write) to 575 MB/s (random read) through fio on its ARM \
                 cores, from 4 KiB to 128 KiB; depth and points are not in the text",
                "the drive's advertised limits: 1 GB/s for reads, 800 MB/s for writes",
            ],
        ),
        Exhibit::Figure(Figure {
            caption: "Figure 4: bandwidth".into(),
            number: "Figure 4",
            x: Axis { label: "a request", unit: "B", logarithmic: true },
            y: Axis { label: "bandwidth", unit: "MB/s", logarithmic: false },
            series,
        }),
    ])
}

pub(super) const BEFORE: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "requests generated before, 128 KiB writes",
        claim: "requests generated before: \"close to 800 MBps\" (section IV.A); ours: writes, 128 KiB, \
            32 in \
                flight",
        unit: "MB/s",
    },
    mechanism: "the engine has requests in flight while the drive works",
    rule: Rule::Shape,
    shape: "the drive is what limits: more than nine tenths of what it can take",
    paper: Some(800.0),
    see: |setup| {
        let depth = if setup.is_switched(ONE_AT_A_TIME) { 1 } else { DEEP };
        let ours = run(&board(setup), "randwrite", 128 << 10, depth)?.megabytes;
        Ok(Seen::of(ours, ours > 0.9 * 800.0 && ours <= 800.0))
    },
    swung: Swung { plans: PLANS, number: None },
    mutations: &[Mutation {
        change: "one request at a time",
        settings: &[Change::Switch(ONE_AT_A_TIME)],
    }],
    expected: Expected::Holds,
};

const ONE_AT_A_TIME: &str = "one request at a time";

fn by_size(board: &Machine) -> Result<Vec<f64>, ExhibitError> {
    SIZES.iter().map(|size| Ok(run(board, "randread", size << 10, 1)?.iops)).collect()
}

pub(super) const IOPS: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "4 KiB random reads over the baseline",
        claim: "at least five times the baseline's IOPS, and fewer the larger the blocks (figure 5)",
        unit: "x",
    },
    mechanism: "requests go to the engine, past the kernel; larger ones are split into more commands",
    rule: Rule::Shape,
    shape: "both hold at depth 1",
    paper: Some(5.0),
    see: |setup| {
        let rates = by_size(&board(setup))?;
        let times = rates[0] * KINDS[1].baseline / 1e6;
        let falls = rates.windows(2).all(|pair| pair[1] < pair[0]);
        Ok(Seen::of(times, falls && times >= 5.0).with(format!("{:.0} IOPS at 4 KiB", rates[0])))
    },
    swung: Swung {
        plans: PLANS,
        number: Some(|setup| {
            Ok(run(&board(setup), "randread", 4096, 1)?.iops * KINDS[1].baseline / 1e6)
        }),
    },
    mutations: &[KERNEL],
    expected: Expected::Holds,
};

fn figure_5(board: &Machine) -> Result<Exhibit, ExhibitError> {
    let rates = by_size(board)?;
    let points = SIZES.iter().zip(rates).map(|(size, iops)| (f64::from(size << 10), iops / 1e3));
    let baseline = vec![(4096.0, 1e3 / KINDS[1].baseline)];
    Ok(Exhibit::Figure(Figure {
        caption: "Figure 5: random reads, one at a time".into(),
        number: "Figure 5",
        x: Axis { label: "a request", unit: "B", logarithmic: true },
        y: Axis { label: "rate", unit: "kIOPS", logarithmic: false },
        series: vec![
            Series::ours('f', "FastPath", points.collect()),
            Series::paper('B', "the baseline of table III", baseline),
        ],
    }))
}

/// Configurations beyond the paper, whose root complex has one port and whose host has two cores.
fn blocks_in_one_fpga(board: &Machine) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for engines in ["1", "2", "4"] {
        let machine =
            board.with("fastpath.engines", engines).with("medium.timing.bandwidth", "8 GB/s");
        let machine = machine.with("medium.timing.first_byte", "1 us");
        let done = run(&machine, "randread", 4096, 64)?;
        lines.push(vec![
            engines.into(),
            format!("{:.0}", done.iops),
            format!("{:.0}", done.megabytes),
        ]);
    }
    Ok(Table::exhibit(
        "Beyond the paper: several engines, a drive of 1 us and 8 GB/s, 4 KiB, 64 in flight",
        &["engines", "IOPS", "MB/s"],
        lines,
        &["the link of four lanes, and the root complex, are the same for all of them"],
    ))
}
