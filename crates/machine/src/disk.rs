//! A drive in a thread, by any interface: for programs that ask from outside and wait for themselves.
//!
//! Device and driver share one thread; what is asked for goes to it over a channel, and comes back over
//! another. Bytes are copied on the way: for speed there is [`fastpath`](crate::fastpath).

use std::future::poll_fn;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::task::Poll;
use std::thread::JoinHandle;

use host::BlockDevice;
use runtime::{Log, Rt, STD_CLOCK};
use wire::Lba;

use crate::device::{Clock, Device, Kept};
use crate::interfaces::{Block, Dcx, Driver, Fastpath, Interface, Nvme};
use crate::plan::Plan;
use crate::world::{self, RunError};

/// What is asked for.
pub enum Operation {
    /// So many bytes.
    Read(usize),
    /// These bytes.
    Write(Vec<u8>),
    /// What was written is to be durable.
    Flush,
}

/// What was asked for and has ended.
pub struct Done {
    /// Whose number it is.
    pub tag: usize,
    /// The bytes that were read, or written; or what the driver says.
    pub result: Result<Vec<u8>, String>,
}

struct Order {
    tag: usize,
    offset: u64,
    operation: Operation,
}

/// A drive with a thread of its own. It ends when this is dropped.
pub struct Disk {
    orders: Option<Sender<Order>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// A drive in memory of so many bytes, by the interface of this name.
    ///
    /// # Errors
    /// There is no such interface, or the drive does not start.
    pub fn start(interface: &str, bytes: u64) -> Result<Disk, RunError> {
        let capacity = format!("{bytes} B");
        let sets = [("medium.capacity", capacity.as_str()), ("host.memory", "128 MiB")];
        let plan = Plan::open("live", &sets).map_err(RunError::of)?;
        let body = match interface {
            Nvme::NAME => run::<Nvme>,
            Dcx::NAME => run::<Dcx>,
            Block::NAME => run::<Block>,
            Fastpath::NAME => run::<Fastpath>,
            _ => {
                let expected = "expected nvme, dcx, block or fastpath";
                return Err(RunError(format!("interface: found {interface:?}, {expected}")));
            }
        };
        let (orders, taken) = channel();
        let (tell, done) = channel();
        let (ready, is_ready) = sync_channel(1);
        let thread = std::thread::Builder::new().name("disk".into()).spawn(move || {
            let ready_too = ready.clone();
            if let Err(error) = body(&plan, taken, tell, move || drop(ready_too.send(Ok(())))) {
                let _ = ready.send(Err(error));
            }
        });
        let thread = Some(thread.map_err(RunError::of)?);
        let disk = Disk { orders: Some(orders), done, thread };
        is_ready.recv().map_err(RunError::of)??;
        Ok(disk)
    }

    /// Begins an operation at this offset, in bytes; [`done`](Self::done) gives its number back.
    ///
    /// # Errors
    /// The drive has ended.
    pub fn begin(&self, tag: usize, offset: u64, operation: Operation) -> Result<(), RunError> {
        let orders = self.orders.as_ref().expect("until it is dropped");
        orders
            .send(Order { tag, offset, operation })
            .map_err(|_| RunError("the drive has ended".into()))
    }

    /// An operation that has ended.
    pub fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Whether nothing will end any more.
    pub fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<I: Interface>(
    plan: &Plan,
    orders: Receiver<Order>,
    tell: Sender<Done>,
    ready: impl FnOnce(),
) -> Result<(), RunError> {
    let shared = world::shared::<I>(plan)?;
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let device = Device::start::<I, _>(shared.device(&rt), Kept::new(plan)?, Clock::Wall, plan)?;
    let host = shared.host(&rt);
    let ended = rt.block_on(async {
        let driver = I::connect(vec![host], plan).await.map_err(RunError::of)?;
        ready();
        while let Some(order) = next(&rt, &orders).await {
            let (disk, tell) = (driver.disk(0), tell.clone());
            rt.spawn(async move {
                let Order { tag, offset, operation } = order;
                let _ = tell.send(Done { tag, result: perform(&disk, offset, operation).await });
            });
        }
        driver.stop().await.map_err(RunError)
    });
    drop(device.switch_off());
    ended
}

/// The next order; none when nobody will give one any more.
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
) -> Result<Vec<u8>, String> {
    let geometry = disk.geometry();
    let (mut bytes, write) = match operation {
        Operation::Flush => {
            return disk.flush().await.map(|()| Vec::new()).map_err(|error| error.to_string());
        }
        Operation::Read(bytes) => (vec![0; bytes], false),
        Operation::Write(bytes) => (bytes, true),
    };
    let mut at = offset / u64::from(geometry.block_bytes);
    for part in bytes.chunks_mut(geometry.transfer_bytes_max as usize) {
        let buffer = disk.buffer(part.len()).map_err(|error| error.to_string())?;
        let result = if write {
            buffer.copy_in(0, part);
            disk.write(Lba(at), buffer, false).await.1
        } else {
            let (buffer, result) = disk.read(Lba(at), buffer).await;
            buffer.copy_out(0, part);
            result
        };
        result.map_err(|error| error.to_string())?;
        at += part.len() as u64 / u64::from(geometry.block_bytes);
    }
    Ok(bytes)
}
