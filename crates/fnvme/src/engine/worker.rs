//! The engine's thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::task::Poll;

use bus::live::{Client as Peer, LiveHost, Shared};
use bus::{Buffer, HostPort, Memory};
use host::BlockDevice;
use host::fastpath::{Area, Engine, Options, Serving, ring};
use host::nvme::{Controller, Queue};
use runtime::{Log, Rt, STD_CLOCK, Span};
use wire::{BusAddr, Lba};

use super::client::{STAGING_BYTES, registers};
use super::error::Error;
use super::mailbox::{Lane, Mailbox, Order, Wanted};
use super::names::Names;
use super::way::{Ready, Way};
use functions::{self, Named};
use plan::{Fastpath, Plan};
use world::device::{Clock, Device, MediumState};
use world::interfaces::{FASTPATH, controller_options, engine_options};
use world::{RunError, until};

/// DMA buffers are multiples of the largest block size of a request, bytes.
const BUFFER_GRAIN: u64 = 8192;
/// Bus address of the memory of the first peer process; each next one gets the next multiple. Addresses are
/// not reused, so that a stale address hits no memory.
const PEERS_AT: u64 = 1 << 44;
/// Maximum memory of a peer process, bytes.
const PEER_BYTES_MAX: u64 = 1 << 36;
/// Interval of liveness checks of peer processes.
const PEER_LOOK: Span = Span::ms(2);

/// Runs a drive on its own thread.
pub(super) fn drive(
    plan: &Plan,
    shared: &Shared,
    stop: &AtomicBool,
    tell: &SyncSender<Result<(), RunError>>,
) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    match start_drive(&rt, plan, shared) {
        Ok(device) => {
            let _ = tell.send(Ok(()));
            rt.block_on(until(&rt, || stop.load(Ordering::Acquire)));
            let _ = device.switch_off().save(plan);
        }
        Err(error) => {
            let _ = tell.send(Err(error));
        }
    }
}

fn start_drive(rt: &Rt, plan: &Plan, shared: &Shared) -> Result<Device, RunError> {
    let mut kept = MediumState::new(plan)?;
    kept.keep_journal(plan)?;
    Device::start(FASTPATH, shared.device(rt), kept, Clock::Wall, plan)
}

/// Parameters of the engine's thread.
pub(super) struct Setup {
    pub plan: Plan,
    pub way: Way,
    /// First block available for areas.
    pub from: u64,
    pub mailbox: Arc<Mailbox>,
    pub tell: SyncSender<Result<Ready, RunError>>,
}

/// On drop, reports the end of the thread to all clients, including a panic.
struct Leaving(Arc<Mailbox>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

pub(super) fn run(setup: Setup) {
    let _leaving = Leaving(setup.mailbox.clone());
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let inside = setup.way.shared().filter(|_| setup.way.with_drive());
    let device = match inside.map(|shared| start_drive(&rt, &setup.plan, shared)) {
        Some(Err(error)) => {
            let _ = setup.tell.send(Err(error));
            return;
        }
        Some(Ok(device)) => Some(device),
        None => None,
    };
    let plan = setup.plan.clone();
    rt.block_on(serve(&rt, setup));
    match device {
        Some(device) => drop(device.switch_off().save(&plan)),
        None => rt.drop_tasks(),
    }
}

/// State of the engine's thread.
struct Office {
    rt: Rt,
    /// Memory and registers shared with a drive of this process.
    shared: Option<Shared>,
    host: LiveHost,
    engine: Engine<LiveHost>,
    /// Queue of the ordinary driver.
    queue: Rc<Queue<LiveHost>>,
    names: Names,
    lanes: RefCell<BTreeMap<u32, Local>>,
    next: Cell<u32>,
    next_peer: Cell<u64>,
    mailbox: Arc<Mailbox>,
    /// Function of clients that bring none, from the plan.
    function: String,
}

/// A client in this process. Its ring is in `_page`; the drive may access `_buffer` until serving has
/// ended.
struct Local {
    serving: Serving<LiveHost>,
    /// First block of a named area.
    named: Option<Lba>,
    _page: Buffer,
    _buffer: Buffer,
}

/// A started controller, the engine on it, a queue of the ordinary driver, the named areas.
struct Started {
    controller: Controller<LiveHost>,
    engine: Engine<LiveHost>,
    queue: Rc<Queue<LiveHost>>,
    names: Names,
}

async fn start(host: &LiveHost, plan: &Plan, from: u64) -> Result<Started, RunError> {
    let options = Options { from: Lba(from), ..engine_options(plan) };
    let wanted = controller_options(plan, options.engines + 1);
    let controller = Controller::start(host.clone(), wanted).await?;
    let engine = Engine::start(std::slice::from_ref(host), &controller, options).await;
    let (engine, queue) = (engine?, controller.queue(options.queue).await?);
    let names = Names::load(&engine, &queue, options.from).await?;
    Ok(Started { controller, engine, queue, names })
}

async fn serve(rt: &Rt, setup: Setup) {
    let Setup { plan, way, from, mailbox, tell } = setup;
    let shared = way.shared().cloned();
    let started = async {
        let host = way.host(rt)?;
        let started = start(&host, &plan, from).await?;
        Ok((host, started))
    };
    let (host, Started { controller, engine, queue, names }) = match started.await {
        Ok(started) => started,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let (block_bytes, memory) = (engine.geometry().block_bytes, host.arena().memory().clone());
    let _ = tell.send(Ok(Ready { block_bytes, memory }));
    let office = Rc::new(Office {
        rt: rt.clone(),
        shared,
        host,
        engine: engine.clone(),
        queue,
        names,
        lanes: RefCell::default(),
        next: Cell::new(1),
        next_peer: Cell::new(PEERS_AT),
        mailbox: mailbox.clone(),
        function: plan.section().map_or("none", |f: &Fastpath| &f.function).into(),
    });
    let mut seen = 0;
    while !mailbox.is_stopped() {
        look(rt, &mailbox, seen).await;
        seen = mailbox.count();
        while let Some(order) = mailbox.take() {
            office.carry_out(order).await;
        }
    }
    // No request is accepted any more; shutdown ends the commands in flight.
    let _ = controller.shutdown().await;
    engine.stop();
}

/// Waits for an order or for the stop flag.
async fn look(rt: &Rt, mailbox: &Mailbox, seen: u32) {
    poll_fn(|cx| {
        if mailbox.count() != seen || mailbox.is_stopped() {
            rt.progress();
            return Poll::Ready(());
        }
        rt.poll_again(cx, true);
        Poll::Pending
    })
    .await;
}

impl Office {
    fn function(&self) -> Option<Named> {
        functions::named(&self.function).expect("checked with the plan")
    }

    /// Orders are carried out in turn, so that changes of the directory are.
    async fn carry_out(self: &Rc<Self>, order: Order) {
        let office = self.clone();
        match order {
            Order::Open(wanted, tell) => drop(tell.send(self.open(wanted).await)),
            Order::Remove { name, tell } => drop(tell.send(self.names.remove(&name).await)),
            Order::Latency { tell } => drop(tell.send(self.engine.latency())),
            Order::Close { number, tell } => {
                let Some(lane) = self.lanes.borrow_mut().remove(&number) else { return };
                self.rt.spawn(async move {
                    lane.serving.end().await;
                    lane.named.into_iter().for_each(|first| office.names.release(first));
                    let _ = tell.send(());
                });
            }
            Order::Ordinary { lba, bytes, write, tell } => {
                self.rt.spawn(async move {
                    let _ = tell.send(office.ordinary(lba, bytes, write).await);
                });
            }
            Order::Admit { shared, peer } => {
                self.rt.spawn(async move { office.admit(shared, peer).await });
            }
        }
    }

    /// Finds or allocates an area, and gives it a ring and a DMA buffer in the engine's own memory.
    async fn open(&self, wanted: Wanted) -> Result<Lane, Error> {
        let block = u64::from(self.engine.geometry().block_bytes);
        let blocks = wanted.bytes.div_ceil(block);
        let Some(name) = &wanted.name else {
            return self.give(blocks, None, wanted.function);
        };
        let (first, blocks, is_new) = self.names.open(name, blocks).await?;
        let given = self.give(blocks, Some(first), wanted.function);
        if given.is_err() {
            self.names.release(first);
            if is_new {
                // The caller hears why there is no area; a name that stays is free and of no other use.
                let _ = self.names.remove(name).await;
            }
        }
        given
    }

    /// Creates a ring and a DMA buffer for an area, which is a new one or the named one at `first`.
    fn give(
        &self,
        blocks: u64,
        named: Option<Lba>,
        function: Option<Named>,
    ) -> Result<Lane, Error> {
        let area_bytes = blocks.saturating_mul(u64::from(self.engine.geometry().block_bytes));
        let length = area_bytes.checked_next_multiple_of(BUFFER_GRAIN);
        let length = length.and_then(|n| usize::try_from(n).ok()).filter(|length| *length > 0);
        let length = length.ok_or(Error::Length(area_bytes))?;
        let arena = self.host.arena();
        let page = arena.buffer(ring::BYTES).map_err(Error::Memory)?;
        let all = length.checked_add(STAGING_BYTES as usize).ok_or(Error::Length(area_bytes))?;
        let buffer = arena.buffer(all).map_err(Error::Memory)?;
        page.zero();
        let (ring, at, all, bytes) = (page.at(), buffer.at(), all as u64, length as u64);
        let serving = self.engine.serve(arena.memory(), ring).expect("a page of the arena");
        let opened = match named {
            Some(first) => serving.open_reserved(Area { first, blocks, at, bytes: all }),
            None => serving.open(blocks, at, all).map(|(handle, _)| handle),
        };
        let handle = opened.map_err(Error::Open)?;
        if let Some(function) = function.or_else(|| self.function()) {
            serving.pass_through(handle, functions::shared(function)).map_err(Error::Open)?;
        }
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let local = Local { serving, named, _page: page, _buffer: buffer };
        self.lanes.borrow_mut().insert(number, local);
        Ok(Lane { number, ring, at, bytes, area_bytes, handle })
    }

    async fn ordinary(&self, lba: u64, mut bytes: Vec<u8>, write: bool) -> Result<Vec<u8>, Error> {
        let buffer = self.queue.buffer(bytes.len()).map_err(Error::Memory)?;
        if write {
            buffer.copy_in(0, &bytes);
            self.queue.write(Lba(lba), buffer, false).await.1.map_err(Error::Driver)?;
        } else {
            let (buffer, result) = self.queue.read(Lba(lba), buffer).await;
            result.map_err(Error::Driver)?;
            buffer.copy_out(0, &mut bytes);
        }
        Ok(bytes)
    }

    /// Serves another process: its memory is mapped at an address chosen here, and it has one area until it
    /// exits.
    async fn admit(&self, shared: Shared, mut peer: Peer) {
        let Some(ours) = &self.shared else { return };
        let bytes = shared.host_memory.bytes() as u64;
        let (page, block) = (ring::BYTES as u64, u64::from(self.engine.geometry().block_bytes));
        let Some(area) = bytes.checked_sub(page + STAGING_BYTES) else { return };
        if area < block || bytes > PEER_BYTES_MAX {
            return;
        }
        let base = BusAddr(self.next_peer.get());
        self.next_peer.set(base.0 + PEER_BYTES_MAX);
        let memory: Memory = shared.host_memory.at_base(base);
        ours.also(&memory);
        let serving = self.engine.serve(&memory, base).expect("a page at its beginning");
        let opened = serving.open(area / block, BusAddr(base.0 + page), bytes - page);
        let through = |handle| {
            self.function()
                .is_none_or(|f| serving.pass_through(handle, functions::shared(f)).is_ok())
        };
        if let Ok((handle, _)) = opened
            && through(handle)
        {
            let number = u32::from(handle.generation) << 16 | u32::from(handle.fp_id);
            shared.store(registers::HANDLE, number);
            shared.store(registers::BLOCK_BYTES, block as u32);
            if peer.welcome().is_ok() {
                while !peer.is_gone() && !self.mailbox.is_stopped() {
                    self.rt.sleep(PEER_LOOK).await;
                }
            }
        }
        serving.end().await;
        ours.no_longer(&memory);
    }
}
