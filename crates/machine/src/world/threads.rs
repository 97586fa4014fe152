//! A live host of several threads: each has a queue pair, a part of host memory, and the engines of its
//! clones.
//!
//! The first thread has the controller, beside its own work. The clones of a group are dealt out in turn, and
//! no group begins before all threads have ended the one before. What is verified is held against one ledger,
//! under a lock; where nothing is, threads share nothing on the way of a command.

use std::cell::Cell;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use bus::live::{LiveHost, Shared};
use host::BlockDevice;
use host::nvme::Controller;
use host::nvme::threads::{Granter, Queues, granter};
use runtime::{Either, Journeys, Log, Rt, STD_CLOCK, Span, race};

use super::groups::{Ground, Watched, checks, run_group, target};
use super::live::{DeviceThread, on_a_thread, shared, until};
use super::{BETWEEN_RESETS, Options, Outcome, RunError, Told, journeys};
use crate::engine::{Checks, Progress};
use crate::interfaces::{Nvme, controller_options, queue_options};
use crate::plan::Plan;
use crate::work::{Work, verifies};

/// How often a thread that has ended a group looks whether all have.
const GROUP_POLL: Span = Span::us(100);

/// What the threads of a host share.
struct Crew<'a> {
    plan: &'a Plan,
    work: &'a Work,
    shared: &'a Shared,
    /// Of each thread.
    progress: Vec<Arc<Progress>>,
    checks: OnceLock<Arc<Checks>>,
    /// Threads that have ended each group.
    ended: Vec<AtomicU32>,
    /// A thread has failed: the others stop.
    failed: AtomicBool,
    /// The device's thread has ended.
    dead: AtomicBool,
}

/// Runs work live on NVMe: the device on a thread of its own, the host on so many, this one among them. There
/// are no more threads than clones that run at once.
///
/// # Errors
/// Among others: the controller has fewer queues than there are threads.
pub fn live_in_host_threads(
    plan: &Plan,
    work: &Work,
    options: Options,
    threads: u32,
) -> Result<Outcome, RunError> {
    let threads = work.clones_at_once().min(threads.max(1) as usize);
    let mut plan = plan.clone();
    plan.host.queues = threads as u32;
    let plan = &plan;
    let shared = &shared::<Nvme>(plan)?;
    let journeys = journeys::<Nvme>(plan, plan.run.breakdown_sample.ilog2());
    let crew = &Crew {
        plan,
        work,
        shared,
        progress: (0..threads).map(|_| Arc::default()).collect(),
        checks: OnceLock::new(),
        ended: work.groups().iter().map(|_| AtomicU32::new(0)).collect(),
        failed: AtomicBool::new(false),
        dead: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let device = on_a_thread::<Nvme>(scope, plan, vec![shared.clone()], journeys.clone())?;
        let (granter, queues) = granter();
        let others = (1..threads).map(|number| {
            let (queues, journeys) = (queues.clone(), journeys.clone());
            let body =
                async move |rt: &Rt, port: &LiveHost| crew.works(rt, port, queues, number).await;
            let host = Builder::new().name(format!("host {number}"));
            host.spawn_scoped(scope, move || crew.host(number, journeys, body))
        });
        let others = others.collect::<Result<Vec<_>, _>>();
        let others = others.map_err(|error| RunError(format!("a thread of the host: {error}")))?;
        let first = crew.host(0, journeys, async |rt, port| {
            crew.leads(rt, port, &options, granter, queues, &device).await
        });
        let rest = others.into_iter().map(|other| match other.join() {
            Ok(ran) => ran,
            Err(_) => Err(RunError("a thread of the host has panicked".into())),
        });
        // All are waited for, whatever the first says.
        let ran: Vec<Result<Told, RunError>> = std::iter::once(first).chain(rest).collect();
        let tale = device.stop()?;
        let told = ran.into_iter().reduce(|all, one| Ok(together(all?, one?)));
        told.expect("there is a first").map(|told| Outcome::beside(told, tale))
    })
}

/// What two threads have to tell.
fn together(mut all: Told, one: Told) -> Told {
    for ((_, ran), (_, other)) in all.jobs.iter_mut().zip(&one.jobs) {
        ran.merge(other);
    }
    all.notes.extend(one.notes);
    all
}

/// Dropped, it tells the others that its thread has failed.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Crew<'_> {
    /// A thread of the host: an executor, and its part of the memory.
    fn host(
        &self,
        number: usize,
        journeys: Journeys,
        run: impl AsyncFnOnce(&Rt, &LiveHost) -> Result<Told, RunError>,
    ) -> Result<Told, RunError> {
        let failing = Failing(&self.failed);
        let rt = Rt::live(&STD_CLOCK, Some(journeys), Log::Off);
        let port = self.shared.host_of(&rt, number, self.progress.len());
        let ran = rt.block_on(async {
            let watch = async {
                let has_failed = || self.failed.load(Ordering::Acquire);
                until(&rt, || self.dead.load(Ordering::Acquire) || has_failed()).await;
                if self.dead.load(Ordering::Acquire) {
                    port.mark_gone();
                }
                until(&rt, has_failed).await;
            };
            match race(run(&rt, &port), watch).await {
                Either::First(ran) => ran,
                // Another thread says why.
                Either::Second(()) => Ok(Told::default()),
            }
        });
        rt.drop_tasks();
        if ran.is_ok() {
            std::mem::forget(failing);
        }
        ran
    }

    /// The first thread: its own work, and what all the others need of the controller.
    async fn leads(
        &self,
        rt: &Rt,
        port: &LiveHost,
        options: &Options,
        granter: Granter,
        queues: Queues,
        device: &DeviceThread<'_>,
    ) -> Result<Told, RunError> {
        let watch = async {
            loop {
                until(rt, || device.has_ended() || self.operations() > 0).await;
                options.progress.set(self.operations());
                self.dead.fetch_or(device.has_ended(), Ordering::Release);
                rt.sleep(GROUP_POLL).await;
            }
        };
        let run = async {
            // A device that failed to start says why when it is stopped.
            until(rt, || device.is_there()).await;
            let wanted = controller_options(self.plan, self.progress.len() as u16);
            let controller = Controller::start(port.clone(), wanted).await.map_err(RunError::of)?;
            let resets = Cell::new(0);
            let work = async {
                let mut work = pin!(self.works(rt, port, queues, 0));
                let mut serve = pin!(granter.serve(&controller));
                match race(&mut work, &mut serve).await {
                    Either::First(Ok(told)) => {
                        serve.await;
                        Ok(told)
                    }
                    Either::First(failed) => failed,
                    Either::Second(()) => unreachable!("this thread has a queue, or asks for one"),
                }
            };
            let reset = self.resets(rt, &controller, options.resets, &resets);
            let mut told = match race(work, reset).await {
                Either::First(told) => told?,
                Either::Second(failed) => return Err(failed),
            };
            told.resets = resets.get();
            if let Err(error) = controller.shutdown().await {
                told.fail(format!("shutdown: {error}"));
            }
            Ok(told)
        };
        match race(run, watch).await {
            Either::First(ran) => ran,
            Either::Second(()) => unreachable!("the watch never ends"),
        }
    }

    /// One thread's clones, group by group, on a queue of its own.
    async fn works(
        &self,
        rt: &Rt,
        port: &LiveHost,
        queues: Queues,
        number: usize,
    ) -> Result<Told, RunError> {
        let options = queue_options(self.plan, number as u16);
        let mine = queues.queue(port, options).await.map_err(|error| {
            RunError(format!("thread {} of {}: {error}", number + 1, self.progress.len()))
        })?;
        drop(queues);
        let geometry = mine.queue().geometry();
        let ground = Ground {
            disk: &|_| mine.queue().clone(),
            port: &|_| port.clone(),
            target: target(geometry),
            checks: self.checks(geometry.blocks),
            progress: &self.progress[number],
            watched: Watched { hold: None, series: None, tape: None },
            deal: (number, self.progress.len()),
        };
        let mut told = Told::default();
        for (group, ended) in self.work.groups().into_iter().zip(&self.ended) {
            told.add(run_group::<Nvme, _, _>(rt, self.plan, self.work, group, &ground).await?);
            ended.fetch_add(1, Ordering::AcqRel);
            let have_all = || ended.load(Ordering::Acquire) as usize == self.progress.len();
            while !have_all() {
                rt.sleep(GROUP_POLL).await;
            }
        }
        if let Err(error) = mine.give_back().await {
            told.fail(format!("shutdown: {error}"));
        }
        Ok(told)
    }

    /// Resets the controller so many times under the work. Ends only if that fails.
    async fn resets(
        &self,
        rt: &Rt,
        controller: &Controller<LiveHost>,
        wanted: u32,
        done: &Cell<u32>,
    ) -> RunError {
        while done.get() < wanted {
            let due = self.operations() + BETWEEN_RESETS;
            while self.operations() < due {
                rt.sleep(GROUP_POLL).await;
            }
            if let Err(error) = controller.reset().await {
                return RunError(format!("reset under I/O: {error}"));
            }
            done.set(done.get() + 1);
        }
        pending().await
    }

    /// Operations that have ended.
    fn operations(&self) -> u64 {
        self.progress.iter().map(|progress| progress.operations()).sum()
    }

    /// What all threads verify by, if any job asks for it.
    fn checks(&self, blocks: u64) -> Option<Arc<Checks>> {
        let of_this_run = || Arc::new(checks(self.plan, false, blocks));
        verifies(&self.work.jobs).then(|| self.checks.get_or_init(of_this_run).clone())
    }
}
