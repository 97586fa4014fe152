//! Shared test support: plans, workloads, clean-run checks, temporary folders, and commands.
//!
//! ```text
//!    plan, work ─► simulate ─► world ─► clean, only ─► shares, operations
//! ```
//!
//! It is not part of the product: only tests use it. [`mailbox`] is an interface from outside the registry.
//!
//! ```
//! use testing::{only, operations, plan, simulate, work};
//!
//! let job = work("[reads]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=10\n");
//! let run_result = simulate(&plan("dc-express", &[]), &job);
//! assert_eq!(operations(only(&run_result)), 10);
//! ```
#![allow(missing_docs, reason = "test support is read where it is used")]

pub mod flushed;
pub mod mailbox;
pub mod server;
pub mod system;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bus::HostPort;
use bus::sim::{SimBus, SimHost};
use host::nvme::{Controller, Queue};
use plan::Plan;
use runtime::{Log, Rt, Span};
use workload::pattern::OpKind;
use workload::stats::Shares;
use workload::trace::Mapping;
use world::device::{Clock, Device, MediumState};
use world::engine::JobResult;
use world::interfaces::{Connected, NVME, NvmeDriver, Row};
use world::work::Work;
use world::{Options, RunResult};

/// Lock for live tests, which need a core each for host and device: one runs at a time in a test program.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Root folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Opens a built-in plan with these values set.
pub fn plan(name: &str, sets: &[(&str, &str)]) -> Plan {
    Plan::open(name, sets).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Parses the text of a job file.
pub fn work(text: &str) -> Work {
    Work::parse(Path::new("test.fio"), text, Mapping::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Runs NVMe in virtual time; the run must be clean.
pub fn simulate(plan: &Plan, work: &Work) -> RunResult {
    simulate_with(plan, work, Options::default())
}

/// Like [`simulate`], with options.
pub fn simulate_with(plan: &Plan, work: &Work, options: Options) -> RunResult {
    simulate_by(NVME, plan, work, options)
}

/// Like [`simulate_with`], for the interface `row`.
pub fn simulate_by(row: &'static Row, plan: &Plan, work: &Work, options: Options) -> RunResult {
    let run_result = world::simulate(row, plan, work, options);
    clean(run_result.unwrap_or_else(|error| panic!("{error}")))
}

/// Asserts that each job has no errors and at least one operation.
pub fn clean(run_result: RunResult) -> RunResult {
    for (job, job_result) in &run_result.jobs {
        assert_eq!(job_result.errors(), 0, "{}: {:#?}", job.name, job_result.messages);
        assert!(operations(job_result) > 0, "{} did nothing", job.name);
    }
    run_result
}

/// Returns the result of the only job.
pub fn only(run_result: &RunResult) -> &JobResult {
    assert_eq!(run_result.jobs.len(), 1, "one job");
    &run_result.jobs[0].1
}

/// Number of operations completed without error.
pub fn operations(job_result: &JobResult) -> u64 {
    OpKind::ALL.iter().map(|kind| job_result.stats.of(*kind).total.count()).sum()
}

/// Mean latency breakdown of a kind of operation.
pub fn shares(job_result: &JobResult, kind: OpKind) -> Shares {
    job_result.stats.breakdowns[&kind].mean()
}

/// Mean latency of a kind of operation. Must be a whole number of picoseconds, as it is if all latencies are
/// equal.
pub fn whole_ps(job_result: &JobResult, kind: OpKind) -> Span {
    let total = shares(job_result, kind).total_ps;
    assert!(total.fract() == 0.0, "operations differ: {total} ps in the mean");
    Span(total as u64)
}

/// Runs `body` with a simulated device and a connected driver, without a workload engine.
pub fn in_sim<T>(
    row: &'static Row,
    plan: &Plan,
    log: Log,
    body: impl AsyncFnOnce(Rt, Connected<SimHost>, SimHost) -> T,
) -> T {
    let rt = Rt::simulated(None, log);
    let spec = bus::sim::SimSpec { register_bytes: (row.register_bytes)(plan), ..plan.sim_spec() };
    let bus = SimBus::new(&rt, spec);
    let kept = MediumState::new(plan).expect("a medium in memory");
    let device = Device::start(row, bus.device(), kept, Clock::Virtual, plan);
    device.expect("a plan with timing");
    let result = rt.block_on(async {
        let driver = row.connect(vec![bus.host(0)], plan).await.expect("the device is there");
        body(rt.clone(), driver, bus.host(0)).await
    });
    rt.drop_tasks();
    result
}

/// The first queue of the NVMe driver.
pub fn queue<P: HostPort>(driver: &Connected<P>) -> Rc<Queue<P>> {
    driver.typed_disk(0)
}

/// The controller of the NVMe driver.
pub fn controller<P: HostPort>(driver: &Connected<P>) -> &Controller<P> {
    driver.typed::<NvmeDriver<P>>().controller()
}

/// A temporary folder of a test, removed on drop.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates an empty folder with a short path, for the length limit of Unix socket paths.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn at(&self) -> &Path {
        &self.0
    }

    /// Creates a file with this text in the folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a temporary file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Output and exit code of a command.
pub struct CommandOutput {
    /// `None` if a signal ended the command.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs a command to its end and returns its output.
pub fn output_of(command: &mut std::process::Command) -> CommandOutput {
    let output = command.output().expect("the command can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput {
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}
