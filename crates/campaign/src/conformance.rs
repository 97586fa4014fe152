//! Runs the conformance suite on a controller of a plan, simulated or live, or on an external one.

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};

use bus::live::{self, LiveHost, Shared};
use bus::sim::SimBus;
use bus::vfio;
use bus::vfio_user::{self, Sharing};
use conformance::{Case, CaseRun, Table};
use qemu::QemuError;
use runtime::{Either, Log, Rt, STD_CLOCK, race};

use plan::Plan;
use wire::pci::FunctionKind;
use world::device::{self, Clock, Device, MediumState};
use world::interfaces::NVME;
use world::pci;
use world::{RunError, shared, sim_spec, simulated_device, until};

/// Interrupt vectors that the cases use.
const VECTORS: u16 = 4;

#[derive(Clone, Copy, Debug)]
pub enum Controller<'a> {
    /// Controller of the plan, on a modelled bus.
    Simulated,
    /// Controller of the plan, on its own thread.
    Thread,
    /// Device that listens on this socket, over shared memory.
    Socket(&'a Path),
    /// Function of the vfio-user server that listens on this socket.
    VfioUser(&'a Path),
    /// PCI function at this address, bound to Linux's VFIO.
    Vfio(&'a str),
    /// First NVMe device of a QEMU machine without a processor.
    Qtest {
        /// Socket of QEMU's option `-qtest`.
        socket: &'a Path,
        memory: &'a Path,
    },
}

/// Why the suite could not run on a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// The controller cannot be built, or cannot be reached.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The machine of QEMU cannot be driven.
    #[error(transparent)]
    Qemu(#[from] QemuError),
}

/// Runs the cases for which `wanted` returns true, and passes the result of each to a callback.
///
/// # Errors
/// The controller does not exist or cannot be reached.
pub fn run(
    plan: &Plan,
    controller: Controller<'_>,
    wanted: impl Fn(&Case) -> bool,
    each: impl FnMut(&CaseRun),
) -> Result<Table, ConformanceError> {
    let ours = matches!(controller, Controller::Simulated | Controller::Thread);
    let plan = if ours { &plan.for_clients().map_err(RunError::from)? } else { plan };
    match controller {
        Controller::Simulated => simulated(plan, wanted, each),
        Controller::Thread => on_a_thread(plan, wanted, each),
        Controller::Socket(socket) => over_socket(plan, socket, wanted, each),
        Controller::VfioUser(socket) => {
            let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
            let connection =
                vfio_user::connect(socket, FunctionKind::NVME, bytes, base, Sharing::Mapped);
            let connection = connection.map_err(RunError::from)?;
            Ok(in_wall_time(|rt| connection.host(rt), wanted, each))
        }
        Controller::Vfio(address) => {
            let function = vfio::Wanted {
                kind: FunctionKind::NVME,
                memory_bytes: plan.host.memory_bytes as usize,
                memory_base: plan.host.memory_base,
                vectors: VECTORS,
            };
            let function = vfio::Function::open(address, &function).map_err(RunError::from)?;
            Ok(in_wall_time(|rt| function.host(rt), wanted, each))
        }
        Controller::Qtest { socket, memory } => {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let table = rt.block_on(async {
                let host = qemu::first_nvme(&rt, socket, memory, VECTORS).await?;
                Ok(Table::run(Rc::new(host), wanted, each).await)
            });
            rt.drop_tasks();
            table
        }
    }
}

fn simulated(
    plan: &Plan,
    wanted: impl Fn(&Case) -> bool,
    each: impl FnMut(&CaseRun),
) -> Result<Table, ConformanceError> {
    device::check(NVME, plan)?;
    let rt = Rt::simulated(None, Log::Off);
    let bus = SimBus::new(&rt, sim_spec(NVME, plan));
    let _device = simulated_device(NVME, &rt, &bus, plan)?;
    let table = rt.block_on(async {
        pci::bring_up(NVME, std::slice::from_ref(&bus), plan).await?;
        Ok(Table::run(Rc::new(bus.host(0)), wanted, each).await)
    });
    rt.drop_tasks();
    table
}

/// Over shared memory; periodically checks that the device's process is alive.
fn over_socket(
    plan: &Plan,
    socket: &Path,
    wanted: impl Fn(&Case) -> bool,
    each: impl FnMut(&CaseRun),
) -> Result<Table, ConformanceError> {
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    let (shared, mut client) = live::connect(socket, bytes, base).map_err(RunError::from)?;
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = shared.with_masks(NVME.masks).host(&rt);
    let watched = host.clone();
    let watch = async {
        until(&rt, || client.is_gone()).await;
        watched.mark_gone();
        core::future::pending::<()>().await;
    };
    let case_run = rt.block_on(race(Table::run(Rc::new(host), wanted, each), watch));
    rt.drop_tasks();
    match case_run {
        Either::First(table) => Ok(table),
        Either::Second(()) => unreachable!("the watch never ends"),
    }
}

fn in_wall_time(
    port: impl FnOnce(&Rt) -> LiveHost,
    wanted: impl Fn(&Case) -> bool,
    each: impl FnMut(&CaseRun),
) -> Table {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let table = rt.block_on(Table::run(Rc::new(port(&rt)), wanted, each));
    rt.drop_tasks();
    table
}

fn on_a_thread(
    plan: &Plan,
    wanted: impl Fn(&Case) -> bool,
    each: impl FnMut(&CaseRun),
) -> Result<Table, ConformanceError> {
    let shared = shared(NVME, plan)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let (started, starts) = mpsc::channel();
        let (shared, stop) = (&shared, &stop);
        let device = scope.spawn(move || serve(plan, shared, started, stop));
        // Registers are not valid before. If the device fails to start, joining its thread gives the reason.
        let _ = starts.recv();
        let table = in_wall_time(|rt| shared.host(rt), wanted, each);
        drop(stopping);
        match device.join() {
            Ok(served) => Ok(served.map(|()| table)?),
            Err(_) => Err(RunError::Panicked("the device's thread").into()),
        }
    })
}

/// Device thread: runs until it is stopped.
fn serve(
    plan: &Plan,
    shared: &Shared,
    started: Sender<()>,
    stop: &AtomicBool,
) -> Result<(), RunError> {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let port = shared.device(&rt);
    let device = Device::start(NVME, port, MediumState::to_read(plan)?, Clock::Wall, plan)?;
    let _ = started.send(());
    rt.block_on(until(&rt, || stop.load(Ordering::Acquire)));
    device.switch_off();
    Ok(())
}

/// Stops the device thread on any exit of the host.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
