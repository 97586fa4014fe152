//! Resources to queue for. Each waits under two names: the wait for one's turn, and the service.

use alloc::collections::VecDeque;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::rng::Rng;
use crate::rt::{Parked, Rt};
use crate::time::{Span, Time};
use crate::trace::Stage;

/// A turn at a [`Line`]: when it begins and when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The service begins.
    pub begin: Time,
    /// The service is over.
    pub end: Time,
}

/// A server with one line, first come, first served: a link direction, a bank, a channel. A turn is
/// reserved at once, so that waiting in line costs no event.
#[derive(Debug, Default)]
pub struct Line {
    free_at: Cell<Time>,
    busy: Cell<Span>,
}

impl Line {
    /// Reserves the next turn, not before `from`.
    pub fn reserve(&self, from: Time, service: Span) -> Turn {
        let begin = self.free_at.get().max(from);
        let end = begin + service;
        self.free_at.set(end);
        self.busy.set(self.busy.get() + service);
        Turn { begin, end }
    }

    /// Prolongs the last turn to `end`: its holder was held up by something slower.
    pub fn prolong(&self, end: Time) {
        if end > self.free_at.get() {
            self.busy.set(self.busy.get() + end.since(self.free_at.get()));
            self.free_at.set(end);
        }
    }

    /// When the last reserved turn is over.
    pub fn free_at(&self) -> Time {
        self.free_at.get()
    }

    /// The sum of all services so far.
    pub fn busy(&self) -> Span {
        self.busy.get()
    }
}

/// Who goes first at a [`Processor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Takes its place in line.
    Task,
    /// Goes before all tasks, at the next boundary.
    Interrupt,
}

/// A processor core: serves one at a time, interrupts before tasks.
#[derive(Default)]
pub struct Processor {
    state: RefCell<ProcessorState>,
}

#[derive(Default)]
struct ProcessorState {
    running: Option<u64>,
    interrupts: VecDeque<Waiting>,
    tasks: VecDeque<Waiting>,
    /// The turn that the running ticket has, and the one that it replaced if not fetched yet.
    turn: Option<(u64, Turn)>,
    next_ticket: u64,
    busy: Span,
}

struct Waiting {
    ticket: u64,
    span: Span,
    parked: Parked,
}

impl Processor {
    /// Whether somebody runs on it now.
    pub fn is_busy(&self) -> bool {
        self.state.borrow().running.is_some()
    }

    /// The sum of all that was spent on it.
    pub fn busy(&self) -> Span {
        self.state.borrow().busy
    }

    /// What was spent on it until now: of who runs, the part of the span that is over.
    pub fn spent(&self, now: Time) -> Span {
        let state = self.state.borrow();
        let rest = match (state.running, state.turn) {
            (Some(_), Some((_, turn))) => turn.end.since(now),
            _ => Span::ZERO,
        };
        Span(state.busy.0 - rest.0)
    }

    /// Spends `span` of the core's time; returns when it was spent. A span of zero waits for nobody.
    pub fn spend<'a>(&'a self, rt: &'a Rt, span: Span, urgency: Urgency) -> Spend<'a> {
        Spend { processor: self, rt, span, urgency, ticket: None }
    }

    /// The core is free: the next in line runs, and its timer is set on its behalf.
    fn next(&self, rt: &Rt) {
        let mut state = self.state.borrow_mut();
        state.running = None;
        let next = match state.interrupts.pop_front() {
            Some(waiting) => Some(waiting),
            None => state.tasks.pop_front(),
        };
        let Some(waiting) = next else { return };
        let turn = Turn { begin: rt.now(), end: rt.now() + waiting.span };
        state.run(waiting.ticket, turn);
        drop(state);
        rt.arm(turn.end, waiting.parked);
    }
}

impl ProcessorState {
    fn run(&mut self, ticket: u64, turn: Turn) {
        self.running = Some(ticket);
        self.turn = Some((ticket, turn));
        self.busy += turn.end.since(turn.begin);
    }
}

/// See [`Processor::spend`].
pub struct Spend<'a> {
    processor: &'a Processor,
    rt: &'a Rt,
    span: Span,
    urgency: Urgency,
    /// While it waits or runs.
    ticket: Option<u64>,
}

impl Future for Spend<'_> {
    type Output = Turn;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let now = self.rt.now();
        if self.span == Span::ZERO {
            return Poll::Ready(Turn { begin: now, end: now });
        }
        let processor = self.processor;
        let mut state = processor.state.borrow_mut();
        let Some(ticket) = self.ticket else {
            let turn = Turn { begin: now, end: now + self.span };
            if state.running.is_none() && self.rt.pass_time(turn.end, cx) {
                // Nobody comes meanwhile.
                state.busy += self.span;
                return Poll::Ready(turn);
            }
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            self.ticket = Some(ticket);
            if state.running.is_none() {
                state.run(ticket, turn);
                self.rt.arm_here(turn.end, cx);
            } else {
                let waiting = Waiting { ticket, span: self.span, parked: self.rt.park(cx) };
                match self.urgency {
                    Urgency::Task => state.tasks.push_back(waiting),
                    Urgency::Interrupt => state.interrupts.push_back(waiting),
                }
            }
            return Poll::Pending;
        };
        match state.turn {
            Some((running, turn)) if running == ticket && turn.end <= now => {
                if state.interrupts.is_empty() && state.tasks.is_empty() {
                    state.running = None;
                } else {
                    drop(state);
                    processor.next(self.rt);
                }
                self.ticket = None;
                Poll::Ready(turn)
            }
            _ => Poll::Pending,
        }
    }
}

impl Drop for Spend<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.processor.state.borrow_mut();
        state.interrupts.retain(|w| w.ticket != ticket);
        state.tasks.retain(|w| w.ticket != ticket);
        if state.running == Some(ticket) {
            // The work is given up where it stands; the stale timer wakes nobody who minds.
            drop(state);
            self.processor.next(self.rt);
        }
    }
}

/// How a [`Lock`] chooses among those who wait.
#[derive(Clone, Debug)]
pub enum Policy {
    /// A ticket lock: the longest wait goes first.
    Fair,
    /// A spin lock: whoever sees it first. A newcomer, or the last holder, whose cache still holds the
    /// word, may take it while it travels to those who wait.
    Unfair(Rng),
}

/// A lock of the modelled host. Moving it from one waiter to the next takes `transfer`, the time in
/// which the word travels between two caches.
pub struct Lock {
    state: RefCell<LockState>,
    transfer: Span,
}

struct LockState {
    policy: Policy,
    held: bool,
    waiting: VecDeque<LockWaiter>,
    next_ticket: u64,
}

struct LockWaiter {
    ticket: u64,
    parked: Option<Parked>,
    /// It was told that the lock is free, and sees it at this moment.
    sees_it_at: Option<Time>,
}

impl Lock {
    /// A free lock.
    pub fn new(policy: Policy, transfer: Span) -> Lock {
        let state = LockState { policy, held: false, waiting: VecDeque::new(), next_ticket: 0 };
        Lock { state: RefCell::new(state), transfer }
    }

    /// Waits for the lock.
    pub fn acquire<'a>(&'a self, rt: &'a Rt) -> Acquire<'a> {
        Acquire { lock: self, rt, ticket: None }
    }

    /// How often somebody has found it taken.
    pub fn waits(&self) -> u64 {
        self.state.borrow().next_ticket
    }

    /// Gives the lock back.
    ///
    /// # Panics
    /// If nobody holds it.
    pub fn release(&self, rt: &Rt) {
        let mut state = self.state.borrow_mut();
        assert!(state.held, "a lock is released by its holder");
        state.held = false;
        let count = state.waiting.len() as u64;
        if count == 0 {
            return;
        }
        let pick = match &mut state.policy {
            Policy::Fair => 0,
            Policy::Unfair(rng) => rng.below(count) as usize,
        };
        // A fair lock is never free while somebody waits: it is handed over.
        state.held = matches!(state.policy, Policy::Fair);
        let sees_it_at = rt.now() + self.transfer;
        let waiter = &mut state.waiting[pick];
        // Who was told before, and has not looked yet, looks when it was going to.
        if let Some(parked) = waiter.parked.take() {
            waiter.sees_it_at = Some(sees_it_at);
            drop(state);
            rt.arm(sees_it_at, parked);
        }
    }
}

/// See [`Lock::acquire`].
pub struct Acquire<'a> {
    lock: &'a Lock,
    rt: &'a Rt,
    ticket: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock.state.borrow_mut();
        let fair = matches!(state.policy, Policy::Fair);
        let Some(ticket) = self.ticket else {
            if !state.held {
                state.held = true;
                return Poll::Ready(());
            }
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            let parked = Some(self.rt.park(cx));
            state.waiting.push_back(LockWaiter { ticket, parked, sees_it_at: None });
            drop(state);
            self.ticket = Some(ticket);
            return Poll::Pending;
        };
        let place = state.waiting.iter().position(|w| w.ticket == ticket).expect("still waiting");
        let told = state.waiting[place].sees_it_at.is_some_and(|at| at <= self.rt.now());
        if told && (fair || !state.held) {
            state.held = true;
            state.waiting.remove(place);
            drop(state);
            self.ticket = None;
            return Poll::Ready(());
        }
        if told {
            // Somebody was quicker; spin on.
            let parked = Some(self.rt.park(cx));
            let waiter = &mut state.waiting[place];
            waiter.sees_it_at = None;
            waiter.parked = parked;
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.lock.state.borrow_mut();
        let Some(place) = state.waiting.iter().position(|w| w.ticket == ticket) else { return };
        let told = state.waiting[place].sees_it_at.is_some();
        state.waiting.remove(place);
        if told {
            // It was on its way to us: pass it on.
            let free = matches!(state.policy, Policy::Fair) || !state.held;
            state.held = state.held || free;
            drop(state);
            if free {
                self.lock.release(self.rt);
            }
        }
    }
}

/// The two names under which a resource is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// Until one's turn.
    pub turn: Stage,
    /// While being served.
    pub service: Stage,
}

impl Rt {
    /// Gives the current journey's time up to the end of `turn` to its two names.
    #[inline]
    pub fn record_turn(&self, waits: Waits, turn: Turn) {
        self.record_at(waits.turn, turn.begin);
        self.record_at(waits.service, turn.end);
    }
}
