//! Searches along an axis: the first or last value at which conditions hold, by bisection.
//!
//! ```text
//!   --find "cheapest link.lanes where read.p99 < 20us and iops >= 90% of interface=nvme"
//!           order    axis             metric   bound                bound relative to another point
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use plan::units::{parse_rate, parse_span};
use report::model::SweepPoint;
use report::sweep::{Metric, Number};

use crate::explain::pool;

use super::error::SweepError;
use super::results::Results;
use super::spec::Sweep;
use super::workers::{Effort, Progress, Runner};

#[derive(Clone, Debug, PartialEq)]
pub struct Find {
    text: String,
    /// The last value instead of the first one.
    last: bool,
    axis: usize,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
struct Condition {
    metric: Metric,
    test: Test,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Below,
    AtMost,
    Above,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
enum Bound {
    /// Per second, bytes per second or nanoseconds.
    Value(f64),
    /// This share of the metric at the point with this value of an axis instead.
    Share { share: f64, axis: usize, value: usize },
}

impl Test {
    fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Test::Below => value < bound,
            Test::AtMost => value <= bound,
            Test::Above => value > bound,
            Test::AtLeast => value >= bound,
        }
    }
}

const TESTS: [(&str, Test); 4] =
    [("<=", Test::AtMost), (">=", Test::AtLeast), ("<", Test::Below), (">", Test::Above)];
const FIRST: [&str; 3] = ["cheapest", "first", "lowest"];
const LAST: [&str; 2] = ["last", "highest"];

/// A point that a search ran or found in the results.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    pub value: String,
    pub point: u64,
    /// The metric of each condition; none: the point failed, or had no such operation.
    pub metrics: Vec<Option<f64>>,
    pub holds: bool,
}

/// Result of the search at one combination of the other axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The other axes with their values.
    pub at: Vec<(String, String)>,
    /// The value that was looked for; none: the conditions hold nowhere.
    pub value: Option<String>,
    /// The conditions hold before a value at which they do not: then all values were tried.
    pub is_monotone: bool,
    /// In the order of the axis.
    pub tried: Vec<Tried>,
}

/// The first place in `0..length` from which on a condition holds, by bisection. Tries the ends, and both
/// neighbours of the answer; if these show that the condition is not monotone, tries all places. Returns the
/// first place at which it holds, and whether it is monotone as far as it was tried.
///
/// # Errors
/// Of a try.
pub fn bisect<E>(
    length: usize,
    mut holds: impl FnMut(usize) -> Result<bool, E>,
) -> Result<(Option<usize>, bool), E> {
    let mut known: Vec<Option<bool>> = vec![None; length];
    let mut at = |place: usize| -> Result<bool, E> {
        if let Some(known) = known[place] {
            return Ok(known);
        }
        let found = holds(place)?;
        known[place] = Some(found);
        Ok(found)
    };
    let Some(last) = length.checked_sub(1) else { return Ok((None, true)) };
    let (first_holds, last_holds) = (at(0)?, at(last)?);
    let answer = match (first_holds, last_holds) {
        (true, _) => Some(0),
        (false, false) => None,
        (false, true) => {
            let (mut low, mut high) = (0, last);
            while low + 1 < high {
                let middle = low + (high - low) / 2;
                if at(middle)? { high = middle } else { low = middle }
            }
            Some(high)
        }
    };
    // The places beside the answer must agree with it.
    let boundary = answer.unwrap_or(length);
    let beside = [boundary.checked_sub(2), Some(boundary + 1)];
    for place in beside.into_iter().flatten().filter(|place| *place <= last) {
        at(place)?;
    }
    let is_ordered = |known: &[Option<bool>]| {
        let tried: Vec<bool> = known.iter().copied().flatten().collect();
        tried.is_sorted()
    };
    let is_monotone = is_ordered(&known);
    if is_monotone {
        return Ok((answer, true));
    }
    for (place, known) in known.iter_mut().enumerate() {
        if known.is_none() {
            *known = Some(holds(place)?);
        }
    }
    Ok((known.iter().position(|known| *known == Some(true)), false))
}

impl Sweep {
    /// Parses a search over an axis of this sweep.
    ///
    /// # Errors
    /// The text is no search, or names an axis, a value or a metric that is not there.
    pub fn find(&self, text: &str) -> Result<Find, SweepError> {
        let error = |found: &str, expected: String| SweepError::Find {
            text: text.to_owned(),
            found: found.to_owned(),
            expected,
        };
        if self.header.method != "grid" {
            return Err(error(&format!("method {}", self.header.method), "a grid".to_owned()));
        }
        let expected = "\"cheapest AXIS where METRIC < VALUE\"";
        let Some((head, conditions)) = text.split_once(" where ") else {
            return Err(error("no \" where \"", expected.to_owned()));
        };
        let Some((word, name)) = head.trim().split_once(' ') else {
            return Err(error(head, expected.to_owned()));
        };
        let last = LAST.contains(&word);
        if !last && !FIRST.contains(&word) {
            let words = FIRST.iter().chain(&LAST).copied().collect::<Vec<_>>().join(", ");
            return Err(error(word, format!("one of {words}")));
        }
        let axis = self.axis(name.trim()).ok_or_else(|| error(name.trim(), self.axes_words()))?;
        let numbers = &self.space.axes[axis].numbers;
        if ["lowest", "highest"].contains(&word) && !numbers.is_sorted() {
            let found = format!("{} with values that do not rise", name.trim());
            return Err(error(&found, "rising values, or cheapest, in their order".to_owned()));
        }
        let conditions = conditions.split(" and ").map(|one| {
            self.condition(one.trim(), axis).map_err(|(found, expected)| error(&found, expected))
        });
        Ok(Find {
            text: text.to_owned(),
            last,
            axis,
            conditions: conditions.collect::<Result<_, _>>()?,
        })
    }

    fn axis(&self, name: &str) -> Option<usize> {
        self.space.axes.iter().position(|axis| axis.name == name)
    }

    fn axes_words(&self) -> String {
        let names: Vec<&str> = self.space.axes.iter().map(|axis| axis.name.as_str()).collect();
        format!("one of the axes {}", names.join(", "))
    }

    fn condition(&self, text: &str, searched: usize) -> Result<Condition, (String, String)> {
        let sign = TESTS.iter().find_map(|(sign, test)| Some((text.split_once(sign)?, *test)));
        let Some(((metric, bound), test)) = sign else {
            return Err((text.to_owned(), "METRIC <, <=, > or >= VALUE".to_owned()));
        };
        let metric = Metric::named(metric.trim()).map_err(|error| {
            let words = error.to_string();
            let expected = words.split_once(", expected ").map_or("a metric", |(_, words)| words);
            (error.found.clone(), expected.to_owned())
        })?;
        let bound = bound.trim();
        let Some((share, place)) = bound.split_once(" of ") else {
            let expected = match metric.number {
                Number::Iops => "a rate, as in 100k or 1.5M",
                Number::Bandwidth => "bytes a second, as in \"2 GB/s\"",
                _ => "a time, as in 20us",
            };
            let value = value(metric.number, bound);
            let value = value.ok_or_else(|| (bound.to_owned(), expected.to_owned()))?;
            return Ok(Condition { metric, test, bound: Bound::Value(value) });
        };
        let share = share.trim().strip_suffix('%').and_then(|share| share.trim().parse().ok());
        let percent: f64 =
            share.ok_or_else(|| (bound.to_owned(), "90% of AXIS=VALUE".to_owned()))?;
        let (name, wanted) = place.split_once('=').unwrap_or((place, ""));
        let axis = self.axis(name.trim()).filter(|axis| *axis != searched);
        let axis = axis.ok_or_else(|| (name.trim().to_owned(), self.axes_words()))?;
        let values = &self.space.axes[axis].values;
        let value = values.iter().position(|value| value.text == wanted.trim());
        let value = value.ok_or_else(|| {
            let all: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
            (wanted.trim().to_owned(), format!("one of {}", all.join(", ")))
        })?;
        Ok(Condition { metric, test, bound: Bound::Share { share: percent / 100.0, axis, value } })
    }

    /// Searches at every combination of the other axes. The results have all points that it ran, and a
    /// whole sweep goes on from these.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn search(
        &self,
        find: &Find,
        results: &mut Results,
        effort: Effort,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Vec<Found>, SweepError> {
        let all = 0..self.space.points;
        let combinations: Vec<Vec<usize>> =
            all.clone().map(|point| self.space.at(point)).filter(|at| at[find.axis] == 0).collect();
        let runner = Runner::new(self, effort.memory_bytes, all, false);
        let shared = Mutex::new(Shared { results, progress });
        let found = pool::map(&combinations, effort.workers.max(1), |at| {
            let taken = RefCell::default();
            let search = Search { sweep: self, find, at, runner: &runner, shared: &shared, taken };
            let found = search.run();
            search.give_up_rest();
            found
        });
        let results = shared.into_inner().expect("no thread panics with the lock").results;
        results.finish()?;
        found.into_iter().collect()
    }
}

struct Shared<'r> {
    results: &'r mut Results,
    progress: &'r mut (dyn FnMut(Progress) + Send),
}

/// The search at one combination of the other axes.
struct Search<'s, 'r> {
    sweep: &'s Sweep,
    find: &'s Find,
    at: &'s [usize],
    runner: &'s Runner<'s>,
    shared: &'s Mutex<Shared<'r>>,
    /// Points that were run here.
    taken: RefCell<BTreeSet<u64>>,
}

impl Search<'_, '_> {
    fn run(&self) -> Result<Found, SweepError> {
        let (sweep, find) = (self.sweep, self.find);
        let axis = &sweep.space.axes[find.axis];
        let length = axis.values.len();
        let place = |turn: usize| if find.last { length - 1 - turn } else { turn };
        let mut tried: Vec<(usize, Tried)> = Vec::new();
        let mut each: BTreeMap<usize, Vec<bool>> = BTreeMap::new();
        let mut look = |turn: usize| {
            let value = place(turn);
            let (one, holds) = self.try_value(value)?;
            let all = one.holds;
            tried.push((value, one));
            each.insert(turn, holds);
            Ok::<bool, SweepError>(all)
        };
        let (mut answer, mut is_monotone) = bisect(length, &mut look)?;
        if answer.is_none() && is_monotone && pull_both_ways(&each, length) {
            // Between the ends all of them may hold.
            is_monotone = false;
            for turn in 0..length {
                let all = match each.get(&turn) {
                    Some(holds) => holds.iter().all(|holds| *holds),
                    None => {
                        let value = place(turn);
                        let (one, holds) = self.try_value(value)?;
                        tried.push((value, one));
                        holds.iter().all(|holds| *holds)
                    }
                };
                answer = answer.or(all.then_some(turn));
            }
        }
        tried.sort_by_key(|(value, _)| *value);
        let others = sweep.space.axes.iter().zip(self.at).enumerate();
        let others =
            others.filter(|(number, (axis, _))| *number != find.axis && axis.values.len() > 1);
        Ok(Found {
            at: others
                .map(|(_, (axis, place))| (axis.name.clone(), axis.values[*place].text.clone()))
                .collect(),
            value: answer.map(|turn| axis.values[place(turn)].text.clone()),
            is_monotone,
            tried: tried.into_iter().map(|(_, tried)| tried).collect(),
        })
    }

    /// Points of this combination that need not be run any more.
    fn give_up_rest(&self) {
        for value in 0..self.sweep.space.axes[self.find.axis].values.len() {
            let mut at = self.at.to_vec();
            at[self.find.axis] = value;
            let point = self.sweep.space.point(&at);
            if !self.taken.borrow().contains(&point) {
                self.runner.give_up(point);
            }
        }
    }

    /// A value, and whether each condition holds there.
    fn try_value(&self, value: usize) -> Result<(Tried, Vec<bool>), SweepError> {
        let mut at = self.at.to_vec();
        at[self.find.axis] = value;
        let point = self.sweep.space.point(&at);
        let here = self.point(point)?;
        let (mut metrics, mut holds) = (Vec::new(), Vec::new());
        for condition in &self.find.conditions {
            let of = |point: &SweepPoint| condition.metric.of(point.result.as_ref()?);
            let found = of(&here);
            let bound = match condition.bound {
                Bound::Value(value) => Some(value),
                Bound::Share { share, axis, value } => {
                    let mut other = at.clone();
                    other[axis] = value;
                    of(&self.point(self.sweep.space.point(&other))?).map(|found| share * found)
                }
            };
            let both = found.zip(bound);
            holds.push(both.is_some_and(|(found, bound)| condition.test.holds(found, bound)));
            metrics.push(found);
        }
        let value = self.sweep.space.axes[self.find.axis].values[value].text.clone();
        let all = holds.iter().all(|holds| *holds);
        Ok((Tried { value, point, metrics, holds: all }, holds))
    }

    /// The result of a point, from the file or by running it.
    fn point(&self, point: u64) -> Result<SweepPoint, SweepError> {
        let shared = || self.shared.lock().expect("no thread panics with the lock");
        if let Some(known) = shared().results.get(point) {
            return Ok(known.clone());
        }
        let line = self.runner.run(point);
        self.taken.borrow_mut().insert(point);
        let mut shared = shared();
        // Another search may have run it too, with the same result.
        if !shared.results.has(point) {
            shared.results.append(line.clone())?;
        }
        let (done, failed) = shared.results.counts();
        (shared.progress)(Progress { done, of: self.sweep.space.points, failed });
        Ok(line)
    }
}

/// True if one condition holds at the first value alone and another at the last alone.
fn pull_both_ways(each: &BTreeMap<usize, Vec<bool>>, length: usize) -> bool {
    let Some((first, last)) = each.get(&0).zip(each.get(&(length - 1))) else { return false };
    let ends = || first.iter().zip(last);
    ends().any(|(first, last)| *first && !last) && ends().any(|(first, last)| !first && *last)
}

impl Find {
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn metrics(&self) -> Vec<Metric> {
        self.conditions.iter().map(|condition| condition.metric).collect()
    }
}

/// A bound in the unit of the metric: nanoseconds, per second, bytes per second.
fn value(number: Number, text: &str) -> Option<f64> {
    match number {
        Number::Iops => {
            let (digits, times) = match text.char_indices().last()? {
                (at, 'k' | 'K') => (&text[..at], 1e3),
                (at, 'M') => (&text[..at], 1e6),
                _ => (text, 1.0),
            };
            digits.trim().parse::<f64>().ok().map(|value| value * times)
        }
        Number::Bandwidth => parse_rate(text).ok().map(|rate| rate as f64),
        _ => parse_span(text).ok().map(|span| span.0 as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sequence: &[bool]) -> ((Option<usize>, bool), usize) {
        let mut tries = 0;
        let found = bisect(sequence.len(), |place| {
            tries += 1;
            Ok::<bool, ()>(sequence[place])
        });
        (found.unwrap(), tries)
    }

    #[test]
    fn bisection_finds_the_first_place_of_every_monotone_sequence() {
        for length in 0..40 {
            for boundary in 0..=length {
                let sequence: Vec<bool> = (0..length).map(|place| place >= boundary).collect();
                let ((found, is_monotone), tries) = of(&sequence);
                assert_eq!(found, (boundary < length).then_some(boundary), "{sequence:?}");
                assert!(is_monotone);
                let log = usize::BITS - length.leading_zeros();
                assert!(tries <= log as usize + 4, "{tries} tries of {length}");
            }
        }
    }

    /// Every sequence of up to ten places: an answer that is called monotone agrees with all that was tried,
    /// another is the first place of all.
    #[test]
    fn sequences_that_are_seen_not_to_be_monotone_are_tried_whole() {
        let mut seen = 0;
        for length in 1..=10_usize {
            for bits in 0..1_u32 << length {
                let sequence: Vec<bool> = (0..length).map(|place| bits >> place & 1 == 1).collect();
                let ((found, is_monotone), tries) = of(&sequence);
                if let Some(found) = found {
                    assert!(sequence[found]);
                }
                if !is_monotone {
                    seen += 1;
                    assert_eq!(tries, length);
                    assert_eq!(found, sequence.iter().position(|holds| *holds));
                }
                if sequence.is_sorted() {
                    assert!(is_monotone);
                }
            }
        }
        assert!(seen > 500, "{seen}");
    }

    #[test]
    fn bounds_are_in_the_unit_of_the_metric() {
        assert_eq!(value(Number::P99, "20us"), Some(20_000.0));
        assert_eq!(value(Number::Iops, "1.5M"), Some(1_500_000.0));
        assert_eq!(value(Number::Bandwidth, "2 GB/s"), Some(2e9));
        assert_eq!(value(Number::P99, "20"), None);
    }
}
