//! Clock of an executor: virtual, or that of the live world.

use core::cell::Cell;

use crate::time::{Span, Time};

/// Consecutive failed checks before the idle policy of the clock applies.
pub(crate) const LOOKS_UNTIL_IDLE: u32 = 1_000;

/// Clock of the live world, and its idle policy on this platform.
pub trait WallClock {
    /// Current time, from an epoch shared by all threads of the program.
    fn now(&self) -> Time;
    /// Called after `looks` consecutive checks without success (at least 1000): spins or yields.
    fn idle(&self, looks: u32);
    /// Sleeps for at most this span, or until the thread is woken.
    fn sleep(&self, span: Span);
    /// Called if no task waits for memory, so that nothing can happen before `until`. May return earlier,
    /// and must return within a millisecond.
    fn sleep_for(&self, until: Time) {
        if until > self.now() {
            self.idle(LOOKS_UNTIL_IDLE);
        }
    }
}

/// When an idle executor on the wall clock sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleSleep {
    /// Time without work after which it sleeps; none: never, it polls on.
    pub after: Option<Span>,
    /// The longest sleep. A change in memory wakes nothing, and is seen after it.
    pub longest: Span,
    /// Its own tasks change the memory that they poll, or a thread that wakes this one does. Otherwise sleeps
    /// grow with the time without work: a change is seen late by at most 1/512 of it.
    pub woken: bool,
}

impl IdleSleep {
    /// Of an executor for which no other was set.
    pub const DEFAULT: IdleSleep =
        IdleSleep { after: Some(Span::ms(100)), longest: Span::ms(1), woken: false };
}

/// State of an idle executor on the wall clock.
pub(crate) struct Idle {
    pub sleep: Cell<IdleSleep>,
    /// When the present time without work began.
    pub since: Cell<Time>,
    pub sleeps: Cell<u64>,
}

impl Idle {
    pub fn new() -> Idle {
        let sleep = Cell::new(IdleSleep::DEFAULT);
        Idle { sleep, since: Cell::new(Time::ZERO), sleeps: Cell::new(0) }
    }
}

/// Kind of event of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Nothing,
    /// Timers have fired, which does not end the sleep of an executor without work.
    Timers,
    Work,
}

pub(crate) enum Clock {
    Virtual,
    Wall(&'static dyn WallClock),
}
