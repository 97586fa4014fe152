//! The plans of the exhibits with changes to them.

use std::sync::Arc;

use super::changes::{Change, Changes, Runs};
use super::measure::Machine;

/// The model as the exhibits use it: plans, changes to them, runs made so far.
#[derive(Clone, Default)]
pub struct Setup {
    changes: Arc<Changes>,
    runs: Arc<Runs>,
}

impl Setup {
    /// The plans as they are.
    pub fn new() -> Setup {
        Setup::default()
    }

    /// The plans with these values of keys, beneath the settings of the exhibits. Keys of `medium.flash` are
    /// set in the plans that have it.
    pub(super) fn set(&self, sets: &[(String, String)]) -> Setup {
        let mut all = Changes::clone(&self.changes);
        all.sets.extend_from_slice(sets);
        Setup { changes: Arc::new(all), runs: self.runs.clone() }
    }

    pub(super) fn machine(&self, plan: &'static str) -> Machine {
        Machine::new(plan, self.changes.clone(), self.runs.clone())
    }

    /// The same with further changes.
    pub(super) fn changed(&self, changes: &[Change]) -> Setup {
        let mut all = Changes::clone(&self.changes);
        all.all.extend(changes);
        Setup { changes: Arc::new(all), runs: self.runs.clone() }
    }

    /// The same with this value of a cost of one plan.
    pub(super) fn with_cost(&self, plan: &'static str, key: &str, value: &str) -> Setup {
        let mut all = Changes::clone(&self.changes);
        all.costs.push((plan, key.to_owned(), value.to_owned()));
        Setup { changes: Arc::new(all), runs: self.runs.clone() }
    }

    /// The plans as they are, with the runs made so far.
    pub(super) fn unchanged(&self) -> Setup {
        Setup { changes: Arc::default(), runs: self.runs.clone() }
    }

    pub(super) fn is_switched(&self, name: &str) -> bool {
        self.changes.is_switched(name)
    }
}
