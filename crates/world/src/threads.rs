//! A live host of several threads: each has a queue pair, a part of host memory, and the engines of its
//! clones.
//!
//! The first thread has the controller, beside its own work. The clones of a group are dealt out in turn, and
//! no group begins before all threads have ended the one before. What is verified is held against one ledger,
//! under a lock; where nothing is, threads share nothing on the way of a command.

use std::cell::Cell;
use std::future::pending;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use bus::HostPort;
use bus::live::{self, LiveHost, Shared};
use bus::vfio_user::{self, Connection, Sharing};
use host::BlockDevice;
use host::nvme::Controller;
use host::nvme::threads::{Granter, Queues, granter};
use runtime::{Either, Log, Rt, STD_CLOCK, Span, Traces, race};

use crate::drive::BETWEEN_RESETS;
use crate::engine::{self, Checks, Progress};
use crate::error::RunError;
use crate::groups::{GroupContext, Watched, check_buffers, checks, run_group, target};
use crate::interfaces::{NVME, clamped, controller_options, queue_options};
use crate::live::{DeviceThread, on_a_thread, shared, until};
use crate::members::traces;
use crate::run_result::{HostResult, Options, RunResult};
use crate::work::{Work, verifies};
use plan::Plan;

/// How often a thread that has ended a group looks whether all have.
const GROUP_POLL: Span = Span::us(100);

/// How often the first thread looks whether the device lives, which may be a system call.
const LOOK: Span = Span::ms(2);

#[derive(Clone, Copy, Debug)]
pub enum Where<'a> {
    /// On a thread of its own.
    Thread,
    /// In the process that listens at this socket, over shared memory.
    Socket(&'a Path),
    /// The function of the vfio-user server that listens at this socket.
    VfioUser(&'a Path),
}

/// What leads to the device.
enum Bus {
    Shared(Shared),
    VfioUser(Arc<Connection>),
}

impl Bus {
    fn host_of(&self, rt: &Rt, part: usize, parts: usize) -> LiveHost {
        match self {
            Bus::Shared(shared) => shared.host_of(rt, part, parts),
            Bus::VfioUser(connection) => connection.host_of(rt, part, parts),
        }
    }
}

/// The device, as the first thread looks after it.
trait Device {
    /// It works; or it has failed to, and says why in the end.
    fn is_there(&self) -> bool {
        true
    }

    fn has_ended(&mut self) -> bool;
}

impl Device for DeviceThread<'_> {
    fn is_there(&self) -> bool {
        DeviceThread::is_there(self)
    }

    fn has_ended(&mut self) -> bool {
        DeviceThread::has_ended(self)
    }
}

impl Device for live::Client {
    fn has_ended(&mut self) -> bool {
        self.is_gone()
    }
}

impl Device for Arc<Connection> {
    fn has_ended(&mut self) -> bool {
        self.is_gone()
    }
}

/// What the threads of a host share.
struct HostThreads<'a> {
    plan: &'a Plan,
    work: &'a Work,
    bus: Bus,
    /// What the device holds when the work begins is not known.
    contents_unknown: bool,
    progress: Vec<Arc<Progress>>,
    checks: OnceLock<Arc<Checks>>,
    /// Threads that have ended each group.
    ended: Vec<AtomicU32>,
    /// A thread has failed: the others stop.
    failed: AtomicBool,
    /// The device's thread has ended.
    dead: AtomicBool,
}

/// Runs work live on NVMe, the host on so many threads, this one among them. There are no more threads than
/// clones that run at once.
///
/// # Errors
/// Among others: the controller has fewer queues than there are threads.
pub fn live_in_host_threads(
    plan: &Plan,
    work: &Work,
    options: Options,
    threads: u32,
    device: Where<'_>,
) -> Result<RunResult, RunError> {
    let threads = work.clones_at_once().min(threads.max(1) as usize);
    let mut plan = plan.clone();
    plan.host.queues = threads as u32;
    let plan = &plan;
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    let traces = traces(NVME, plan, plan.run.breakdown_sample.ilog2());
    let host_threads = |bus, contents_unknown| HostThreads {
        plan,
        work,
        bus,
        contents_unknown,
        progress: (0..threads).map(|_| Arc::default()).collect(),
        checks: OnceLock::new(),
        ended: work.groups().iter().map(|_| AtomicU32::new(0)).collect(),
        failed: AtomicBool::new(false),
        dead: AtomicBool::new(false),
    };
    match device {
        Where::Thread => {
            let shared = shared(NVME, plan)?;
            let host_threads = host_threads(Bus::Shared(shared.clone()), false);
            std::thread::scope(|scope| {
                let mut device = on_a_thread(NVME, scope, plan, vec![shared], traces.clone())?;
                let job_result = host_threads.runs(&options, traces, &mut device);
                let tale = device.stop()?;
                job_result.map(|told| RunResult::beside(told, tale))
            })
        }
        Where::Socket(socket) => {
            (NVME.check)(plan).map_err(RunError)?;
            let (shared, mut client) = live::connect(socket, bytes, base).map_err(RunError::of)?;
            let host_threads = host_threads(Bus::Shared(shared.with_masks(NVME.masks)), true);
            host_threads.runs(&options, traces, &mut client).map(RunResult::of)
        }
        Where::VfioUser(socket) => {
            let connection = vfio_user::connect(socket, bytes, base, Sharing::Mapped);
            let mut connection = Arc::new(connection.map_err(RunError::of)?);
            let note = connection.note();
            let host_threads = host_threads(Bus::VfioUser(connection.clone()), true);
            let mut told = host_threads.runs(&options, traces, &mut connection)?;
            told.notes.extend(note);
            Ok(RunResult::of(told))
        }
    }
}

/// What two threads have to tell.
fn together(mut all: HostResult, one: HostResult) -> HostResult {
    for ((_, job_result), (_, other)) in all.jobs.iter_mut().zip(&one.jobs) {
        job_result.merge(other);
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

impl HostThreads<'_> {
    /// All threads, until the last has ended.
    fn runs(
        &self,
        options: &Options,
        traces: Traces,
        device: &mut impl Device,
    ) -> Result<HostResult, RunError> {
        std::thread::scope(|scope| {
            let (granter, queues) = granter();
            let others = (1..self.progress.len()).map(|number| {
                let (queues, traces) = (queues.clone(), traces.clone());
                let body = async move |rt: &Rt, port: &LiveHost| {
                    self.works(rt, port, queues, number).await
                };
                let host = Builder::new().name(format!("host {number}"));
                host.spawn_scoped(scope, move || self.host(number, traces, body))
            });
            let others = others.collect::<Result<Vec<_>, _>>();
            let others =
                others.map_err(|error| RunError(format!("a thread of the host: {error}")))?;
            let first = self.host(0, traces, async |rt, port| {
                self.leads(rt, port, options, granter, queues, device).await
            });
            let rest = others.into_iter().map(|other| match other.join() {
                Ok(job_result) => job_result,
                Err(_) => Err(RunError("a thread of the host has panicked".into())),
            });
            // All are waited for, whatever the first says.
            let job_result: Vec<Result<HostResult, RunError>> =
                std::iter::once(first).chain(rest).collect();
            let told = job_result.into_iter().reduce(|all, one| Ok(together(all?, one?)));
            told.expect("there is a first")
        })
    }

    /// A thread of the host: an executor, and its part of the memory.
    fn host(
        &self,
        number: usize,
        traces: Traces,
        run: impl AsyncFnOnce(&Rt, &LiveHost) -> Result<HostResult, RunError>,
    ) -> Result<HostResult, RunError> {
        let failing = Failing(&self.failed);
        let rt = Rt::live(&STD_CLOCK, Some(traces), Log::Off);
        let port = self.bus.host_of(&rt, number, self.progress.len());
        let job_result = rt.block_on(async {
            let watch = async {
                let has_failed = || self.failed.load(Ordering::Acquire);
                until(&rt, || self.dead.load(Ordering::Acquire) || has_failed()).await;
                if self.dead.load(Ordering::Acquire) {
                    port.mark_gone();
                }
                until(&rt, has_failed).await;
            };
            match race(run(&rt, &port), watch).await {
                Either::First(job_result) => job_result,
                // Another thread says why.
                Either::Second(()) => Ok(HostResult::default()),
            }
        });
        rt.drop_tasks();
        if job_result.is_ok() {
            std::mem::forget(failing);
        }
        job_result
    }

    /// The first thread: its own work, and what all the others need of the controller.
    async fn leads(
        &self,
        rt: &Rt,
        port: &LiveHost,
        options: &Options,
        granter: Granter,
        queues: Queues,
        device: &mut impl Device,
    ) -> Result<HostResult, RunError> {
        // A device that failed to start says why when it is stopped.
        until(rt, || device.is_there()).await;
        let watch = async {
            loop {
                options.progress.set(self.operations());
                self.dead.fetch_or(device.has_ended(), Ordering::Release);
                rt.sleep(LOOK).await;
            }
        };
        let run = async {
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
            Either::First(job_result) => {
                options.progress.set(self.operations());
                job_result
            }
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
    ) -> Result<HostResult, RunError> {
        let options = queue_options(self.plan, number as u16);
        let mine = queues.queue(port, options).await.map_err(|error| {
            RunError(format!("thread {} of {}: {error}", number + 1, self.progress.len()))
        })?;
        drop(queues);
        let geometry = mine.queue().geometry();
        let context = GroupContext {
            row: NVME,
            run: &|_, source, setup| {
                let (rt, disk) = (rt.clone(), mine.queue().clone());
                Box::pin(async move { engine::run(&rt, source, disk, setup).await })
            },
            port: &|_| port.clone(),
            target: target(geometry),
            checks: self.checks(geometry.blocks),
            progress: &self.progress[number],
            watched: Watched { hold: None, series: None, run_recorder: None },
            deal: (number, self.progress.len()),
        };
        check_buffers(self.work, geometry, port.arena(), context.deal)?;
        let mut told = HostResult::default();
        if number == 0 {
            let depth = mine.queue().depth().into();
            told.notes.extend(clamped(self.plan.host.queue_depth, depth));
        }
        for (group, ended) in self.work.groups().into_iter().zip(&self.ended) {
            told.add(run_group(rt, self.plan, self.work, group, &context).await?);
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

    fn operations(&self) -> u64 {
        self.progress.iter().map(|progress| progress.operations()).sum()
    }

    /// What all threads verify by, if any job asks for it.
    fn checks(&self, blocks: u64) -> Option<Arc<Checks>> {
        let of_this_run = || Arc::new(checks(self.plan, self.contents_unknown, blocks));
        verifies(&self.work.jobs).then(|| self.checks.get_or_init(of_this_run).clone())
    }
}
