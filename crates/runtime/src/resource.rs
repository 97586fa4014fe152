//! Contended resources. A wait has two stages: queueing and service.

use alloc::collections::VecDeque;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::rng::Rng;
use crate::rt::Rt;
use crate::task::Parked;
use crate::time::{Span, Time};
use crate::traces::Stage;

/// A reservation at a [`Line`]: begin and end of its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Begin of the service.
    pub begin: Time,
    /// End of the service.
    pub end: Time,
}

/// A FIFO server: a link direction, a bank, a channel. A turn is reserved at once, so that queueing costs
/// no event.
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

    /// Prolongs the last turn to `end`: something slower held it up.
    pub fn prolong(&self, end: Time) {
        if end > self.free_at.get() {
            self.busy.set(self.busy.get() + end.since(self.free_at.get()));
            self.free_at.set(end);
        }
    }

    /// End of the last reserved turn.
    pub fn free_at(&self) -> Time {
        self.free_at.get()
    }

    /// Sum of all service times so far.
    pub fn busy(&self) -> Span {
        self.busy.get()
    }
}

/// Priority at a [`Processor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// FIFO order among tasks.
    Task,
    /// Before all tasks, when the current work ends.
    Interrupt,
}

/// A processor core: runs one task at a time without preemption, interrupts before tasks.
#[derive(Default)]
pub struct Processor {
    state: RefCell<ProcessorState>,
}

#[derive(Default)]
struct ProcessorState {
    running: Option<u64>,
    interrupts: VecDeque<Waiting>,
    tasks: VecDeque<Waiting>,
    /// The running ticket and its turn; kept after the end until the next ticket runs.
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
    /// True if a task runs on it now.
    pub fn is_busy(&self) -> bool {
        self.state.borrow().running.is_some()
    }

    /// Sum of all spans spent on it, including the rest of a running one.
    pub fn busy(&self) -> Span {
        self.state.borrow().busy
    }

    /// Time spent on it until `now`; a running span counts up to `now`.
    pub fn spent(&self, now: Time) -> Span {
        let state = self.state.borrow();
        let rest = match (state.running, state.turn) {
            (Some(_), Some((_, turn))) => turn.end.since(now),
            _ => Span::ZERO,
        };
        Span(state.busy.0 - rest.0)
    }

    /// Spends `span` of the core's time and returns at its end. A span of zero does not wait.
    pub fn spend<'a>(&'a self, rt: &'a Rt, span: Span, urgency: Urgency) -> Spend<'a> {
        Spend { processor: self, rt, span, urgency, ticket: None }
    }

    /// Frees the core; the next in the queue runs, and its timer is armed for it.
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
    /// Set while it waits or runs.
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
                // No other task can ask for the core meanwhile.
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
            // The work is abandoned; its stale timer causes only a spurious wake-up.
            drop(state);
            self.processor.next(self.rt);
        }
    }
}

/// Choice of the next holder of a [`Lock`].
#[derive(Clone, Debug)]
pub enum Policy {
    /// A ticket lock: the longest wait goes first.
    Fair,
    /// A spin lock: the first to see it free takes it. A newcomer, or the last holder, whose cache still
    /// holds the word, may take it while the word travels to a waiter.
    Unfair(Rng),
}

/// A lock of the modelled host. `transfer` is the time in which its cache line moves from the holder to a
/// waiter.
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
    /// Set if it was notified that the lock is free: the time at which it sees that.
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

    /// Number of acquisitions that found the lock held.
    pub fn waits(&self) -> u64 {
        self.state.borrow().next_ticket
    }

    /// Releases the lock.
    ///
    /// # Panics
    /// If the lock is not held.
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
        // A fair lock is never free while there are waiters: its ownership is passed on.
        state.held = matches!(state.policy, Policy::Fair);
        let sees_it_at = rt.now() + self.transfer;
        let waiter = &mut state.waiting[pick];
        // A waiter notified earlier that has not checked yet keeps its time.
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
            // Another holder was quicker; spin on.
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
            // The lock was on its way to this waiter: pass it on.
            let free = matches!(state.policy, Policy::Fair) || !state.held;
            state.held = state.held || free;
            drop(state);
            if free {
                self.lock.release(self.rt);
            }
        }
    }
}

/// The two stages of a wait for a resource.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// Queueing, until the turn begins.
    pub turn: Stage,
    /// Service.
    pub service: Stage,
}

impl Rt {
    /// Adds the current trace's time up to the end of `turn` to the two stages.
    #[inline]
    pub fn record_turn(&self, waits: Waits, turn: Turn) {
        self.record_at(waits.turn, turn.begin);
        self.record_at(waits.service, turn.end);
    }
}
