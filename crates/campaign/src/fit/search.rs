//! The search: from coarse places of each key alone to steps of all keys at once.
//!
//! ```text
//!   start ─► one key after another at 3 places of its range ─► round ─► … ─► best
//!                                                              ├► each key moved a little: slopes
//!                          ▲                                   └► steps by them, and of all that helped
//!                          └──── each key elsewhere in its range, the others after it ◄─┘
//! ```
//!
//! A place is the logarithms of the values. All places of a batch are tried at once, and which they are does
//! not depend on the number of threads.

use super::least_squares::Slopes;

/// Errors of a place: logarithms of model over measured, in the same order for every place. None: the keys do
/// not make a plan.
pub(super) type Errors = Option<Vec<f64>>;

/// Tries places, in their order.
pub(super) type Try<'a> = &'a dyn Fn(&[Vec<f64>]) -> Vec<Errors>;

/// Bounds of a key, as logarithms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub from: f64,
    pub to: f64,
    /// Values are whole numbers, so that a small step may be none.
    pub is_whole: bool,
}

/// The best place, and the slopes around it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub place: Vec<f64>,
    pub errors: Vec<f64>,
    /// Slopes at the end, each from a step to both sides.
    pub slopes: Slopes,
}

/// An error, as a logarithm, from which on it counts for less and less: rows with another mechanism than the
/// model's do not decide.
const SCALE: f64 = 0.15;
/// Places of a key's range that are tried first, as parts of its logarithmic length.
const COARSE: [f64; 3] = [0.25, 0.5, 0.75];
/// Places of a key's range from which the search begins again, as parts of its logarithmic length.
const ELSEWHERE: usize = 8;
/// After them the better place is kept.
const ROUNDS: usize = 4;
/// The first step of a round, and the one at which the search ends.
const FIRST_STEP: f64 = 0.15;
const LAST_STEP: f64 = 0.02;
/// Longest step by slopes, for each key.
const LONGEST: f64 = 1.0;
const DAMPINGS: [f64; 3] = [0.001, 0.1, 1.0];
/// A gain below this part is none.
const GAIN: f64 = 0.002;
/// The step to both sides that gives the last slopes.
const PROBE: f64 = 0.1;

/// Mean loss of errors: their squares where they are small, growing slowly where they are large.
pub(super) fn loss(errors: &[f64]) -> f64 {
    let each = errors.iter().map(|error| (error / SCALE).powi(2).ln_1p());
    each.sum::<f64>() / errors.len().max(1) as f64
}

/// Weight of each error: what makes least squares of the next step agree with [`loss`].
pub(super) fn weights(errors: &[f64]) -> Vec<f64> {
    errors.iter().map(|error| 1.0 / (1.0 + (error / SCALE).powi(2))).collect()
}

struct Search<'a> {
    bounds: &'a [Bounds],
    attempt: Try<'a>,
    place: Vec<f64>,
    errors: Vec<f64>,
    tries: usize,
}

/// Searches from a place within the bounds, with about `most` tries. None: the start makes no plan.
pub(super) fn search(
    bounds: &[Bounds],
    start: Vec<f64>,
    most: usize,
    attempt: Try<'_>,
) -> Option<Found> {
    let first = attempt(std::slice::from_ref(&start)).pop().flatten()?;
    let mut search = Search { bounds, attempt, place: start, errors: first, tries: 1 };
    search.coarse();
    // The last slopes take a try to each side of each key.
    let most = most.saturating_sub(2 * bounds.len());
    search.descend(usize::MAX, most);
    search.leave_optimum(most);
    search.descend(usize::MAX, most);
    let slopes = search.slopes_of_both_sides();
    Some(Found { place: search.place, errors: search.errors, slopes })
}

impl Search<'_> {
    /// One key after another at places of its range, each from the best place so far.
    fn coarse(&mut self) {
        for key in 0..self.bounds.len() {
            let Bounds { from, to, .. } = self.bounds[key];
            let at = |part: f64| {
                let mut place = self.place.clone();
                place[key] = from + part * (to - from);
                place
            };
            let places: Vec<_> = COARSE.map(at).into();
            let errors = self.all(&places);
            self.take_best(places, errors);
        }
    }

    /// Rounds, with steps that shorten, at most this number and while there are tries left.
    fn descend(&mut self, rounds: usize, most: usize) {
        let (mut step, mut signs) = (FIRST_STEP, vec![1.0; self.bounds.len()]);
        let mut failed = 0;
        for _ in 0..rounds {
            if step < LAST_STEP || self.tries >= most {
                break;
            }
            failed = if self.round(step, &mut signs) { 0 } else { failed + 1 };
            // Both signs were tried.
            if failed == 2 {
                (step, failed) = (step / 2.0, 0);
            }
        }
    }

    /// Searches again with one key after another elsewhere in its range: two keys that limit the same rate
    /// hold each other, so that a change of either alone is worse.
    fn leave_optimum(&mut self, most: usize) {
        for key in 0..self.bounds.len() {
            if self.tries >= most {
                break;
            }
            let here = (self.place.clone(), self.errors.clone());
            let Some(there) = self.elsewhere(key) else { continue };
            (self.place, self.errors) = there;
            self.descend(ROUNDS, most);
            if loss(&self.errors) >= loss(&here.1) {
                (self.place, self.errors) = here;
            }
        }
    }

    /// The best place with this key elsewhere; none: it has no effect.
    fn elsewhere(&mut self, key: usize) -> Option<(Vec<f64>, Vec<f64>)> {
        let Bounds { from, to, is_whole } = self.bounds[key];
        let parts = (0..ELSEWHERE).map(|part| (part as f64 + 0.5) / ELSEWHERE as f64);
        let mut values: Vec<f64> = parts.map(|part| from + part * (to - from)).collect();
        if is_whole {
            let here = self.place[key].exp().round();
            values = values.into_iter().map(|value| value.exp().round()).collect();
            values.extend([here - 1.0, here + 1.0]);
            values.retain(|value| *value >= 1.0 && *value != here);
            values.sort_by(f64::total_cmp);
            values.dedup();
            values =
                values.into_iter().map(f64::ln).filter(|at| (from..=to).contains(at)).collect();
        }
        values.retain(|value| (value - self.place[key]).abs() > FIRST_STEP);
        let at = |value: &f64| {
            let mut place = self.place.clone();
            place[key] = *value;
            place
        };
        let places: Vec<_> = values.iter().map(at).collect();
        let errors = self.all(&places);
        let has_effect = |errors: &Vec<f64>| (loss(errors) / loss(&self.errors) - 1.0).abs() > GAIN;
        let each =
            places.into_iter().zip(errors).filter_map(|(place, errors)| Some((place, errors?)));
        each.filter(|(_, errors)| has_effect(errors))
            .min_by(|(_, a), (_, b)| loss(a).total_cmp(&loss(b)))
    }

    /// Moves each key alone by a step, then tries steps of all keys. Whether something was gained.
    fn round(&mut self, step: f64, signs: &mut [f64]) -> bool {
        let before = loss(&self.errors);
        let places: Vec<_> =
            (0..signs.len()).map(|key| self.moved(key, signs[key] * step)).collect();
        let errors = self.all(&places);
        let mut columns = Vec::new();
        let mut together = self.place.clone();
        for (key, (place, errors)) in places.iter().zip(&errors).enumerate() {
            let by = place[key] - self.place[key];
            columns.push(self.slope(errors, by).unwrap_or_else(|| self.flat()));
            if errors.as_ref().is_some_and(|errors| loss(errors) < before) {
                together[key] = place[key];
            } else {
                signs[key] = -signs[key];
            }
        }
        let slopes = Slopes { columns };
        let weights = weights(&self.errors);
        let steps = DAMPINGS.iter().filter_map(|damping| {
            let step = slopes.step(&self.errors, &weights, *damping)?;
            let each = self.place.iter().zip(step);
            let place = each.map(|(at, by)| at + by.clamp(-LONGEST, LONGEST)).collect();
            Some(self.within(place))
        });
        let next: Vec<_> = steps.chain([together]).collect();
        let of_next = self.all(&next);
        let places = places.into_iter().chain(next).collect();
        self.take_best(places, errors.into_iter().chain(of_next).collect())
    }

    fn all(&mut self, places: &[Vec<f64>]) -> Vec<Errors> {
        self.tries += places.len();
        (self.attempt)(places)
    }

    /// Goes to the best of these places if it is better than the present one. Whether it gained.
    fn take_best(&mut self, places: Vec<Vec<f64>>, errors: Vec<Errors>) -> bool {
        let before = loss(&self.errors);
        for (place, errors) in places.into_iter().zip(errors) {
            let Some(errors) = errors else { continue };
            if loss(&errors) < loss(&self.errors) {
                (self.place, self.errors) = (place, errors);
            }
        }
        loss(&self.errors) < before * (1.0 - GAIN)
    }

    /// The place with a key moved: to the other side if it is at its bound, and a whole number by 1 at least.
    fn moved(&self, key: usize, by: f64) -> Vec<f64> {
        let Bounds { from, to, is_whole } = self.bounds[key];
        let at = self.place[key];
        let towards = |by: f64| {
            let there = at + by;
            let next = (at.exp().round() + by.signum()).max(1.0).ln();
            let there = match is_whole {
                true if by > 0.0 => there.max(next),
                true => there.min(next),
                false => there,
            };
            there.clamp(from, to)
        };
        let there = towards(by);
        let mut place = self.place.clone();
        place[key] = if (there - at).abs() > by.abs() / 4.0 { there } else { towards(-by) };
        place
    }

    fn within(&self, mut place: Vec<f64>) -> Vec<f64> {
        for (value, bounds) in place.iter_mut().zip(self.bounds) {
            *value = value.clamp(bounds.from, bounds.to);
        }
        place
    }

    /// Change of the errors for a change of 1. None: the value makes no plan, or did not move.
    fn slope(&self, errors: &Errors, by: f64) -> Option<Vec<f64>> {
        let errors = errors.as_ref().filter(|_| by != 0.0)?;
        Some(errors.iter().zip(&self.errors).map(|(there, here)| (there - here) / by).collect())
    }

    fn flat(&self) -> Vec<f64> {
        vec![0.0; self.errors.len()]
    }

    fn slopes_of_both_sides(&mut self) -> Slopes {
        let keys = 0..self.bounds.len();
        let places: Vec<_> =
            keys.flat_map(|key| [PROBE, -PROBE].map(|by| self.moved(key, by))).collect();
        let errors = self.all(&places);
        let columns = places.chunks(2).zip(errors.chunks(2)).enumerate();
        let columns = columns.map(|(key, (places, errors))| {
            let by = [0, 1].map(|side| places[side][key] - self.place[key]);
            match [0, 1].map(|side| self.slope(&errors[side], by[side])) {
                [Some(up), Some(down)] => {
                    up.iter().zip(down).map(|(up, down)| f64::midpoint(*up, down)).collect()
                }
                // On one side there is no plan.
                [one, other] => one.or(other).unwrap_or_else(|| self.flat()),
            }
        });
        Slopes { columns: columns.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Bounds = Bounds { from: 0.0, to: 6.0, is_whole: false };

    /// Figures of a drive of ours: a latency a + b, a rate limited by a or by c, and one by b alone.
    fn figures(place: &[f64]) -> Vec<f64> {
        let [a, b, c] = [place[0].exp(), place[1].exp(), place[2].exp()];
        vec![(a + b).ln(), -(a.max(c)).ln(), (3.0 * b).ln(), (a + 8.0 * b).ln()]
    }

    fn against(truth: &[f64]) -> impl Fn(&[Vec<f64>]) -> Vec<Errors> {
        let measured = figures(truth);
        move |places: &[Vec<f64>]| {
            let errors = |place: &Vec<f64>| {
                let each = figures(place).into_iter().zip(&measured);
                Some(each.map(|(model, measured)| model - measured).collect())
            };
            places.iter().map(errors).collect()
        }
    }

    /// The weighted square of an error grows with it as the loss does.
    #[test]
    fn weights_are_the_slope_of_the_loss() {
        for error in [0.01, 0.15, 0.6, -1.5] {
            let slope = (loss(&[error + 1e-6]) - loss(&[error - 1e-6])) / 2e-6;
            let of_weight = weights(&[error])[0] * 2.0 * error / SCALE.powi(2);
            assert!((slope / of_weight - 1.0).abs() < 1e-4, "{error}: {slope}, {of_weight}");
        }
    }

    #[test]
    fn hidden_values_are_found_and_one_without_effect_stays() {
        // c is far below a, so that nothing depends on it.
        let truth = [4.1, 2.3, 0.5];
        let (attempt, tries) = (against(&truth), std::cell::Cell::new(0));
        let counted = |places: &[Vec<f64>]| {
            tries.set(tries.get() + places.len());
            attempt(places)
        };
        let found = search(&[WIDE; 3], vec![1.0, 5.0, 0.4], 400, &counted).expect("a plan");
        assert!((found.place[0] - truth[0]).abs() < 0.02, "{found:?}");
        assert!((found.place[1] - truth[1]).abs() < 0.02, "{found:?}");
        // A round may pass the limit.
        assert!((50..410).contains(&tries.get()), "{}", tries.get());
        let weights = weights(&found.errors);
        assert_eq!(found.slopes.effect(&weights, 2), 0.0);
        assert!(found.slopes.effect(&weights, 0) > 0.3);
    }

    /// Rates by the slower of two parts: where the first explains most rows, the second has no effect.
    #[test]
    fn key_that_another_hides_is_found() {
        let rates = |place: &[f64]| -> Vec<f64> {
            let [a, b] = [place[0], place[1]];
            (0..6).map(|row| a.max(b + f64::from(row) * 0.3)).collect()
        };
        let measured = rates(&[2.4, 2.2]);
        let attempt = |places: &[Vec<f64>]| -> Vec<Errors> {
            let errors = |of: Vec<f64>| of.iter().zip(&measured).map(|(a, b)| a - b).collect();
            places.iter().map(|place| Some(errors(rates(place)))).collect()
        };
        let found = search(&[WIDE; 2], vec![2.6, 0.1], 400, &attempt).expect("a plan");
        assert!((found.place[0] - 2.4).abs() < 0.02, "{found:?}");
        assert!((found.place[1] - 2.2).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn one_row_of_another_mechanism_does_not_decide() {
        let truth = [4.1, 2.3, 0.5];
        let attempt = against(&truth);
        let wrong = |places: &[Vec<f64>]| {
            let mut all = attempt(places);
            for errors in all.iter_mut().flatten() {
                errors.push(4.0 + errors[0]);
            }
            all
        };
        let found = search(&[WIDE; 3], vec![3.0, 3.0, 0.4], 400, &wrong).expect("a plan");
        assert!((found.place[0] - truth[0]).abs() < 0.1, "{found:?}");
    }

    #[test]
    fn whole_numbers_move_by_one_and_bounds_are_kept() {
        let whole = Bounds { from: 0.0, to: 16_f64.ln(), is_whole: true };
        let seen = std::cell::RefCell::new(Vec::new());
        let attempt = |places: &[Vec<f64>]| -> Vec<Errors> {
            let number = |place: &Vec<f64>| place[0].exp().round();
            seen.borrow_mut().extend(places.iter().map(number));
            places.iter().map(|place| Some(vec![(number(place) / 5.0).ln()])).collect()
        };
        let found = search(&[whole], vec![2_f64.ln()], 100, &attempt).expect("a plan");
        assert_eq!(found.place[0].exp().round(), 5.0);
        assert!(seen.borrow().iter().all(|number| (1.0..=16.0).contains(number)), "{seen:?}");
    }

    #[test]
    fn places_that_make_no_plan_are_left_out() {
        let truth = [4.1, 2.3, 0.5];
        let attempt = against(&truth);
        let partly = |places: &[Vec<f64>]| {
            let errors = attempt(places);
            let each = places.iter().zip(errors);
            each.map(|(place, errors)| errors.filter(|_| place[0] > 3.5)).collect()
        };
        let found = search(&[WIDE; 3], vec![5.0, 3.0, 0.4], 400, &partly).expect("a plan");
        assert!((found.place[0] - truth[0]).abs() < 0.05, "{found:?}");
        // A side without plans does not halve a slope: only a itself changes the second figure.
        let edge = |places: &[Vec<f64>]| {
            let each = places.iter().zip(attempt(places));
            each.map(|(place, errors)| errors.filter(|_| place[0] >= truth[0])).collect()
        };
        let found = search(&[WIDE; 3], truth.to_vec(), 1, &edge).expect("a plan");
        assert!((found.slopes.columns[0][1] + 1.0).abs() < 1e-6, "{found:?}");
        assert!(search(&[WIDE; 3], vec![1.0, 3.0, 0.4], 400, &partly).is_none());
    }
}
