//! A submission queue and its completion queue: what the admin queue and the I/O queues share.

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::pin::pin;

use bus::{Cost, HostPort};
use runtime::{Either, Lock, LockPolicy, Rt, Signal, Span, Stage, race};
use wire::nvme::entry::{Cqe, Sqe};
use wire::nvme::registers;
use wire::{CommandId, QueueId};

use super::health::Health;
use super::hybrid_polling::{HybridPolling, Look, class};
use super::lists::PrpLists;
use super::protect::Tags;
use super::ring::{CompletionRing, SubmissionRing};
use super::shadow::Shadows;
use super::slots::Slots;
use super::{Completion, Doorbell, PROTOCOL_ERRORS_MAX, Sgl};
use crate::{InitError, quarantine};

/// What one queue has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands given to the device.
    pub submissions: u64,
    /// Completions that were delivered.
    pub completions: u64,
    /// Writes to the submission queue's doorbell.
    pub sq_doorbells: u64,
    /// Writes to the completion queue's doorbell.
    pub cq_doorbells: u64,
    /// Writes to either that shadow doorbells have made needless.
    pub saved_doorbells: u64,
    /// Completions that made no sense and were ignored.
    pub protocol_errors: u64,
    /// Times that the watchdog found completions which no interrupt had told of.
    pub lost_interrupts: u64,
    /// Commands that exceeded their time.
    pub timeouts: u64,
}

pub(super) struct Pair<P: HostPort> {
    port: P,
    qid: QueueId,
    pub slots: Slots,
    pub sq: SubmissionRing,
    pub cq: CompletionRing,
    pub lists: PrpLists,
    /// Whose turn it is to gather two slots.
    pub gathers: Lock,
    /// Where the host makes and checks protection information.
    pub tags: Option<Tags>,
    completion: Completion,
    /// When to look, where completions are polled for in part, and what waking costs.
    hybrid_polling: Option<(HybridPolling, Cost)>,
    doorbell: Doorbell,
    sq_doorbell: u32,
    cq_doorbell: u32,
    /// Completions that were taken since the device was last told.
    unacknowledged: Cell<u32>,
    /// The tail that the doorbell was last told, and the head.
    last_tail: Cell<u32>,
    told_head: Cell<u32>,
    /// The shadows of both doorbells, once the controller may know of them; whether it looks at them.
    shadows: RefCell<Option<Rc<Shadows>>>,
    keeps_shadows: Cell<bool>,
    /// Whether the device works on it. While it doesn't, nobody touches rings or doorbells.
    open: Cell<bool>,
    /// Whether its tasks are to end.
    stopped: Cell<bool>,
    /// Whether the device knows of its memory, and may use it.
    exposed: Cell<bool>,
    /// `open` or `stopped` has changed.
    turned: Signal,
    /// Commands wait for the doorbell.
    dirty: Signal,
    health: Rc<Health>,
    pub counters: Cell<Counters>,
    stages: Stages,
    /// Protocol errors since the device was last started.
    recent_errors: Cell<u32>,
}

struct Stages {
    completion: Stage,
    /// Polling, or taking the interrupt.
    noticing: Stage,
}

/// A completion queue has at least so many entries, where the controller has queues of that length:
/// then the device need not be told of every single completion.
const CQ_ENTRIES_MIN: u32 = 64;

/// How a pair is to be.
pub(super) struct PairSpec {
    pub qid: QueueId,
    pub depth: u16,
    pub completion: Completion,
    pub doorbell: Doorbell,
    /// The longest transfer of one command, in bytes.
    pub transfer_bytes_max: u32,
    /// Which buffers scatter gather lists describe.
    pub sgl: Sgl,
    /// Whether the host makes and checks protection information.
    pub tags: bool,
    /// CAP.DSTRD.
    pub stride: u8,
    /// The most entries of a queue (CAP.MQES).
    pub entries_max: u32,
}

impl<P: HostPort> Pair<P> {
    /// A closed pair with its memory, and the tasks that serve it.
    pub fn start(port: &P, health: &Rc<Health>, spec: &PairSpec) -> Result<Rc<Pair<P>>, InitError> {
        let sq_doorbell = registers::sq_tail_doorbell(spec.qid, spec.stride);
        let cq_doorbell = registers::cq_head_doorbell(spec.qid, spec.stride);
        if sq_doorbell == u32::MAX || cq_doorbell == u32::MAX {
            return Err(InitError::Unsupported {
                what: "CAP.DSTRD",
                found: u64::from(spec.stride),
                expected: "a stride that puts this queue's doorbells below 4 GiB",
            });
        }
        let entries = u32::from(spec.depth) + 1;
        let sq = port.arena().buffer(SubmissionRing::bytes(entries))?;
        let cq_entries = entries.max(CQ_ENTRIES_MIN.min(spec.entries_max));
        let cq = port.arena().buffer(CompletionRing::bytes(cq_entries))?;
        let lists = PrpLists::new(port.arena(), spec.depth, spec.transfer_bytes_max, spec.sgl)?;
        let tags = || Tags::new(port.arena(), spec.depth, spec.transfer_bytes_max);
        let tags = spec.tags.then(tags).transpose()?;
        let pair = Rc::new(Pair {
            port: port.clone(),
            qid: spec.qid,
            slots: Slots::new(spec.depth),
            sq: SubmissionRing::new(sq, entries),
            cq: CompletionRing::new(cq, cq_entries),
            unacknowledged: Cell::new(0),
            lists,
            gathers: Lock::new(LockPolicy::Fair, Span::ZERO),
            tags,
            completion: spec.completion,
            hybrid_polling: (spec.completion == Completion::Hybrid)
                .then(|| (HybridPolling::new(spec.depth), port.cost("context switch"))),
            doorbell: spec.doorbell,
            sq_doorbell,
            cq_doorbell,
            last_tail: Cell::new(0),
            told_head: Cell::new(0),
            shadows: RefCell::default(),
            keeps_shadows: Cell::new(false),
            open: Cell::new(false),
            stopped: Cell::new(false),
            exposed: Cell::new(false),
            turned: Signal::default(),
            dirty: Signal::default(),
            health: health.clone(),
            counters: Cell::default(),
            stages: Stages {
                completion: port.rt().stage("completion"),
                noticing: port.rt().stage(match spec.completion {
                    Completion::Polled | Completion::Hybrid => "poll",
                    Completion::Interrupt { .. } => "interrupt",
                }),
            },
            recent_errors: Cell::new(0),
        });
        port.rt().spawn(poll_completions(pair.clone()));
        if spec.doorbell == Doorbell::Batched {
            port.rt().spawn(ring_batches(pair.clone()));
        }
        Ok(pair)
    }

    pub fn port(&self) -> &P {
        &self.port
    }

    pub fn rt(&self) -> &Rt {
        self.port.rt()
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    pub fn qid(&self) -> QueueId {
        self.qid
    }

    pub fn completion(&self) -> Completion {
        self.completion
    }

    /// Whether interrupts tell of its completions, and may be lost.
    pub fn is_interrupted(&self) -> bool {
        matches!(self.completion, Completion::Interrupt { .. })
    }

    /// The device is about to learn where the memory lies.
    pub fn expose(&self) {
        self.exposed.set(true);
    }

    /// The device works on it from now on.
    pub fn open(&self) {
        self.expose();
        self.recent_errors.set(0);
        self.open.set(true);
        self.turned.notify(self.rt());
    }

    /// Nobody touches the rings or the doorbells from now on.
    pub fn close(&self) {
        self.open.set(false);
        self.turned.notify(self.rt());
    }

    /// The device can no longer write: its commands are lost, and the rings are empty.
    pub fn clear(&self) {
        assert!(!self.open.get(), "a pair is closed before it is cleared");
        self.exposed.set(false);
        self.slots.abandon(self.rt());
        if let Some((hybrid_polling, _)) = &self.hybrid_polling {
            hybrid_polling.clear();
        }
        self.sq.clear();
        self.cq.clear();
        self.last_tail.set(0);
        self.told_head.set(0);
        self.shadows.replace(None);
        self.keeps_shadows.set(false);
        self.unacknowledged.set(0);
    }

    /// The device could not be stopped: it may fetch commands from here and write completions and
    /// data for ever. What it knows of is never used again, or somebody else's bytes would become
    /// commands.
    pub fn quarantine(&self) {
        if self.exposed.replace(false) {
            quarantine(self.sq.memory());
            quarantine(self.cq.memory());
            quarantine(self.lists.memory());
            self.tags.iter().for_each(|tags| quarantine(tags.memory()));
            // They are the controller's, as the admin queue is.
            if self.qid == QueueId::ADMIN {
                self.shadows.borrow().iter().for_each(|shadows| shadows.quarantine());
            }
            self.slots.quarantine_buffers();
        }
    }

    /// The controller is about to learn of the shadows of both doorbells, and to look at what they say at
    /// first.
    pub fn begin_shadows(&self, shadows: &Rc<Shadows>) {
        shadows.begin(self.sq_doorbell, self.last_tail.get());
        shadows.begin(self.cq_doorbell, self.told_head.get());
        self.shadows.replace(Some(shadows.clone()));
    }

    /// From now on it looks at them, and asks to be rung for what it does not see there.
    pub fn keep_shadows(&self) {
        self.keeps_shadows.set(true);
    }

    /// Ends its tasks.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.close();
        self.dirty.notify(self.rt());
    }

    /// Gives a command to the device. Always where it is put together: it goes from registers to the ring.
    #[inline(always)]
    pub fn submit(&self, sqe: Sqe) {
        self.store(sqe);
        match self.doorbell {
            Doorbell::Each => self.ring(),
            Doorbell::Batched => self.dirty.notify(self.rt()),
        }
    }

    /// Gives two commands that are fused: side by side, and told of by one doorbell.
    pub fn submit_pair(&self, first: Sqe, second: Sqe) {
        self.store(first);
        self.submit(second);
    }

    #[inline(always)]
    fn store(&self, sqe: Sqe) {
        assert!(self.open.get(), "commands go to a device that works");
        self.sq.push(sqe);
        self.count(|counters| counters.submissions += 1);
        if let Some((hybrid_polling, _)) = &self.hybrid_polling {
            let slot = self.slots.index(CommandId(sqe.cid.get()));
            if hybrid_polling.begin(
                slot,
                class(self.qid, sqe.opcode, sqe.cdw12.get()),
                self.rt().now(),
            ) {
                hybrid_polling.woken.notify(self.rt());
            }
        }
    }

    /// Tells the device of the commands that it doesn't know of.
    fn ring(&self) {
        let tail = self.sq.tail();
        if !self.open.get() {
            return;
        }
        let old = self.last_tail.replace(tail);
        if old != tail && self.tell(self.sq_doorbell, old, tail) {
            self.count(|counters| counters.sq_doorbells += 1);
        }
    }

    /// Tells a doorbell, or its shadow alone; whether the doorbell was written.
    #[inline]
    fn tell(&self, doorbell: u32, old: u32, new: u32) -> bool {
        if self.keeps_shadows.get() && !self.tell_shadow(doorbell, old, new) {
            return false;
        }
        self.port.write32(doorbell, new);
        true
    }

    /// Tells a doorbell's shadow, if it has one; whether the doorbell itself is to be told too.
    fn tell_shadow(&self, doorbell: u32, old: u32, new: u32) -> bool {
        let shadows = self.shadows.borrow();
        let must_ring = shadows.as_ref().is_none_or(|all| all.tell(&self.port, doorbell, old, new));
        if !must_ring {
            self.count(|counters| counters.saved_doorbells += 1);
        }
        must_ring
    }

    /// Takes in the completions that are there, at most one for each entry of the queue: a device
    /// that completes faster than we look must not hold up everybody else. Gives their number.
    pub fn drain(&self) -> u32 {
        // The device hears of its room when a quarter of the queue is due, not for each entry: every
        // telling costs a posted write, and live it takes the doorbell's line from the device. It can't
        // be left waiting: a queue that looks full to it holds more than a quarter for us to take.
        let quarter = (self.cq.entries() / 4).max(1);
        let mut taken = 0;
        // Who is told of a completion may act at once, and close the pair.
        while taken < self.cq.entries()
            && self.open.get()
            && let Some(cqe) = self.cq.take()
        {
            taken += 1;
            self.unacknowledged.set(self.unacknowledged.get() + 1);
            if self.unacknowledged.get() >= quarter {
                self.unacknowledged.set(0);
                self.tell_head();
            }
            self.validate(&cqe);
        }
        // A pin is held for as long as the device has not heard of what was taken.
        if self.holds_a_pin() && self.open.get() && self.unacknowledged.replace(0) > 0 {
            self.tell_head();
        }
        taken
    }

    /// Its interrupts may be a pin's: bring-up is where vectors are not in use yet, and there is only this
    /// queue.
    fn holds_a_pin(&self) -> bool {
        self.qid == QueueId::ADMIN && self.completion == (Completion::Interrupt { vector: 0 })
    }

    fn tell_head(&self) {
        let head = self.cq.head();
        let old = self.told_head.replace(head);
        if self.tell(self.cq_doorbell, old, head) {
            self.count(|counters| counters.cq_doorbells += 1);
        }
    }

    fn validate(&self, cqe: &Cqe) {
        match self.slots.deliver(self.rt(), cqe, self.qid, self.sq.entries()) {
            Ok(slot) => {
                self.count(|counters| counters.completions += 1);
                if let Some((hybrid_polling, _)) = &self.hybrid_polling {
                    hybrid_polling.end(self.slots.index(cqe.id()), self.rt().now());
                }
                self.mark_noticed(cqe);
                if let Some(owner) = slot.owner.take() {
                    self.rt().hand_over(owner);
                }
            }
            Err(violation) => {
                self.count(|counters| counters.protocol_errors += 1);
                let cid = u64::from(cqe.cid.get());
                self.rt().log("host", "bad-completion", violation as u64, cid);
                let errors = self.recent_errors.get() + 1;
                self.recent_errors.set(errors);
                if errors == PROTOCOL_ERRORS_MAX {
                    self.health.requested.set(false);
                    self.health.ask(self.rt(), |asks| asks.reset = true);
                }
            }
        }
    }

    /// The command's time goes to the completion's way here, and to our noticing it.
    fn mark_noticed(&self, cqe: &Cqe) {
        let rt = self.rt();
        rt.attach_trace(self.qid.0, cqe.cid.get());
        if rt.is_traced() {
            rt.record_at(self.stages.completion, self.port.noticed());
            rt.record(self.stages.noticing);
            rt.detach_trace();
        }
    }

    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }
}

/// What the pump has noticed.
enum Noticed {
    Completions,
    Gone,
}

/// Takes in completions, as long as the pair has tasks.
async fn poll_completions<P: HostPort>(pair: Rc<Pair<P>>) {
    let mut interrupts = 0;
    while !pair.stopped.get() {
        // One waiter for all rounds: a change of state must end a wait that memory would not.
        let mut turned = pair.turned.changed(pair.rt(), pair.turned.version());
        while pair.open.get() {
            let noticed = match pair.completion {
                // Pinned where it is made: live, to move what was stored just now takes long.
                Completion::Polled => race(&mut turned, pin!(on_completion(&pair))).await,
                Completion::Hybrid => race(&mut turned, on_completion_or_sleep(&pair)).await,
                Completion::Interrupt { vector } => {
                    match race(&mut turned, pair.port.on_interrupt(vector, interrupts)).await {
                        Either::First(()) => Either::First(()),
                        Either::Second(count) => {
                            interrupts = count;
                            Either::Second(Noticed::Completions)
                        }
                    }
                }
            };
            match noticed {
                Either::First(()) => break,
                Either::Second(Noticed::Completions) => {
                    while pair.drain() == pair.cq.entries() {
                        pair.rt().yield_now().await;
                    }
                }
                Either::Second(Noticed::Gone) => {
                    pair.health.ask(pair.rt(), |asks| asks.gone = true);
                    break;
                }
            }
        }
        turned.await;
    }
}

/// Waits until the completion queue's next entry has come.
async fn on_completion<P: HostPort>(pair: &Pair<P>) -> Noticed {
    let (at, bytes) = pair.cq.next_at();
    let check = || {
        if pair.cq.has_next() {
            Some(Noticed::Completions)
        } else {
            pair.port.is_gone().then_some(Noticed::Gone)
        }
    };
    pair.port.on_memory(at, bytes, check).await
}

/// The same, with naps before it is expected. It may not have come: then it is to be asked again.
async fn on_completion_or_sleep<P: HostPort>(pair: &Pair<P>) -> Noticed {
    let (hybrid_polling, waking) = pair.hybrid_polling.as_ref().expect("a hybrid pair has them");
    let rt = pair.rt();
    let woken = hybrid_polling.woken.changed(rt, hybrid_polling.woken.version());
    match hybrid_polling.next(rt.now()) {
        Look::Idle => woken.await,
        Look::Now(until) => {
            if let Either::First(noticed) = race(on_completion(pair), rt.sleep_until(until)).await {
                return noticed;
            }
        }
        Look::After(at) => {
            if let Either::Second(()) = race(woken, rt.sleep_until(at)).await {
                pair.port.woken().await;
                pair.port.spend(*waking).await;
            }
        }
    }
    if pair.port.is_gone() { Noticed::Gone } else { Noticed::Completions }
}

/// Rings once for all commands that were queued since it was last this task's turn.
async fn ring_batches<P: HostPort>(pair: Rc<Pair<P>>) {
    while !pair.stopped.get() {
        let seen = pair.dirty.version();
        pair.ring();
        pair.dirty.changed(pair.rt(), seen).await;
    }
}
