//! Queue pairs for another executor: another core, where each core runs its own.
//!
//! ```text
//!   where the controller is                 where the queue is to be
//!   Controller::grant ──────── Grant ─────► Grant::accept      memory of its own
//!   Controller::create_granted ◄─ Rings ─── Granted::rings
//!                              ─── done ──► Granted::open      a Queue like any other
//!   Controller::delete_granted ◄── end ──── ...
//!                              ─── done ──► Granted::give_back
//! ```
//!
//! Values that cross are `Copy` and `Send`; nothing is shared, so the path of a command has neither lock nor
//! message. The executor with the queue supervises its commands, but cannot reset the controller: if a
//! command takes too long, the queue is given up and its memory is quarantined. A reset of the controller
//! ends the queue. With threads, `threads` carries the messages, and aborts and resets are supported.

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use bus::HostPort;
use runtime::{Either, Span, race};
use wire::nvme::admin::{CreateCq, CreateSq, Priority};
use wire::nvme::registers;
use wire::{BusAddr, CommandId, QueueId};

use super::controller::Controller;
use super::health::{Health, State};
use super::pair::{Pair, PairSpec};
use super::queue::{Facts, Queue};
use super::{Completion, QueueOptions, TICKS_PER_TIMEOUT};
use crate::InitError;

/// Permission for another executor to create a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    qid: QueueId,
    options: QueueOptions,
    facts: Facts,
    stride: u8,
    entries_max: u32,
    timeout: Span,
}

/// Memory addresses of such a pair.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    cq: CreateCq,
    cq_at: BusAddr,
    sq: CreateSq,
    sq_at: BusAddr,
}

impl Rings {
    pub(super) fn of(cq: CreateCq, cq_at: BusAddr, sq: CreateSq, sq_at: BusAddr) -> Rings {
        Rings { cq, cq_at, sq, sq_at }
    }

    pub(super) fn qid(&self) -> QueueId {
        self.cq.qid
    }
}

impl<P: HostPort> Controller<P> {
    /// Reserves an identifier for a queue pair of another executor.
    ///
    /// # Errors
    /// The controller has no queues of this depth, or none left; or shadow doorbells are in use, which are in
    /// this executor's memory.
    pub async fn grant(&self, options: QueueOptions) -> Result<Grant, InitError> {
        let core = self.core();
        core.running().await?;
        if core.options.shadow_doorbells {
            return Err(InitError::Unsupported {
                what: "shadow doorbells",
                found: 1,
                expected: "0: queues of other executors have none",
            });
        }
        let options = core.validate(options)?;
        Ok(Grant {
            qid: core.next_queue_id(),
            options,
            facts: core.facts(),
            stride: core.admin.bar.cap().dstrd(),
            entries_max: core.admin.bar.cap().queue_entries_max(),
            timeout: core.options.timeout,
        })
    }

    /// Creates such a pair on the controller.
    pub async fn create_granted(&self, rings: &Rings) -> Result<(), InitError> {
        self.core().running().await?;
        let Rings { cq, cq_at, sq, sq_at } = *rings;
        self.core().admin.create_at(cq, cq_at, sq, sq_at).await
    }

    /// Deletes it: the controller writes to its memory no more.
    pub async fn delete_granted(&self, rings: &Rings) -> Result<(), InitError> {
        self.core().running().await?;
        self.core().admin.delete(rings.cq.qid).await
    }
}

impl Grant {
    /// Queue identifier.
    pub fn qid(&self) -> QueueId {
        self.qid
    }

    /// Allocates the pair in memory of `port`.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn accept<P: HostPort>(&self, port: &P) -> Result<Granted<P>, InitError> {
        let health = Rc::new(Health::new());
        let spec = PairSpec {
            qid: self.qid,
            depth: self.options.depth,
            completion: self.options.completion,
            doorbell: self.options.doorbell,
            transfer_bytes_max: self.facts.geometry.transfer_bytes_max,
            sgl: self.facts.sgl,
            tags: self.facts.protect.is_by_host(),
            stride: self.stride,
            entries_max: self.entries_max,
        };
        let pair = Pair::start(port, &health, &spec)?;
        let priority = self.options.priority;
        let queue = Rc::new(Queue::new(pair.clone(), priority, &self.facts, &health));
        let mine =
            Mine { pair, health, is_known: Cell::new(false), owner_request: RefCell::default() };
        Ok(Granted { mine: Rc::new(mine), queue, priority, timeout: self.timeout })
    }
}

/// Such a pair on the executor that uses it. If it is dropped before it is [given back](Self::give_back), its
/// memory is quarantined, as the controller may hold its addresses.
pub struct Granted<P: HostPort> {
    pub(super) mine: Rc<Mine<P>>,
    queue: Rc<Queue<P>>,
    priority: Priority,
    timeout: Span,
}

/// Request of a queue's watchdog to the controller's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerRequest {
    Abort(CommandId),
    Reset,
}

/// Sends requests to the controller's owner.
pub(super) type Hears = Box<dyn Fn(OwnerRequest)>;

/// State that the queue shares with its watchdog.
pub(super) struct Mine<P: HostPort> {
    pub pair: Rc<Pair<P>>,
    pub health: Rc<Health>,
    is_known: Cell<bool>,
    /// Destination of requests; `None` if there is no recipient.
    pub owner_request: RefCell<Option<Hears>>,
}

impl<P: HostPort> Granted<P> {
    /// Addresses of its memory, for [`Controller::create_granted`].
    pub fn rings(&self) -> Rings {
        let pair = &self.mine.pair;
        self.mine.is_known.set(true);
        pair.expose();
        let qid = pair.qid();
        let (vector, irq_enabled) = match pair.completion() {
            Completion::Polled | Completion::Hybrid => (0, false),
            Completion::Interrupt { vector } => (vector, true),
        };
        let size = pair.cq.entries();
        let cq = CreateCq { qid, size, vector, irq_enabled, contiguous: true };
        let (size, priority) = (pair.sq.entries(), self.priority);
        let sq = CreateSq { qid, size, cqid: qid, priority, contiguous: true };
        Rings { cq, cq_at: pair.cq.at(), sq, sq_at: pair.sq.at() }
    }

    /// Opens the queue, which the controller has created: it accepts commands from now on.
    pub fn open(&self) -> Rc<Queue<P>> {
        let Mine { pair, health, .. } = &*self.mine;
        pair.open();
        health.set(pair.rt(), State::Running);
        pair.rt().spawn(watch(self.mine.clone(), self.timeout));
        self.queue.clone()
    }

    /// Frees the memory of a pair that the controller has deleted. Its commands end, and no more are
    /// accepted.
    pub fn give_back(self) {
        let Mine { pair, health, .. } = &*self.mine;
        self.mine.forget();
        if health.state() != State::Gone {
            health.set(pair.rt(), State::Closed);
            pair.stop();
            pair.clear();
        }
    }
}

impl<P: HostPort> Drop for Granted<P> {
    fn drop(&mut self) {
        if self.mine.is_known() {
            self.mine.give_up(State::Gone);
        }
    }
}

impl<P: HostPort> Mine<P> {
    /// Returns true if the controller may hold its addresses.
    pub fn is_known(&self) -> bool {
        self.is_known.get()
    }

    fn forget(&self) {
        self.is_known.set(false);
        self.health.asked.notify(self.pair.rt());
    }

    /// Gives up the queue: the controller is Closed or Gone, and may still write.
    pub fn give_up(&self, over: State) {
        self.forget();
        self.health.set(self.pair.rt(), over);
        self.pair.stop();
        self.pair.quarantine();
        self.pair.clear();
    }

    /// Sends a request; returns false if there is no recipient.
    fn owner_request(&self, owner_request: OwnerRequest) -> bool {
        let to = self.owner_request.borrow();
        if let Some(to) = &*to {
            to(owner_request);
        }
        to.is_some()
    }

    /// Requests the abort of a command, unless that was done already.
    fn abort(&self, cid: CommandId) {
        if self.owner_request.borrow().is_some() && self.pair.slots.mark_aborted(cid) {
            self.owner_request(OwnerRequest::Abort(cid));
        }
    }

    /// Checks the controller and all commands in flight. Returns false if the queue is lost.
    async fn look(&self) -> bool {
        let pair = &self.pair;
        if pair.port().read32(registers::CSTS).await == u32::MAX {
            return false;
        }
        if pair.slots.tick() && pair.is_interrupted() && pair.drain() > 0 {
            pair.count(|counters| counters.lost_interrupts += 1);
        }
        let mut hopeless = false;
        pair.slots.ages(|cid, looks| {
            hopeless |= u64::from(looks) > 2 * TICKS_PER_TIMEOUT;
            if u64::from(looks) > TICKS_PER_TIMEOUT {
                if pair.slots.expire(cid) {
                    pair.count(|counters| counters.timeouts += 1);
                }
                self.abort(cid);
            }
        });
        pair.slots.given_up(|cid| self.abort(cid));
        !hopeless || self.owner_request(OwnerRequest::Reset)
    }

    /// Handles requests to the watchdog. Returns false if the queue is lost.
    fn serve_asks(&self) -> bool {
        let asks = self.health.take_asks();
        if asks.aborts {
            self.pair.slots.given_up(|cid| self.abort(cid));
        }
        !asks.gone && (!asks.reset || self.owner_request(OwnerRequest::Reset))
    }
}

/// Supervises a pair until it is given back or given up.
async fn watch<P: HostPort>(mine: Rc<Mine<P>>, timeout: Span) {
    let rt = mine.pair.rt().clone();
    let tick = (timeout / TICKS_PER_TIMEOUT).max(Span::us(1));
    let mut next = rt.now() + tick;
    while mine.is_known() {
        let mut asked = mine.health.asked.changed(&rt, mine.health.asked.version());
        if !mine.serve_asks() {
            return mine.give_up(State::Gone);
        }
        if timeout == Span::ZERO {
            asked.await;
        } else if let Either::First(()) = race(&mut asked, rt.sleep_until(next)).await {
            // Requests are handled at the top of the loop.
            continue;
        }
        next = rt.now() + tick;
        if mine.is_known() && !mine.look().await {
            return mine.give_up(State::Gone);
        }
    }
}
