//! Jobs on a driver: groups one after the other, the clones of a group beside each other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::HostPort;
use host::BlockDevice;
use media::contents::{Backing, Keep};
use runtime::{Rt, Span};
use workload::pattern::Target;
use workload::verify::{Ledger, Stamps};

use super::{LAYERS, Options, RunError, Told};
use crate::engine::{self, Checks, Hold, Layer, Ran, Setup};
use crate::interfaces::{Driver, Interface};
use crate::plan::Plan;
use crate::series::Recorder;
use crate::work::{Prepared, Work, verifies};

/// Who looks on, or holds the work up.
#[derive(Clone, Copy)]
pub(super) struct Watched<'a> {
    pub hold: Option<&'a Rc<Hold>>,
    pub series: Option<&'a Rc<Recorder>>,
}

/// Runs the groups of a work, each when the one before it has ended.
pub(super) async fn run_groups<I: Interface, P: HostPort>(
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    options: &Options,
    driver: &I::Driver<P>,
    port: &dyn Fn(usize) -> P,
    watched: Watched<'_>,
) -> Result<Told, RunError> {
    let geometry = driver.disk(0).geometry();
    let target = Target {
        capacity_bytes: geometry.blocks * u64::from(geometry.block_bytes),
        block_bytes: geometry.block_bytes,
    };
    let checks = verifies(&work.jobs).then(|| Rc::new(checks(plan, options, geometry.blocks)));
    let (mut jobs, mut notes) = (Vec::new(), Vec::new());
    for group in work.groups() {
        let results = Rc::new(RefCell::new(Vec::new()));
        let left = Rc::new((runtime::Signal::default(), Cell::new(0_usize)));
        let mut number = 0;
        for (index, job) in group.iter().enumerate() {
            for clone in 0..job.numjobs {
                let prepared =
                    work.source(job, clone, plan.run.seed, target).map_err(RunError::of)?;
                let Prepared { source, start_delay, summary } = prepared;
                notes.extend(summary);
                let port = port(number);
                let setup = Setup {
                    disk: driver.disk(number),
                    layers: layers::<I, P>(plan, &port),
                    port,
                    job: job.clone(),
                    start_delay,
                    checks: checks.clone().filter(|_| job.verify.on),
                    stages: I::STAGES,
                    arrival_stage: I::STAGES.iter().position(|stage| *stage == "arrival wait"),
                    progress: options.progress.clone(),
                    hold: watched.hold.cloned(),
                    series: watched.series.cloned(),
                    tape: options.tape.clone(),
                };
                number += 1;
                left.1.set(left.1.get() + 1);
                let (rt, results, left) = (rt.clone(), results.clone(), left.clone());
                rt.clone().spawn(async move {
                    let ran = engine::run(&rt, source, setup).await;
                    results.borrow_mut().push((index, ran));
                    left.1.set(left.1.get() - 1);
                    left.0.notify(&rt);
                });
            }
        }
        while left.1.get() > 0 {
            left.0.changed(rt, left.0.version()).await;
        }
        let mut merged: Vec<Ran> = group.iter().map(|_| Ran::default()).collect();
        results.borrow().iter().for_each(|(index, ran)| merged[*index].merge(ran));
        jobs.extend(group.iter().cloned().zip(merged));
    }
    Ok(Told { jobs, notes, ..Told::default() })
}

/// What verified jobs share: one device, one ledger.
fn checks(plan: &Plan, options: &Options, blocks: u64) -> Checks {
    let unknown = options.contents_unknown || plan.medium.contents.backing != Backing::Memory;
    let ledger = if unknown { Ledger::over_unknown } else { Ledger::new };
    Checks {
        ledger: RefCell::new(ledger(blocks)),
        stamps: Stamps::new(plan.run.seed),
        stamps_only: plan.medium.contents.keep == Keep::Stamps,
    }
}

/// The software above the driver that the plan gives a cost.
fn layers<I: Interface, P: HostPort>(plan: &Plan, port: &P) -> Vec<Layer> {
    LAYERS
        .iter()
        .filter(|name| plan.host.costs.iter().any(|c| c.name == **name && c.span > Span::ZERO))
        .map(|name| Layer {
            cost: port.cost(name),
            stage: I::STAGES.iter().position(|stage| *stage == *name).expect("a stage of its own"),
        })
        .collect()
}
