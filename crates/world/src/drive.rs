//! Host side of a run: connects the driver, runs the work, and shuts the device down.

use std::cell::Cell;
use std::rc::Rc;

use plan::Plan;
use runtime::{Either, Rt, race};

use crate::engine::Hold;
use crate::error::{DriverError, RunError};
use crate::groups::{Watched, run_groups};
use crate::interfaces::{Connected, HostSide, Row};
use crate::run_result::{HostResult, Options};
use crate::series::{Recorder, Sample};
use crate::timeline::Sampler;
use crate::window::{Instruments, Snapshot, Window};
use crate::work::Work;

/// Operations that complete between two resets.
pub(crate) const BETWEEN_RESETS: u64 = 64;
/// Operations that may complete while a reset is due. Counted in operations, so that resets overlap with I/O
/// on a machine of any speed.
const DURING_RESET: u64 = 128;
/// Ports from this number on are on cores for the driver alone: its own, then the reserved ones of the host.
pub(crate) const OWN_CORES: usize = 1 << 16;

/// Number of I/O queues that a host creates: at most one per concurrent clone.
pub(crate) fn queues(plan: &Plan, work: &Work) -> usize {
    work.clones_at_once().min(plan.host.queues as usize)
}

/// Connects the driver, runs the work and shuts the device down. `port` returns the port of a member and
/// queue number.
pub async fn drive<P: HostSide>(
    row: &'static Row,
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    options: &Options,
    port: &dyn Fn(usize, usize) -> P,
    instruments: Instruments<'_>,
) -> Result<HostResult, RunError> {
    let cores = (row.cores)(plan);
    let own = (0..(cores.own + cores.reserved) as usize).map(|own| OWN_CORES + own);
    let each: Vec<_> = (0..queues(plan, work)).chain(own).collect();
    let members = row.members(plan).map_or(1, |array| array.devices as usize);
    let ports = (0..members).flat_map(|member| each.iter().map(move |number| (member, *number)));
    let ports = ports.map(|(member, number)| port(member, number)).collect();
    let port = &|number| port(0, number);
    let driver = row.connect(ports, plan).await?;
    let hold = (options.resets > 0).then(Rc::<Hold>::default);
    let series = options.series.map(Recorder::new).map(Rc::new);
    let sampler = options
        .timeline
        .map(|most| Rc::new(Sampler::new(row.stages_in_lanes(), plan.run.seed, most)));
    let snapshot = || {
        let mut snapshot = Snapshot::default();
        (instruments.snapshot)(&mut snapshot);
        let software = || driver.software().map(|stats| stats.counters);
        snapshot.software = snapshot.software.or_else(software);
        snapshot
    };
    let window = Window::new(&snapshot);
    let watched = Watched {
        window: Some(&window),
        hold: hold.clone(),
        series: series.clone(),
        run_recorder: options.run_recorder.clone(),
        sampler: sampler.clone(),
    };
    let work = run_groups(rt, plan, work, options, (row, &driver), port, watched);
    let work = async {
        let Some(series) = &series else { return work.await };
        let memory = port(0).arena().clone();
        let take_sample = || {
            let software = driver.software();
            let memory_bytes = memory.used_bytes() as u64 + driver.memory_bytes();
            let counters = software.map(|software| software.counters);
            let mut sample = Sample { software: counters, memory_bytes, cores: None };
            (instruments.sample)(&mut sample);
            sample
        };
        match race(work, series.watch(rt, take_sample)).await {
            Either::First(host_result) => host_result,
            Either::Second(()) => unreachable!("the watch never ends"),
        }
    };
    let mut host_result = match &hold {
        None => work.await?,
        Some(hold) => under_resets(rt, &driver, options, hold, work).await?,
    };
    host_result.measured = window.counted();
    host_result.software = driver.software();
    host_result.host_memory = driver.memory();
    host_result.notes.extend(driver.notes());
    host_result.timeline = sampler.map(|sampler| sampler.timeline());
    host_result.series = series.map(|series| series.series());
    if let Err(error) = driver.stop().await {
        host_result.fail(format!("shutdown: {error}"));
    }
    Ok(host_result)
}

/// Runs the work with device resets under I/O.
async fn under_resets<P: HostSide>(
    rt: &Rt,
    driver: &Connected<P>,
    options: &Options,
    hold: &Hold,
    work: impl Future<Output = Result<HostResult, RunError>>,
) -> Result<HostResult, RunError> {
    let (done, progress) = (Cell::new(0), &options.progress);
    let resets = async {
        while done.get() < options.resets {
            let due = progress.operations() + BETWEEN_RESETS;
            hold.reach(rt, progress, due, DURING_RESET).await;
            driver.reset().await?;
            done.set(done.get() + 1);
        }
        hold.lift(rt);
        core::future::pending::<Result<(), DriverError>>().await
    };
    match race(work, resets).await {
        Either::First(job_result) => {
            job_result.map(|host_result| HostResult { resets: done.get(), ..host_result })
        }
        Either::Second(failed) => Err(RunError::Reset(failed.unwrap_err())),
    }
}
