//! A plan fitted to measurements of a drive.
//!
//! ```text
//!   table ─► runs ─┬─► fitted ──► search over keys of the plan ─► values ─┬─► report with standard errors
//!                  └─► held out ───────────────────────────────► error ───┤
//!                                                                         └─► a plan over its base
//! ```
//!
//! The runs are those of [`crate::validate`], shorter. A quarter of the loads is held out by a seed: the
//! search does not see them, and the error on them shows whether the values hold elsewhere.

mod file;
mod keys;
mod least_squares;
mod search;
pub mod text;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plan::{Plan, PlanErrors};
use runtime::Rng;
use serde::Serialize;
use world::device::FlashState;

use crate::explain::pool;
use crate::validate::compare::{Compared, Shares};
use crate::validate::{self, Figure, Length, Run, Runs, Table, ValidateError};

pub use file::of_fit;
pub use keys::Key;
use search::{Errors, Found};

/// The keys, the loads and the length of a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Keys to search; none: those of the plan's kind of drive.
    pub keys: Vec<Key>,
    /// Operations of each run; the rows that are run.
    pub length: Length,
    /// Most plans to try, but for those of the round that passes it.
    pub tries: usize,
    /// Part of the loads that are held out, in per cent.
    pub held_percent: u64,
    /// Chooses the loads that are held out.
    pub seed: u64,
    /// Number of threads; the result does not depend on it.
    pub threads: usize,
}

/// Plans that were tried so far.
pub type Progress<'a> = &'a (dyn Fn(usize) + Sync);

/// A fit and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The drive by the name of its table.
    pub table: String,
    /// The plan that the search began with, by its key `name`.
    pub plan: String,
    pub seed: u64,
    pub tries: usize,
    pub keys: Vec<Value>,
    pub fitted: Agreement,
    pub held: Agreement,
    /// Rows that were not run, by reason.
    pub left_out: Vec<validate::Reason>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    pub key: String,
    pub from: String,
    pub to: String,
    /// The value is at an end of the key's range: others beyond it may agree better.
    pub is_at_end: bool,
    pub precision: Precision,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Its standard error in per cent, with all other keys fitted as well.
    Determined { percent: f64 },
    /// The standard error is above [`DETERMINED_PERCENT`]. `confounded_with` is the key whose effect is most
    /// correlated with that of this one, if a change of it can compensate for a change of this one.
    Uncertain { percent: f64, confounded_with: Option<String> },
    /// The figures change by less than 0.1 % (root mean square) if the value changes by 10 %.
    NoEffect,
}

/// Agreement with rows before and after.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Agreement {
    pub rows: usize,
    pub before: Shares,
    pub after: Shares,
    /// Half of the errors are smaller, in per cent, of rates, means, p50 and p99 together; none: no row.
    pub median_before: Option<f64>,
    pub median_after: Option<f64>,
}

/// A value is determined by the rows if its standard error is at most this.
pub const DETERMINED_PERCENT: f64 = 10.0;

/// Why there is no fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    #[error(transparent)]
    Validate(#[from] ValidateError),
    /// A key, as it was given.
    #[error("--key: found {found}, expected {expected}")]
    Key { found: String, expected: &'static str },
    /// The plan refuses the values of the start.
    #[error(transparent)]
    Plan(#[from] PlanErrors),
    /// The rows that are left do not suffice.
    #[error("{table}: found {found}, expected a row at least that can be run and is not held out")]
    NoRow { table: String, found: String },
    /// All runs of the start fail.
    #[error("{table}: every run fails with the plan as it is: {why}")]
    Start { table: String, why: String },
}

/// Long enough for p99: 40 of 4,000 operations are above it.
pub const LENGTH: Length = Length { operations: 4_000, for_each_in_flight: 12, only: None };
/// Figures that are fitted. So few operations are above p99.9 that chance moves it.
const OF: [Figure; 4] = [Figure::Iops, Figure::Mean, Figure::P50, Figure::P99];
/// Error of a figure of which the model has none: its run failed.
const FAILED: f64 = 3.0;
/// Spread of measurements that no plan can go below: two drives of one model differ by 1 to 4 %.
const SPREAD: f64 = 0.02;
/// Change of the figures for a change of a key, both as logarithms, below which the key has no effect.
const NO_EFFECT: f64 = 0.01;
/// Correlation of effects from which on one key can compensate for another.
const CORRELATED: f64 = 0.9;

/// Fits keys of a plan to the rows of a table.
///
/// # Errors
/// The plan cannot be run, a key is none, or there are no rows to fit.
pub fn fit(
    plan: &Plan,
    table: &Table,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Fit, FitError> {
    validate::check(plan)?;
    let keys = if options.keys.is_empty() { Key::of_plan(plan) } else { options.keys.clone() };
    let Runs { runs, left_out } = Runs::of(table, plan, options.length);
    let (fitted, held) = divided(&runs, options);
    if fitted.is_empty() {
        let (rows, held) = (table.rows.len(), held.len());
        let found = format!("{rows} rows, {held} of their loads held out");
        return Err(FitError::NoRow { table: table.name.clone(), found });
    }
    let bench = Bench {
        plan,
        keys: &keys,
        threads: options.threads,
        known: Mutex::default(),
        states: Mutex::default(),
        tried: AtomicUsize::new(0),
        progress,
    };
    let start: Vec<f64> = keys.iter().map(|key| key.start(plan)).collect();
    let sets = bench.sets(&start);
    let first = plan.with_sets(sets.iter().map(|(key, value)| (key.as_str(), value.as_str())))?;
    validate::check(&first)?;
    let bounds: Vec<_> = keys.iter().map(Key::bounds).collect();
    let attempt = |places: &[Vec<f64>]| bench.errors(&fitted, places);
    let [of_start] = &attempt(std::slice::from_ref(&start))[..] else { unreachable!("one place") };
    if of_start.iter().flatten().all(|error| *error == FAILED) {
        let failure = |run: &&Run<'_>| run.compared(&first, None).err();
        let why = fitted.iter().find_map(failure).unwrap_or_else(|| "no figures".to_owned());
        return Err(FitError::Start { table: table.name.clone(), why });
    }
    let found = search::search(&bounds, start.clone(), options.tries, &attempt)
        .expect("the start has errors");
    let values = bench.values(&found, &start);
    let agreement = |runs: &[&Run<'_>]| bench.agreement(runs, [&start, &found.place]);
    Ok(Fit {
        table: table.name.clone(),
        plan: plan.name.clone(),
        seed: options.seed,
        tries: bench.tried.load(Ordering::Relaxed),
        keys: values,
        fitted: agreement(&fitted),
        held: agreement(&held),
        left_out: validate::reasons(left_out),
    })
}

/// The loads that are fitted, and those that are held out.
fn divided<'r, 't>(runs: &'r [Run<'t>], options: &Options) -> (Vec<&'r Run<'t>>, Vec<&'r Run<'t>>) {
    let mut rng = Rng::new(options.seed);
    runs.iter().partition(|_| rng.below(100) >= options.held_percent)
}

/// Settings of a plan: keys and values.
type Sets = Vec<(String, String)>;

/// Runs plans, and keeps what is known of them.
struct Bench<'a> {
    plan: &'a Plan,
    keys: &'a [Key],
    threads: usize,
    known: Mutex<HashMap<Sets, Errors>>,
    /// Drives as they begin, by the values that they depend on; those of the last batch.
    states: Mutex<HashMap<Sets, Option<FlashState>>>,
    tried: AtomicUsize,
    progress: Progress<'a>,
}

impl Bench<'_> {
    fn sets(&self, place: &[f64]) -> Sets {
        let each = self.keys.iter().zip(place);
        each.map(|(key, at)| (key.name.clone(), key.text(*at))).collect()
    }

    fn opened(&self, sets: &Sets) -> Option<Plan> {
        let each = sets.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let plan = self.plan.with_sets(each).ok()?;
        validate::check(&plan).ok()?;
        Some(plan)
    }

    /// The values that the drive depends on as it begins.
    fn of_state(&self, sets: &Sets) -> Sets {
        let each = self.keys.iter().zip(sets);
        each.filter(|(key, _)| key.is_of_state()).map(|(_, set)| set.clone()).collect()
    }

    /// Errors of these places, in the order of the rows.
    fn errors(&self, runs: &[&Run<'_>], places: &[Vec<f64>]) -> Vec<Errors> {
        let all: Vec<Sets> = places.iter().map(|place| self.sets(place)).collect();
        let mut new: Vec<(Sets, Plan)> = Vec::new();
        for sets in &all {
            let is_known = self.known.lock().expect("no thread panics").contains_key(sets);
            if !is_known && new.iter().all(|(other, _)| other != sets) {
                match self.opened(sets) {
                    Some(plan) => new.push((sets.clone(), plan)),
                    None => self.keep(sets, None),
                }
            }
        }
        self.prepare(&new);
        let states = self.states.lock().expect("no thread panics");
        let errors = pool::map(&new, self.threads, |(sets, plan)| {
            let state = states.get(&self.of_state(sets)).and_then(Option::as_ref);
            let errors = runs.iter().flat_map(|run| errors_of(run, &run.compared(plan, state)));
            let errors = errors.collect();
            (self.progress)(self.tried.fetch_add(1, Ordering::Relaxed) + 1);
            errors
        });
        drop(states);
        for ((sets, _), errors) in new.iter().zip(errors) {
            self.keep(sets, Some(errors));
        }
        let known = self.known.lock().expect("no thread panics");
        all.iter().map(|sets| known[sets].clone()).collect()
    }

    fn keep(&self, sets: &Sets, errors: Errors) {
        self.known.lock().expect("no thread panics").insert(sets.clone(), errors);
    }

    /// Makes the drives that these plans begin with, and drops all others.
    fn prepare(&self, plans: &[(Sets, Plan)]) {
        let mut wanted: Vec<(Sets, &Plan)> = Vec::new();
        for (sets, plan) in plans {
            let of_state = self.of_state(sets);
            if wanted.iter().all(|(other, _)| *other != of_state) {
                wanted.push((of_state, plan));
            }
        }
        let mut states = self.states.lock().expect("no thread panics");
        states.retain(|sets, _| wanted.iter().any(|(other, _)| other == sets));
        wanted.retain(|(sets, _)| !states.contains_key(sets));
        // A drive that cannot be made fails in its runs, which say why.
        let made =
            pool::map(&wanted, self.threads, |(_, plan)| validate::prepared(plan).ok().flatten());
        states.extend(wanted.into_iter().map(|(sets, _)| sets).zip(made));
    }

    fn values(&self, found: &Found, start: &[f64]) -> Vec<Value> {
        let errors = &found.errors;
        let weights = search::weights(errors);
        let (sum, squares) = errors
            .iter()
            .zip(&weights)
            .fold((0.0, 0.0), |(sum, squares), of| (sum + of.1, squares + of.1 * of.0 * of.0));
        let spread = (squares / f64::max(sum, 1.0)).sqrt().max(SPREAD);
        let effective = |at: &usize| found.slopes.effect(&weights, *at) >= NO_EFFECT;
        let with_effect: Vec<usize> = (0..self.keys.len()).filter(effective).collect();
        let columns = with_effect.iter().map(|at| found.slopes.columns[*at].clone()).collect();
        let slopes = least_squares::Slopes { columns };
        let variances = slopes.variances(&weights);
        let precision = |at: usize| {
            let Some(of) = with_effect.iter().position(|other| *other == at) else {
                return Precision::NoEffect;
            };
            let error = variances.as_ref().map_or(f64::INFINITY, |all| all[of].max(0.0).sqrt());
            let percent = (100.0 * spread * error).min(999.0);
            if percent <= DETERMINED_PERCENT {
                return Precision::Determined { percent };
            }
            let others = (0..with_effect.len()).filter(|other| *other != of);
            let correlation = |other: usize| slopes.correlation(&weights, (of, other)).abs();
            let most = others.max_by(|a, b| correlation(*a).total_cmp(&correlation(*b)));
            let with = most.filter(|other| correlation(*other) >= CORRELATED);
            let with = with.map(|other| self.keys[with_effect[other]].name.clone());
            Precision::Uncertain { percent, confounded_with: with }
        };
        let each = self.keys.iter().enumerate();
        each.map(|(at, key)| Value {
            key: key.name.clone(),
            from: key.text(start[at]),
            to: key.text(found.place[at]),
            is_at_end: key.is_at_end(found.place[at]),
            precision: precision(at),
        })
        .collect()
    }

    /// Agreement with these rows at two places.
    fn agreement(&self, runs: &[&Run<'_>], places: [&Vec<f64>; 2]) -> Agreement {
        let rows = places.map(|place| self.rows(runs, place));
        let [before, after] = &rows;
        Agreement {
            rows: runs.iter().map(|run| run.rows.len()).sum(),
            before: Shares::of(before),
            after: Shares::of(after),
            median_before: median(before),
            median_after: median(after),
        }
    }

    fn rows(&self, runs: &[&Run<'_>], place: &[f64]) -> Vec<Compared> {
        let sets = self.sets(place);
        let Some(plan) = self.opened(&sets) else { return Vec::new() };
        let of_plan = [(sets, plan)];
        self.prepare(&of_plan);
        let [(sets, plan)] = &of_plan;
        let states = self.states.lock().expect("no thread panics");
        let state = states.get(&self.of_state(sets)).and_then(Option::as_ref);
        let results = pool::map(runs, self.threads, |run| run.compared(plan, state));
        results.into_iter().flatten().flatten().collect()
    }
}

/// Errors of a run's rows: of each figure that was measured.
fn errors_of(run: &Run<'_>, result: &Result<Vec<Compared>, String>) -> Vec<f64> {
    let each = run.rows.iter().enumerate().flat_map(|(at, (row, _))| {
        let measured = OF.into_iter().filter(|figure| row.measured.of(*figure).is_some());
        measured.map(move |figure| (at, figure))
    });
    let ratio = |(at, figure): (usize, Figure)| {
        let of_row = &result.as_ref().ok()?[at];
        of_row.ratio.of(figure).filter(|ratio| *ratio > 0.0)
    };
    each.map(|of| ratio(of).map_or(FAILED, f64::ln)).collect()
}

/// The middle of all errors of these rows, in per cent.
fn median(rows: &[Compared]) -> Option<f64> {
    let each = rows.iter().flat_map(|row| OF.map(|figure| row.ratio.of(figure)));
    let mut errors: Vec<f64> = each.flatten().map(|ratio| 100.0 * (ratio - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied()
}
