//! A live host with several threads. Each has a queue pair, a part of host memory, and the engines of its
//! clones.
//!
//! The first thread also runs the controller. The clones of a group are distributed round robin, and a group
//! starts after all threads have ended the previous one. Verification uses one ledger under a lock; without
//! verification, the I/O paths of the threads share nothing.

use std::cell::Cell;
use std::future::pending;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
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
use wire::pci::FunctionKind;

use crate::buffers::fit;
use crate::device_threads::DealtDevice;
use crate::drive::BETWEEN_RESETS;
use crate::engine::{self, Checks, Progress};
use crate::error::RunError;
use crate::groups::{GroupContext, Watched, checks, run_group};
use crate::interfaces::{NVME, clamped, controller_options, queue_options};
use crate::live::{DeviceThread, on_a_thread, until};
use crate::members::{shared, traces_of};
use crate::processor::timed;
use crate::run_result::{HostResult, Options, RunResult};
use crate::timeline::Sampler;
use crate::work::{Work, verifies};
use plan::Plan;

/// Poll interval of a thread that waits for the other threads to end a group.
const GROUP_POLL: Span = Span::us(100);

/// Poll interval of the first thread for the liveness of the device, which may need a system call.
const LIVENESS_POLL: Span = Span::ms(2);

#[derive(Clone, Copy, Debug)]
pub enum Where<'a> {
    /// On its own thread in this process, or on several.
    Thread,
    /// Its queues are dealt to the threads of the host: each serves its own queue, so no core waits for
    /// another one, and measurements contain only the program's own work.
    Beside,
    /// In the process that listens at this socket, through shared memory.
    Socket(&'a Path),
    /// Function of the vfio-user server that listens at this socket.
    VfioUser(&'a Path),
}

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

/// Liveness of the device, which the first thread watches.
trait Device {
    /// Whether the device has started or failed.
    fn is_ready(&self) -> bool {
        true
    }

    fn has_ended(&mut self) -> bool;
}

/// A device on the threads of the host.
struct Beside;

impl Device for Beside {
    fn has_ended(&mut self) -> bool {
        false
    }
}

impl Device for DeviceThread<'_> {
    fn is_ready(&self) -> bool {
        DeviceThread::is_ready(self)
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

/// State that the threads of a host share.
struct HostThreads<'a> {
    plan: &'a Plan,
    work: &'a Work,
    bus: Bus,
    /// The device, if it is on these threads.
    dealt: Option<&'a DealtDevice>,
    /// The device may hold data of other writers.
    contents_unknown: bool,
    /// Maximum number of operations of each thread in a timeline.
    timeline: Option<u32>,
    progress: Vec<Arc<Progress>>,
    checks: OnceLock<Arc<Checks>>,
    /// Number of threads that have ended each group.
    ended: Vec<AtomicU32>,
    /// A thread has failed, so the others stop.
    failed: AtomicBool,
    /// The device's thread has ended.
    dead: AtomicBool,
}

/// Runs work live on NVMe with `threads` host threads including this one, at most one per concurrent clone.
///
/// # Errors
/// Among others, the controller has fewer queues than there are threads.
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
    let traces =
        traces_of(NVME, plan, plan.run.breakdown_sample.ilog2(), options.timeline.is_some());
    let host_threads = |bus, contents_unknown| HostThreads {
        plan,
        work,
        bus,
        dealt: None,
        contents_unknown,
        timeline: options.timeline.map(|most| most.div_ceil(threads as u32)),
        progress: (0..threads).map(|_| Arc::new(options.progress.of_another_thread())).collect(),
        checks: OnceLock::new(),
        ended: work.groups().iter().map(|_| AtomicU32::new(0)).collect(),
        failed: AtomicBool::new(false),
        dead: AtomicBool::new(false),
    };
    let run_result = match device {
        Where::Thread => {
            let shared = shared(NVME, plan)?;
            let host_threads = host_threads(Bus::Shared(shared.clone()), false);
            std::thread::scope(|scope| {
                let (traced, threads) = (traces.clone(), options.device_threads);
                let mut device = on_a_thread(NVME, scope, plan, vec![shared], traced, threads)?;
                let job_result = host_threads.run_all(&options, traces, &mut device);
                let device_stats = device.stop()?;
                job_result
                    .map(|host_result| RunResult::with_device(host_result, device_stats, plan))
            })
        }
        Where::Beside => {
            let shared = shared(NVME, plan)?;
            let dealt = DealtDevice::new(plan, &shared, threads, &traces)?;
            let host_threads =
                HostThreads { dealt: Some(&dealt), ..host_threads(Bus::Shared(shared), false) };
            host_threads.run_all(&options, traces, &mut Beside).map(RunResult::of)
        }
        Where::Socket(socket) => {
            (NVME.check)(plan)?;
            let (shared, mut client) = live::connect(socket, bytes, base)?;
            let host_threads = host_threads(Bus::Shared(shared.with_masks(NVME.masks)), true);
            host_threads.run_all(&options, traces, &mut client).map(RunResult::of)
        }
        Where::VfioUser(socket) => {
            let connection =
                vfio_user::connect(socket, FunctionKind::NVME, bytes, base, Sharing::Mapped);
            let mut connection = Arc::new(connection?);
            let note = connection.note();
            let host_threads = host_threads(Bus::VfioUser(connection.clone()), true);
            let mut host_result = host_threads.run_all(&options, traces, &mut connection)?;
            host_result.notes.extend(note);
            Ok(RunResult::of(host_result))
        }
    };
    run_result.map(|run_result| run_result.with_live_warnings(plan))
}

/// Merges the results of two threads.
fn merge_results(mut all: HostResult, one: HostResult) -> HostResult {
    for ((_, job_result), (_, other)) in all.jobs.iter_mut().zip(&one.jobs) {
        job_result.merge(other);
    }
    all.notes.extend(one.notes);
    all.threads.extend(one.threads);
    if let (Some(timeline), Some(other)) = (&mut all.timeline, one.timeline) {
        timeline.merge(other);
    }
    all
}

/// Sets the failure flag on drop, so that the other threads stop.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl HostThreads<'_> {
    /// Runs all threads and waits for them.
    fn run_all(
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
                    self.run_clones(rt, port, queues, number).await
                };
                let builder = Builder::new().name(format!("host {number}"));
                builder.spawn_scoped(scope, move || self.run_thread(number, traces, body))
            });
            let others = others.collect::<Result<Vec<_>, _>>();
            let others =
                others.map_err(|why| RunError::Thread { thread: "a thread of the host", why })?;
            let first = self.run_thread(0, traces, async |rt, port| {
                self.run_first(rt, port, options, granter, queues, device).await
            });
            let rest = others.into_iter().map(|other| match other.join() {
                Ok(job_result) => job_result,
                Err(_) => Err(RunError::Panicked("a thread of the host")),
            });
            // All threads are joined even if the first has failed.
            let job_result: Vec<Result<HostResult, RunError>> =
                std::iter::once(first).chain(rest).collect();
            let host_result =
                job_result.into_iter().reduce(|all, one| Ok(merge_results(all?, one?)));
            host_result.expect("there is a first thread")
        })
    }

    /// One host thread with its executor and its part of the memory.
    fn run_thread(
        &self,
        number: usize,
        traces: Traces,
        run: impl AsyncFnOnce(&Rt, &LiveHost) -> Result<HostResult, RunError>,
    ) -> Result<HostResult, RunError> {
        let failing = Failing(&self.failed);
        let rt = Rt::live(&STD_CLOCK, Some(traces), Log::Off);
        let port = self.bus.host_of(&rt, number, self.progress.len());
        let part = self.dealt.map(|dealt| dealt.begin(&rt, number)).transpose()?;
        let (job_result, thread) = timed(|| {
            rt.block_on(async {
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
                    // The thread that failed returns the error.
                    Either::Second(()) => Ok(HostResult::default()),
                }
            })
        });
        if let Some(part) = part {
            (part.stop)();
        }
        rt.drop_tasks();
        if job_result.is_ok() {
            std::mem::forget(failing);
        }
        job_result.map(|host_result| HostResult { threads: vec![thread], ..host_result })
    }

    /// The first thread: its own clones, and the controller's work for all threads.
    async fn run_first(
        &self,
        rt: &Rt,
        port: &LiveHost,
        options: &Options,
        granter: Granter,
        queues: Queues,
        device: &mut impl Device,
    ) -> Result<HostResult, RunError> {
        // If the device failed to start, `stop` returns the error.
        until(rt, || device.is_ready()).await;
        let watch = async {
            loop {
                options.progress.set(self.operations());
                self.dead.fetch_or(device.has_ended(), Ordering::Release);
                rt.sleep(LIVENESS_POLL).await;
            }
        };
        let run = async {
            let wanted = controller_options(self.plan, self.progress.len() as u16);
            let controller = Controller::start(port.clone(), wanted).await?;
            let resets = Cell::new(0);
            let work = async {
                let mut work = pin!(self.run_clones(rt, port, queues, 0));
                let mut serve = pin!(granter.serve(&controller));
                match race(&mut work, &mut serve).await {
                    Either::First(Ok(host_result)) => {
                        serve.await;
                        Ok(host_result)
                    }
                    Either::First(failed) => failed,
                    Either::Second(()) => {
                        unreachable!("this thread holds a queue or a request for one")
                    }
                }
            };
            let reset = self.resets(rt, &controller, options.resets, &resets);
            let mut host_result = match race(work, reset).await {
                Either::First(host_result) => host_result?,
                Either::Second(failed) => return Err(failed),
            };
            host_result.resets = resets.get();
            if let Err(error) = controller.shutdown().await {
                host_result.fail(format!("shutdown: {error}"));
            }
            Ok(host_result)
        };
        match race(run, watch).await {
            Either::First(job_result) => {
                options.progress.set(self.operations());
                job_result
            }
            Either::Second(()) => unreachable!("the watch never ends"),
        }
    }

    /// Runs the clones of one thread by group, on its own queue.
    async fn run_clones(
        &self,
        rt: &Rt,
        port: &LiveHost,
        queues: Queues,
        number: usize,
    ) -> Result<HostResult, RunError> {
        let options = queue_options(self.plan, number as u16);
        let granted = queues.queue(port, options);
        let granted = match self.dealt {
            Some(dealt) => dealt.in_turn(rt, number, granted).await,
            None => granted.await,
        };
        let own_queue = granted.map_err(|why| {
            let of = self.progress.len();
            RunError::Queue { number: number + 1, of, why }
        })?;
        drop(queues);
        let geometry = own_queue.queue().geometry();
        let seed = self.plan.run.seed.wrapping_add(number as u64);
        let sampler =
            self.timeline.map(|most| Rc::new(Sampler::new(NVME.stages_in_lanes(), seed, most)));
        let context = GroupContext {
            row: NVME,
            run: &|_, source, setup| {
                let (rt, disk) = (rt.clone(), own_queue.queue().clone());
                Box::pin(async move { engine::run(&rt, source, disk, setup).await })
            },
            port: &|_| port.clone(),
            geometry,
            checks: self.checks(geometry.blocks),
            progress: &self.progress[number],
            watched: Watched { sampler: sampler.clone(), ..Watched::default() },
            thread: (number, self.progress.len()),
        };
        let (work, note) = fit(self.work, geometry, port.arena(), context.thread)?;
        let mut host_result = HostResult::default();
        host_result.notes.extend(note);
        if number == 0 {
            let depth = own_queue.queue().depth().into();
            host_result.notes.extend(clamped(self.plan.host.queue_depth, depth));
        }
        let groups = work.groups().into_iter().zip(&self.ended);
        for (group, (jobs, ended)) in (1..).zip(groups) {
            host_result.add(run_group(rt, self.plan, &work, jobs, &context).await?);
            ended.fetch_add(1, Ordering::AcqRel);
            // Beside a device, a thread that waits would poll for both, which is no work of an operation.
            let goes_on = self.dealt.is_some() && group == self.ended.len();
            let have_all = || ended.load(Ordering::Acquire) as usize == self.progress.len();
            while !goes_on && !have_all() {
                rt.sleep(GROUP_POLL).await;
            }
        }
        host_result.timeline = sampler.map(|sampler| sampler.timeline());
        if let Some(dealt) = self.dealt {
            dealt.until_all_have_begun(rt).await;
        }
        if let Err(error) = own_queue.give_back().await {
            host_result.fail(format!("shutdown: {error}"));
        }
        Ok(host_result)
    }

    /// Resets the controller `wanted` times under I/O. Returns only if a reset fails.
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
                return RunError::Reset(error.into());
            }
            done.set(done.get() + 1);
        }
        pending().await
    }

    fn operations(&self) -> u64 {
        self.progress.iter().map(|progress| progress.operations()).sum()
    }

    /// Verification state of all threads, if any job has verification enabled.
    fn checks(&self, blocks: u64) -> Option<Arc<Checks>> {
        let of_this_run = || Arc::new(checks(self.plan, self.contents_unknown, blocks));
        verifies(&self.work.jobs).then(|| self.checks.get_or_init(of_this_run).clone())
    }
}
