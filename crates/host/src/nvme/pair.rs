//! Queue pair: code shared by the admin queue and the I/O queues.

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::pin::pin;

use bus::{Cost, HostPort};
use runtime::{Either, Lock, LockPolicy, Rt, Signal, Span, Stage, StageName, race, stage};
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

/// Statistics of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands submitted.
    pub submissions: u64,
    /// Completions delivered.
    pub completions: u64,
    /// Writes to the submission doorbell.
    pub sq_doorbells: u64,
    /// Writes to the completion doorbell.
    pub cq_doorbells: u64,
    /// Doorbell writes saved by shadow doorbells.
    pub saved_doorbells: u64,
    /// Invalid completions, which were ignored.
    pub protocol_errors: u64,
    /// Times that the watchdog found completions without an interrupt.
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
    /// Turn to acquire two slots at once.
    pub gathers: Lock,
    /// Memory for protection information, if the host generates and checks it.
    pub tags: Option<Tags>,
    completion: Completion,
    /// Hybrid polling and the cost of a wake-up; `None` with other completion modes.
    hybrid_polling: Option<(HybridPolling, Cost)>,
    doorbell: Doorbell,
    sq_doorbell: u32,
    cq_doorbell: u32,
    /// Completions taken since the last head doorbell.
    unacknowledged: Cell<u32>,
    /// Last tail and last head that were written.
    last_tail: Cell<u32>,
    told_head: Cell<u32>,
    /// Shadow doorbells, once the controller may know their addresses; and whether it uses them.
    shadows: RefCell<Option<Rc<Shadows>>>,
    keeps_shadows: Cell<bool>,
    /// True while the device serves the pair. Otherwise rings and doorbells must not be accessed.
    open: Cell<bool>,
    /// True if its tasks must end.
    stopped: Cell<bool>,
    /// True if the device has the memory's addresses and may use it.
    exposed: Cell<bool>,
    /// Notified at changes of `open` and `stopped`.
    turned: Signal,
    /// Notified when commands wait for a batched doorbell.
    dirty: Signal,
    health: Rc<Health>,
    pub counters: Cell<Counters>,
    stages: Stages,
    /// Protocol errors since the device was last started.
    recent_errors: Cell<u32>,
}

struct Stages {
    completion: Stage,
    /// Time to poll, or to take the interrupt.
    noticing: Stage,
}

/// Minimum entries of a completion queue, if the controller supports that length: the head doorbell then need
/// not be written for every completion.
const CQ_ENTRIES_MIN: u32 = 64;

pub(super) struct PairSpec {
    pub qid: QueueId,
    pub depth: u16,
    pub completion: Completion,
    pub doorbell: Doorbell,
    /// Longest transfer of one command in bytes.
    pub transfer_bytes_max: u32,
    /// Buffers that scatter gather lists describe.
    pub sgl: Sgl,
    /// True if the host generates and checks protection information.
    pub tags: bool,
    /// CAP.DSTRD.
    pub stride: u8,
    /// Most entries of a queue (CAP.MQES).
    pub entries_max: u32,
}

impl<P: HostPort> Pair<P> {
    /// Creates a closed pair with its memory, and starts its tasks.
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
                completion: stage!(port.rt(), super::STAGES, "completion"),
                noticing: port.rt().stage(StageName::of(
                    super::STAGES,
                    match spec.completion {
                        Completion::Polled | Completion::Hybrid => "poll",
                        Completion::Interrupt { .. } => "interrupt",
                    },
                )),
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

    /// Returns true if completions are signalled by interrupts, which may be lost.
    pub fn is_interrupted(&self) -> bool {
        matches!(self.completion, Completion::Interrupt { .. })
    }

    /// Records that the device is about to get the memory's addresses.
    pub fn expose(&self) {
        self.exposed.set(true);
    }

    /// Opens the pair: the device serves it.
    pub fn open(&self) {
        self.expose();
        self.recent_errors.set(0);
        self.open.set(true);
        self.turned.notify(self.rt());
    }

    /// Closes the pair: rings and doorbells are not accessed from now on.
    pub fn close(&self) {
        self.open.set(false);
        self.turned.notify(self.rt());
    }

    /// Marks commands as lost and empties the rings. The device must be unable to write.
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

    /// Quarantines all memory of the pair: the device could not be stopped, and may fetch commands and write
    /// completions and data at any time. Reused memory could be fetched as commands.
    pub fn quarantine(&self) {
        if self.exposed.replace(false) {
            quarantine(self.sq.memory());
            quarantine(self.cq.memory());
            quarantine(self.lists.memory());
            self.tags.iter().for_each(|tags| quarantine(tags.memory()));
            // Shadow pages belong to the controller, as the admin queue does.
            if self.qid == QueueId::ADMIN {
                self.shadows.borrow().iter().for_each(|shadows| shadows.quarantine());
            }
            self.slots.quarantine_buffers();
        }
    }

    /// Initialises the shadows of both doorbells, before the controller gets their addresses.
    pub fn begin_shadows(&self, shadows: &Rc<Shadows>) {
        shadows.begin(self.sq_doorbell, self.last_tail.get());
        shadows.begin(self.cq_doorbell, self.told_head.get());
        self.shadows.replace(Some(shadows.clone()));
    }

    /// The controller uses the shadows from now on.
    pub fn keep_shadows(&self) {
        self.keeps_shadows.set(true);
    }

    /// Ends its tasks.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.close();
        self.dirty.notify(self.rt());
    }

    /// Submits a command. Inlined always, so that an entry goes from registers to the ring.
    #[inline(always)]
    pub fn submit(&self, sqe: Sqe) {
        self.store(sqe);
        match self.doorbell {
            Doorbell::Each => self.ring(),
            Doorbell::Batched => self.dirty.notify(self.rt()),
        }
    }

    /// Submits two fused commands: adjacent entries, one doorbell.
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

    /// Writes the tail doorbell if the tail has advanced.
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

    /// Writes a doorbell, or its shadow alone; returns true if the doorbell was written.
    #[inline]
    fn tell(&self, doorbell: u32, old: u32, new: u32) -> bool {
        if self.keeps_shadows.get() && !self.tell_shadow(doorbell, old, new) {
            return false;
        }
        self.port.write32(doorbell, new);
        true
    }

    /// Writes a doorbell's shadow, if it has one; returns true if the doorbell must be written too.
    fn tell_shadow(&self, doorbell: u32, old: u32, new: u32) -> bool {
        let shadows = self.shadows.borrow();
        let must_ring = shadows.as_ref().is_none_or(|all| all.tell(&self.port, doorbell, old, new));
        if !must_ring {
            self.count(|counters| counters.saved_doorbells += 1);
        }
        must_ring
    }

    /// Processes the completions present, at most one per entry of the queue, so that a fast device cannot
    /// starve other tasks. Returns their number.
    pub fn drain(&self) -> u32 {
        // The head doorbell is written once per quarter of the queue: each write costs a posted write and,
        // live, takes the doorbell's cache line from the device. The device cannot stall on this: a queue
        // that looks full to it has more than a quarter to process.
        let quarter = (self.cq.entries() / 4).max(1);
        let mut taken = 0;
        // A caller woken by a completion may act at once, and close the pair.
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
        // A pin stays asserted until the device has the new head.
        if self.holds_a_pin() && self.open.get() && self.unacknowledged.replace(0) > 0 {
            self.tell_head();
        }
        taken
    }

    /// Returns true if interrupts may use a pin, which is vector 0 of all queues: the only one, or during
    /// bring-up the only one yet.
    fn holds_a_pin(&self) -> bool {
        self.completion == (Completion::Interrupt { vector: 0 })
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

    /// Records the stages of a completion: its transfer to the host, and the delay until it was noticed.
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

/// Event that the completion poller waits for.
enum Noticed {
    Completions,
    Gone,
}

/// Processes completions, as long as the pair has tasks.
async fn poll_completions<P: HostPort>(pair: Rc<Pair<P>>) {
    let mut interrupts = 0;
    while !pair.stopped.get() {
        // One waiter for all rounds: a change of state must end a wait for memory.
        let mut turned = pair.turned.changed(pair.rt(), pair.turned.version());
        while pair.open.get() {
            let noticed = match pair.completion {
                // Pinned in place: live, moving a value that was just stored is slow.
                Completion::Polled => race(&mut turned, pin!(on_completion(&pair))).await,
                Completion::Hybrid => race(&mut turned, on_completion_or_sleep(&pair)).await,
                Completion::Interrupt { vector } => {
                    match race(&mut turned, pair.port.on_interrupt(vector, interrupts)).await {
                        Either::First(()) => Either::First(()),
                        Either::Second(count) => {
                            interrupts = count;
                            let is_gone = pair.port.is_gone();
                            Either::Second(if is_gone {
                                Noticed::Gone
                            } else {
                                Noticed::Completions
                            })
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

/// Waits until the completion queue's next entry has arrived.
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

/// Same with hybrid polling. May return without a completion; the caller then polls again.
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

/// Rings once for all commands queued since this task last ran.
async fn ring_batches<P: HostPort>(pair: Rc<Pair<P>>) {
    while !pair.stopped.get() {
        let seen = pair.dirty.version();
        pair.ring();
        pair.dirty.changed(pair.rt(), seen).await;
    }
}
