//! `doorbell run` and `doorbell replay`.

mod flags;
mod replay;
mod spec;

use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use campaign::event_log::Digest;
use campaign::run::{Device, RunSpec};
use clap::{Args, ValueEnum};
use plan::Plan;
use report::model;
use runtime::Span;
use serde_json::json;
use workload::trace::Mapping;
use world::interfaces::{NVME, Row};
use world::series::TimeSeries;
use world::work::Work;

use super::Sets;
use super::call::Call;
use super::digest::{into_file, line};
use super::interface::Named;
use super::output::{Page, Sink, create, put};
use super::perfetto::TraceFile;
use super::recorded::Recorder;
pub(super) use flags::{Jobs, page_interval};
pub(super) use replay::{Replay, replay};
use spec::{how, print_errors, watched};

/// Maximum number of operations of a run in a trace.
pub(super) const TIMELINE_OPERATIONS: u32 = 128;

#[derive(Args)]
pub(super) struct Run {
    /// fio job files and traces (fio iolog, blkparse text, MSR or vSCSI CSV, MQSim or DiskSim ASCII, and
    /// files written by --record)
    #[arg(required = true, value_name = "JOB|TRACE")]
    files: Vec<PathBuf>,
    /// Plan: built-in name or TOML file
    #[arg(long, default_value = "live")]
    plan: String,
    /// World to run in
    #[arg(long, value_enum, default_value_t = World::Both)]
    world: World,
    /// Host interface
    #[arg(long, value_parser = Named, default_value = "nvme")]
    interface: &'static Row,
    /// Seed of every RNG [default: the plan's run.seed]
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    jobs: Jobs,
    /// Live: drive the SSD served at this socket (serve --shm)
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Live: drive the PCI function of the vfio-user server at this socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "socket")]
    vfio_user: Option<PathBuf>,
    /// Live: drive the PCI function at this address, bound to vfio-pci (needs root, or access to its
    /// VFIO group)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["socket", "vfio_user"])]
    vfio: Option<String>,
    /// Live: number of host threads, one queue pair each; job clones are distributed across them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Live: number of device threads that the queues are dealt to, for media in memory without timing
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    device_threads: u32,
    /// Number of controller resets during the run
    #[arg(long, default_value_t = 0)]
    resets: u32,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shape of the JSON
    #[arg(long, value_enum, default_value_t = Format::Doorbell, requires = "json")]
    format: Format,
    /// Write a table to this file as CSV, a row for each job and kind of operation; - is standard output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the result to this file as one page, with pictures and the data
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print everything about each run after the summary
    #[arg(long, short)]
    verbose: bool,
    /// Simulated: write the event log to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Live: record the run to this file, a trace that `run` accepts
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write the stages of sampled operations to this file, in the trace-event format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a time series to this file (rates, latencies, write amplification, host memory, cores): JSON
    /// or CSV if its name ends in .json or .csv, else a table
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Interval of the time series [default: 10 ms]
    #[arg(long, requires = "series")]
    interval: Option<String>,
    #[command(flatten)]
    sets: Sets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum World {
    /// Real memory, real threads, wall-clock time
    Live,
    /// Simulated: virtual time over a model of the PCIe link
    Sim,
    /// Live, then simulated
    Both,
}

impl World {
    /// Whether each run is simulated, in order.
    pub(super) fn simulated(self) -> impl Iterator<Item = bool> {
        [false, true].into_iter().filter(move |simulated| match self {
            World::Live => !simulated,
            World::Sim => *simulated,
            World::Both => true,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Lay {
    /// One after the other; they must fit the capacity
    Concatenate,
    /// One after the other, addresses modulo the capacity
    Modulo,
}

impl From<Lay> for Mapping {
    fn from(lay: Lay) -> Mapping {
        match lay {
            Lay::Concatenate => Mapping::Concatenate,
            Lay::Modulo => Mapping::Modulo,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Everything, by the schema of docs/results.md
    Doorbell,
    /// The object that fio 3.33 writes, of one run
    Fio,
}

impl Run {
    /// Recorder of the run, if `--record` is given.
    fn recorder(&self) -> Result<Option<Recorder>, String> {
        let Some(path) = &self.record else { return Ok(None) };
        if self.world == World::Sim || self.files.len() > 1 {
            let expected = "one JOB or TRACE, and --world live or both";
            return Err(format!("--record takes down one live run: expected {expected}"));
        }
        Recorder::new(path).map(Some)
    }

    fn device(&self) -> Device<'_> {
        match (&self.socket, &self.vfio_user, &self.vfio) {
            (Some(socket), ..) => Device::Shared(socket),
            (None, Some(socket), _) => Device::VfioUser(socket),
            (None, None, Some(address)) => Device::Vfio(address),
            (None, None, None) => Device::Thread,
        }
    }
}

/// Destinations of the results of a run, besides standard output.
struct Outputs {
    json: Option<Sink>,
    csv: Option<Sink>,
    series: Option<Sink>,
    html: Option<File>,
}

impl Outputs {
    /// Made before the first run: a long one must not end in a report that cannot be written.
    fn open(typed: &Run) -> Result<Outputs, String> {
        let open = |path: &Option<PathBuf>| path.as_ref().map(Sink::open).transpose();
        Ok(Outputs {
            json: open(&typed.json)?,
            csv: open(&typed.csv)?,
            series: open(&typed.series)?,
            html: typed.html.as_ref().map(create).transpose()?,
        })
    }

    fn put(&mut self, typed: &Run, call: &Call, done: Done) -> Result<(), String> {
        if let (Some(sink), Some(path)) = (&mut self.series, &typed.series) {
            sink.put(&text_of(call, &done, path))?;
        }
        let document = call.document(done.runs);
        if let Some(sink) = &mut self.csv {
            sink.put(&report::csv::operations(&document))?;
        }
        if let (Some(file), Some(path)) = (&mut self.html, &typed.html) {
            put(file, path, &report::page::html(&document))?;
        }
        let Some(sink) = &mut self.json else { return Ok(()) };
        match typed.format {
            Format::Doorbell => sink.put(&report::to_json(&document)),
            Format::Fio => {
                sink.put(&format!("{:#}\n", report::to_fio(&document, &document.runs[0])))
            }
        }
    }
}

/// Runs that ended.
#[derive(Default)]
struct Done {
    runs: Vec<model::Run>,
    time_series: Vec<(String, TimeSeries)>,
    trace: Option<TraceFile>,
    failed: bool,
}

pub(super) fn run(typed: &Run, call: &Call) -> Result<bool, String> {
    let plan = seeded(&typed.sets, &typed.plan, typed.seed)?;
    typed.check_flags()?;
    typed.check_threads(&plan)?;
    typed.check_device_threads()?;
    let works = typed.jobs.works(&typed.files)?;
    typed.check_format(works.len())?;
    let interval = typed.interval()?;
    let mut outputs = Outputs::open(typed)?;
    let page = Page::beside(&[&outputs.json, &outputs.csv, &outputs.series])?;
    let mut recorder = typed.recorder()?;
    let trace = typed.trace.as_deref().map(TraceFile::create).transpose()?;
    let mut done = Done { trace, ..Done::default() };
    for work in &works {
        let begin = done.runs.len();
        let result = one_file(typed, &plan, work, interval, &mut recorder, &mut done, page);
        // Runs that ended are printed, also if the other world failed.
        let runs: Vec<_> = done.runs[begin..].iter().collect();
        print_runs(page, &runs, typed.verbose);
        for log in runs.iter().filter_map(|run| run.log.as_ref()).filter(|_| typed.log.is_some()) {
            page.line(line(log, &typed.plan, plan.run.seed));
        }
        result?;
    }
    let good = !done.failed;
    done.trace.take().map_or(Ok(()), TraceFile::finish)?;
    outputs.put(typed, call, done)?;
    for (what, path) in [("page", &typed.html), ("trace for Perfetto", &typed.trace)] {
        if let Some(path) = path {
            page.line(format_args!("{what}: {}", path.display()));
        }
    }
    Ok(good)
}

/// Runs a file in the worlds that were asked for.
fn one_file(
    typed: &Run,
    plan: &Plan,
    work: &Work,
    interval: Span,
    recorder: &mut Option<Recorder>,
    done: &mut Done,
    page: Page,
) -> Result<(), String> {
    let (device, resets, interface) = (typed.device(), typed.resets, typed.interface);
    let arguments =
        repro_arguments(&typed.plan, plan.run.seed, &typed.jobs, interface, resets, &typed.sets);
    let keeps_result = typed.json.is_some() || typed.html.is_some();
    let recordings = match keeps_result {
        true => report::recordings(work).map_err(|error| error.to_string())?,
        false => Vec::new(),
    };
    for simulated in typed.world.simulated() {
        let spec = RunSpec {
            plan,
            work,
            settings: &typed.jobs.settings,
            interface,
            simulated,
            device,
            resets,
            threads: typed.threads,
            device_threads: typed.device_threads,
            series: match (&typed.series, &typed.html) {
                (Some(_), _) => Some(interval),
                (None, Some(_)) => Some(page_interval(work)),
                (None, None) => None,
            },
            timeline: (typed.trace.is_some() || typed.html.is_some())
                .then_some(TIMELINE_OPERATIONS),
            run_recorder: recorder
                .as_ref()
                .filter(|_| !simulated)
                .map(|to| to.run_recorder.clone()),
            register_writes: Rc::default(),
            progress: Arc::default(),
        };
        let log = match (&typed.log, keeps_result) {
            _ if !simulated => None,
            (Some(path), _) => Some(into_file(path)?),
            // The result has the digest, so that a replay can be compared with it.
            (None, true) if typed.format == Format::Doorbell => Some(Digest::default()),
            (None, _) => None,
        };
        let run_result = watched(&spec, log.as_ref())?;
        let log = log.map(|log| log.finish()).transpose().map_err(|error| error.to_string())?;
        let run = spec.model(&run_result, &recordings, log);
        done.failed |= !print_errors(&spec, &run, &arguments);
        if let Some(recorder) = recorder.take_if(|_| !simulated) {
            recorder.finish(how(&spec, &run), work, &run_result, page)?;
        }
        let title = format!("== {}, {}", run.work.file, how(&spec, &run));
        if let Some(trace) = &mut done.trace {
            trace.add(&title, &run_result);
        }
        done.time_series.extend(run_result.series.map(|series| (title, series)));
        done.runs.push(run);
    }
    Ok(())
}

/// Prints the summary of the runs of a file, and their details on request.
fn print_runs(page: Page, runs: &[&model::Run], verbose: bool) {
    page.text(&report::summary::of_file(runs, page.style));
    for run in runs.iter().filter(|_| verbose) {
        if runs.len() > 1 {
            page.line(format_args!("\n{}", report::summary::title_of(run)));
        }
        page.text(&report::details(run));
    }
}

/// Time series, each with what was run, as the file's name asks for.
fn text_of(call: &Call, done: &Done, path: &std::path::Path) -> String {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match ending {
        "json" => {
            let titles = done.time_series.iter().map(|(title, _)| title);
            let series = done.runs.iter().filter_map(|run| run.series.as_ref());
            let each =
                titles.zip(series).map(|(run, series)| json!({ "run": run, "series": series }));
            format!("{:#}\n", serde_json::Value::Array(each.collect()))
        }
        "csv" => report::csv::series(&call.document(done.runs.clone())),
        _ => done.time_series.iter().map(|(title, series)| format!("{title}\n{series}")).collect(),
    }
}

/// The arguments that repeat a run, quoted for a shell.
fn repro_arguments(
    plan: &str,
    seed: u64,
    jobs: &Jobs,
    interface: &'static Row,
    resets: u32,
    sets: &Sets,
) -> String {
    let mut line = format!("--plan {plan} --seed {seed}{}", jobs.typed());
    if interface.name != NVME.name {
        line += &format!(" --interface {}", interface.name);
    }
    if resets > 0 {
        line += &format!(" --resets {resets}");
    }
    line + &sets.typed()
}

fn seeded(sets: &Sets, plan: &str, seed: Option<u64>) -> Result<Plan, String> {
    let mut sets = sets.clone();
    sets.sets.extend(seed.map(|seed| ("run.seed".into(), seed.to_string())));
    sets.open(plan)
}
