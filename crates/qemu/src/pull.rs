//! Surprise removal of a device under reads: every operation ends, with an error that the device is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::pci::ConfigAccess;
use host::nvme::{Completion, QueueOptions};
use host::pci::{Function, Slot};
use host::{BlockDevice, IoError, Kind};
use runtime::{Rt, Span};
use wire::Lba;

use super::nvme::{by_vectors, options};
use super::{Bench, QemuError, Verdicts};
use world::interfaces::{Disk, LiveController};
use world::until;

const DEPTH: u16 = 32;
/// Number of successful reads before the removal.
const BEFORE: u64 = 500;
const READ_BYTES: usize = 4096;
/// The driver checks the controller eight times within this time.
const TIMEOUT: Span = Span::s(4);
/// QEMU returns zeros, not ones, for unassigned memory. So the driver takes the controller for failed, and
/// detects the removal only when a reset fails.
const PATIENCE: Span = Span::s(12);

/// Removes a function by switching off its slot's power.
pub(super) async fn check(
    bench: &Bench<'_>,
    function: &Function,
    slot: &Slot,
    verdicts: &mut Verdicts<'_>,
) {
    let name = format!("{} is pulled out under reads", function.at);
    verdicts.take(&name, pull(bench, function, slot).await);
}

#[derive(Default)]
struct Reads {
    good: Cell<u64>,
    failed: RefCell<Vec<IoError>>,
}

async fn pull(bench: &Bench<'_>, function: &Function, slot: &Slot) -> Result<String, QemuError> {
    let host = by_vectors(bench, function, 2).await?;
    let options = host::nvme::Options {
        timeout: TIMEOUT,
        admin_timeout: TIMEOUT,
        ready_floor: TIMEOUT,
        ready_ceiling: TIMEOUT,
        ..options(None)
    };
    let controller = LiveController::start(host, options).await?;
    let completion = Completion::Interrupt { vector: 1 };
    let queue = QueueOptions { depth: DEPTH, completion, ..QueueOptions::default() };
    let queue = controller.queue(queue).await?;
    let (rt, seen) = (bench.rt, Rc::new(Reads::default()));
    for reader in 0..u64::from(DEPTH) {
        rt.spawn(read_on(queue.disk.clone(), reader, seen.clone()));
    }
    let failed = || seen.failed.borrow().len();
    let by = rt.now() + PATIENCE;
    until(rt, || seen.good.get() >= BEFORE || failed() > 0 || rt.now() > by).await;
    if let Some(error) = seen.failed.borrow().first() {
        return Err(QemuError::BeforeRemoval(*error));
    }
    slot.power(&bench.bus, false).await;
    let (begun, good) = (rt.now(), seen.good.get());
    until(rt, || failed() == usize::from(DEPTH) || rt.now().since(begun) > PATIENCE).await;
    let took = rt.now().since(begun);
    if failed() < usize::from(DEPTH) {
        return Err(QemuError::NotEnded { ended: failed(), all: DEPTH, within: took });
    }
    if let Some(other) = seen.failed.borrow().iter().find(|error| error.kind != Kind::Gone) {
        return Err(QemuError::OtherEnd(*other));
    }
    afterwards(bench, function, &controller, &queue.disk, rt).await?;
    let late = seen.good.get() - good;
    Ok(format!(
        "{good} reads before it, {late} after it, then {DEPTH} ended with \"{}\" within {took}",
        seen.failed.borrow()[0]
    ))
}

/// Checks of the state after the removal.
async fn afterwards(
    bench: &Bench<'_>,
    function: &Function,
    controller: &LiveController,
    disk: &Disk,
    rt: &Rt,
) -> Result<(), QemuError> {
    if bench.bus.config_read(function.at, 0).await != u32::MAX {
        return Err(QemuError::Found("something still answers at its place".into()));
    }
    if !controller.is_gone() {
        return Err(QemuError::Found("the controller is not known to be gone".into()));
    }
    let buffer = disk.buffer(READ_BYTES)?;
    let begun = rt.now();
    match disk.read(Lba(0), buffer).await.1 {
        Err(error) if error.kind == Kind::Gone && rt.now().since(begun) < TIMEOUT => Ok(()),
        result => Err(QemuError::LaterRead { result, after: rt.now().since(begun) }),
    }
}

async fn read_on(disk: Disk, reader: u64, seen: Rc<Reads>) {
    let blocks = READ_BYTES as u64 / u64::from(disk.geometry().block_bytes);
    let Ok(mut buffer) = disk.buffer(READ_BYTES) else { return };
    loop {
        let (back, done) = disk.read(Lba(reader * blocks), buffer).await;
        buffer = back;
        match done {
            Ok(()) => seen.good.set(seen.good.get() + 1),
            Err(error) => return seen.failed.borrow_mut().push(error),
        }
    }
}
