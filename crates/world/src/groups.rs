//! Jobs on a driver: groups one after the other, the clones of a group beside each other.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bus::{Arena, HostPort};
use host::{BlockDevice, Geometry};
use media::contents::{Backing, Keep};
use runtime::{Rt, Span};
use workload::job::Job;
use workload::pattern::Target;
use workload::verify::{Ledger, Stamps};

use crate::engine::{self, Checks, Hold, JobResult, Layer, Progress, Setup, Source};
use crate::error::RunError;
use crate::interfaces::{Connected, HostSide, Row};
use crate::run_recorder::RunRecorder;
use crate::run_result::{HostResult, Options};
use crate::series::Recorder;
use crate::work::{Prepared, Work, verifies};
use plan::Plan;

/// Costs of software above the driver, outermost first.
pub const LAYERS: [&str; 3] = ["benchmark", "system call", "block driver"];

/// Who looks on, or holds the work up.
#[derive(Clone, Default)]
pub(super) struct Watched {
    pub hold: Option<Rc<Hold>>,
    pub series: Option<Rc<Recorder>>,
    pub run_recorder: Option<Rc<RunRecorder>>,
}

/// What the clones of a group run on, by their numbers in it.
pub(super) struct GroupContext<'a, P> {
    pub row: &'static Row,
    /// Begins an engine on the disk of this number.
    pub run: &'a dyn Fn(usize, Source, Setup<P>) -> Running,
    pub port: &'a dyn Fn(usize) -> P,
    pub target: Target,
    pub checks: Option<Arc<Checks>>,
    pub progress: &'a Arc<Progress>,
    pub watched: Watched,
    /// Which clones are run here: of so many that follow one another, the one at this place.
    pub deal: (usize, usize),
}

pub(super) type Running = Pin<Box<dyn Future<Output = JobResult>>>;

/// Runs the groups of a work, each when the one before it has ended.
pub(super) async fn run_groups<P: HostSide>(
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    options: &Options,
    driver: &Connected<P>,
    port: &dyn Fn(usize) -> P,
    watched: Watched,
) -> Result<HostResult, RunError> {
    let geometry = driver.disk(0).geometry();
    let of_this_run = || Arc::new(checks(plan, options.contents_unknown, geometry.blocks));
    let context = GroupContext {
        row: driver.row,
        run: &|number, source, setup| driver.run(number, rt, source, setup),
        port,
        target: target(geometry),
        checks: verifies(&work.jobs).then(of_this_run),
        progress: &options.progress,
        watched,
        deal: (0, 1),
    };
    check_buffers(work, geometry, port(0).arena(), context.deal)?;
    let mut told = HostResult::default();
    for group in work.groups() {
        told.add(run_group(rt, plan, work, group, &context).await?);
    }
    Ok(told)
}

/// Runs those clones of a group that are dealt out here.
pub(super) async fn run_group<P: HostPort>(
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    group: &[Job],
    context: &GroupContext<'_, P>,
) -> Result<HostResult, RunError> {
    let mut told = HostResult::default();
    let results = Rc::new(RefCell::new(Vec::new()));
    let left = Rc::new((runtime::Signal::default(), Cell::new(0_usize)));
    let ((place, of), row) = (context.deal, context.row);
    let clones = group.iter().enumerate();
    let clones = clones.flat_map(|(index, job)| (0..job.numjobs).map(move |n| (index, job, n)));
    for (number, (index, job, clone)) in clones.enumerate().filter(|(n, _)| n % of == place) {
        let prepared =
            work.source(job, clone, plan.run.seed, context.target).map_err(RunError::of)?;
        let Prepared { source, start_delay, summary } = prepared;
        told.notes.extend(summary);
        let port = (context.port)(number);
        let setup = Setup {
            layers: layers(row, plan, &port),
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
    told.jobs.extend(group.iter().cloned().zip(merged));
    Ok(told)
}

/// The buffers of all clones that run here at the same time have room in host memory. What the driver takes
/// beside them while it works may still be too much: then an engine says so.
pub(super) fn check_buffers(
    work: &Work,
    geometry: Geometry,
    memory: &Arena,
    (place, of): (usize, usize),
) -> Result<(), RunError> {
    let all = memory.bytes() as u64;
    let left = all.saturating_sub(memory.used_bytes() as u64);
    for group in work.groups() {
        let (mut before, mut taken) = (0, 0_u64);
        for job in group {
            // Of clones before + 0, before + 1, ... every one whose number leaves `place`.
            let here = |end: usize| (end + of - 1 - place) / of;
            let clones = (here(before + job.numjobs as usize) - here(before)) as u64;
            before += job.numjobs as usize;
            let bytes = memory.taken_by(engine::buffer_bytes(job, &geometry)) as u64;
            let (depth, each) = (u64::from(job.iodepth.max(1)), bytes);
            taken = taken.saturating_add(clones.saturating_mul(depth).saturating_mul(each));
            if taken > left {
                let (file, line, name) = (work.file.display(), job.line, &job.name);
                return Err(RunError(format!(
                    "{file}:{line}: {name}: found {clones} of numjobs={} with iodepth={depth} buffers of \
                     {each} bytes each (bs, rounded up), {taken} bytes with the jobs beside it: host.memory \
                     has {left} of {all} bytes left: {}",
                    job.numjobs,
                    engine::FEWER
                )));
            }
        }
    }
    Ok(())
}

/// What patterns and recordings are laid onto.
pub(super) fn target(geometry: Geometry) -> Target {
    Target {
        capacity_bytes: geometry.blocks * u64::from(geometry.block_bytes),
        block_bytes: geometry.block_bytes,
    }
}

/// What verified jobs share: one device, one ledger.
pub(super) fn checks(plan: &Plan, contents_unknown: bool, blocks: u64) -> Checks {
    let unknown = contents_unknown || plan.medium.contents.backing != Backing::Memory;
    let ledger = if unknown { Ledger::over_unknown } else { Ledger::new };
    Checks {
        ledger: Mutex::new(ledger(blocks)),
        stamps: Stamps::new(plan.run.seed),
        // Somebody else's device is to keep every byte, whatever this plan says of its own.
        stamps_only: plan.medium.contents.keep == Keep::Stamps && !contents_unknown,
    }
}

/// The software above the driver that the plan gives a cost.
fn layers<P: HostPort>(row: &'static Row, plan: &Plan, port: &P) -> Vec<Layer> {
    LAYERS
        .iter()
        .filter(|name| plan.host.costs.iter().any(|c| c.name == **name && c.span > Span::ZERO))
        .map(|name| Layer {
            cost: port.cost(name),
            stage: row.stage(name).expect("a stage of its own"),
        })
        .collect()
}
