//! I/O queue: reads, writes, flushes and deallocations of one namespace.

use alloc::rc::Rc;
use core::future::Future;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use runtime::{Stage, Time, stage};
use wire::nvme::admin::Priority;
use wire::nvme::dsm::{Attributes, Context};
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::pi::Kind as Guard;
use wire::nvme::ranges::DsmRange;
use wire::nvme::status::Status;
use wire::{CommandId, Lba, Nsid, QueueId};

use super::abilities::Abilities;
use super::health::{Health, State};
use super::pair::{Counters, Pair};
use super::protect::{GUARD_COST, Guards, Protect};
use super::share::{Held, Issuer, Share, Shared};
use super::slots::{Claim, End};
use super::{Completion, Sgl};
use crate::{BlockDevice, Deallocated, Geometry, IoError, Kind};

/// I/O queue pair of a started controller.
pub struct Queue<P: HostPort> {
    pub(super) pair: Rc<Pair<P>>,
    pub(super) priority: Priority,
    /// Port that pays the costs: the pair's core, or another core that shares the queue.
    port: P,
    /// Locking, if several cores share the queue.
    pub(super) share: Option<Share>,
    health: Rc<Health>,
    nsid: Nsid,
    pub(super) geometry: Geometry,
    deallocated: Deallocated,
    pub(super) guards: Option<Guards>,
    pub(super) abilities: Abilities,
    retries: u32,
    pub(super) costs: Costs,
    pub(super) stages: Stages,
}

/// Properties of the controller that a queue needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub nsid: Nsid,
    pub geometry: Geometry,
    pub deallocated: Deallocated,
    pub retries: u32,
    /// Buffers that scatter gather lists describe.
    pub sgl: Sgl,
    /// Type of the namespace's protection information, and the side that generates it.
    pub kind: Option<Guard>,
    pub protect: Protect,
    /// Optional commands.
    pub abilities: Abilities,
}

#[derive(Clone, Copy)]
pub(super) struct Costs {
    pub submit: Cost,
    pub complete: Cost,
    /// Only with interrupts.
    pub context_switch: Option<Cost>,
    /// Cost per 512 bytes, only if the host generates protection information.
    pub guard: Cost,
}

#[derive(Clone, Copy)]
pub(super) struct Stages {
    slot_wait: Stage,
    pub completion: Stage,
}

/// Error of a command, without the LBA, which only its caller has. One word, so that the common case of
/// success stays cheap.
#[derive(Clone, Copy)]
pub(super) enum Failed {
    /// Detected by the driver itself.
    Found(Kind),
    /// Reported by the device as a status.
    Answered(Status),
}

impl Failed {
    pub fn at(self, lba: Option<Lba>) -> IoError {
        match self {
            Failed::Found(kind) => IoError::of(kind, lba),
            Failed::Answered(status) => IoError::answered(status, lba),
        }
    }
}

/// Disposition of a command that has not succeeded.
pub(super) enum Verdict {
    Ended(Failed),
    /// Lost with the device, or aborted because it took too long. Holds the error if it is not retried.
    TryAgain(Kind),
    /// Lost in a reset that the caller requested: resubmitted without counting a retry.
    Repeat,
}

impl<P: HostPort> Queue<P> {
    pub(super) fn new(
        pair: Rc<Pair<P>>,
        priority: Priority,
        facts: &Facts,
        health: &Rc<Health>,
    ) -> Queue<P> {
        let port = pair.port().clone();
        let context_switch = match pair.completion() {
            Completion::Polled | Completion::Hybrid => None,
            Completion::Interrupt { .. } => Some(port.cost("context switch")),
        };
        let rt = port.rt();
        Queue {
            priority,
            port: port.clone(),
            share: None,
            health: health.clone(),
            nsid: facts.nsid,
            geometry: facts.geometry,
            deallocated: facts.deallocated,
            guards: Guards::of(facts.kind, facts.protect),
            abilities: facts.abilities,
            retries: facts.retries,
            costs: Costs {
                submit: port.cost("submit"),
                complete: port.cost("complete"),
                context_switch,
                guard: pair.tags.as_ref().map_or(Cost::NONE, |_| port.cost(GUARD_COST)),
            },
            stages: Stages {
                slot_wait: stage!(rt, super::STAGES, "slot wait"),
                completion: stage!(rt, super::STAGES, "completion"),
            },
            pair,
        }
    }

    /// Handle on this queue for another core: the same slots and rings, submissions serialised by a lock.
    /// `is_home` is true for the core that processes the completions.
    pub fn shared_by(
        &self,
        port: &P,
        shared: &Rc<Shared>,
        issuer: &Issuer,
        is_home: bool,
    ) -> Rc<Queue<P>> {
        Rc::new(Queue {
            pair: self.pair.clone(),
            priority: self.priority,
            port: port.clone(),
            share: Some(Share::new(port, shared, issuer, is_home)),
            health: self.health.clone(),
            nsid: self.nsid,
            geometry: self.geometry,
            retries: self.retries,
            deallocated: self.deallocated,
            guards: self.guards,
            abilities: self.abilities,
            costs: self.costs,
            stages: self.stages,
        })
    }

    /// Same queue pair and command slots, for another namespace.
    pub(super) fn facing(
        &self,
        nsid: Nsid,
        geometry: Geometry,
        deallocated: Deallocated,
        guards: Option<Guards>,
        abilities: Abilities,
    ) -> Queue<P> {
        Queue {
            pair: self.pair.clone(),
            priority: self.priority,
            port: self.port.clone(),
            share: self.share.clone(),
            health: self.health.clone(),
            nsid,
            geometry,
            deallocated,
            guards,
            abilities,
            retries: self.retries,
            costs: self.costs,
            stages: self.stages,
        }
    }

    /// Namespace of the queue.
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Reads blocks from `lba` until `into` is full.
    ///
    /// `into` begins at a multiple of [`Geometry::buffer_align`] bytes and holds whole blocks, at most
    /// [`Geometry::transfer_bytes_max`]. It comes back with the result. If this future is dropped, the buffer
    /// goes back to its arena when the device can no longer write to it.
    ///
    /// The command's request trace begins with this call; the caller finishes it.
    pub async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.geometry.validate(lba, &into) {
            Ok(blocks) => blocks,
            Err(error) => return (into, Err(error)),
        };
        let (slot, held) = match self.slot_at_once() {
            Some(slot) => (slot, None),
            None => self.slot().await,
        };
        let data = self.pair.lists.describe(slot.index(), &into);
        slot.keep(into);
        let build = |cid| {
            self.protected(io::read(cid, self.nsid, lba, blocks, false, data), lba, slot.index())
        };
        match self.run(&slot, held, &build).await {
            Ok(()) if self.guards_itself() => {
                let into = slot.take_back();
                let checked = self.check_tags(slot.index(), lba, &into).await;
                (into, checked)
            }
            Ok(()) => (slot.take_back(), Ok(())),
            Err(failed) => (slot.take_back(), Err(failed.at(Some(lba)))),
        }
    }

    /// Writes all of `from` to the blocks from `lba`; with `fua`, through any volatile cache. Otherwise as
    /// [`read`](Self::read).
    pub async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.geometry.validate(lba, &from) {
            Ok(blocks) => blocks,
            Err(error) => return (from, Err(error)),
        };
        let (slot, held) = match self.slot_at_once() {
            Some(slot) => (slot, None),
            None => self.slot().await,
        };
        let data = self.pair.lists.describe(slot.index(), &from);
        if self.guards_itself() {
            self.make_tags(slot.index(), lba, &from).await;
        }
        slot.keep(from);
        let build = |cid| {
            self.protected(io::write(cid, self.nsid, lba, blocks, fua, data), lba, slot.index())
        };
        match self.run(&slot, held, &build).await {
            Ok(()) => (slot.take_back(), Ok(())),
            Err(failed) => (slot.take_back(), Err(failed.at(Some(lba)))),
        }
    }

    /// Makes all writes to the namespace durable that completed before.
    pub async fn flush(&self) -> Result<(), IoError> {
        let (slot, held) = match self.slot_at_once() {
            Some(slot) => (slot, None),
            None => self.slot().await,
        };
        let result = self.run(&slot, held, &|cid| io::flush(cid, self.nsid)).await;
        result.map_err(|failed| failed.at(None))
    }

    /// Deallocates blocks.
    pub async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.manage(DsmRange::new(lba, blocks), Attributes::DEALLOCATE).await
    }

    /// Gives the device hints about blocks.
    pub async fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Result<(), IoError> {
        self.manage(DsmRange::hinted(lba, blocks, context), Attributes::HINTS).await
    }

    /// Runs a Dataset Management of one range, stored in the slot's memory.
    async fn manage(&self, range: DsmRange, attributes: Attributes) -> Result<(), IoError> {
        let (lba, blocks) = (Lba(range.lba.get()), range.blocks.get());
        if self.deallocated == Deallocated::Unsupported {
            let why = "a controller with Dataset Management (ONCS)";
            return Err(IoError::refused(Kind::Unsupported, lba, why));
        }
        self.geometry.validate_range(lba, blocks.into())?;
        let (slot, held) = match self.slot_at_once() {
            Some(slot) => (slot, None),
            None => self.slot().await,
        };
        let data = self.pair.lists.range(slot.index(), &range);
        let build = |cid| io::dataset_management(cid, self.nsid, 1, attributes, data);
        self.run(&slot, held, &build).await.map_err(|failed| failed.at(Some(lba)))
    }

    /// Runs a command of FastPath, whose caller owns the data buffer until the command has ended. The current
    /// task's request trace continues under the command's identifier.
    pub(crate) async fn carry_out(
        &self,
        lba: Option<Lba>,
        build: impl Fn(CommandId) -> Sqe,
    ) -> Result<(), IoError> {
        let rt = self.pair.rt();
        let slot = self.pair.slots.claim(rt).await;
        if rt.is_traced() {
            rt.move_trace_to(self.pair.qid().0, slot.next_cid().0);
            rt.record(self.stages.slot_wait);
        }
        self.run(&slot, None, &build).await.map_err(|failed| failed.at(lba))
    }

    /// Runs a command to its end; submits it again if the device was reset under it.
    pub(super) async fn run(
        &self,
        slot: &Claim<'_>,
        mut held: Option<Held<'_>>,
        build: &impl Fn(CommandId) -> Sqe,
    ) -> Result<(), Failed> {
        let (port, rt) = (&self.port, self.pair.rt());
        let mut attempts = 0;
        loop {
            if let Some(share) = &self.share {
                if held.is_none() {
                    held = Some(share.take_again().await);
                }
                share.pay(port).await;
            }
            port.spend(self.costs.submit).await;
            if !self.takes_commands() {
                self.ready().await.map_err(Failed::Found)?;
            }
            // Entry first, then the doorbell. From here on the device may write.
            self.pair.submit(build(slot.launch()));
            drop(held.take());
            let end = slot.end().await;
            rt.record(self.stages.completion);
            if let Some(context_switch) = self.costs.context_switch {
                port.spend(context_switch).await;
            }
            port.spend(self.costs.complete).await;
            let status = slot.completion().status();
            if end == End::Completed && status.is_ok() {
                return Ok(());
            }
            match self.verdict(slot, end, status) {
                Verdict::Ended(failed) => return Err(failed),
                Verdict::TryAgain(kind) if attempts == self.retries || slot.is_given_up() => {
                    return Err(Failed::Found(kind));
                }
                Verdict::TryAgain(_) => attempts += 1,
                Verdict::Repeat if slot.is_given_up() => {
                    return Err(Failed::Found(Kind::TimedOut));
                }
                Verdict::Repeat => {}
            }
        }
    }

    /// Takes a command slot without waiting, if one is free, and begins the command's request trace. `None`
    /// on a queue that cores share: its slots are under its lock.
    #[inline]
    pub(super) fn slot_at_once(&self) -> Option<Claim<'_>> {
        if self.share.is_some() {
            return None;
        }
        let rt = self.pair.rt();
        let slot = self.pair.slots.try_claim(rt)?;
        self.begin(&slot, None);
        Some(slot)
    }

    /// Waits for a command slot and begins the command's request trace.
    pub(super) async fn slot(&self) -> (Claim<'_>, Option<Held<'_>>) {
        if let Some(share) = &self.share {
            return self.slot_in_turn(share).await;
        }
        let rt = self.pair.rt();
        let waits_since = (self.pair.slots.available() == 0).then(|| rt.now());
        let slot = self.pair.slots.claim(rt).await;
        self.begin(&slot, waits_since);
        (slot, None)
    }

    /// Begins a command's request trace, if it is sampled. Live, an unsampled command does not read the
    /// clock.
    #[inline]
    pub(super) fn begin(&self, slot: &Claim<'_>, since: Option<Time>) {
        let (rt, qid) = (self.pair.rt(), self.pair.qid().0);
        let cid = slot.next_cid().0;
        if rt.follows(qid, cid) {
            rt.begin_trace(qid, cid, since.unwrap_or_else(|| rt.now()));
            rt.record(self.stages.slot_wait);
        } else {
            rt.detach_trace();
        }
    }

    /// Waits for a slot under a shared queue's lock, which decides the order.
    async fn slot_in_turn<'a>(&'a self, share: &'a Share) -> (Claim<'a>, Option<Held<'a>>) {
        let (rt, slots) = (self.pair.rt(), &self.pair.slots);
        let since = rt.now();
        let mut held = share.take().await;
        let slot = loop {
            let seen = slots.freed.version();
            match slots.try_claim(rt) {
                Some(slot) => break slot,
                None => held = share.wait(held, slots.freed.changed(rt, seen)).await,
            }
        };
        rt.begin_trace(self.pair.qid().0, slot.next_cid().0, since);
        rt.record(share.waited);
        (slot, Some(held))
    }

    /// Validates a transfer of all of `buffer` by one command; returns its length in blocks.
    pub(super) fn validate(&self, lba: Lba, buffer: &Buffer) -> Result<u32, IoError> {
        self.geometry.validate(lba, buffer)
    }

    /// Requests aborts for commands that were given up.
    pub(super) fn ask_for_an_end(&self) {
        self.health.ask(self.pair.rt(), |asks| asks.aborts = true);
    }

    /// Returns true if commands are accepted now.
    #[inline]
    pub(super) fn takes_commands(&self) -> bool {
        self.health.state() == State::Running && !self.port.is_gone()
    }

    /// Waits while the controller is being reset.
    #[cold]
    pub(super) async fn ready(&self) -> Result<(), Kind> {
        if self.port.is_gone() {
            self.health.ask(self.pair.rt(), |asks| asks.gone = true);
            return Err(Kind::Gone);
        }
        self.health.running(self.pair.rt()).await
    }

    /// Disposition of a command that has ended without success.
    #[cold]
    pub(super) fn verdict(&self, slot: &Claim<'_>, end: End, status: Status) -> Verdict {
        let aborted = was_aborted(status);
        match (end, self.health.state()) {
            (End::Completed, _) if aborted && slot.has_expired() => {
                Verdict::TryAgain(Kind::TimedOut)
            }
            (End::Completed, state) if aborted && state != State::Running => {
                Verdict::Ended(Failed::Found(Kind::Closed))
            }
            (End::Completed, _) => Verdict::Ended(Failed::Answered(status)),
            (End::Lost, State::Gone) => Verdict::Ended(Failed::Found(Kind::Gone)),
            (End::Lost, State::Closing | State::Closed) => {
                Verdict::Ended(Failed::Found(Kind::Closed))
            }
            (End::Lost, _) if slot.has_expired() => Verdict::TryAgain(Kind::TimedOut),
            (End::Lost, _) if self.health.requested.get() => Verdict::Repeat,
            (End::Lost, _) => Verdict::TryAgain(Kind::Reset),
        }
    }

    /// Queue identifier.
    pub fn qid(&self) -> QueueId {
        self.pair.qid()
    }

    /// Queue depth: most commands in flight.
    pub fn depth(&self) -> u16 {
        self.pair.slots.depth()
    }

    /// Number of free command slots; equals [`depth`](Self::depth) if no command is in flight.
    pub fn slots_free(&self) -> usize {
        self.pair.slots.available()
    }

    /// Statistics of the queue.
    pub fn counters(&self) -> Counters {
        self.pair.counters.get()
    }

    /// Port that pays the queue's costs.
    pub fn port(&self) -> &P {
        &self.port
    }
}

/// Returns true if a command was aborted on request.
fn was_aborted(status: Status) -> bool {
    matches!(status.kind(), Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION)
}

impl<P: HostPort> BlockDevice for Queue<P> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.pair.port().arena().buffer(bytes)
    }

    fn deallocated(&self) -> Deallocated {
        self.deallocated
    }

    crate::carried_out!(self => self, read, write, flush, deallocate, hint);
}
