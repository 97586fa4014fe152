//! `doorbell bench`: the core-to-core round trip of this machine, and live reads as multiples of it.
//!
//! Everything runs on the same two cores, and the round trip is measured again before each row: ratios hold
//! on a machine whose clock rate is unknown or changes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use campaign::measure::{self, DriverCosts, ROUND_TRIPS};
use clap::Args;
use plan::Plan;
use plan::units::size_text;
use runtime::Span;
use workload::trace::Mapping;
use world::engine::JobResult;
use world::interfaces::{DCX, Dcx, Interface, NVME, Nvme, Row};
use world::work::Work;
use world::{self, Options, RunResult};

use super::interface::Named;

#[derive(Args)]
pub(super) struct Bench {
    /// Milliseconds per measurement
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Only reads within 1 MiB: fast, and without the 1 GiB of the other rows
    #[arg(long)]
    hot: bool,
    /// Only READS reads within 1 MiB, host and device on one thread: for counting instructions
    #[arg(long, value_name = "READS")]
    one_thread: Option<u64>,
    /// Only ROUNDS rounds of batched reads, host and device in turns on one thread: for counting the
    /// instructions of each end
    #[arg(long, value_name = "ROUNDS", conflicts_with = "one_thread")]
    parts: Option<usize>,
    /// With --one-thread: over vfio-user
    #[arg(long, requires = "one_thread")]
    vfio_user: bool,
    /// With --one-thread: host interface
    #[arg(long, value_parser = Named, default_value = "nvme", requires = "one_thread")]
    interface: &'static Row,
    /// With --one-thread: bytes per read
    #[arg(long, default_value_t = 4096)]
    bytes: u64,
    /// With --one-thread: reads in flight
    #[arg(long, default_value_t = 1)]
    depth: u32,
}

/// Round-trip samples before each row: about 10 ms.
const SAMPLES: usize = 1_500;
/// Rounds of 32 commands in which the driver's costs are measured.
const ROUNDS: usize = 2_000;

const MIB: u64 = 1 << 20;
/// Ranges of the reads: within a core's second-level cache, or far larger.
const SPANS: [(&str, u64); 2] = [("hot", MIB), ("cold", 1 << 30)];

pub(super) fn bench(typed: &Bench) -> Result<bool, String> {
    if let Some(rounds) = typed.parts {
        let (bytes, at_once) = (typed.bytes as usize, typed.depth as usize);
        driver_costs::<Nvme>(&plan()?, bytes, at_once, rounds)?;
        return Ok(true);
    }
    match typed.one_thread {
        Some(reads) => one_thread(typed, reads),
        None => table(typed),
    }
}

/// Measures the interfaces of a row one right after the other.
fn table(typed: &Bench) -> Result<bool, String> {
    let (round, p99) = measure::round_trip(5 * SAMPLES);
    println!("core-to-core round trip: p50 {round}, p99 {p99} (of {ROUND_TRIPS} at a time)");
    let plan = plan()?;
    driver_costs::<Nvme>(&plan, 4096, 32, ROUNDS)?;
    driver_costs::<Dcx>(&plan, 4096, 32, ROUNDS)?;
    println!("live, two threads, and nvme in two processes over vfio-user (vfu): random reads of");
    println!("  what was written, over 1 MiB (hot) or 1 GiB (cold), with one buffer for each in");
    println!("  flight; the last column: p50 of that of nvme");
    println!(
        "{:>5} {:>6} {:>6} {:>5} {:>11} {:>11} {:>10} {:>11} {:>11} {:>6}",
        "", "bytes", "depth", "", "p50", "p99", "IOPS", "round trip", "p50 / trip", ""
    );
    let mut good = true;
    for &(name, span) in &SPANS[..if typed.hot { 1 } else { SPANS.len() }] {
        for bytes in [512, 4096] {
            for depth in [1, 32, 128] {
                let mut first = None;
                // The cost of cold memory shows in the rows of the thread: vfio-user adds nothing to it.
                for way in &WAYS[..if span == MIB { WAYS.len() } else { 2 }] {
                    let (round, _) = measure::round_trip(SAMPLES);
                    let work = parse(&job(typed.ms, span, bytes, depth))?;
                    let run_result = way.run(&plan, &work)?;
                    good &= run_result.jobs.iter().all(|(_, job_result)| job_result.errors() == 0);
                    let (_, job_result) = run_result.jobs.last().expect("the reads");
                    let p50 = p50(job_result).0 as f64;
                    let ratio = p50 / *first.get_or_insert(p50);
                    let word = way.word();
                    let row = row(job_result, round);
                    println!("{name:>5} {bytes:>6} {depth:>6} {word:>5} {row} {ratio:>6.2}");
                }
            }
        }
    }
    Ok(good)
}

fn driver_costs<I: Interface>(
    plan: &Plan,
    bytes: usize,
    at_once: usize,
    rounds: usize,
) -> Result<(), String> {
    let costs = measure::driver_costs::<I>(plan, bytes, at_once, rounds);
    let DriverCosts { submit, complete } = costs.map_err(|error| error.to_string())?;
    let (name, bytes) = (I::NAME, size_text(bytes as u64));
    println!("{name} driver, {bytes}, {at_once} at once: submit {submit}, complete {complete}");
    Ok(())
}

/// A device in its own process, killed on drop.
struct Served {
    child: Child,
    folder: PathBuf,
}

impl Served {
    /// Starts this program as a vfio-user server; returns when it listens, with its socket.
    fn start() -> std::io::Result<(Served, PathBuf)> {
        let folder = std::env::temp_dir().join(format!("doorbell-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let socket = folder.join("socket");
        let mut serve = Command::new(std::env::current_exe()?);
        serve.args(["serve", "live", "--vfio-user"]).arg(&socket).stdout(Stdio::piped());
        for (key, value) in SETS {
            serve.args(["--set".to_owned(), format!("{key}={value}")]);
        }
        let mut served = Served { child: serve.spawn()?, folder };
        let lines = served.child.stdout.take().expect("a pipe was asked for");
        BufReader::new(lines).read_line(&mut String::new())?;
        Ok((served, socket))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Plan overrides of both processes.
const SETS: [(&str, &str); 2] =
    [("medium.block", "\"512 B\""), ("run.breakdown_sample", "1048576")];

fn plan() -> Result<Plan, String> {
    Plan::open("live", &SETS).map_err(|errors| errors.to_string())
}

/// A job that writes the range, then reads it.
fn job(ms: u64, span: u64, bytes: u64, depth: u32) -> String {
    format!(
        "[global]\nsize={span}\n[fill]\nrw=write\nbs=64k\niodepth=8\n\
         [reads]\nstonewall\nrw=randread\nbs={bytes}\niodepth={depth}\n\
         time_based\nruntime={ms}ms\n"
    )
}

/// A device and the way to it.
#[derive(Clone, Copy)]
enum Way {
    /// In this process, on a thread of its own.
    Threads(&'static Row),
    /// NVMe in another process, over vfio-user.
    VfioUser,
}

const WAYS: [Way; 3] = [Way::Threads(NVME), Way::Threads(DCX), Way::VfioUser];

impl Way {
    fn word(self) -> &'static str {
        match self {
            Way::Threads(row) => row.name,
            Way::VfioUser => "vfu",
        }
    }

    fn run(self, plan: &Plan, work: &Work) -> Result<RunResult, String> {
        let options = Options::default();
        let run_result = match self {
            Way::Threads(row) => world::live_in_threads(row, plan, work, options),
            Way::VfioUser => {
                let served = Served::start().map_err(|error| format!("serving: {error}"));
                let (_served, socket) = served?;
                world::live_over_vfio_user(NVME, plan, work, options, &socket)
            }
        };
        run_result.map_err(|error| error.to_string())
    }
}

fn p50(job_result: &JobResult) -> Span {
    Span::ns(job_result.stats.read.total.percentile_ns(50_000))
}

fn row(job_result: &JobResult, round: Span) -> String {
    let read = &job_result.stats.read;
    let p50 = p50(job_result);
    let p99 = Span::ns(read.total.percentile_ns(99_000));
    let ratio = p50.0 as f64 / round.0 as f64;
    let iops = read.iops(job_result.measured);
    let (p50, p99, round) = (p50.to_string(), p99.to_string(), round.to_string());
    format!("{p50:>11} {p99:>11} {iops:>10.0} {round:>11} {ratio:>11.2}")
}

/// Runs `reads` reads, rounded up to whole passes over 1 MiB, with both ends on this thread.
fn one_thread(typed: &Bench, reads: u64) -> Result<bool, String> {
    let (bytes, depth) = (typed.bytes, typed.depth);
    let moved = (reads * bytes).next_multiple_of(MIB);
    let job =
        format!("[reads]\nrw=randread\nbs={bytes}\niodepth={depth}\nsize=1m\nio_size={moved}\n");
    let (plan, work, options) = (plan()?, parse(&job)?, Options::default());
    let run_result = match typed.vfio_user {
        true => serve::in_one_thread(typed.interface, &plan, &work, options),
        false => world::live_in_one_thread(typed.interface, &plan, &work, options),
    };
    let run_result = run_result.map_err(|error| error.to_string())?;
    let (_, job_result) = &run_result.jobs[0];
    println!("{} reads of {bytes} bytes at depth {depth}", job_result.stats.read.total.count());
    Ok(job_result.errors() == 0)
}

fn parse(job: &str) -> Result<Work, String> {
    Work::parse(Path::new("bench"), job, Mapping::default()).map_err(|error| error.to_string())
}
