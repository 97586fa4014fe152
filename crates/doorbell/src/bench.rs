//! `doorbell bench`: live reads and writes of a filled drive, beside this machine's core-to-core round trip
//! and the time of a copy.
//!
//! Everything runs on the same two cores, and both are measured again before each drive: ratios hold on a
//! machine whose clock rate is unknown or changes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::{ArgGroup, Args};
use microbench::{Direction, DriverCosts, Filled, ROUND_TRIPS};
use plan::Plan;
use plan::units::{parse_size, size_text};
use report::model::{self, Document};
use runtime::Span;
use workload::trace::Mapping;
use world::engine::JobResult;
use world::interfaces::{DCX, NVME, Row};
use world::work::Work;
use world::{self, Options, RunResult, Warning, Where};

use super::call::{Call, measured};
use super::interface::Named;
use super::output::{Page, Sink};

#[derive(Args)]
#[command(group(ArgGroup::new("counted").args(["one_thread", "parts"])))]
pub(super) struct Bench {
    /// Milliseconds per row
    #[arg(long, default_value_t = 300, conflicts_with = "counted")]
    ms: u64,
    /// Size of the filled drive: larger than the caches, for what users see
    #[arg(long, value_name = "SIZE", default_value = "1 GiB", value_parser = size)]
    #[arg(conflicts_with = "counted")]
    size: u64,
    /// Measure everything TURNS times, the ways in turns, and print medians
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    #[arg(conflicts_with = "counted")]
    turns: u64,
    /// Only within 1 MiB, in a core's cache: what it is without the cost of memory
    #[arg(long, conflicts_with = "counted")]
    hot: bool,
    /// Only READS reads within 1 MiB, host and device on one thread: for counting instructions
    #[arg(long, value_name = "READS")]
    one_thread: Option<u64>,
    /// Only ROUNDS rounds of batched reads, host and device in turns on one thread: for counting the
    /// instructions of each end
    #[arg(long, value_name = "ROUNDS")]
    parts: Option<usize>,
    /// With --one-thread: over vfio-user
    #[arg(long, requires = "one_thread")]
    vfio_user: bool,
    /// With --one-thread: host interface
    #[arg(long, value_parser = Named, default_value = "nvme", requires = "one_thread")]
    interface: &'static Row,
    /// With --one-thread or --parts: bytes per read
    #[arg(long, default_value_t = 4096, requires = "counted")]
    bytes: u64,
    /// With --one-thread: reads in flight; with --parts: reads of a batch
    #[arg(long, default_value_t = 1, requires = "counted")]
    depth: u32,
    /// With --one-thread: writes, not reads
    #[arg(long, requires = "one_thread")]
    write: bool,
    /// With --one-thread: this number of threads, each with a host and a device of its own, as device threads
    /// that have different clients
    #[arg(long, value_name = "N", default_value_t = 1, requires = "one_thread")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pairs: u32,
    /// With --one-thread and --pairs: all hosts use one drive, whose queues are dealt to the threads
    #[arg(long, requires = "one_thread", conflicts_with_all = ["vfio_user", "interface"])]
    one_drive: bool,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE", conflicts_with = "counted")]
    json: Option<PathBuf>,
}

/// Round-trip samples before each row: about 10 ms.
const SAMPLES: usize = 1_500;
/// Rounds of 32 commands in which the driver's costs are measured.
const ROUNDS: usize = 2_000;

const MIB: u64 = 1 << 20;
/// Copies by which a floor is measured: about 10 ms.
const COPIES: usize = 20_000;
/// Samples of some copies of which each has no other beside it: a few ms.
const LONE_COPIES: usize = 200;

/// Bytes and depth of a row.
const ROWS: [(u64, u32); 6] =
    [(512, 1), (512, 32), (4096, 1), (4096, 32), (131_072, 1), (131_072, 8)];

/// A drive of whole MiB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match bytes.is_multiple_of(MIB) && (MIB..=1 << 40).contains(&bytes) {
        true => Ok(bytes),
        false => Err("expected whole MiB, 1 MiB to 1 TiB".to_owned()),
    }
}

pub(super) fn bench(typed: &Bench, call: &Call) -> Result<bool, String> {
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    if let Some(rounds) = typed.parts {
        let (bytes, at_once) = (typed.bytes as usize, typed.depth as usize);
        driver_costs(NVME, page, &plan(MIB)?, bytes, at_once, rounds)?;
        return Ok(true);
    }
    if let Some(reads) = typed.one_thread {
        return one_thread(typed, reads);
    }
    let (found, good) = table(typed, page)?;
    if let Some(json) = &mut json {
        let document = measured(call.document(Vec::new()));
        json.put(&report::to_json(&Document { bench: Some(found), ..document }))?;
    }
    Ok(good)
}

/// Measures the interfaces of a row one right after the other.
fn table(typed: &Bench, page: Page) -> Result<(model::Bench, bool), String> {
    let (round, p99) = microbench::round_trip(5 * SAMPLES);
    page.line(format_args!(
        "core-to-core round trip: p50 {round}, p99 {p99} (of {ROUND_TRIPS} at a time)"
    ));
    let plan = plan(MIB)?;
    let drivers = vec![
        driver_costs(NVME, page, &plan, 4096, 32, ROUNDS)?,
        driver_costs(DCX, page, &plan, 4096, 32, ROUNDS)?,
    ];
    let (mut good, mut rows) = (true, Vec::new());
    let ranges = [("filled", typed.size), ("hot", MIB)];
    for range in &ranges[usize::from(typed.hot)..] {
        let (clean, found) = range_table(typed, range, page)?;
        good &= clean;
        rows.extend(found);
    }
    let found =
        model::Bench { round_trip_p50_ps: round.0, round_trip_p99_ps: p99.0, drivers, rows };
    Ok((found, good))
}

/// Measures each way over a range, in turns, and prints a row for each kind, size, depth and way.
fn range_table(
    typed: &Bench,
    &(name, span): &(&str, u64),
    page: Page,
) -> Result<(bool, Vec<model::BenchRow>), String> {
    match name {
        "hot" => page.line("hot: within 1 MiB, in a core's cache"),
        _ => page.line(format_args!(
            "filled: all of {}, every block written before and verified",
            size_text(span)
        )),
    }
    let (mut good, mut found) = (true, vec![Vec::new(); ROWS.len() * 2 * WAYS.len()]);
    let mut warnings = Vec::new();
    for _ in 0..typed.turns {
        for (number, way) in WAYS.iter().enumerate() {
            let floors = floors(span)?;
            let (round, _) = microbench::round_trip(SAMPLES);
            let plan = plan(span)?;
            let run_result = way.run(&plan, &parse(&job(typed.ms, span))?, span)?;
            let clean = run_result.jobs.iter().all(|(_, job_result)| job_result.errors() == 0);
            good &= clean;
            let disturbed = run_result.warnings.iter();
            let disturbed = disturbed.filter(|one| matches!(one, Warning::Disturbed { .. }));
            warnings.extend(disturbed.map(|warning| format!("warning: {}: {warning}", way.word())));
            // The first job fills the drive.
            for (place, (_, job_result)) in run_result.jobs[1..].iter().enumerate() {
                let row = row(*way, name, span, place, job_result, (round, floors[place]));
                found[place * WAYS.len() + number].push(row);
            }
        }
    }
    page.line(HEAD);
    let rows: Vec<_> = found.into_iter().filter_map(median).collect();
    rows.iter().for_each(|row| page.line(line(row)));
    warnings.iter().for_each(|warning| page.line(warning));
    Ok((good, rows))
}

/// Times of copies that a row is compared with.
#[derive(Clone, Copy)]
struct Floor {
    /// Time of a copy beside others.
    copy: Span,
    /// Without others, for a depth of 1.
    lone: Option<Span>,
}

/// Times of copies for each row of a range.
fn floors(span: u64) -> Result<Vec<Floor>, String> {
    let filled = Filled::new(usize::try_from(span).map_err(|error| error.to_string())?);
    let mut filled = filled.map_err(|error| format!("memory of {}: {error}", size_text(span)))?;
    let kinds = [Direction::Read, Direction::Write].into_iter();
    let each = kinds.flat_map(|kind| ROWS.map(|(bytes, depth)| (kind, bytes, depth)));
    let each = each.map(|(kind, bytes, depth)| {
        let samples = copies(bytes);
        let copy = filled.copy(bytes as usize, kind, samples);
        let lone = (depth == 1).then(|| filled.lone_copy(bytes as usize, kind, LONE_COPIES));
        Floor { copy, lone }
    });
    Ok(each.collect())
}

fn copies(bytes: u64) -> usize {
    COPIES.min((256 * MIB / bytes) as usize)
}

fn row(
    way: Way,
    range: &str,
    range_bytes: u64,
    place: usize,
    job_result: &JobResult,
    (round, Floor { copy, lone }): (Span, Floor),
) -> model::BenchRow {
    let (bytes, depth) = ROWS[place % ROWS.len()];
    let (kind, stats) = match place < ROWS.len() {
        true => ("read", &job_result.stats.read),
        false => ("write", &job_result.stats.write),
    };
    let iops = model::per_second(stats.total.count(), job_result.measured.0);
    model::BenchRow {
        range: range.to_owned(),
        range_bytes,
        kind: kind.to_owned(),
        bytes,
        depth,
        way: way.word().to_owned(),
        count: stats.total.count(),
        measured_ps: job_result.measured.0,
        iops,
        p50_ns: stats.total.percentile_ns(50_000),
        p99_ns: stats.total.percentile_ns(99_000),
        round_trip_ps: round.0,
        copy_ps: copy.0,
        lone_copy_ps: lone.map(|lone| lone.0),
        of_copy: iops * copy.0 as f64 / 1e12,
    }
}

/// The row of the median rate, whole: its ratios are of what was measured beside it.
fn median(mut turns: Vec<model::BenchRow>) -> Option<model::BenchRow> {
    turns.sort_by(|one, other| one.iops.total_cmp(&other.iops));
    let middle = turns.len() / 2;
    (middle < turns.len()).then(|| turns.swap_remove(middle))
}

const HEAD: &str = "kind   bytes  depth  way      p50 us    p99 us        IOPS  of copy  p50 / trip  \
                    lone copy  rest us";

fn line(row: &model::BenchRow) -> String {
    let (p50, p99) = (row.p50_ns as f64 / 1e3, row.p99_ns as f64 / 1e3);
    let trips = row.p50_ns as f64 * 1e3 / row.round_trip_ps as f64;
    // A lone command takes a round trip and a copy at least; what the rest is, is not known.
    let lone = row.lone_copy_ps.map_or(String::new(), |lone| {
        let (lone, trip) = (lone as f64 / 1e6, row.round_trip_ps as f64 / 1e6);
        format!(" {lone:>10.2} {:>8.2}", p50 - trip - lone)
    });
    format!(
        "{:<5} {:>6} {:>6}  {:<5} {p50:>9.2} {p99:>9.2} {:>11.0} {:>8.2} {trips:>11.2}{lone}",
        row.kind, row.bytes, row.depth, row.way, row.iops, row.of_copy
    )
}

fn driver_costs(
    row: &'static Row,
    page: Page,
    plan: &Plan,
    bytes: usize,
    at_once: usize,
    rounds: usize,
) -> Result<model::DriverCost, String> {
    let costs = microbench::driver_costs(row, plan, bytes, at_once, rounds);
    let DriverCosts { submit, complete } = costs.map_err(|error| error.to_string())?;
    let (name, size) = (row.name, size_text(bytes as u64));
    page.line(format_args!(
        "{name} driver, {size}, {at_once} at once: submit {submit}, complete {complete}"
    ));
    Ok(model::DriverCost {
        interface: name.to_owned(),
        bytes: bytes as u64,
        at_once: at_once as u32,
        submit_ps: submit.0,
        complete_ps: complete.0,
    })
}

/// A device in its own process, killed on drop.
struct Served {
    child: Child,
    folder: PathBuf,
}

impl Served {
    /// Starts this program as a vfio-user server; returns when it listens, with its socket.
    fn start(span: u64) -> std::io::Result<(Served, PathBuf)> {
        let folder = std::env::temp_dir().join(format!("doorbell-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let socket = folder.join("socket");
        let mut serve = Command::new(std::env::current_exe()?);
        serve.args(["serve", "live", "--vfio-user"]).arg(&socket).stdout(Stdio::piped());
        for (key, value) in sets(span) {
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
fn sets(span: u64) -> [(&'static str, String); 3] {
    [
        ("medium.block", "\"512 B\"".to_owned()),
        ("medium.capacity", format!("\"{} MiB\"", span.div_ceil(MIB))),
        ("run.breakdown_sample", "1048576".to_owned()),
    ]
}

fn plan(span: u64) -> Result<Plan, String> {
    let sets = sets(span);
    let sets: Vec<(&str, &str)> = sets.iter().map(|(key, value)| (*key, value.as_str())).collect();
    Plan::open("live", &sets).map_err(|errors| errors.to_string())
}

/// A job that writes the range and verifies it, then one for each row.
fn job(ms: u64, span: u64) -> String {
    let mut job =
        format!("[global]\nsize={span}\n[fill]\nrw=write\nbs=64k\niodepth=8\nverify=crc32c\n");
    for kind in ["randread", "randwrite"] {
        for (bytes, depth) in ROWS {
            job += &format!(
                "[{kind}-{bytes}-{depth}]\nstonewall\nrw={kind}\nbs={bytes}\niodepth={depth}\n\
                 time_based\nruntime={ms}ms\n"
            );
        }
    }
    job
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

    fn run(self, plan: &Plan, work: &Work, span: u64) -> Result<RunResult, String> {
        let options = Options::default();
        let run_result = match self {
            Way::Threads(row) => world::live_in_threads(row, plan, work, options),
            Way::VfioUser => {
                let served = Served::start(span).map_err(|error| format!("serving: {error}"));
                let (_served, socket) = served?;
                world::live_over_vfio_user(NVME, plan, work, options, &socket)
            }
        };
        run_result.map_err(|error| error.to_string())
    }
}

/// Runs `reads` reads or writes, rounded up to whole passes over 1 MiB, with both ends on one thread; or that
/// on several threads at once.
fn one_thread(typed: &Bench, reads: u64) -> Result<bool, String> {
    let (bytes, depth) = (typed.bytes, typed.depth);
    let moved = (reads * bytes).next_multiple_of(MIB);
    let (kind, done) = if typed.write { ("randwrite", "writes") } else { ("randread", "reads") };
    let job = format!("[one]\nrw={kind}\nbs={bytes}\niodepth={depth}\nsize=1m\nio_size={moved}\n");
    if typed.one_drive {
        return one_drive(typed, &format!("{job}numjobs={}\n", typed.pairs), done);
    }
    let (plan, work) = (plan(MIB)?, parse(&job)?);
    let pair = || {
        let run_result = match typed.vfio_user {
            true => serve::in_one_thread(typed.interface, &plan, &work, Options::default()),
            false => world::live_in_one_thread(typed.interface, &plan, &work, Options::default()),
        };
        let run_result = run_result.map_err(|error| error.to_string())?;
        let (_, job_result) = &run_result.jobs[0];
        let stats = if typed.write { &job_result.stats.write } else { &job_result.stats.read };
        println!("{} {done} of {bytes} bytes at depth {depth}", stats.total.count());
        Ok(job_result.errors() == 0)
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..typed.pairs).map(|_| scope.spawn(pair)).collect();
        let joined = others.into_iter().map(|other| other.join().expect("no thread panics"));
        let all: Result<Vec<_>, String> = std::iter::once(pair()).chain(joined).collect();
        Ok(all?.into_iter().all(|clean| clean))
    })
}

/// Runs a job with a clone for each thread, on one drive whose queues are dealt to the same threads.
fn one_drive(typed: &Bench, job: &str, done: &str) -> Result<bool, String> {
    let (plan, work, options) = (plan(MIB)?, parse(job)?, Options::default());
    let run = world::live_in_host_threads(&plan, &work, options, typed.pairs, Where::Beside);
    let run_result = run.map_err(|error| error.to_string())?;
    let (_, job_result) = &run_result.jobs[0];
    let stats = if typed.write { &job_result.stats.write } else { &job_result.stats.read };
    let (count, Bench { bytes, depth, pairs, .. }) = (stats.total.count(), typed);
    println!("{count} {done} of {bytes} bytes at depth {depth}, by {pairs} threads");
    Ok(job_result.errors() == 0)
}

fn parse(job: &str) -> Result<Work, String> {
    Work::parse(Path::new("bench"), job, Mapping::default()).map_err(|error| error.to_string())
}
