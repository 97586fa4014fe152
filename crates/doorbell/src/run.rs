//! `doorbell run` and `doorbell replay`.

mod flags;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use plan::{Completion, Plan};
use runtime::{Log, Span};
use serde_json::{Value, json};
use workload::report::{JobReport, Report};
use workload::trace::Mapping;
use world::engine::Progress;
use world::interfaces::{NVME, Row};
use world::run_recorder::RunRecorder;
use world::series::TimeSeries;
use world::work::Work;
use world::{self, Options, RunError, RunResult, Where};

use super::Sets;
use super::digest::Digest;
use super::interface::Named;
use super::recorded::{self, Recorder};
use super::stats::{awake, flash};
use super::watch::Watch;
pub(super) use flags::works;

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
    /// Mapping of the trace's devices or files onto the SSD
    #[arg(long, value_enum, default_value_t = Lay::Concatenate)]
    map: Lay,
    /// Live: drive the SSD served at this socket (serve --shm)
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Live: drive the NVMe function of the vfio-user server at this socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "socket")]
    vfio_user: Option<PathBuf>,
    /// Live: drive the PCI function at this address, bound to vfio-pci (needs root, or access to its
    /// VFIO group)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["socket", "vfio_user"])]
    vfio: Option<String>,
    /// Live: number of host threads, one queue pair each; job clones are distributed across them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Number of controller resets during the run
    #[arg(long, default_value_t = 0)]
    resets: u32,
    /// Write fio's JSON to this file; several runs as {"runs": [...]}
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Simulated: write the event log to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Live: record the run to this file, a trace that `run` accepts
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write a time series to this file (rates, latencies, write amplification, host memory, cores): JSON
    /// if its name ends in .json, else a table
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Interval of the time series
    #[arg(long, default_value = "10 ms", requires = "series")]
    interval: String,
    #[command(flatten)]
    sets: Sets,
}

#[derive(Args)]
pub(super) struct Replay {
    /// Job file or trace of the run
    #[arg(value_name = "JOB|TRACE")]
    file: PathBuf,
    /// Plan of the run
    #[arg(long)]
    plan: String,
    /// Seed of the run
    #[arg(long)]
    seed: u64,
    /// Host interface of the run
    #[arg(long, value_parser = Named, default_value = "nvme")]
    interface: &'static Row,
    /// Mapping of the trace's devices or files onto the SSD
    #[arg(long, value_enum, default_value_t = Lay::Concatenate)]
    map: Lay,
    /// Controller resets during the run
    #[arg(long, default_value_t = 0)]
    resets: u32,
    /// Write the event log to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
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

/// Location of a live run's device.
#[derive(Clone, Copy)]
enum Device<'a> {
    /// In this process, on its own thread.
    Thread,
    /// Behind this socket, over shared memory.
    Shared(&'a Path),
    /// Behind this socket, a PCI function over vfio-user.
    VfioUser(&'a Path),
    /// A PCI function at this address, through VFIO.
    Vfio(&'a str),
}

/// One file in one world.
struct RunSpec<'a> {
    plan: &'a Plan,
    work: &'a Work,
    interface: &'static Row,
    simulated: bool,
    device: Device<'a>,
    resets: u32,
    /// Live: threads of the host.
    threads: u32,
    /// Interval of the time series.
    series: Option<Span>,
    /// Live: records the run.
    run_recorder: Option<Rc<RunRecorder>>,
    /// Simulated, of a recorded run: register writes replayed so far.
    register_writes: Rc<Cell<u64>>,
    /// Arguments of `doorbell replay` after the file's name that repeat the run.
    repro_arguments: &'a str,
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

pub(super) fn run(typed: &Run) -> Result<bool, String> {
    let plan = seeded(&typed.sets, &typed.plan, typed.seed)?;
    typed.check_flags()?;
    typed.check_threads(&plan)?;
    let works = works(&typed.files, typed.map)?;
    // Made before the first run: a long one must not end in a report that cannot be written.
    let mut json = typed.json.as_ref().map(create).transpose()?;
    let mut series = typed.series.as_ref().map(create).transpose()?;
    let interval = typed.interval()?;
    let mut recorder = typed.recorder()?;
    let (seed, map) = (plan.run.seed, typed.map);
    let repro_arguments =
        repro_arguments(&typed.plan, seed, map, typed.interface, typed.resets, &typed.sets);
    let (mut good, mut reports, mut time_series) = (true, Vec::new(), Vec::new());
    for work in &works {
        for simulated in [false, true] {
            let wanted = match typed.world {
                World::Live => !simulated,
                World::Sim => simulated,
                World::Both => true,
            };
            if !wanted {
                continue;
            }
            let (device, resets) = (typed.device(), typed.resets);
            let interface = typed.interface;
            let spec = RunSpec {
                plan: &plan,
                work,
                interface,
                simulated,
                device,
                resets,
                threads: typed.threads,
                series: series.is_some().then_some(interval),
                run_recorder: recorder
                    .as_ref()
                    .filter(|_| !simulated)
                    .map(|to| to.run_recorder.clone()),
                register_writes: Rc::default(),
                repro_arguments: &repro_arguments,
            };
            let log =
                typed.log.as_ref().filter(|_| simulated).map(Digest::into_file).transpose()?;
            let mut run_result = spec.run(log.as_ref())?;
            good &= spec.print_report(&run_result);
            time_series.extend(run_result.series.take().map(|series| (spec.title(), series)));
            if let Some(log) = log {
                log.finish(&typed.plan, plan.run.seed)?;
            }
            if let Some(recorder) = recorder.take_if(|_| !simulated) {
                recorder.finish(spec.how(), work, &run_result)?;
            }
            reports.push(spec.report(run_result).to_json());
        }
    }
    if let (Some(file), Some(path)) = (&mut json, &typed.json) {
        // An object either way: that of fio, or one of several such.
        let value = match reports.len() {
            1 => reports.remove(0),
            _ => json!({ "runs": reports }),
        };
        put(file, path, &format!("{value:#}\n"))?;
    }
    if let (Some(file), Some(path)) = (&mut series, &typed.series) {
        put(file, path, &text_of(&time_series, path))?;
    }
    Ok(good)
}

fn put(file: &mut File, path: &Path, text: &str) -> Result<(), String> {
    file.write_all(text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

/// Time series, each with what was run, as the file's name asks for.
fn text_of(time_series: &[(String, TimeSeries)], path: &Path) -> String {
    if path.extension().is_some_and(|ending| ending == "json") {
        let one = |(run, series): &(String, TimeSeries)| json!({ "run": run, "series": series.to_json() });
        return format!("{:#}\n", Value::Array(time_series.iter().map(one).collect()));
    }
    time_series.iter().map(|(title, series)| format!("{title}\n{series}")).collect()
}

pub(super) fn replay(typed: &Replay) -> Result<bool, String> {
    let plan = seeded(&typed.sets, &typed.plan, Some(typed.seed))?;
    let work = &works(std::slice::from_ref(&typed.file), typed.map)?[0];
    let (seed, map) = (typed.seed, typed.map);
    let repro_arguments =
        repro_arguments(&typed.plan, seed, map, typed.interface, typed.resets, &typed.sets);
    let spec = RunSpec {
        plan: &plan,
        work,
        interface: typed.interface,
        simulated: true,
        device: Device::Thread,
        resets: typed.resets,
        threads: 1,
        series: None,
        run_recorder: None,
        register_writes: Rc::default(),
        repro_arguments: &repro_arguments,
    };
    let log = match &typed.log {
        Some(path) => Digest::into_file(path)?,
        None => Digest::default(),
    };
    let run_result = spec.run(Some(&log))?;
    let good = spec.print_report(&run_result);
    log.finish(&typed.plan, typed.seed)?;
    Ok(good)
}

/// Makes a file for what is written beside the report.
pub(super) fn create(path: &PathBuf) -> Result<File, String> {
    if path.as_os_str() == "-" {
        return Err(
            "-: expected the path of a file: standard output has the report (./- is a file)".into(),
        );
    }
    File::create(path).map_err(|error| format!("{}: cannot be written: {error}", path.display()))
}

/// The arguments that repeat a run, quoted for a shell.
fn repro_arguments(
    plan: &str,
    seed: u64,
    map: Lay,
    interface: &'static Row,
    resets: u32,
    sets: &Sets,
) -> String {
    let mut line = format!("--plan {plan} --seed {seed}");
    if map == Lay::Modulo {
        line += " --map modulo";
    }
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

impl RunSpec<'_> {
    fn run(&self, log: Option<&Digest>) -> Result<RunResult, String> {
        let ((options, watch), plan, work) = (self.options(log), self.plan, self.work);
        let row = self.interface.of_plan(plan);
        let run_result = match self.device {
            _ if self.simulated => world::simulate(row, plan, work, options),
            _ if row.name == NVME.name && plan.array.is_none() && self.several_threads() => {
                self.run_in_host_threads(options)
            }
            Device::Thread => world::live_in_threads(row, plan, work, options),
            Device::Shared(socket) => world::live_over_socket(row, plan, work, options, socket),
            Device::VfioUser(socket) => {
                world::live_over_vfio_user(row, plan, work, options, socket)
            }
            Device::Vfio(address) => world::live_over_vfio(row, plan, work, options, address),
        };
        drop(watch);
        run_result.map_err(|error| error.to_string())
    }

    fn run_in_host_threads(&self, options: Options) -> Result<RunResult, RunError> {
        let device = match self.device {
            Device::Thread => Where::Thread,
            Device::Shared(socket) => Where::Socket(socket),
            Device::VfioUser(socket) => Where::VfioUser(socket),
            Device::Vfio(_) => return Err(RunError("--vfio: one thread has it".into())),
        };
        world::live_in_host_threads(self.plan, self.work, options, self.threads, device)
    }

    fn options(&self, log: Option<&Digest>) -> (Options, Watch) {
        let progress = Arc::<Progress>::default();
        let mut log = log.map_or(Log::Off, Digest::log);
        if self.simulated && self.work.recorded.is_some() {
            log = recorded::counting(log, &self.register_writes);
        }
        let options = Options {
            log,
            progress: progress.clone(),
            resets: self.resets,
            series: self.series,
            run_recorder: self.run_recorder.clone(),
            ..Options::default()
        };
        (options, Watch::begin(&self.work.file.display().to_string(), progress))
    }

    /// Whether the host is of more than one thread: no more than there are clones to run.
    fn several_threads(&self) -> bool {
        !self.simulated && self.host_threads() > 1
    }

    fn host_threads(&self) -> u32 {
        self.threads.min(self.work.clones_at_once() as u32)
    }

    fn world(&self) -> String {
        let world = match (self.simulated, self.device) {
            (true, _) => "simulated",
            (false, Device::Thread) => "live, two threads",
            (false, Device::Shared(_)) => "live, two processes",
            (false, Device::VfioUser(_)) => "live, over vfio-user",
            (false, Device::Vfio(_)) => "live, over VFIO",
        };
        match self.device {
            _ if !self.several_threads() => world.to_owned(),
            Device::Thread => {
                format!("live, {} host threads and the device's", self.host_threads())
            }
            _ => format!("{world}, {} host threads", self.host_threads()),
        }
    }

    fn title(&self) -> String {
        format!("== {}, {}", self.work.file.display(), self.how())
    }

    /// World, plan and interface.
    fn how(&self) -> String {
        format!("{}, plan {}, {}", self.world(), self.plan.name, self.interface.name)
    }

    /// Prints the results. Returns false if an operation failed.
    fn print_report(&self, run_result: &RunResult) -> bool {
        let file = self.work.file.display();
        println!("{}", self.title());
        for note in self.work.notes.iter().chain(&run_result.notes) {
            println!("note: {note}");
        }
        if !self.simulated && self.host_threads() < self.threads {
            let at_once = self.work.clones_at_once();
            println!(
                "note: {} threads were asked for, and {at_once} clones run at once",
                self.threads
            );
        }
        if self.resets > 0 {
            println!("note: {} of {} resets came under the work", run_result.resets, self.resets);
        }
        for (name, injected) in &run_result.faults {
            println!("fault {name}: struck {injected} times");
        }
        if let Some(flash) = &run_result.flash {
            let elapsed = run_result
                .jobs
                .iter()
                .map(|(_, job_result)| job_result.elapsed)
                .max()
                .unwrap_or_default();
            flash.lines(elapsed).iter().for_each(|line| println!("{line}"));
        }
        let mut good = true;
        for (job, job_result) in &run_result.jobs {
            for message in &job_result.messages {
                eprintln!("error: {message}");
            }
            if job_result.errors() > 0 {
                eprintln!("error: {}: {} errors in all", job.name, job_result.errors());
                good = false;
            }
            if job_result.blocks_verified > 0 {
                println!("{}: {} blocks verified", job.name, job_result.blocks_verified);
            }
        }
        if !good && self.simulated {
            eprintln!("to repeat: doorbell replay {file} {}", self.repro_arguments);
        }
        if self.plan.host.completion == Completion::Hybrid {
            awake(run_result).iter().for_each(|line| println!("note: {line}"));
        }
        print!("{}", self.jobs(run_result));
        if let Some(live) = self.work.recorded.as_ref().filter(|_| self.simulated) {
            recorded::print_report(live, run_result, self.register_writes.get());
        }
        good
    }

    fn jobs(&self, run_result: &RunResult) -> Report {
        let jobs = run_result.jobs.iter().map(|(job, job_result)| JobReport {
            name: job.name.clone(),
            description: job.description.clone(),
            error: if job_result.errors() > 0 { 5 } else { 0 },
            measured: job_result.measured,
            elapsed: job_result.elapsed,
            options: job.options.clone(),
            stats: job_result.stats.clone(),
            ..JobReport::default()
        });
        Report { jobs: jobs.collect(), ..Report::default() }
    }

    fn report(&self, run_result: RunResult) -> Report {
        // A simulated run repeats byte for byte, its report too.
        let now =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
        let busy = run_result.busy.as_ref().map(|busy| {
            json!({
                "of_ps": busy.of.0,
                "link_up_ps": busy.up.0,
                "link_down_ps": busy.down.0,
                "cores_ps": busy.cores.iter().map(|core| core.0).collect::<Vec<_>>(),
                "polling_ps": busy.polling.iter().map(|core| core.0).collect::<Vec<_>>(),
            })
        });
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            unix_ms: if self.simulated { 0 } else { now() },
            notes: self.work.notes.iter().chain(&run_result.notes).cloned().collect(),
            world: json!({
                "world": self.world(),
                "interface": self.interface.name,
                "timed_events": run_result.timed_events,
                "busy": busy,
                "host_thread_ps": run_result.host_thread.map(|took| took.0),
                "flash": run_result.flash.as_ref().map(flash),
                "faults": run_result.faults.iter().cloned().collect::<BTreeMap<_, _>>(),
            }),
            plan: json!({
                "name": self.plan.name,
                "origin": self.plan.origin,
                "seed": self.plan.run.seed,
                "sources": self.plan.sources,
            }),
            ..self.jobs(&run_result)
        }
    }
}
