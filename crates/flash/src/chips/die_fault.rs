//! Injected die faults.

use std::cell::Cell;

use runtime::{Span, Time};

use super::Chips;
use super::die::Work;

/// A die fault. The duration `device::faults::FOREVER` makes it permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DieFault {
    /// After the operations already requested, the die does nothing for this time.
    Stuck(Span),
    /// Array operations take longer.
    Slow {
        /// Duration in percent of the model's; at least 100.
        percent: u32,
        /// Duration of the fault.
        span: Span,
    },
    /// All reads fail for this time, including retries.
    Unreadable(Span),
}

/// Fault state of a die.
#[derive(Default)]
pub(super) struct Health {
    slow: Cell<(u32, Time)>,
    unreadable: Cell<Time>,
}

impl Chips {
    /// Starts a fault of a die. Without a timing model, only [`DieFault::Unreadable`] has an effect.
    ///
    /// # Panics
    /// If the die does not exist.
    pub fn fail_die(&self, die: u32, of: DieFault) {
        let now = self.rt.now();
        let until = |span: Span| Time(now.0.saturating_add(span.0));
        let health = &self.health[die as usize];
        match of {
            DieFault::Stuck(span) if self.options.timing.is_some() => {
                let mut die = self.dies[die as usize].borrow_mut();
                // Half of the remaining time range, so that later turns still have a valid time.
                let span = span.min(Span((Time::NEVER.0 - die.free_at().max(now).0) / 2));
                die.operate(now, now, span, (Work::Read, false));
            }
            DieFault::Stuck(_) => {}
            DieFault::Slow { percent, span } => health.slow.set((percent, until(span))),
            DieFault::Unreadable(span) => health.unreadable.set(until(span)),
        }
    }

    /// The duration of an array operation, given the die's fault state.
    pub(super) fn stretched(&self, die: u32, span: Span) -> Span {
        let (percent, until) = self.health[die as usize].slow.get();
        if self.rt.now() >= until {
            return span;
        }
        Span((u128::from(span.0) * u128::from(percent) / 100) as u64)
    }

    /// Returns true if reads of the die fail.
    pub(super) fn is_unreadable(&self, die: u32) -> bool {
        let until = self.health[die as usize].unreadable.get();
        until > Time::ZERO && self.rt.now() < until
    }
}
