//! From a row of a table to the jobs that repeat it.

use std::fmt;

use plan::Plan;
use runtime::Span;
use workload::pattern::OpKind;

use super::table::{Figure, Row, Table};

/// Software between the load generator and the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// A driver in user space that polls, as SPDK's.
    UserSpace,
    /// The kernel of the plan: system call, block driver, interrupt.
    Kernel,
}

impl Host {
    /// The plan with this host.
    #[must_use]
    pub fn of(self, plan: &Plan) -> Plan {
        match self {
            Host::UserSpace => plan.past_kernel(),
            Host::Kernel => plan.clone(),
        }
    }

    /// `user` or `kernel`, as in the report.
    pub fn name(self) -> &'static str {
        match self {
            Host::UserSpace => "user",
            Host::Kernel => "kernel",
        }
    }
}

/// Operations of a run, and the rows that are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Operations whose latencies are compared, about: at the measured rate.
    pub operations: u64,
    /// Operations at least for each one in flight.
    pub for_each_in_flight: u64,
    /// Only closed loops with operations of this size in bytes and at most this number in flight.
    pub only: Option<(u64, u64)>,
}

impl Length {
    pub const WHOLE: Length = Length { operations: 20_000, for_each_in_flight: 100, only: None };
    pub const QUICK: Length =
        Length { operations: 2_000, for_each_in_flight: 40, only: Some((4096, 128)) };
}

/// Part of the measured time that is run before it.
const WARM_UP: f64 = 0.25;
/// Longest measured time, microseconds: a reader behind writers may be too slow for the number of operations.
const MOST_US: f64 = 10e6;
/// Reads and writes a second of the thread whose latencies an open loop compares, each.
const PROBE: u64 = 5_000;
/// Threads that share the rest of the load, so that no core is its bound.
const LOAD_THREADS: u64 = 6;
/// Depth of each of these threads, as of the measured ones: it bounds the queue in which compared operations
/// wait while the drive takes no writes.
const LOAD_DEPTH: u32 = 64;
/// Most operations in flight of the thread that is compared, which bounds memory only.
const OPEN_DEPTH: u32 = 256;
/// Depth of a process of a mixed row, of which each of eight drives has an equal part.
const MIXED_DEPTH: u32 = 16;
const MIXED_DRIVES: f64 = 8.0;

/// Beginning of the name of a reader's row; its load follows.
pub(super) const BESIDE: &str = "mixread-beside-";

/// The jobs that repeat a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub host: Host,
    /// Text of a job file; the latencies of its first job are compared.
    pub text: String,
    /// Virtual time after the warm-up.
    pub runtime: Span,
    /// Whether operations arrive at their own times: then latencies begin at the arrival, and the rate is
    /// that of all jobs up to the last completion.
    pub is_open: bool,
}

/// Why a row is not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// Not among the rows of a short run.
    Quick,
    /// Not among the rows that were asked for.
    Unwanted,
    Claim,
    Zones,
    /// Skewed by fio's generator, which covers a part of a large drive only.
    FioZipf,
    Uplink,
    SeveralDrives,
    /// The other side of a row that is run.
    LoadOfReader,
    Saturated,
    Doubtful(String),
    Engine,
    NoFigure,
    /// The workload and what it needs.
    Load(String),
    SmallerThanBlock {
        block_bytes: u64,
    },
    /// The error of a run that fails, or of its first operation that does.
    Run(String),
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            LeftOut::Quick => "left out of a short run",
            LeftOut::Unwanted => "left out by --rows",
            LeftOut::Claim => "a claim of the vendor, not a measurement",
            LeftOut::Zones => "zoned namespaces are not modelled",
            LeftOut::FioZipf => {
                "skewed by fio's generator: what it covers of a large drive is not known"
            }
            LeftOut::Uplink => "bound by the uplink that several drives share",
            LeftOut::SeveralDrives => "a load over several drives at once",
            LeftOut::LoadOfReader => {
                "the load beside a reader: its rate is given to the reader's run"
            }
            LeftOut::Saturated => "saturated: its latencies are those of a queue that grows",
            LeftOut::Doubtful(flag) => return write!(f, "doubtful by its flag: {flag}"),
            LeftOut::Engine => "no engine in its flag or the header, or one that is not modelled",
            LeftOut::NoFigure => "neither a rate nor a mean latency",
            LeftOut::Load(why) => return write!(f, "no job for the load: {why}"),
            LeftOut::SmallerThanBlock { block_bytes } => {
                return write!(f, "smaller than a block of the plan, {block_bytes} bytes");
            }
            LeftOut::Run(why) => return write!(f, "the run fails: {why}"),
        };
        f.write_str(text)
    }
}

/// Engines by the words that name them.
const ENGINES: [(&str, Host); 5] = [
    ("spdk", Host::UserSpace),
    ("io_uring", Host::Kernel),
    ("libaio", Host::Kernel),
    ("psync", Host::Kernel),
    ("kernel path", Host::Kernel),
];

/// Words of flags that make a row doubtful: it misses Little's law, or the host is suspected.
const DOUBTFUL: [&str; 3] = ["little", "host?", "GPU"];

impl Load {
    /// The jobs for a row of a table, and the operation whose figures the row has.
    ///
    /// # Errors
    /// The row is left out.
    pub fn of(
        table: &Table,
        row: &Row,
        plan: &Plan,
        length: Length,
    ) -> Result<(Load, OpKind), LeftOut> {
        check(table, row)?;
        let host = engine(table, row).ok_or(LeftOut::Engine)?;
        let bytes = row.block_bytes.ok_or_else(|| LeftOut::Load("no block size".to_owned()))?;
        let block_bytes = u64::from(plan.medium.contents.block_bytes);
        if !bytes.is_multiple_of(block_bytes) {
            return Err(LeftOut::SmallerThanBlock { block_bytes });
        }
        let is_closed = closed(&row.workload).is_some();
        let in_flight = u64::from(row.depth.unwrap_or(1)) * u64::from(row.jobs.unwrap_or(1));
        if let Some((only_bytes, most)) = length.only
            && !(is_closed && bytes == only_bytes && in_flight <= most)
        {
            return Err(LeftOut::Quick);
        }
        let ((runtime, text), kind) = if let Some((rw, kind)) = closed(&row.workload) {
            (closed_loop(row, rw, bytes, length)?, kind)
        } else if let Some((rate, kind)) = open(&row.workload) {
            (open_loop(row, rate, bytes, length), kind)
        } else if let Some(load) = row.workload.strip_prefix(BESIDE) {
            (beside(table, row, load, bytes, length)?, OpKind::Read)
        } else {
            return Err(LeftOut::Load(row.workload.clone()));
        };
        Ok((Load { host, text, runtime, is_open: open(&row.workload).is_some() }, kind))
    }
}

/// # Errors
/// The row is no measurement of one drive without zones.
fn check(table: &Table, row: &Row) -> Result<(), LeftOut> {
    let has = |flag: &str| row.flags.iter().any(|found| found.contains(flag));
    let workload = row.workload.as_str();
    let is_mix = workload.strip_prefix("mix").is_some_and(|rest| {
        rest.starts_with(|first: char| first.is_ascii_digit()) && workload != "mix100-read"
    });
    let is_zoned = is_mix || workload.contains("zone") || workload.contains("zns");
    let is_figure = Figure::ALL.iter().any(|figure| row.measured.of(*figure).is_some());
    if !table.is_wanted(row) {
        return Err(LeftOut::Unwanted);
    }
    if workload.starts_with("spec-") {
        return Err(LeftOut::Claim);
    }
    if is_zoned || table.name.contains("-zns-") && workload.contains("write") {
        return Err(LeftOut::Zones);
    }
    if let Some(flag) = DOUBTFUL.iter().find(|flag| has(flag)) {
        return Err(LeftOut::Doubtful((*flag).to_owned()));
    }
    match () {
        () if workload.starts_with("mixload-") => Err(LeftOut::LoadOfReader),
        () if has("uplink") => Err(LeftOut::Uplink),
        () if has("sum over") || workload.ends_with("drives") => Err(LeftOut::SeveralDrives),
        () if has("saturated") => Err(LeftOut::Saturated),
        () if !is_figure => Err(LeftOut::NoFigure),
        () => Ok(()),
    }
}

/// The engine of the row's flag, or else the only one that the header names.
fn engine(table: &Table, row: &Row) -> Option<Host> {
    let of = |text: &str| {
        let named = ENGINES.iter().filter(|(name, _)| text.to_lowercase().contains(name));
        let mut hosts: Vec<Host> = named.map(|(_, host)| *host).collect();
        hosts.dedup();
        match hosts[..] {
            [host] => Some(host),
            _ => None,
        }
    };
    let of_row = row.flags.iter().find_map(|flag| of(flag));
    of_row.or_else(|| table.fact("engine").and_then(of))
}

/// The job key `rw` and the operation of a closed loop.
fn closed(workload: &str) -> Option<(&'static str, OpKind)> {
    Some(match workload {
        "randread" | "mix100-read" => ("randread", OpKind::Read),
        "read" => ("read", OpKind::Read),
        "randwrite" => ("randwrite", OpKind::Write),
        "write" => ("write", OpKind::Write),
        _ => return None,
    })
}

/// The rate in the name and the operation of an open loop, as of `openloop-w10000-read`.
pub(super) fn open(workload: &str) -> Option<(u64, OpKind)> {
    let (rate, kind) = workload.strip_prefix("openloop-w")?.split_once('-')?;
    let kind = match kind {
        "read" => OpKind::Read,
        "write" => OpKind::Write,
        _ => return None,
    };
    Some((rate.parse().ok()?, kind))
}

/// Measured time and text of a job file.
type Jobs = (Span, String);

/// Lines of every job file: the measured time for this number of operations at this rate, after a warm-up.
fn global(rate: f64, bytes: u64, operations: u64) -> Jobs {
    let us = (1e6 * operations as f64 / rate).ceil().min(MOST_US);
    let ramp = (WARM_UP * us).ceil();
    let text = format!(
        "[global]\nbs={bytes}\nnorandommap=1\ngroup_reporting=1\ntime_based=1\nruntime={us}us\n\
         ramp_time={ramp}us\n"
    );
    (Span::us(us as u64), text)
}

fn closed_loop(row: &Row, rw: &str, bytes: u64, length: Length) -> Result<Jobs, LeftOut> {
    let depth = row.depth.ok_or_else(|| LeftOut::Load("no depth".to_owned()))?;
    let jobs = row.jobs.unwrap_or(1);
    let in_flight = u64::from(depth) * u64::from(jobs);
    let of_mean = |mean: f64| 1e6 * in_flight as f64 / mean;
    let rate = row.measured.of(Figure::Iops).or(row.measured.of(Figure::Mean).map(of_mean));
    let rate = rate.ok_or(LeftOut::NoFigure)?;
    let operations = length.operations.max(length.for_each_in_flight * in_flight);
    let (runtime, global) = global(rate, bytes, operations);
    Ok((runtime, format!("{global}[row]\nrw={rw}\niodepth={depth}\nnumjobs={jobs}\n")))
}

/// Arrivals are exponential, over the whole drive. The first job is the thread whose latencies were
/// measured; the second, of six threads, has the rest of the rates that were reached.
fn open_loop(row: &Row, rate: u64, bytes: u64, length: Length) -> Jobs {
    let reached = |name: &str| -> Option<u64> {
        row.flags.iter().find_map(|flag| flag.strip_prefix(name)?.parse().ok())
    };
    let rest = |reached: u64| reached.saturating_sub(PROBE).max(1);
    let writes = rest(reached("writes=").unwrap_or(rate));
    let reads = rest(reached("reads=").unwrap_or(PROBE));
    let (runtime, mut text) = global(PROBE as f64, bytes, length.operations);
    text += "rw=randrw\nrate_process=poisson\n";
    let part = |rate: u64| (rate / LOAD_THREADS).max(1);
    let load = (part(reads), part(writes), LOAD_THREADS, LOAD_DEPTH);
    for (name, (reads, writes, threads, depth)) in
        [("row", (PROBE, PROBE, 1, OPEN_DEPTH)), ("load", load)]
    {
        let mix = (100 * reads).div_ceil(reads + writes);
        text += &format!(
            "[{name}]\nnumjobs={threads}\niodepth={depth}\nrwmixread={mix}\n\
             rate_iops={reads},{writes}\n"
        );
    }
    (runtime, text)
}

/// A reader of depth 1 beside N processes, as `randwrite64k-x8`. Their measured rate and their depth are
/// spread over eight drives, so an eighth of both is given.
fn beside(
    table: &Table,
    row: &Row,
    load: &str,
    bytes: u64,
    length: Length,
) -> Result<Jobs, LeftOut> {
    let unknown = || LeftOut::Load(row.workload.clone());
    let (rw, count) = load.rsplit_once("-x").ok_or_else(unknown)?;
    let count: u32 = count.parse().map_err(|_| unknown())?;
    let rate = row.measured.of(Figure::Iops).ok_or(LeftOut::NoFigure)?;
    let (runtime, mut text) = global(rate, bytes, length.operations);
    text += "[row]\nrw=randread\niodepth=1\n";
    if count == 0 {
        return Ok((runtime, text));
    }
    let rw = ["randread", "randwrite"].into_iter().find(|known| rw.starts_with(known));
    let rw = rw.ok_or_else(unknown)?;
    let name = format!("mixload-{load}");
    let other = table.rows.iter().find(|other| other.workload == name);
    let other = other.ok_or_else(|| LeftOut::Load(format!("no row {name}")))?;
    let of_load = other.measured.of(Figure::Iops).zip(other.block_bytes);
    let (rate, bytes) = of_load.ok_or_else(|| LeftOut::Load(format!("{name}: no rate")))?;
    let rate = (rate / MIXED_DRIVES / f64::from(count)).ceil();
    text += &format!(
        "[load]\nrw={rw}\nbs={bytes}\niodepth={MIXED_DEPTH}\nnumjobs={count}\nrate_iops={rate}\n"
    );
    Ok((runtime, text))
}
