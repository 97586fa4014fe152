//! Execution of jobs on a driver: groups run in sequence, the clones of a group concurrently.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bus::HostPort;
use host::{BlockDevice, Geometry};
use media::contents::{Backing, Keep};
use runtime::{Rt, Span};
use workload::job::Job;
use workload::verify::{Ledger, Stamps};

use crate::buffers::{buffer_bytes, fit};
use crate::engine::{Checks, Hold, JobResult, KernelPath, Layer, Progress, Setup};
use crate::error::RunError;
use crate::interfaces::{Connected, HostSide, Row};
use crate::run_recorder::RunRecorder;
use crate::run_result::{HostResult, Options};
use crate::series::Recorder;
use crate::timeline::Sampler;
use crate::window::{Window, lead};
use crate::work::{Prepared, Source, Work, target, verifies};
use plan::Plan;

/// Costs of software above the driver, outermost first.
pub const LAYERS: [&str; 3] = ["benchmark", "system call", "block driver"];

/// Recorders, the measured window, and the hold that pauses the work for resets.
#[derive(Clone, Default)]
pub(super) struct Watched<'a> {
    pub window: Option<&'a Window<'a>>,
    pub hold: Option<Rc<Hold>>,
    pub series: Option<Rc<Recorder>>,
    pub run_recorder: Option<Rc<RunRecorder>>,
    pub sampler: Option<Rc<Sampler>>,
}

/// Context of the clones of a group.
pub(super) struct GroupContext<'a, P> {
    pub row: &'static Row,
    /// Starts an engine on the disk of this number.
    pub run: &'a dyn Fn(usize, Source, Setup<P>) -> Running,
    pub port: &'a dyn Fn(usize) -> P,
    pub geometry: Geometry,
    pub checks: Option<Arc<Checks>>,
    pub progress: &'a Arc<Progress>,
    pub watched: Watched<'a>,
    /// Index of this thread and number of threads. Clones are distributed round robin.
    pub thread: (usize, usize),
}

pub(super) type Running = Pin<Box<dyn Future<Output = JobResult>>>;

/// Runs the groups of a work in sequence.
pub(super) async fn run_groups<P: HostSide>(
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    options: &Options,
    (row, driver): (&'static Row, &Connected<P>),
    port: &dyn Fn(usize) -> P,
    watched: Watched<'_>,
) -> Result<HostResult, RunError> {
    let geometry = driver.disk(0).geometry();
    let of_this_run = || Arc::new(checks(plan, options.contents_unknown, geometry.blocks));
    let context = GroupContext {
        row,
        run: &|number, source, setup| driver.run(number, rt, source, setup),
        port,
        geometry,
        checks: verifies(&work.jobs).then(of_this_run),
        progress: &options.progress,
        watched,
        thread: (0, 1),
    };
    let (work, note) = fit(work, geometry, port(0).arena(), context.thread)?;
    let mut host_result = HostResult::default();
    host_result.notes.extend(note);
    for group in work.groups() {
        let running = run_group(rt, plan, &work, group, &context);
        host_result.add(match context.watched.window {
            Some(window) => window.over(rt, lead(group), running).await?,
            None => running.await?,
        });
    }
    Ok(host_result)
}

/// Runs the clones of a group that belong to this thread.
pub(super) async fn run_group<P: HostPort>(
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    group: &[Job],
    context: &GroupContext<'_, P>,
) -> Result<HostResult, RunError> {
    let mut host_result = HostResult::default();
    let results = Rc::new(RefCell::new(Vec::new()));
    let left = Rc::new((runtime::Signal::default(), Cell::new(0_usize)));
    let ((place, of), row) = (context.thread, context.row);
    let clones = group.iter().enumerate();
    let clones = clones.flat_map(|(index, job)| (0..job.numjobs).map(move |n| (index, job, n)));
    for (number, (index, job, clone)) in clones.enumerate().filter(|(n, _)| n % of == place) {
        let prepared = work.source(job, clone, plan.run.seed, target(context.geometry))?;
        let Prepared { source, start_delay, summary } = prepared;
        host_result.notes.extend(summary);
        let port = (context.port)(number);
        let layer = |name: &str| Layer {
            cost: port.cost(name),
            stage: row.stage(name).expect("a stage of every interface"),
        };
        let setup = Setup {
            layers: layers(plan, layer),
            path: KernelPath::of(plan, layer),
            port,
            job: job.clone(),
            start_delay,
            checks: context.checks.clone().filter(|_| job.verify.on),
            stages: row.stages,
            arrival_stage: row.stage("queueing delay"),
            progress: context.progress.clone(),
            hold: context.watched.hold.clone(),
            series: context.watched.series.clone(),
            run_recorder: context.watched.run_recorder.clone(),
            sampler: context.watched.sampler.clone(),
            commands_max: plan.host.queue_depth,
            buffer_bytes: buffer_bytes(work, job, &context.geometry)?,
        };
        left.1.set(left.1.get() + 1);
        let running = (context.run)(number, source, setup);
        let (rt, results, left) = (rt.clone(), results.clone(), left.clone());
        rt.clone().spawn(async move {
            let job_result = running.await;
            results.borrow_mut().push((index, job_result));
            left.1.set(left.1.get() - 1);
            left.0.notify(&rt);
        });
    }
    while left.1.get() > 0 {
        left.0.changed(rt, left.0.version()).await;
    }
    let mut merged: Vec<JobResult> = group.iter().map(|_| JobResult::default()).collect();
    results.borrow().iter().for_each(|(index, job_result)| merged[*index].merge(job_result));
    host_result.jobs.extend(group.iter().cloned().zip(merged));
    Ok(host_result)
}

/// Verification state that all verified jobs of a device share.
pub(super) fn checks(plan: &Plan, contents_unknown: bool, blocks: u64) -> Checks {
    let unknown = contents_unknown || plan.medium.contents.backing != Backing::Memory;
    let ledger = if unknown { Ledger::over_unknown } else { Ledger::new };
    Checks {
        ledger: Mutex::new(ledger(blocks)),
        stamps: Stamps::new(plan.run.seed),
        // A device in another process must retain every byte; `medium.keep` is only for our own medium.
        stamps_only: plan.medium.contents.keep == Keep::Stamps && !contents_unknown,
    }
}

/// Software layers above the driver with a cost in the plan.
fn layers(plan: &Plan, layer: impl Fn(&str) -> Layer) -> Vec<Layer> {
    // On the way through a kernel, the driver's work is spent piece by piece.
    let by_piece = |name: &str| plan.host.path.is_some() && name == "block driver";
    LAYERS
        .into_iter()
        .filter(|name| !by_piece(name))
        .filter(|name| plan.host.costs.iter().any(|c| c.name == *name && c.span > Span::ZERO))
        .map(layer)
        .collect()
}
