//! Stratikopoulos et al., "FastPath" (2018): table III, and the text about figures 2, 4 and 5.

use std::path::Path;

use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::measure::Machine;
use super::{Claim, Exhibit, Row, Table, Validated};
use world::interfaces::FASTPATH;
use world::work::Work;
use world::{self, Options, RunError};

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

pub(super) fn exhibits() -> Result<Vec<Exhibit>, RunError> {
    let board = Machine::of("fastpath");
    let mut exhibits = vec![table_iii(&board)?];
    for (kind, what) in [
        (&KINDS[1], "Table III: random reads of 4 KiB through FastPath"),
        (&KINDS[3], "Table III: random writes of 4 KiB through FastPath"),
    ] {
        exhibits.push(latency(&board, kind, what)?);
    }
    exhibits.push(figure_2());
    exhibits.push(less(&board)?);
    exhibits.push(figure_4(&board)?);
    exhibits.push(generated_before(&board)?);
    exhibits.push(figure_5(&board)?);
    exhibits.push(blocks_in_one_fpga(&board)?);
    Ok(exhibits)
}

/// Results of requests of one kind.
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
fn run(machine: &Machine, rw: &str, bytes: u32, depth: u32) -> Result<Done, RunError> {
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
    let work = Work::parse(Path::new("papers"), &job, Mapping::default()).map_err(RunError::of)?;
    let mut run_result = world::simulate(FASTPATH, &machine.open()?, &work, Options::default())?;
    let job_result = run_result.jobs.remove(0).1;
    if job_result.errors() > 0 {
        return Err(RunError(job_result.messages.join("; ")));
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

fn table(what: &str, columns: &[&str], lines: Vec<Vec<String>>, notes: &[&str]) -> Exhibit {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    Exhibit::Table(Table { what: what.into(), columns: owned(columns), lines, notes: owned(notes) })
}

fn table_iii(board: &Machine) -> Result<Exhibit, RunError> {
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
    Ok(table(
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

fn latency(board: &Machine, kind: &Kind, what: &'static str) -> Result<Exhibit, RunError> {
    let number = |machine: &Machine| Ok(run(machine, kind.rw, 4096, 1)?.us);
    let done = run(board, kind.rw, 4096, 1)?;
    Ok(Exhibit::Row(Row {
        what,
        unit: "us",
        paper: kind.paper,
        ours: done.us,
        validated: Validated::Shape(done.us < kind.paper && done.us < kind.baseline),
        shape: "below the baseline, and our sum of known costs stays below the paper's",
        parts: done.parts,
        assumed: board.swings(number)?,
    }))
}

/// The paper's own numbers: its baseline minus the device.
fn figure_2() -> Exhibit {
    let line = |kind: &Kind| {
        let (low, high) = (0.09 * kind.baseline, 0.10 * kind.baseline);
        let mut line = vec![kind.rw.to_owned()];
        line.extend(cells(&[kind.baseline, low, high, kind.baseline - high, kind.baseline - low]));
        line
    };
    table(
        "Figure 2's text: the baseline, 4 KiB, us; 9 to 10 % are the device's (C)",
        &["", "baseline", "device, least", "most", "software, least", "most"],
        KINDS.iter().map(line).collect(),
        &["how the software's part divides is in the figure only; no part of it is modelled"],
    )
}

fn less(board: &Machine) -> Result<Exhibit, RunError> {
    let mut gains = Vec::new();
    for kind in &KINDS {
        let ours = run(board, kind.rw, 4096, 1)?.us;
        gains.push((
            100.0 * (1.0 - ours / kind.baseline),
            100.0 * (1.0 - kind.paper / kind.baseline),
        ));
    }
    let holds = gains.iter().all(|(ours, paper)| ours >= paper);
    Ok(Exhibit::Claim(Claim {
        what: "Up to 67 % less for reads and 71 % less for writes (section IV.A), of the paper's baseline",
        shape: "less by at least as much for each of the four, as the remainder of Table III is missing here"
            .into(),
        holds,
        number: "random reads, % less",
        ours: gains[1].0,
        assumed: Vec::new(),
    }))
}

fn figure_4(board: &Machine) -> Result<Exhibit, RunError> {
    let mut lines = Vec::new();
    for size in SIZES {
        let at = |rw, depth| Ok::<f64, RunError>(run(board, rw, size << 10, depth)?.megabytes);
        let mut line = vec![format!("{size}")];
        let values = [
            at("randread", 1)?,
            at("randwrite", 1)?,
            at("randread", DEEP)?,
            at("randwrite", DEEP)?,
        ];
        line.extend(values.iter().map(|value| format!("{value:.0}")));
        lines.push(line);
    }
    Ok(table(
        "Figure 4: bandwidth by KiB of a request, MB/s",
        &["KiB", "read, 1", "write, 1", "read, 32 in flight", "write, 32"],
        lines,
        &[
            "the paper: from 160 MB/s (random write) to 575 MB/s (random read) through fio on its ARM cores, \
             from 4 KiB to 128 KiB; depth and points are not in the text",
            "the drive's advertised limits: 1 GB/s for reads, 800 MB/s for writes",
        ],
    ))
}

fn generated_before(board: &Machine) -> Result<Exhibit, RunError> {
    let number = |machine: &Machine| Ok(run(machine, "randwrite", 128 << 10, DEEP)?.megabytes);
    let ours = number(board)?;
    Ok(Exhibit::Row(Row {
        what: "Requests generated before: \"close to 800 MBps\" (section IV.A); ours: writes, 128 KiB, 32 in \
               flight",
        unit: "MB/s",
        paper: 800.0,
        ours,
        validated: Validated::Shape(ours > 0.9 * 800.0 && ours <= 800.0),
        shape: "the drive is what limits: more than nine tenths of what it can take",
        parts: Vec::new(),
        assumed: Vec::new(),
    }))
}

fn figure_5(board: &Machine) -> Result<Exhibit, RunError> {
    let mut rates = Vec::new();
    for size in SIZES {
        rates.push(run(board, "randread", size << 10, 1)?.iops);
    }
    let baseline = 1e6 / KINDS[1].baseline;
    let falls = rates.windows(2).all(|pair| pair[1] < pair[0]);
    Ok(Exhibit::Claim(Claim {
        what: "Figure 5: at least five times the baseline's IOPS, and fewer the larger the blocks",
        shape: format!("both hold at depth 1: {:.1} times at 4 KiB", rates[0] / baseline),
        holds: falls && rates[0] >= 5.0 * baseline,
        number: "random reads of 4 KiB, IOPS",
        ours: rates[0],
        assumed: Vec::new(),
    }))
}

/// Configurations beyond the paper, whose root complex has one port and whose host has two cores.
fn blocks_in_one_fpga(board: &Machine) -> Result<Exhibit, RunError> {
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
    Ok(table(
        "Beyond the paper: several engines, a drive of 1 us and 8 GB/s, 4 KiB, 64 in flight",
        &["engines", "IOPS", "MB/s"],
        lines,
        &["the link of four lanes, and the root complex, are the same for all of them"],
    ))
}
