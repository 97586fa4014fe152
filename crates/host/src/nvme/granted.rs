//! A queue pair of a controller that another executor has: another core, where each core runs its own.
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
//! What goes across is `Copy` and `Send`, and nothing is shared: the way of a command has neither lock nor
//! message. Who has the queue watches over its commands, and cannot reset the controller: when one takes too
//! long, the queue is given up, and its memory is never used again. A reset of the controller ends it. Where
//! there are threads, `threads` carries all this across, and there aborts and resets are asked for and
//! survived.

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

/// A queue pair that another executor may make.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    qid: QueueId,
    options: QueueOptions,
    facts: Facts,
    stride: u8,
    entries_max: u32,
    timeout: Span,
}

/// Where the memory of such a pair lies.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    cq: CreateCq,
    cq_at: BusAddr,
    sq: CreateSq,
    sq_at: BusAddr,
}

impl<P: HostPort> Controller<P> {
    /// A number for a queue pair that another executor is to have, and what that has to know.
    ///
    /// # Errors
    /// The controller has no queues of this depth, or none left; or doorbells have shadows, which lie in
    /// memory of this executor's.
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

    /// Makes such a pair known to the controller.
    pub async fn create_granted(&self, rings: &Rings) -> Result<(), InitError> {
        self.core().running().await?;
        let Rings { cq, cq_at, sq, sq_at } = *rings;
        self.core().admin.create_at(cq, cq_at, sq, sq_at).await
    }

    /// Deletes it: the controller writes there no more.
    pub async fn delete_granted(&self, rings: &Rings) -> Result<(), InitError> {
        self.core().running().await?;
        self.core().admin.delete(rings.cq.qid).await
    }
}

impl Grant {
    /// The pair's number.
    pub fn qid(&self) -> QueueId {
        self.qid
    }

    /// The pair, in memory of this port's.
    ///
    /// # Errors
    /// There is too little of it.
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

/// Such a pair, where it is used. Dropped before it is [given back](Self::give_back), its memory is never
/// used again, as the controller may know of it.
pub struct Granted<P: HostPort> {
    pub(super) mine: Rc<Mine<P>>,
    queue: Rc<Queue<P>>,
    priority: Priority,
    timeout: Span,
}

/// What a queue's watch may want of whoever has the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerRequest {
    Abort(CommandId),
    Reset,
}

/// Takes wishes to whoever has the controller.
pub(super) type Hears = Box<dyn Fn(OwnerRequest)>;

/// What the queue's watch shares with whoever has it.
pub(super) struct Mine<P: HostPort> {
    pub pair: Rc<Pair<P>>,
    pub health: Rc<Health>,
    is_known: Cell<bool>,
    /// Where wishes go; none: nobody hears them.
    pub owner_request: RefCell<Option<Hears>>,
}

impl<P: HostPort> Granted<P> {
    /// Where its memory lies, for [`Controller::create_granted`].
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

    /// The controller knows it: it takes commands from now on.
    pub fn open(&self) -> Rc<Queue<P>> {
        let Mine { pair, health, .. } = &*self.mine;
        pair.open();
        health.set(pair.rt(), State::Running);
        pair.rt().spawn(watch(self.mine.clone(), self.timeout));
        self.queue.clone()
    }

    /// The controller has deleted it: its memory is free. Commands end, and nothing is taken any more.
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
    /// Whether the controller may know of it.
    pub fn is_known(&self) -> bool {
        self.is_known.get()
    }

    /// Nobody watches over it any more.
    fn forget(&self) {
        self.is_known.set(false);
        self.health.asked.notify(self.pair.rt());
    }

    /// Nothing will succeed any more, as the controller is Closed or Gone; it may write for ever.
    pub fn give_up(&self, over: State) {
        self.forget();
        self.health.set(self.pair.rt(), over);
        self.pair.stop();
        self.pair.quarantine();
        self.pair.clear();
    }

    /// False: nobody hears it.
    fn owner_request(&self, owner_request: OwnerRequest) -> bool {
        let to = self.owner_request.borrow();
        if let Some(to) = &*to {
            to(owner_request);
        }
        to.is_some()
    }

    /// Asks for a command's end, unless that was done already.
    fn abort(&self, cid: CommandId) {
        if self.owner_request.borrow().is_some() && self.pair.slots.mark_aborted(cid) {
            self.owner_request(OwnerRequest::Abort(cid));
        }
    }

    /// One look at the controller and at all commands in flight. False: there is no hope.
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

    /// What was asked of the watch. False: there is no hope.
    fn serve_asks(&self) -> bool {
        let asks = self.health.take_asks();
        if asks.aborts {
            self.pair.slots.given_up(|cid| self.abort(cid));
        }
        !asks.gone && (!asks.reset || self.owner_request(OwnerRequest::Reset))
    }
}

/// Watches over a pair until it is given back or up.
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
            // What matters is seen above.
            continue;
        }
        next = rt.now() + tick;
        if mine.is_known() && !mine.look().await {
            return mine.give_up(State::Gone);
        }
    }
}
