//! A host at work: its driver is connected, the work runs, and the device is left in order.

use std::cell::Cell;
use std::rc::Rc;

use plan::Plan;
use runtime::{Either, Rt, race};

use crate::engine::Hold;
use crate::error::RunError;
use crate::groups::{Watched, run_groups};
use crate::interfaces::{Connected, HostSide, Row};
use crate::run_result::{HostResult, Options};
use crate::series::{Look, Recorder};
use crate::work::Work;

/// Operations that end between resets that one asks for.
pub(crate) const BETWEEN_RESETS: u64 = 64;
/// Operations that may end before a reset does that is due. Counted, so that resets come under the work on a
/// machine of any speed.
const DURING_RESET: u64 = 128;
/// Ports from this number on are on cores that the driver has to itself.
pub(crate) const OWN_CORES: usize = 1 << 16;

/// I/O queues that a host makes: no more than can be in use.
pub(crate) fn queues(plan: &Plan, work: &Work) -> usize {
    work.clones_at_once().min(plan.host.queues as usize)
}

/// Connects the driver, runs the work, and leaves the device in order. `port` gives the port to a member, by
/// its number; `beside` adds to a look what the world knows beside the driver.
pub async fn drive<P: HostSide>(
    row: &'static Row,
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    options: &Options,
    port: &dyn Fn(usize, usize) -> P,
    beside: &dyn Fn(&mut Look),
) -> Result<HostResult, RunError> {
    let own = (0..(row.own_cores)(plan) as usize).map(|own| OWN_CORES + own);
    let each: Vec<_> = (0..queues(plan, work)).chain(own).collect();
    let members = (row.members)(plan).map_or(1, |array| array.devices as usize);
    let ports = (0..members).flat_map(|member| each.iter().map(move |number| (member, *number)));
    let ports = ports.map(|(member, number)| port(member, number)).collect();
    let port = &|number| port(0, number);
    let driver = row.connect(ports, plan).await.map_err(RunError::of)?;
    let hold = (options.resets > 0).then(Rc::<Hold>::default);
    let series = options.series.map(Recorder::new).map(Rc::new);
    let watched = Watched {
        hold: hold.clone(),
        series: series.clone(),
        run_recorder: options.run_recorder.clone(),
    };
    let work = run_groups(rt, plan, work, options, &driver, port, watched);
    let work = async {
        let Some(series) = &series else { return work.await };
        let memory = port(0).arena().clone();
        let look = || {
            let software = driver.software();
            let memory_bytes = memory.used_bytes() as u64 + driver.memory_bytes();
            let counters = software.map(|software| software.counters);
            let mut look = Look { software: counters, memory_bytes, cores: None };
            beside(&mut look);
            look
        };
        match race(work, series.watch(rt, look)).await {
            Either::First(told) => told,
            Either::Second(()) => unreachable!("the watch never ends"),
        }
    };
    let mut told = match &hold {
        None => work.await?,
        Some(hold) => under_resets(rt, &driver, options, hold, work).await?,
    };
    told.software = driver.software();
    told.notes.extend(driver.notes());
    told.series = series.map(|series| series.series());
    if let Err(error) = driver.stop().await {
        told.fail(format!("shutdown: {error}"));
    }
    Ok(told)
}

/// Work, with resets of the device under it.
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
        core::future::pending::<Result<(), String>>().await
    };
    match race(work, resets).await {
        Either::First(job_result) => {
            job_result.map(|told| HostResult { resets: done.get(), ..told })
        }
        Either::Second(failed) => {
            Err(RunError(format!("reset under I/O: {}", failed.unwrap_err())))
        }
    }
}
