//! Wall time: pass after pass over the tasks that are ready and those that wait for memory.
//!
//! No event wakes a task that waits for memory, so it is polled repeatedly. Its latency is the duration of
//! a pass, so a pass is kept short: the clock is read once in many turns while no timer is near, a task
//! idle for long is polled every 32nd pass, and a task that waits alone checks several times in its turn.

use alloc::vec::Vec;

use crate::rt::{Parked, Rt, TaskId, WallClock};
use crate::time::{Span, Time};

/// If the next timer is further off, the clock is read once in `TURNS_BETWEEN_CLOCK_READS` turns, which
/// take less time than this. Turns, not passes: a pass full of work may be long.
const FAR: Span = Span::us(200);
const TURNS_BETWEEN_CLOCK_READS: u32 = 128;

/// Patient tasks are polled once in this number of passes, unless all tasks are patient.
const PATIENT_EVERY: u32 = 32;

/// Checks in the turn of a task that waits alone.
const LOOKS_ALONE: u32 = 16;

/// Waits per pass that may end as soon as they begin: more than occur in any pass that ends by itself.
const LUCK_OF_A_PASS: u32 = 256;

/// Consecutive failed checks before the idle policy of the clock applies.
pub(crate) const LOOKS_UNTIL_IDLE: u32 = 1_000;

/// State of the current pass.
pub(crate) struct Pass {
    /// Ready tasks still to run in this pass.
    ready: usize,
    /// Tasks that wait for memory and have a turn in this pass; `next` is the index of the next.
    asked: Vec<TaskId>,
    next: usize,
    /// Tasks that have a turn in the next pass.
    again: Vec<TaskId>,
    /// Tasks polled every `PATIENT_EVERY` passes.
    patient: Vec<TaskId>,
    until_patient: u32,
    /// Turns until the clock is read.
    until_clock_read: u32,
    /// Time of the next timer when the clock was last read.
    next_timer: Time,
    /// Consecutive checks without success, compared with `LOOKS_UNTIL_IDLE`.
    idle: u32,
}

impl Pass {
    pub(crate) fn new() -> Pass {
        let room = || Vec::with_capacity(64);
        Pass {
            ready: 0,
            asked: room(),
            next: 0,
            again: room(),
            patient: room(),
            until_patient: PATIENT_EVERY,
            until_clock_read: 1,
            next_timer: Time::NEVER,
            idle: 0,
        }
    }

    /// Schedules the task for the next pass, or, if `patient`, for one in `PATIENT_EVERY`.
    #[inline]
    pub(crate) fn again(&mut self, id: TaskId, patient: bool) {
        if patient { self.patient.push(id) } else { self.again.push(id) }
    }

    /// Collects the tasks to poll in the pass that begins.
    #[inline]
    fn gather(&mut self) {
        self.asked.clear();
        core::mem::swap(&mut self.asked, &mut self.again);
        self.next = 0;
        self.until_patient -= 1;
        if self.until_patient == 0 || self.asked.is_empty() {
            self.until_patient = PATIENT_EVERY;
            self.asked.append(&mut self.patient);
        }
    }

    #[inline]
    fn next(&mut self, rt: &Rt) -> Option<TaskId> {
        if self.ready > 0 {
            self.ready -= 1;
            if let Some(id) = rt.next_ready() {
                self.until_clock_read = self.until_clock_read.saturating_sub(1);
                return Some(id);
            }
            self.ready = 0;
        }
        self.until_clock_read = self.until_clock_read.saturating_sub(1);
        let id = self.asked.get(self.next).copied();
        self.next += usize::from(id.is_some());
        id
    }
}

impl Rt {
    /// The next task to poll, in this pass or a later one.
    #[inline]
    pub(crate) fn next_in_pass(&self, clock: &'static dyn WallClock) -> TaskId {
        loop {
            let next = self.0.pass.borrow_mut().next(self);
            match next {
                Some(id) => return id,
                None => self.next_pass(clock),
            }
        }
    }

    /// Ends a pass: fires due timers, backs off if nothing happened, and begins the next.
    fn next_pass(&self, clock: &'static dyn WallClock) {
        let progress = self.0.progress.replace(false) || !self.0.ready.borrow().is_empty();
        let mut pass = self.0.pass.borrow_mut();
        pass.idle = if progress { 0 } else { pass.idle.saturating_add(self.looks()) };
        // Without a task to poll, only a timer can change anything.
        let deaf =
            pass.again.is_empty() && pass.patient.is_empty() && self.0.ready.borrow().is_empty();
        // A timer armed since the clock was last read may be near.
        let read = deaf || pass.until_clock_read == 0 || self.0.next_timer.get() < pass.next_timer;
        let idle = pass.idle;
        drop(pass);
        if read {
            self.read_clock(clock);
        }
        match deaf {
            true if self.0.ready.borrow().is_empty() => clock.sleep_for(self.0.next_timer.get()),
            false if idle >= LOOKS_UNTIL_IDLE => clock.idle(idle, self.0.next_timer.get()),
            _ => {}
        }
        let mut pass = self.0.pass.borrow_mut();
        pass.gather();
        pass.ready = self.0.ready.borrow().len();
        let alone = pass.ready == 0 && pass.asked.len() == 1 && pass.until_clock_read > 1;
        let alone = alone && idle < LOOKS_UNTIL_IDLE;
        self.0.looks.set(if alone { LOOKS_ALONE } else { 1 });
        self.0.luck.set(LUCK_OF_A_PASS);
    }

    /// Fires due timers, and decides when to read the clock again.
    fn read_clock(&self, clock: &'static dyn WallClock) {
        let now = clock.now();
        loop {
            let fired = self.0.timers.borrow_mut().fire(now);
            let Some((_, task, foreign)) = fired else { break };
            self.progress();
            self.fired(Parked::new(task, foreign));
        }
        let next = self.0.timers.borrow().next_at();
        self.0.next_timer.set(next);
        let mut pass = self.0.pass.borrow_mut();
        pass.next_timer = next;
        pass.until_clock_read = if next.since(now) > FAR { TURNS_BETWEEN_CLOCK_READS } else { 1 };
    }
}
