//! Changes to plans, and results of runs.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::ExhibitError;

type Text = &'static str;

/// One setting of a changed model.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// A key of a plan, beneath the settings of the exhibit. Without a plan: of every plan.
    Plan(Option<&'static str>, Text, Text),
    /// A key of every plan, over the settings of the exhibit.
    Always(Text, Text),
    /// A key, where the exhibit sets it to the first of these values: the second.
    Instead(Text, Text, Text),
    /// A switch that the exhibit reads.
    Switch(&'static str),
}

/// A key of every plan, beneath the settings of the exhibit.
pub(super) const fn set(key: &'static str, value: &'static str) -> Change {
    Change::Plan(None, key, value)
}

/// A key of this plan, beneath the settings of the exhibit.
pub(super) const fn of(plan: &'static str, key: &'static str, value: &'static str) -> Change {
    Change::Plan(Some(plan), key, value)
}

/// A key of every plan, over the settings of the exhibit.
pub(super) const fn always(key: &'static str, value: &'static str) -> Change {
    Change::Always(key, value)
}

/// A key, where the exhibit sets it to `from`.
pub(super) const fn instead(key: &'static str, from: &'static str, to: &'static str) -> Change {
    Change::Instead(key, from, to)
}

type Cell = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

/// Results of runs by plan, settings and load: exhibits share many of them.
#[derive(Default)]
pub(super) struct Runs(Mutex<HashMap<String, Cell>>);

impl Runs {
    /// The result of this run, which is made if it has not been made before.
    pub fn get<T: Clone + Send + 'static>(
        &self,
        run: String,
        make: impl FnOnce() -> Result<T, ExhibitError>,
    ) -> Result<T, ExhibitError> {
        let cell = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(run).or_default().clone()
        };
        // Only this run is locked meanwhile, so that two threads do not make it twice.
        let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cell.as_ref().and_then(|known| known.downcast_ref::<T>()) {
            return Ok(known.clone());
        }
        let made = make()?;
        *cell = Some(Box::new(made.clone()));
        Ok(made)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Keys and values that the caller sets, beneath all others; those of `medium.flash` where a plan has it.
    pub sets: Vec<(String, String)>,
    pub all: Vec<Change>,
    /// Plan, key and value of each varied cost.
    pub costs: Vec<(&'static str, String, String)>,
}

impl Changes {
    pub fn is_switched(&self, name: &str) -> bool {
        self.switches().any(|on| on == name)
    }

    pub fn switches(&self) -> impl Iterator<Item = &'static str> {
        self.all.iter().filter_map(|change| match change {
            Change::Switch(name) => Some(*name),
            _ => None,
        })
    }
}
