//! Dies that are not well: faults on purpose.

use std::cell::Cell;

use runtime::{Span, Time};

use super::Chips;
use super::die::Work;

/// What a die may suffer from. [`crate::faults::FOREVER`]: never again is it well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DieFault {
    /// It does nothing for so long, once it has done what it was asked before.
    Stuck(Span),
    /// What its array does takes so much longer.
    Slow {
        /// Of the time of the model, in percent; at least 100.
        percent: u32,
        /// For so long.
        span: Span,
    },
    /// Nothing of it can be read for so long, however often one tries.
    Unreadable(Span),
}

#[derive(Default)]
pub(super) struct Health {
    slow: Cell<(u32, Time)>,
    unreadable: Cell<Time>,
}

impl Chips {
    /// A fault: the die falls ill, now. Without times only what can't be read makes a difference.
    ///
    /// # Panics
    /// If there is no such die.
    pub fn fail_die(&self, die: u32, of: DieFault) {
        let now = self.rt.now();
        let until = |span: Span| Time(now.0.saturating_add(span.0));
        let health = &self.health[die as usize];
        match of {
            DieFault::Stuck(span) if self.options.timing.is_some() => {
                let mut die = self.dies[die as usize].borrow_mut();
                // So far off that whatever stands behind it still has a time.
                let span = span.min(Span((Time::NEVER.0 - die.free_at().max(now).0) / 2));
                die.operate(now, now, span, (Work::Read, false));
            }
            DieFault::Stuck(_) => {}
            DieFault::Slow { percent, span } => health.slow.set((percent, until(span))),
            DieFault::Unreadable(span) => health.unreadable.set(until(span)),
        }
    }

    /// What a time of a die's array is in its state of health.
    pub(super) fn stretched(&self, die: u32, span: Span) -> Span {
        let (percent, until) = self.health[die as usize].slow.get();
        if self.rt.now() >= until {
            return span;
        }
        Span((u128::from(span.0) * u128::from(percent) / 100) as u64)
    }

    /// Whether nothing of a die can be read.
    pub(super) fn is_unreadable(&self, die: u32) -> bool {
        let until = self.health[die as usize].unreadable.get();
        until > Time::ZERO && self.rt.now() < until
    }
}
