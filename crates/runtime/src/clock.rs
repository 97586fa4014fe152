//! Clock of an executor: virtual, or that of the live world.

use crate::time::Time;

/// Consecutive failed checks before the idle policy of the clock applies.
pub(crate) const LOOKS_UNTIL_IDLE: u32 = 1_000;

/// Clock of the live world, and its idle policy on this platform.
pub trait WallClock {
    /// Current time, from an epoch shared by all threads of the program.
    fn now(&self) -> Time;
    /// Called after `looks` consecutive checks without success (at least 1000): spins, yields or sleeps,
    /// but not past `until`.
    fn idle(&self, looks: u32, until: Time);
    /// Called if no task waits for memory, so that nothing can happen before `until`. May return earlier,
    /// and must return within a millisecond.
    fn sleep_for(&self, until: Time) {
        self.idle(LOOKS_UNTIL_IDLE, until);
    }
}

pub(crate) enum Clock {
    Virtual,
    Wall(&'static dyn WallClock),
}
