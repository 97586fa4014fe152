//! A drive in its own thread, behind any interface, for synchronous callers outside the executor.
//!
//! Device and driver share one thread. Requests go to it over one channel; completions come back over a
//! channel per client. Data is copied in both directions: for speed there is libfnvme.

use std::cell::Cell;
use std::future::poll_fn;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::task::Poll;
use std::thread::{JoinHandle, Thread};

use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};
use runtime::{Either, IdleSleep, Pool, Rt, Span, race};
use wire::Lba;

use crate::control::{Control, Drive, executor};
use crate::{medium, plan_for_clients};
use plan::Plan;
use world::device::{Clock, Device, MediumState};
use world::interfaces::{self, Row};
use world::{self, RunError};

/// Maximum operations in flight. Each takes host memory for one transfer at a time.
const UNDER_WAY: usize = 256;

/// The longest sleep of an idle drive. Orders and requests wake it; what does not, as a stop of the server
/// and the end of its last client, it sees after that.
const SLEEP_MAX: Span = Span::ms(50);

/// An operation on whole blocks.
pub enum Operation {
    /// Length in bytes.
    Read(usize),
    Write(Vec<u8>),
    /// Makes every completed write durable, also those of other clients.
    Flush,
    /// Deallocates this number of bytes.
    Trim(u64),
    /// Makes `bytes` bytes read as zeros.
    Zero {
        bytes: u64,
        /// The range may be deallocated instead of written.
        may_deallocate: bool,
    },
}

pub struct Done {
    pub tag: u64,
    /// The bytes that were read, empty for other operations; or the driver's error.
    pub result: Result<Vec<u8>, IoError>,
}

struct Order {
    tag: u64,
    offset: u64,
    operation: Operation,
    durable: bool,
    tell: Sender<Done>,
    /// Number of power cuts before its client connected.
    cuts: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub geometry: Geometry,
    /// Contents of a range after a trim.
    pub deallocated: Deallocated,
}

/// Handle to submit operations. Their completions go to this client's channel only.
#[derive(Clone)]
pub struct Client {
    orders: Sender<Order>,
    tell: Sender<Done>,
    cuts: u32,
    /// That of the drive, which may sleep.
    thread: Thread,
}

impl Client {
    /// Submits an operation at `offset`, in bytes. Its completion carries `tag`; a `durable` operation is
    /// durable at its completion.
    ///
    /// # Errors
    /// The drive has ended.
    pub fn begin(
        &self,
        tag: u64,
        offset: u64,
        operation: Operation,
        durable: bool,
    ) -> Result<(), RunError> {
        let (tell, cuts) = (self.tell.clone(), self.cuts);
        self.orders
            .send(Order { tag, offset, operation, durable, tell, cuts })
            .map_err(|_| RunError::Other("the drive has ended".into()))?;
        self.thread.unpark();
        Ok(())
    }

    /// Completes an operation without the drive.
    pub fn end(&self, tag: u64, result: Result<Vec<u8>, IoError>) {
        // Fails only if the receiver is dropped: no task waits for the completion.
        let _ = self.tell.send(Done { tag, result });
    }
}

/// A drive in its own thread. The thread ends when this and all clients are dropped.
pub struct Disk {
    orders: Option<Sender<Order>>,
    shape: Shape,
    cuts: Arc<AtomicU32>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Disk {
    /// Starts a drive in memory of `bytes` bytes behind the interface `interface`.
    ///
    /// # Errors
    /// There is no such interface, or the drive does not start.
    pub fn start(interface: &str, bytes: u64) -> Result<Disk, RunError> {
        let capacity = format!("{bytes} B");
        let sets = [("medium.capacity", capacity.as_str()), ("host.memory", "128 MiB")];
        let plan = Plan::open("live", &sets).map_err(RunError::of)?;
        Disk::of_plan(interfaces::named(interface).map_err(RunError::from)?, &plan)
    }

    /// As [`start`](Disk::start), of this plan: a built-in name or a TOML file.
    ///
    /// # Errors
    /// There is no such interface or plan, or the drive does not start.
    pub fn start_by_plan(interface: &str, plan: &str) -> Result<Disk, RunError> {
        let plan = Plan::open(plan, &[]).map_err(RunError::of)?;
        Disk::of_plan(interfaces::named(interface).map_err(RunError::from)?, &plan)
    }

    /// Starts the drive of a plan in wall-clock time.
    ///
    /// # Errors
    /// The drive does not start, or its medium keeps only stamps.
    pub fn of_plan(row: &'static Row, plan: &Plan) -> Result<Disk, RunError> {
        let control = Control::new().map_err(RunError::of)?;
        let plan = plan_for_clients(row, plan)?;
        let drive = control.add(row, Path::new("disk"), &plan, 1);
        Disk::controlled(row, &plan, drive)
    }

    /// As [`of_plan`](Disk::of_plan), for a plan that has been prepared; `drive` controls it.
    pub(crate) fn controlled(
        row: &'static Row,
        plan: &Plan,
        drive: Arc<Drive>,
    ) -> Result<Disk, RunError> {
        Disk::sleeping(row, plan, drive, SLEEP_MAX)
    }

    /// As [`controlled`](Disk::controlled), with this longest sleep of the idle drive.
    fn sleeping(
        row: &'static Row,
        plan: &Plan,
        drive: Arc<Drive>,
        longest: Span,
    ) -> Result<Disk, RunError> {
        let (orders, taken) = channel();
        let (ready, is_ready) = sync_channel(1);
        let plan = plan.clone();
        let cuts = Arc::new(AtomicU32::new(0));
        let counted = cuts.clone();
        let thread = std::thread::Builder::new().name("disk".into()).spawn(move || {
            let started = Cell::new(false);
            let result = run((row, longest), &plan, &taken, &drive, &counted, |shape| {
                if !started.replace(true) {
                    drop(ready.send(Ok(shape)));
                }
            });
            match result {
                Err(error) if !started.get() => {
                    let _ = ready.send(Err(error));
                    Ok(())
                }
                result => result,
            }
        });
        let thread = Some(thread.map_err(RunError::of)?);
        let shape = is_ready.recv().map_err(RunError::of)??;
        Ok(Disk { orders: Some(orders), shape, cuts, thread })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Creates a client, and the receiver of its completions.
    pub fn client(&self) -> (Client, Receiver<Done>) {
        let (tell, done) = channel();
        let orders = self.orders.clone().expect("until it is dropped");
        let cuts = self.cuts.load(Ordering::Acquire);
        let thread = self.thread.as_ref().expect("until it is dropped").thread().clone();
        (Client { orders, tell, cuts, thread }, done)
    }

    /// Ends the drive, once its clients are dropped: what was written is flushed, and its state is saved.
    ///
    /// # Errors
    /// The driver cannot stop the device, or the state cannot be saved.
    pub fn save(mut self) -> Result<(), RunError> {
        self.orders = None;
        let thread = self.thread.take().expect("until it is dropped");
        thread.thread().unpark();
        thread.join().unwrap_or(Err(RunError::Panicked("the drive's thread")))
    }

    /// Whether the drive's thread has ended: there are no further completions.
    pub fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Runs the drive until all clients are dropped, again after each power cut.
fn run(
    (row, longest): (&'static Row, Span),
    plan: &Plan,
    orders: &Receiver<Order>,
    drive: &Drive,
    cuts: &AtomicU32,
    ready: impl Fn(Shape),
) -> Result<(), RunError> {
    let mut kept = medium(plan)?;
    loop {
        // A cut loses the orders of clients that had connected before it.
        let is_lost = |order: &Order| order.cuts != cuts.load(Ordering::Acquire);
        let count_cut = || {
            cuts.fetch_add(1, Ordering::AcqRel);
        };
        let (after, ended) =
            run_once((row, longest), kept, orders, drive, &is_lost, &count_cut, &ready)?;
        kept = after;
        if ended || !drive.wait_for_power() {
            return kept.save(plan);
        }
    }
}

/// Runs the drive until the power is cut, or all clients are dropped: then the second value is true.
fn run_once(
    (row, longest): (&'static Row, Span),
    kept: MediumState,
    orders: &Receiver<Order>,
    drive: &Drive,
    is_lost: &impl Fn(&Order) -> bool,
    count_cut: &impl Fn(),
    ready: &impl Fn(Shape),
) -> Result<(MediumState, bool), RunError> {
    let (_turn, (plan, seen)) = (drive.turn(), drive.plan());
    let shared = world::shared(row, &plan)?;
    let watched = drive.is_watched();
    let rt = executor(row, &plan, watched);
    // Host and device are tasks of this thread: what comes from others wakes it.
    rt.sleep_when_idle(IdleSleep { longest, woken: true, ..plan.device.idle });
    let port = shared.device(&rt);
    let device = Device::start_with(row, port, kept, Clock::Wall, &plan, watched)?;
    drive.watch_flushes(&device);
    let host = shared.host(&rt);
    let serving = async {
        let driver = row.connect(vec![host], &plan).await.map_err(RunError::of)?;
        let disk = driver.disk(0);
        ready(Shape { geometry: disk.geometry(), deallocated: disk.deallocated() });
        let places = Rc::new(Pool::new([(); UNDER_WAY]));
        while let Some(order) = next(&rt, orders).await {
            if is_lost(&order) {
                continue;
            }
            places.take(&rt).await;
            let (disk, places, spawner) = (driver.disk(0), places.clone(), rt.clone());
            rt.spawn(async move {
                let Order { tag, offset, operation, durable, tell, cuts: _ } = order;
                let result = perform(&disk, offset, operation, durable).await;
                places.give(&spawner, ());
                let _ = tell.send(Done { tag, result });
            });
        }
        for _ in 0..UNDER_WAY {
            places.take(&rt).await;
        }
        driver.stop().await.map_err(RunError::Driver)
    };
    let attended = async {
        drive.attend(&rt, &device, seen).await;
        if drive.is_powered() {
            // The server stops: its clients end, and with them the drive.
            std::future::pending::<()>().await;
        }
    };
    let ended = rt.block_on(race(serving, attended));
    drive.account(&rt, &device);
    match ended {
        Either::First(ended) => {
            let kept = device.switch_off();
            ended.map(|()| (kept, true))
        }
        Either::Second(()) => {
            // Before the turn ends: the next client is admitted after that.
            count_cut();
            Ok((device.cut(), false))
        }
    }
}

/// Waits for the next order; `None` when all senders are dropped.
async fn next(rt: &Rt, orders: &Receiver<Order>) -> Option<Order> {
    let mut looks = 0_u32;
    poll_fn(|cx| match orders.try_recv() {
        Ok(order) => {
            rt.progress();
            Poll::Ready(Some(order))
        }
        Err(TryRecvError::Disconnected) => Poll::Ready(None),
        Err(TryRecvError::Empty) => {
            looks = looks.saturating_add(1);
            rt.poll_again(cx, looks > 4096);
            Poll::Pending
        }
    })
    .await
}

async fn perform(
    disk: &impl BlockDevice,
    offset: u64,
    operation: Operation,
    durable: bool,
) -> Result<Vec<u8>, IoError> {
    let block_bytes = u64::from(disk.geometry().block_bytes);
    let lba = Lba(offset / block_bytes);
    let mut read = Vec::new();
    match operation {
        Operation::Flush => return disk.flush().await.map(|()| read),
        Operation::Read(bytes) => {
            read.resize(bytes, 0);
            for (lba, part) in parts(disk, lba, &mut read) {
                let (buffer, result) = disk.read(lba, buffer(disk, lba, part.len())?).await;
                result?;
                buffer.copy_out(0, part);
            }
            return Ok(read);
        }
        // A durable write sets FUA and needs no flush.
        Operation::Write(mut bytes) => {
            for (lba, part) in parts(disk, lba, &mut bytes) {
                let from = buffer(disk, lba, part.len())?;
                from.copy_in(0, part);
                disk.write(lba, from, durable).await.1?;
            }
            return Ok(read);
        }
        Operation::Trim(bytes) => deallocate(disk, lba, bytes / block_bytes).await?,
        Operation::Zero { bytes, may_deallocate: true }
            if disk.deallocated() == Deallocated::Zeros =>
        {
            deallocate(disk, lba, bytes / block_bytes).await?;
        }
        Operation::Zero { bytes, .. } => {
            let most = u64::from(disk.geometry().transfer_bytes_max);
            let mut at = 0;
            while at < bytes {
                let (lba, part) = (Lba(lba.0 + at / block_bytes), most.min(bytes - at));
                let zeros = buffer(disk, lba, part as usize)?;
                zeros.copy_in(0, &vec![0; part as usize]);
                disk.write(lba, zeros, false).await.1?;
                at += part;
            }
        }
    }
    if durable {
        disk.flush().await?;
    }
    Ok(read)
}

async fn deallocate(disk: &impl BlockDevice, lba: Lba, blocks: u64) -> Result<(), IoError> {
    let mut done = 0;
    while done < blocks {
        let now = (blocks - done).min(u64::from(u32::MAX));
        disk.deallocate(Lba(lba.0 + done), now as u32).await?;
        done += now;
    }
    Ok(())
}

fn buffer(disk: &impl BlockDevice, lba: Lba, bytes: usize) -> Result<host::Buffer, IoError> {
    disk.buffer(bytes).map_err(|_| IoError::of(Kind::OutOfMemory, Some(lba)))
}

/// Splits `bytes` into parts of at most one transfer, each with its first block.
fn parts<'a>(
    disk: &impl BlockDevice,
    lba: Lba,
    bytes: &'a mut [u8],
) -> impl Iterator<Item = (Lba, &'a mut [u8])> {
    let geometry = disk.geometry();
    let blocks = u64::from(geometry.transfer_bytes_max / geometry.block_bytes);
    let parts = bytes.chunks_mut(geometry.transfer_bytes_max as usize);
    (0..).map(move |part| Lba(lba.0 + part * blocks)).zip(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State of the drive's thread in the kernel, as in proc(5): it sleeps.
    fn sleeps(disk: &Disk, calls: &mut u64) -> bool {
        let name = disk.thread.as_ref().expect("it runs").thread().name().map(str::to_owned);
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
        let is_drive = |path: &Path| {
            std::fs::read_to_string(path.join("comm"))
                .is_ok_and(|comm| Some(comm.trim()) == name.as_deref())
        };
        let path = tasks.map(|task| task.path()).find(|path| is_drive(path)).expect("the drive's");
        let status = std::fs::read_to_string(path.join("status")).expect("a thread");
        let of = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
            value.trim().to_owned()
        };
        let count = of("voluntary_ctxt_switches:").parse().expect("a number");
        let sleeps = of("State:").starts_with('S') && count > *calls;
        if sleeps {
            *calls = count;
        }
        sleeps
    }

    /// By itself the drive would wake after an hour.
    #[test]
    fn idle_drive_sleeps_and_orders_requests_and_its_end_wake_it() {
        let sets = [
            ("medium.capacity", "1 MiB"),
            ("device.sleep_after", "1 us"),
            ("host.timeout", "3600 s"),
        ];
        let plan = plan_for_clients(interfaces::NVME, &Plan::open("live", &sets).expect("a plan"));
        let plan = plan.expect("for clients");
        let control = Control::watching(plan.clone()).expect("two descriptors");
        let drive = control.add(interfaces::NVME, Path::new("disk"), &plan, 1);
        let disk = Disk::sleeping(interfaces::NVME, &plan, drive.clone(), Span::s(3600));
        let disk = disk.expect("a drive");
        let (client, done) = disk.client();
        let mut calls = 0;
        let mut until_it_sleeps = || {
            while !sleeps(&disk, &mut calls) {
                std::thread::yield_now();
            }
        };
        for tag in 0..20 {
            until_it_sleeps();
            client.begin(tag, 0, Operation::Read(4096), false).expect("it runs");
            let limit = std::time::Duration::from_secs(60);
            assert_eq!(done.recv_timeout(limit).expect("an order wakes it").tag, tag);
        }
        until_it_sleeps();
        assert_eq!(drive.save(), Ok(()), "a request wakes it");
        until_it_sleeps();
        drop(client);
        disk.save().expect("its end wakes it");
    }
}
