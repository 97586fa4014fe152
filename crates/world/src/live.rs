//! Worlds in wall time: a device on a thread of this process, in another process, or real.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use bus::HostPort;
use bus::live::{self, LiveHost, Shared};
use bus::vfio;
use bus::vfio_user::{self, Sharing};
use runtime::{Either, Log, Rt, STD_CLOCK, Span, Traces, race};

use crate::device;
use crate::drive::{drive, queues};
use crate::error::RunError;
use crate::interfaces::Row;
use crate::members::{hosts, live_devices, shared_with_all, traces};
use crate::processor::timed;
use crate::run_result::{DeviceStats, HostResult, Options, RunResult, leave, look_at};
use crate::series::Look;
use crate::work::Work;
use plan::{Completion, Plan};

/// How long a live world may take to stop, once it was asked to.
const STOP_POLL: Span = Span::ms(2);

/// Runs work live with both ends on this thread, in turns: nobody waits for another core, so that what is
/// counted or measured is the program's own work.
pub fn live_in_one_thread(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    let shared = shared_with_all(row, plan)?;
    let traces = Some(traces(row, plan, plan.run.breakdown_sample.ilog2()));
    let rt = Rt::live(&STD_CLOCK, traces, Log::Off);
    let devices = live_devices(row, &rt, &shared, plan)?;
    let hosts = hosts(row, &rt, &shared, plan);
    if let Some(faults) = devices[0].faults().cloned() {
        let (rt, host) = (rt.clone(), hosts[0].clone());
        rt.clone().spawn(async move {
            faults.link_down(&rt).await;
            host.mark_gone();
        });
    }
    let beside = |look: &mut Look| look_at(&devices, look);
    let port = |member: usize, _| hosts[member].clone();
    let job_result = rt.block_on(drive(row, &rt, plan, work, &options, &port, &beside));
    let tale = DeviceStats::of(&devices);
    leave(devices, plan)?;
    job_result.map(|told| RunResult::beside(told, tale))
}

/// Memory and registers that host and device share within this process.
///
/// # Errors
/// The plan is not one of this interface, or there is no memory.
pub fn shared(row: &'static Row, plan: &Plan) -> Result<Shared, RunError> {
    row.check_live().map_err(RunError)?;
    device::check(row, plan)?;
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    Shared::between_threads(bytes, base, (row.register_bytes)(plan))
        .map(|shared| shared.with_masks(row.masks))
        .map_err(|error| RunError(format!("memory for host and device: {error}")))
}

/// A device on a thread of its own.
pub(super) struct DeviceThread<'scope> {
    thread: ScopedJoinHandle<'scope, Result<DeviceStats, RunError>>,
    started: Arc<AtomicBool>,
    stop: Stop,
}

/// Dropped, it stops the device: whoever waits for its thread waits for an end.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl DeviceThread<'_> {
    /// It works; or it has failed to, and says why when it is stopped.
    pub fn is_there(&self) -> bool {
        self.started.load(Ordering::Acquire) || self.has_ended()
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Switches the device off. What it has to tell.
    pub fn stop(self) -> Result<DeviceStats, RunError> {
        drop(self.stop);
        match self.thread.join() {
            Ok(tale) => tale,
            Err(_) => Err(RunError("the device's thread has panicked".into())),
        }
    }
}

/// Starts a device, or the members of an array, on a thread.
pub(super) fn on_a_thread<'scope>(
    row: &'static Row,
    scope: &'scope Scope<'scope, '_>,
    plan: &'scope Plan,
    shared: Vec<Shared>,
    traces: Traces,
) -> Result<DeviceThread<'scope>, RunError> {
    let started = Arc::new(AtomicBool::new(false));
    let stop = Stop(Arc::new(AtomicBool::new(false)));
    let (has_started, is_to_stop) = (started.clone(), stop.0.clone());
    let body = move || {
        let rt = Rt::live(&STD_CLOCK, Some(traces), Log::Off);
        let devices = live_devices(row, &rt, &shared, plan)?;
        has_started.store(true, Ordering::Release);
        let is_over = || is_to_stop.load(Ordering::Acquire) || devices[0].is_down();
        rt.block_on(until(&rt, is_over));
        let tale = DeviceStats::of(&devices);
        leave(devices, plan)?;
        Ok(tale)
    };
    let thread = std::thread::Builder::new().name("device".into()).spawn_scoped(scope, body);
    let thread = thread.map_err(|error| RunError(format!("a thread for the device: {error}")))?;
    Ok(DeviceThread { thread, started, stop })
}

/// Runs work live: the device on a thread of its own, the host on this one.
pub fn live_in_threads(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    let shared = shared_with_all(row, plan)?;
    let traces = traces(row, plan, plan.run.breakdown_sample.ilog2());
    std::thread::scope(|scope| {
        let device = on_a_thread(row, scope, plan, shared.clone(), traces.clone())?;
        let rt = Rt::live(&STD_CLOCK, Some(traces), options.live_log());
        let hosts = hosts(row, &rt, &shared, plan);
        let watched = hosts.clone();
        let (job_result, host_thread) = timed(|| {
            rt.block_on(async {
                let watch = async {
                    until(&rt, || device.has_ended()).await;
                    watched.iter().for_each(LiveHost::mark_gone);
                    core::future::pending::<()>().await;
                };
                let run = async {
                    // A device that failed to start says why when it is stopped.
                    until(&rt, || device.is_there()).await;
                    let port = |member: usize, _| hosts[member].clone();
                    drive(row, &rt, plan, work, &options, &port, &|_| ()).await
                };
                match race(run, watch).await {
                    Either::First(job_result) => job_result,
                    Either::Second(()) => unreachable!("the watch never ends"),
                }
            })
        });
        rt.drop_tasks();
        let tale = device.stop()?;
        job_result.map(|told| RunResult::beside(HostResult { host_thread, ..told }, tale))
    })
}

/// Runs work live against a device in another process, which listens at a socket.
pub fn live_over_socket(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    socket: &Path,
) -> Result<RunResult, RunError> {
    check_elsewhere(row, plan)?;
    let (shared, mut client) =
        live::connect(socket, plan.host.memory_bytes as usize, plan.host.memory_base)
            .map_err(RunError::of)?;
    over_bus(row, plan, work, options, |rt| {
        let host = shared.with_masks(row.masks).host(rt);
        let watched = host.clone();
        let is_gone = move || {
            let gone = client.is_gone();
            if gone {
                watched.mark_gone();
            }
            gone
        };
        (host, Box::new(is_gone))
    })
}

/// Runs work live against the vfio-user server that listens at a socket.
pub fn live_over_vfio_user(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    socket: &Path,
) -> Result<RunResult, RunError> {
    check_elsewhere(row, plan)?;
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    let connection = vfio_user::connect(socket, bytes, base, Sharing::Mapped);
    let connection = connection.map_err(RunError::of)?;
    let note = connection.note();
    let mut run_result = over_bus(row, plan, work, options, |rt| {
        let host = connection.host(rt);
        let watched = host.clone();
        (host, Box::new(move || watched.is_gone()))
    })?;
    run_result.notes.extend(note);
    Ok(run_result)
}

/// The plan is one of a device that is not here.
fn check_elsewhere(row: &'static Row, plan: &Plan) -> Result<(), RunError> {
    row.check_live().map_err(RunError)?;
    if plan.array.is_some() {
        // Devices of an array share one host's memory.
        let expected = "none: one device is at the other end of a socket or an address";
        return Err(RunError(format!("{}: array: found one, expected {expected}", plan.origin)));
    }
    (row.check)(plan).map_err(RunError)
}

/// Runs work live over a bus to another process: its host's end, and whether the device is gone, which
/// is asked now and then.
fn over_bus(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    bus: impl FnOnce(&Rt) -> (LiveHost, Box<dyn FnMut() -> bool>),
) -> Result<RunResult, RunError> {
    // The device's marks are in the other process: the breakdown shows its part as one.
    let traces = traces(row, plan, plan.run.breakdown_sample.ilog2());
    let options = Options { contents_unknown: true, ..options };
    let rt = Rt::live(&STD_CLOCK, Some(traces), options.live_log());
    let (host, mut is_gone) = bus(&rt);
    let (job_result, host_thread) = timed(|| {
        rt.block_on(async {
            let watch = async {
                until(&rt, &mut is_gone).await;
                core::future::pending::<()>().await;
            };
            let ports = |_, _| host.clone();
            let run = drive(row, &rt, plan, work, &options, &ports, &|_| ());
            match race(run, watch).await {
                Either::First(job_result) => job_result,
                Either::Second(()) => unreachable!("the watch never ends"),
            }
        })
    });
    rt.drop_tasks();
    job_result.map(|told| RunResult::of(HostResult { host_thread, ..told }))
}

/// Runs work live on a PCI function that Linux's VFIO has, by its address.
pub fn live_over_vfio(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    address: &str,
) -> Result<RunResult, RunError> {
    check_elsewhere(row, plan)?;
    let ours = row.served_function(plan).map_err(RunError)?;
    let wanted = vfio::Wanted {
        class: ours.identity.class,
        memory_bytes: plan.host.memory_bytes as usize,
        memory_base: plan.host.memory_base,
        vectors: match plan.host.completion {
            Completion::Polled | Completion::Hybrid => 0,
            // One for each queue, and the first for the admin queue.
            Completion::Interrupt => queues(plan, work) as u16 + 1,
        },
    };
    let function = vfio::Function::open(address, &wanted).map_err(RunError::of)?;
    over_bus(row, plan, work, options, |rt| {
        let host = function.host(rt);
        let watched = host.clone();
        (host, Box::new(move || watched.is_gone()))
    })
}

/// Waits until this is so, which is asked every 2 ms.
pub async fn until(rt: &Rt, mut done: impl FnMut() -> bool) {
    while !done() {
        rt.sleep(STOP_POLL).await;
    }
}
