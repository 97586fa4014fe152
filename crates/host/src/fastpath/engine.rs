//! The engine: requests in, NVMe commands out, responses back.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::Poll;

use bus::{Cost, HostPort};
use runtime::{Parked, Pool, Rt, Stage, stage};
use wire::fastpath::{Direction, Refusal, Request, Response, Status};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io;
use wire::{BusAddr, CommandId, Lba, Nsid};

use super::control::{self, Control, Ended, From, Turn};
use super::function::{Shared, Staging, Through};
use super::ring::Taker;
use super::schedule::{Schedule, Share};
use super::table::{Area, Handle, Job, Memory, OpenError, Owner, Table};
use crate::nvme::{Controller, Queue, QueueOptions};
use crate::{Buffer, Geometry, InitError, IoError, Kind};

/// Owner of handles for tasks of this executor, which have no ring.
pub(super) const TASKS: Owner = 0;

/// Smallest block in bytes; also the unit of a function's cost.
const BLOCK_MIN: u32 = 512;

/// Memory page of PRPs in bytes.
const PAGE_BYTES: u32 = 4096;

/// Options of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of Submit and Complete pairs, each with a queue pair; at least 1.
    pub engines: u16,
    /// Options of each queue pair.
    pub queue: QueueOptions,
    /// Most requests in flight, 1 to 1024.
    pub requests: u16,
    /// First block available for areas; lower blocks belong to other users.
    pub from: Lba,
    /// Trace identifier space of requests from tasks.
    pub traces: u16,
    /// Order in which Control gives out commands.
    pub schedule: Schedule,
}

/// Latency statistics of Complete: from taking a request to the end of its last command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Requests carried out.
    pub requests: u64,
    /// Failed requests among them.
    pub failed: u64,
    /// Rejected requests.
    pub refused: u64,
    /// Minimum in ns; zero if there was no request.
    pub least_ns: u64,
    /// Maximum in ns.
    pub most_ns: u64,
    /// Sum in ns.
    pub sum_ns: u64,
}

impl Latency {
    fn note(&mut self, response: &Response) {
        let ns = response.took.get();
        self.least_ns = if self.requests == 0 { ns } else { self.least_ns.min(ns) };
        self.most_ns = self.most_ns.max(ns);
        self.sum_ns += ns;
        self.requests += 1;
        self.failed += u64::from(!response.status().is_good());
    }
}

/// Handle on an engine on a started controller. Its tasks run until [`stop`](Engine::stop).
pub struct Engine<P: HostPort>(pub(super) Rc<Core<P>>);

impl<P: HostPort> Clone for Engine<P> {
    fn clone(&self) -> Engine<P> {
        Engine(self.0.clone())
    }
}

pub(super) struct Core<P: HostPort> {
    pub port: P,
    pub geometry: Geometry,
    nsid: Nsid,
    pub table: RefCell<Table>,
    pub control: RefCell<Control>,
    places: Pool<u16>,
    /// Submit tasks that wait for a command.
    idle: RefCell<VecDeque<Parked>>,
    queues: Vec<Rc<Queue<P>>>,
    /// One per Submit task, once a handle passes its blocks through a function.
    staging: RefCell<Vec<Staging>>,
    pub rings: RefCell<Vec<Option<Taker>>>,
    latency: Cell<Latency>,
    stopped: Cell<bool>,
    pub options: Options,
    pub costs: Costs,
    pub stages: Stages,
}

pub(super) struct Costs {
    pub control: Cost,
    function: Cost,
    respond: Cost,
}

pub(super) struct Stages {
    pub request_wait: Stage,
    turn_wait: Stage,
    pub count_down: Stage,
}

impl<P: HostPort> Engine<P> {
    /// Starts an engine with queue pairs of its own on this controller. Control uses the first of `ports`,
    /// each Submit and Complete the next ones.
    ///
    /// # Errors
    /// The controller has no queues left, or does not support transfers of 8 KiB.
    ///
    /// # Panics
    /// If there is no port.
    pub async fn start(
        ports: &[P],
        controller: &Controller<P>,
        options: Options,
    ) -> Result<Engine<P>, InitError> {
        controller.identity().must_be_plain()?;
        // Its commands use PRPs.
        let geometry = Geometry { buffer_align: 4, ..controller.identity().geometry };
        if geometry.transfer_bytes_max < 2 * PAGE_BYTES {
            return Err(InitError::Unsupported {
                what: "MDTS, in bytes",
                found: u64::from(geometry.transfer_bytes_max),
                expected: "at least 8192, the largest block of FastPath",
            });
        }
        let mut queues = Vec::new();
        let port = &ports[0];
        for port in ports.iter().cycle().take(usize::from(options.engines.max(1))) {
            queues.push(controller.queue_on(port, options.queue).await?);
        }
        let (rt, requests) = (port.rt(), options.requests.clamp(1, 1 << crate::SLOT_BITS));
        let core = Rc::new(Core {
            port: port.clone(),
            geometry,
            nsid: controller.identity().nsid,
            table: RefCell::new(Table::new(&geometry, options.from)),
            control: RefCell::new(Control::new(requests, options.schedule)),
            places: Pool::new((0..requests).rev()),
            idle: RefCell::default(),
            staging: RefCell::default(),
            rings: RefCell::default(),
            latency: Cell::default(),
            stopped: Cell::new(false),
            options,
            costs: Costs {
                control: port.cost("control"),
                function: port.cost("function"),
                respond: port.cost("respond"),
            },
            stages: Stages {
                request_wait: stage!(rt, super::STAGES, "request wait"),
                turn_wait: stage!(rt, super::STAGES, "turn wait"),
                count_down: stage!(rt, super::STAGES, "count down"),
            },
            queues,
        });
        // Interleaved, so that the engines share the commands evenly.
        for _ in 0..options.queue.depth {
            for queue in 0..core.queues.len() {
                rt.spawn(submit(core.clone(), queue));
            }
        }
        Ok(Engine(core))
    }

    /// Opens a handle for `blocks` blocks and this buffer, which the engine owns until the handle is
    /// [closed](Engine::close). For tasks of this executor.
    ///
    /// # Errors
    /// No such area or no handle left.
    pub fn open(&self, blocks: u64, buffer: Buffer) -> Result<(Handle, Area), OpenError> {
        let (at, bytes) = (buffer.at(), buffer.bytes() as u64);
        self.0.open(TASKS, blocks, Memory { at, bytes, keep: Some(buffer) })
    }

    /// Opens a handle for blocks allocated by the caller, and memory owned by the caller.
    ///
    /// # Errors
    /// No handle left.
    pub fn open_over(&self, area: Area) -> Result<Handle, OpenError> {
        let handle = self.0.table.borrow_mut().open_over(TASKS, area)?;
        self.0.control.borrow_mut().set_share(handle.fp_id, Share::default());
        Ok(handle)
    }

    /// Passes the blocks of this handle, whose memory is the host's, through `function` from now on.
    ///
    /// # Errors
    /// No such handle, requests are in flight, or there is no memory for staging.
    pub fn pass_through(&self, handle: Handle, function: Shared) -> Result<(), OpenError> {
        let memory = self.0.port.arena().memory().clone();
        self.0.pass_through(TASKS, handle, Through { function, memory })
    }

    /// Sets what a handle is entitled to by [`Options::schedule`]; until then, the default. Returns false
    /// if there is no such handle.
    pub fn set_share(&self, handle: Handle, share: Share) -> bool {
        let open = self.0.table.borrow().is_open(handle);
        if open {
            self.0.control.borrow_mut().set_share(handle.fp_id, share);
        }
        open
    }

    /// Closes a handle: rejects its requests from now on. Its area and its memory are freed when the drive
    /// has no command of it any more. Returns false if there is no such handle.
    pub fn close(&self, handle: Handle) -> bool {
        self.0.close(TASKS, handle)
    }

    /// Runs a request of a task of this executor. The engine always responds, also to a rejected request.
    pub async fn perform(&self, request: &Request) -> Response {
        let core = &*self.0;
        let place = Place { core, slot: core.place().await };
        match core.begin(TASKS, From::Task, request, place.slot, None) {
            Ok(()) => place.answer().await.response,
            Err((response, _)) => response,
        }
    }

    /// Same from a caller's core, with the costs of its software and its request trace.
    pub(super) async fn perform_from(
        &self,
        caller: &P,
        request: &Request,
        keep: Option<Buffer>,
        hand_in: Cost,
        take_response: Cost,
    ) -> (Status, Option<Buffer>) {
        let (core, rt) = (&*self.0, self.0.rt());
        let begun = rt.now();
        let slot = core.place().await;
        let place = Place { core, slot };
        let (traces, trace) = (core.options.traces, core.trace(slot));
        let followed = rt.follows(traces, trace);
        match followed {
            true => rt.begin_trace(traces, trace, begun),
            false => rt.detach_trace(),
        }
        rt.record(core.stages.request_wait);
        caller.spend(hand_in).await;
        core.port.spend(core.costs.control).await;
        let answer = match core.begin(TASKS, From::Task, request, slot, keep) {
            Ok(()) => place.answer().await,
            Err((response, keep)) => control::Answer { response, keep, followed: false },
        };
        match followed && answer.followed {
            true => rt.attach_trace(traces, trace),
            false => rt.detach_trace(),
        }
        rt.record(core.stages.count_down);
        caller.spend(take_response).await;
        (answer.response.status(), answer.keep)
    }

    /// Geometry of the drive.
    pub fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// Latency statistics so far.
    pub fn latency(&self) -> Latency {
        self.0.latency.get()
    }

    /// Queue pairs, which count commands, doorbells and protocol errors.
    pub fn queues(&self) -> &[Rc<Queue<P>>] {
        &self.0.queues
    }

    /// Port of Control.
    pub fn port(&self) -> &P {
        &self.0.port
    }

    /// Ends its tasks and those of its rings. Commands in flight end with the controller.
    pub fn stop(&self) {
        self.0.stopped.set(true);
        let idle = core::mem::take(&mut *self.0.idle.borrow_mut());
        idle.into_iter().for_each(|parked| self.0.rt().unpark(parked));
    }
}

impl<P: HostPort> Core<P> {
    pub fn rt(&self) -> &Rt {
        self.port.rt()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    pub fn open(
        &self,
        owner: Owner,
        blocks: u64,
        memory: Memory,
    ) -> Result<(Handle, Area), OpenError> {
        let opened = self.table.borrow_mut().open(owner, blocks, memory)?;
        self.control.borrow_mut().set_share(opened.0.fp_id, Share::default());
        Ok(opened)
    }

    pub(super) fn pass_through(
        &self,
        owner: Owner,
        handle: Handle,
        through: Through,
    ) -> Result<(), OpenError> {
        let places = self.queues.len() * usize::from(self.options.queue.depth);
        let mut staging = self.staging.borrow_mut();
        if staging.capacity() == 0 {
            *staging = Staging::new(self.port.arena(), places).map_err(|_| OpenError::Staging)?;
        }
        self.table.borrow_mut().pass_through(owner, handle, through)
    }

    pub fn close(&self, owner: Owner, handle: Handle) -> bool {
        self.table.borrow_mut().close(owner, handle)
    }

    pub fn is_closing(&self, handle: Handle) -> bool {
        self.table.borrow().is_closing(handle)
    }

    /// Returns true if this owner's handles have unanswered requests.
    pub fn under_way(&self, owner: Owner) -> bool {
        self.table.borrow().under_way(owner)
    }

    pub fn handles_of(&self, owner: Owner) -> Vec<Handle> {
        self.table.borrow().handles_of(owner)
    }

    /// Waits for a free slot in Control.
    pub async fn place(&self) -> u16 {
        self.places.take(self.rt()).await
    }

    /// Validates a request and queues it. If it is rejected, the caller keeps the slot.
    pub(super) fn begin(
        &self,
        owner: Owner,
        from: From,
        request: &Request,
        slot: u16,
        keep: Option<Buffer>,
    ) -> Result<(), (Response, Option<Buffer>)> {
        let (fp_id, tag) = (request.fp_id.get(), request.tag.get());
        let job = match self.table.borrow_mut().validate(owner, request) {
            Ok(job) => job,
            Err(refusal) => {
                let mut latency = self.latency.get();
                latency.refused += 1;
                self.latency.set(latency);
                return Err((Response::new(tag, Status::Engine(refusal), 0, 0), keep));
            }
        };
        let mut control = self.control.borrow_mut();
        let trace = control.trace(slot);
        let mut entered = control::Request::new(fp_id, tag, job, from, self.rt().now(), trace);
        entered.keep = keep;
        control.enter(slot, entered);
        drop(control);
        for _ in 0..job.commands() {
            let Some(parked) = self.idle.borrow_mut().pop_front() else { break };
            self.rt().hand_over(parked);
        }
        Ok(())
    }

    /// Returns an unused slot.
    pub fn give_back(&self, slot: u16) {
        self.places.give(self.rt(), slot);
    }

    /// Identifier of the trace of the slot's next request.
    pub fn trace(&self, slot: u16) -> u16 {
        self.control.borrow().trace(slot)
    }

    /// Waits for a command to submit. `None` when the engine has stopped.
    async fn turn(&self) -> Option<Turn> {
        poll_fn(|cx| {
            if self.stopped.get() {
                return Poll::Ready(None);
            }
            let turn = self.control.borrow_mut().next();
            if turn.is_none() {
                self.idle.borrow_mut().push_back(self.rt().park(cx));
                return Poll::Pending;
            }
            Poll::Ready(turn)
        })
        .await
    }

    /// Location of a command's block on the drive and in memory. `None` if it transfers none.
    fn block(&self, turn: &Turn) -> Option<Block> {
        let Job::Move { direction, lba, at, block_size, .. } = turn.job else { return None };
        let lbas = block_size / self.geometry.block_bytes;
        let lba = Lba(lba.0 + u64::from(turn.number) * u64::from(lbas));
        let at = BusAddr(at.0 + u64::from(turn.number) * u64::from(block_size));
        Some(Block { direction, lba, lbas, at, bytes: block_size })
    }

    /// Builds the 64 bytes of a command (the paper's Synthesis).
    fn form(&self, block: Option<&Block>, cid: CommandId) -> Sqe {
        let Some(&Block { direction, lba, lbas, at, bytes }) = block else {
            return io::flush(cid, self.nsid);
        };
        // The memory is page aligned and blocks are aligned to their size.
        let second = if bytes > PAGE_BYTES { at.0 + u64::from(PAGE_BYTES) } else { 0 };
        let data = DataPointer::Prp { prp1: at, prp2: BusAddr(second) };
        match direction {
            Direction::Read => io::read(cid, self.nsid, lba, lbas, false, data),
            Direction::Write => io::write(cid, self.nsid, lba, lbas, false, data),
        }
    }

    /// Runs one command; returns its status.
    async fn carry_out(&self, queue: &Queue<P>, turn: &Turn) -> Status {
        let (block, through) = (self.block(turn), self.table.borrow().through(turn.fp_id));
        match (&block, through) {
            (Some(block), Some(through)) => self.carry_through(queue, block, &through).await,
            _ => self.command(queue, block.as_ref()).await,
        }
    }

    async fn command(&self, queue: &Queue<P>, block: Option<&Block>) -> Status {
        let lba = block.map(|block| block.lba);
        let result = queue.carry_out(lba, |cid| self.form(block, cid)).await;
        if result.is_err_and(|error| error.kind == Kind::Gone) {
            self.quarantine();
        }
        status_of(result)
    }

    /// Runs one command whose block passes a function: the drive's DMA uses the engine's staging buffer.
    async fn carry_through(&self, queue: &Queue<P>, block: &Block, through: &Through) -> Status {
        let mut staging = self.staging.borrow_mut().pop().expect("one for each place of Submit");
        let place = block.lba.0 * u64::from(self.geometry.block_bytes);
        let (bytes, units) = (block.bytes as usize, block.bytes / BLOCK_MIN);
        let staged = Block { at: staging.buffer.at(), ..*block };
        let refused = Status::Engine(Refusal::Function);
        let status = match block.direction {
            Direction::Write => {
                self.port.spend_times(self.costs.function, units).await;
                match staging.fill(through, block.at, place, bytes) {
                    Ok(()) => {
                        let status = self.command(queue, Some(&staged)).await;
                        through.function.borrow_mut().written(place, bytes, status.is_good());
                        status
                    }
                    Err(_) => refused,
                }
            }
            Direction::Read => {
                through.function.borrow_mut().reading(place, bytes);
                let status = self.command(queue, Some(&staged)).await;
                if status.is_good() {
                    self.port.spend_times(self.costs.function, units).await;
                    staging.empty(through, block.at, place, bytes).map_or(refused, |()| status)
                } else {
                    through.function.borrow_mut().unread(place, bytes);
                    status
                }
            }
        };
        if self.port.is_gone() {
            // The drive may still write to it.
            crate::quarantine(&staging.buffer);
        }
        self.staging.borrow_mut().push(staging);
        status
    }

    /// Records the end of a command; sends the response if it was its request's last.
    async fn end(&self, turn: &Turn, status: Status, followed: bool) {
        if turn.last {
            // The request's trace continues, even if other commands are still in flight.
            let followed = followed && self.rt().move_trace_to(self.options.traces, turn.trace);
            self.control.borrow_mut().follow(turn.slot, followed);
        }
        let ended = self.control.borrow_mut().complete(turn.slot, status, self.rt().now());
        let Some(Ended { fp_id, from, response }) = ended else { return };
        let mut latency = self.latency.get();
        latency.note(&response);
        self.latency.set(latency);
        self.port.spend(self.costs.respond).await;
        self.table.borrow_mut().answered(fp_id);
        match from {
            From::Ring(number) => {
                if let Some(ring) = &mut self.rings.borrow_mut()[number as usize] {
                    ring.give(&response);
                }
                self.give_back(turn.slot);
            }
            From::NoOne => self.give_back(turn.slot),
            From::Task => {
                let owner = self.control.borrow_mut().owner(turn.slot).take();
                if let Some(owner) = owner {
                    self.rt().hand_over(owner);
                }
            }
        }
    }

    /// Quarantines all memory: the drive is gone, could not be stopped, and may still write.
    fn quarantine(&self) {
        self.control.borrow().quarantine();
        self.table.borrow().quarantine();
    }
}

/// A task's slot in Control. If it is dropped while the request is in flight, the last command frees the slot
/// and its buffer.
struct Place<'a, P: HostPort> {
    core: &'a Core<P>,
    slot: u16,
}

impl<P: HostPort> Place<'_, P> {
    async fn answer(&self) -> control::Answer {
        poll_fn(|cx| {
            let mut control = self.core.control.borrow_mut();
            if let Some(answer) = control.fetch(self.slot) {
                return Poll::Ready(answer);
            }
            *control.owner(self.slot) = Some(self.core.rt().park(cx));
            Poll::Pending
        })
        .await
    }
}

impl<P: HostPort> Drop for Place<'_, P> {
    fn drop(&mut self) {
        if self.core.control.borrow_mut().orphan(self.slot) {
            self.core.give_back(self.slot);
        }
    }
}

/// One Submit and Complete task: one command at a time.
async fn submit<P: HostPort>(core: Rc<Core<P>>, queue: usize) {
    let (rt, queue) = (core.rt().clone(), core.queues[queue].clone());
    while let Some(turn) = core.turn().await {
        // A request is traced by its last command.
        if turn.last {
            rt.attach_trace(core.options.traces, turn.trace);
            rt.record(core.stages.turn_wait);
        } else {
            rt.detach_trace();
        }
        let status = core.carry_out(&queue, &turn).await;
        let followed = turn.last && rt.is_traced();
        core.end(&turn, status, followed).await;
        rt.detach_trace();
    }
}

#[derive(Clone, Copy)]
struct Block {
    direction: Direction,
    lba: Lba,
    lbas: u32,
    at: BusAddr,
    bytes: u32,
}

/// Status in the response of a command.
fn status_of(result: Result<(), IoError>) -> Status {
    match result {
        Ok(()) => Status::Good,
        Err(IoError { status: Some(status), .. }) => Status::Nvme(status),
        Err(error) => Status::Engine(match error.kind {
            Kind::TimedOut | Kind::Reset => Refusal::TimeOut,
            _ => Refusal::Controller,
        }),
    }
}
