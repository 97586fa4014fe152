//! Live worlds, in wall time: the device is on a thread of this process, in another process, or hardware.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use bus::HostPort;
use bus::live::{self, LiveHost, Shared};
use bus::vfio;
use bus::vfio_user::{self, Sharing};
use runtime::{Either, Log, Rt, STD_CLOCK, Span, Traces, race};

use crate::device_threads::{self, Attended, ThreadedDevice};
use crate::drive::{drive, queues};
use crate::error::{CheckError, RunError};
use crate::interfaces::Row;
use crate::members::{hosts, live_devices, shared_with_all, traces_of};
use crate::processor::{time_of_this_thread, timed};
use crate::run_result::{
    DeviceStats, HostResult, Options, RunResult, sample_flash, switch_off_all,
};
use crate::series::Sample;
use crate::window::{Instruments, Snapshot, lead};
use crate::work::Work;
use plan::{Completion, Plan};

/// Poll interval of the stop flag of a live world.
const STOP_POLL: Span = Span::ms(2);

/// Runs work live with host and device on this thread. No core waits for another one, so measurements contain
/// only the program's own work.
pub fn live_in_one_thread(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    let shared = shared_with_all(row, plan)?;
    let traces =
        traces_of(row, plan, plan.run.breakdown_sample.ilog2(), options.timeline.is_some());
    let rt = Rt::live(&STD_CLOCK, Some(traces), Log::Off);
    let devices = live_devices(row, &rt, &shared, plan)?;
    let hosts = hosts(row, &rt, &shared, plan);
    if let Some(faults) = devices[0].faults().cloned() {
        let (rt, host) = (rt.clone(), hosts[0].clone());
        rt.clone().spawn(async move {
            faults.link_down(&rt).await;
            host.mark_gone();
        });
    }
    let add_to_sample = |sample: &mut Sample| sample_flash(&devices, sample);
    let snapshot = |snapshot: &mut Snapshot| {
        snapshot.add_devices(&devices);
        time_this_thread(snapshot);
    };
    let instruments = Instruments { sample: &add_to_sample, snapshot: &snapshot };
    let port = |member: usize, _| hosts[member].clone();
    let (job_result, thread) =
        timed(|| rt.block_on(drive(row, &rt, plan, work, &options, &port, instruments)));
    let device_stats = DeviceStats::of(&devices);
    switch_off_all(devices, plan)?;
    job_result.map(|host_result| {
        let host_result = HostResult { threads: vec![thread], ..host_result };
        RunResult::with_device(host_result, device_stats, plan).with_live_warnings(plan)
    })
}

/// Samples the CPU time of this thread, on which the host is alone: it is the host's one core.
fn sample_this_thread(sample: &mut Sample) {
    sample.cores = Some(vec![time_of_this_thread()]);
}

fn time_this_thread(snapshot: &mut Snapshot) {
    snapshot.cpu = Some(time_of_this_thread());
}

/// A device on its own thread.
pub(super) struct DeviceThread<'scope> {
    thread: ScopedJoinHandle<'scope, Result<DeviceStats, RunError>>,
    started: Arc<AtomicBool>,
    measured: Arc<AtomicBool>,
    stop: Stop,
}

/// Stops the device when dropped, so that a join of its thread returns.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl DeviceThread<'_> {
    /// Whether the device has started or failed. [`stop`](DeviceThread::stop) returns the error.
    pub fn is_ready(&self) -> bool {
        self.started.load(Ordering::Acquire) || self.has_ended()
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// The ramp is over: what the device has counted until now is left out.
    fn measure(&self) {
        self.measured.store(true, Ordering::Release);
    }

    /// Powers the device off and returns its statistics.
    pub fn stop(self) -> Result<DeviceStats, RunError> {
        drop(self.stop);
        match self.thread.join() {
            Ok(device_stats) => device_stats,
            Err(_) => Err(RunError::Panicked("the device's thread")),
        }
    }
}

/// Starts a device, or the members of an array, on one thread.
pub(super) fn on_a_thread<'scope>(
    row: &'static Row,
    scope: &'scope Scope<'scope, '_>,
    plan: &'scope Plan,
    shared: Vec<Shared>,
    traces: Traces,
    threads: u32,
) -> Result<DeviceThread<'scope>, RunError> {
    if threads > 1 {
        device_threads::check(plan, threads)?;
    }
    let started = Arc::new(AtomicBool::new(false));
    let stop = Stop(Arc::new(AtomicBool::new(false)));
    let (has_started, is_to_stop) = (started.clone(), stop.0.clone());
    let measured = Arc::new(AtomicBool::new(false));
    let is_measured = measured.clone();
    let body = move || {
        if threads > 1 {
            let device = ThreadedDevice::new(row, plan, Some(traces))?;
            return on_threads(&device, &shared[0], threads, &has_started, &is_to_stop);
        }
        let rt = Rt::live(&STD_CLOCK, Some(traces), Log::Off);
        rt.sleep_when_idle(plan.device.idle);
        let devices = live_devices(row, &rt, &shared, plan)?;
        has_started.store(true, Ordering::Release);
        let mut before = None;
        let is_over = || {
            if before.is_none() && is_measured.load(Ordering::Acquire) {
                before = Some(Snapshot::of_devices(&devices));
            }
            is_to_stop.load(Ordering::Acquire) || devices[0].is_down()
        };
        let ((), thread) = timed(|| rt.block_on(until(&rt, is_over)));
        let device_stats = DeviceStats { thread: Some(thread), ..DeviceStats::of(&devices) };
        let device_stats = match before {
            Some(before) => device_stats.counted(Snapshot::of_devices(&devices).since(&before)),
            None => device_stats,
        };
        switch_off_all(devices, plan)?;
        Ok(device_stats)
    };
    let thread = std::thread::Builder::new().name("device".into()).spawn_scoped(scope, body);
    let thread =
        thread.map_err(|why| RunError::Thread { thread: "a thread for the device", why })?;
    Ok(DeviceThread { thread, started, measured, stop })
}

/// Runs a device on `threads` threads, this one included, until it is to stop.
fn on_threads(
    device: &ThreadedDevice,
    shared: &Shared,
    threads: u32,
    has_started: &AtomicBool,
    is_to_stop: &AtomicBool,
) -> Result<DeviceStats, RunError> {
    std::thread::scope(|scope| {
        let others = device.others(scope, (1..threads).map(|_| shared.clone()).collect())?;
        let run = |rt: &Rt, _: &_, _: Attended<'_>| {
            has_started.store(true, Ordering::Release);
            let is_over = || is_to_stop.load(Ordering::Acquire) || others.has_failed();
            timed(|| rt.block_on(until(rt, is_over))).1
        };
        let result = device.run(&others, |rt| shared.device(rt), run);
        others.end()?;
        Ok(DeviceStats { thread: Some(result?.0), ..DeviceStats::default() })
    })
}

/// Runs work live: the device on its own thread, the host on this one.
pub fn live_in_threads(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    let shared = shared_with_all(row, plan)?;
    let traces =
        traces_of(row, plan, plan.run.breakdown_sample.ilog2(), options.timeline.is_some());
    std::thread::scope(|scope| {
        let threads = options.device_threads;
        let device = on_a_thread(row, scope, plan, shared.clone(), traces.clone(), threads)?;
        let rt = Rt::live(&STD_CLOCK, Some(traces), options.live_log());
        let hosts = hosts(row, &rt, &shared, plan);
        let watched = hosts.clone();
        let (job_result, thread) = timed(|| {
            rt.block_on(async {
                let watch = async {
                    until(&rt, || device.has_ended()).await;
                    watched.iter().for_each(LiveHost::mark_gone);
                    core::future::pending::<()>().await;
                };
                let run = async {
                    // If the device failed to start, `stop` returns the error.
                    until(&rt, || device.is_ready()).await;
                    let port = |member: usize, _| hosts[member].clone();
                    // Without a ramp all counts belong to the window, as the device sees it too late.
                    let has_ramp = lead(work.groups()[0]) > Span::ZERO;
                    let snapshot = |snapshot: &mut Snapshot| {
                        time_this_thread(snapshot);
                        if has_ramp {
                            device.measure();
                        }
                    };
                    let instruments =
                        Instruments { sample: &sample_this_thread, snapshot: &snapshot };
                    drive(row, &rt, plan, work, &options, &port, instruments).await
                };
                match race(run, watch).await {
                    Either::First(job_result) => job_result,
                    Either::Second(()) => unreachable!("the watch never ends"),
                }
            })
        });
        rt.drop_tasks();
        let device_stats = device.stop()?;
        job_result.map(|host_result| {
            let host_result = HostResult { threads: vec![thread], ..host_result };
            RunResult::with_device(host_result, device_stats, plan).with_live_warnings(plan)
        })
    })
}

/// Runs work live on a device in another process that listens at a socket.
pub fn live_over_socket(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    socket: &Path,
) -> Result<RunResult, RunError> {
    check_elsewhere(row, plan)?;
    let (shared, mut client) =
        live::connect(socket, plan.host.memory_bytes as usize, plan.host.memory_base)?;
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

/// Runs work live on the vfio-user server that listens at a socket.
pub fn live_over_vfio_user(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    socket: &Path,
) -> Result<RunResult, RunError> {
    check_elsewhere(row, plan)?;
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    let kind = row.require_kind(plan)?;
    check_vectors(row, plan, work)?;
    let connection = vfio_user::connect(socket, kind, bytes, base, Sharing::Mapped)?;
    let note = connection.note();
    let mut run_result = over_bus(row, plan, work, options, |rt| {
        let host = connection.host(rt);
        let watched = host.clone();
        (host, Box::new(move || watched.is_gone()))
    })?;
    run_result.notes.extend(note);
    Ok(run_result)
}

/// Number of interrupt vectors that the driver uses.
fn vectors(row: &Row, plan: &Plan, work: &Work) -> u16 {
    match plan.host.completion {
        Completion::Polled | Completion::Hybrid => 0,
        Completion::Interrupt => (row.queues)(queues(plan, work) as u32).vectors as u16,
    }
}

/// Checks that the function of a vfio-user server has vectors enough.
fn check_vectors(row: &Row, plan: &Plan, work: &Work) -> Result<(), CheckError> {
    let wanted = vectors(row, plan, work);
    if wanted <= vfio_user::limits::VECTORS {
        return Ok(());
    }
    let found = format!("{}, whose driver uses {wanted} interrupt vectors", queues(plan, work));
    let expected = format!("fewer: a function has {}", vfio_user::limits::VECTORS);
    Err(CheckError::found(plan, "host.queues", found, expected))
}

/// Checks a plan whose device is in another process or hardware.
fn check_elsewhere(row: &'static Row, plan: &Plan) -> Result<(), RunError> {
    row.require_live()?;
    if plan.array.is_some() {
        // The devices of an array must share one host memory.
        let expected = "none: one device is at the other end of a socket or an address";
        return Err(CheckError::found(plan, "array", "one", expected).into());
    }
    Ok((row.check)(plan)?)
}

/// Runs work live over a bus to another process. `bus` returns the host port and a poll function that returns
/// whether the device is gone.
fn over_bus(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    bus: impl FnOnce(&Rt) -> (LiveHost, Box<dyn FnMut() -> bool>),
) -> Result<RunResult, RunError> {
    // The device's stage records are in the other process, so the breakdown has one stage for the device.
    let traces =
        traces_of(row, plan, plan.run.breakdown_sample.ilog2(), options.timeline.is_some());
    let options = Options { contents_unknown: true, ..options };
    let rt = Rt::live(&STD_CLOCK, Some(traces), options.live_log());
    let (host, mut is_gone) = bus(&rt);
    let (job_result, thread) = timed(|| {
        rt.block_on(async {
            let watch = async {
                until(&rt, &mut is_gone).await;
                core::future::pending::<()>().await;
            };
            let ports = |_, _| host.clone();
            let instruments =
                Instruments { sample: &sample_this_thread, snapshot: &time_this_thread };
            let run = drive(row, &rt, plan, work, &options, &ports, instruments);
            match race(run, watch).await {
                Either::First(job_result) => job_result,
                Either::Second(()) => unreachable!("the watch never ends"),
            }
        })
    });
    rt.drop_tasks();
    job_result.map(|host_result| {
        let host_result = HostResult { threads: vec![thread], ..host_result };
        RunResult::of(host_result).with_live_warnings(plan)
    })
}

/// Runs work live on the PCI function at this address through Linux VFIO.
pub fn live_over_vfio(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    address: &str,
) -> Result<RunResult, RunError> {
    check_elsewhere(row, plan)?;
    let wanted = vfio::Wanted {
        kind: row.require_kind(plan)?,
        memory_bytes: plan.host.memory_bytes as usize,
        memory_base: plan.host.memory_base,
        vectors: vectors(row, plan, work),
    };
    let function = vfio::Function::open(address, &wanted)?;
    over_bus(row, plan, work, options, |rt| {
        let host = function.host(rt);
        let watched = host.clone();
        (host, Box::new(move || watched.is_gone()))
    })
}

/// Waits until `done` returns true; it is polled every 2 ms.
pub async fn until(rt: &Rt, mut done: impl FnMut() -> bool) {
    while !done() {
        rt.sleep(STOP_POLL).await;
    }
}
