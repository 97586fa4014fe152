//! Time that a controller spends in each power state, from which its energy follows.

use std::cell::{Cell, RefCell};

use runtime::{Span, Time};

/// Use of one power state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateUse {
    /// Time in the state, transitions included.
    pub time: Span,
    /// Number of times that the state was entered; the initial one counts once.
    pub entries: u64,
}

/// Use of all power states. A transition counts to that of its two states that has more power: the lower
/// number.
#[derive(Default)]
pub struct PowerUse {
    states: RefCell<Vec<StateUse>>,
    now: Cell<usize>,
    /// Everything before is counted. In the future during a transition, which is counted when it begins.
    since: Cell<Time>,
    /// State to which the last transition counts.
    dearer: Cell<usize>,
}

impl PowerUse {
    /// Begins with state 0 of `states`.
    pub fn start(&self, states: usize, now: Time) {
        *self.states.borrow_mut() = vec![StateUse::default(); states];
        if let Some(first) = self.states.borrow_mut().first_mut() {
            first.entries = 1;
        }
        self.now.set(0);
        self.since.set(now);
    }

    /// A transition to state `to` from `begin` to `end`.
    pub fn enter(&self, to: usize, begin: Time, end: Time) {
        let mut states = self.states.borrow_mut();
        if to >= states.len() {
            return;
        }
        let from = self.now.replace(to);
        states[from].time += begin.since(self.since.get());
        let dearer = from.min(to);
        states[dearer].time += end.since(begin);
        states[to].entries += 1;
        self.dearer.set(dearer);
        self.since.set(end);
    }

    /// The present state.
    pub fn present(&self) -> usize {
        self.now.get()
    }

    /// Use of each state until `now`; empty if there are no states.
    pub fn until(&self, now: Time) -> Vec<StateUse> {
        let mut states = self.states.borrow().clone();
        let since = self.since.get();
        if let Some(current) = states.get_mut(self.now.get()) {
            current.time += now.since(since);
        }
        if let Some(dearer) = states.get_mut(self.dearer.get()) {
            dearer.time = Span(dearer.time.0.saturating_sub(since.since(now).0));
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::ZERO + Span::ms(ms)
    }

    #[test]
    fn time_of_states_and_transitions_adds_up() {
        let used = PowerUse::default();
        used.start(3, ms(10));
        used.enter(2, ms(30), ms(34));
        let times = |at| -> Vec<u64> {
            used.until(ms(at)).iter().map(|state| state.time.0 / Span::ms(1).0).collect()
        };
        assert_eq!(times(31), [21, 0, 0], "one of four milliseconds of the transition");
        assert_eq!(times(34), [24, 0, 0]);
        assert_eq!(times(50), [24, 0, 16]);
        used.enter(1, ms(50), ms(58));
        assert_eq!(times(60), [24, 10, 16]);
        let entries: Vec<u64> = used.until(ms(60)).iter().map(|state| state.entries).collect();
        assert_eq!(entries, [1, 1, 1]);
    }

    #[test]
    fn controller_without_states_has_no_use() {
        let used = PowerUse::default();
        used.enter(0, ms(1), ms(1));
        assert!(used.until(ms(9)).is_empty());
    }
}
