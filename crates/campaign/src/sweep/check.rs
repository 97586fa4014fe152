//! Check of all points before the first one runs.

use std::collections::BTreeMap;

use crate::explain::pool;

use super::error::{PointError, PointErrorAt, PointErrors, SweepError};
use super::spec::{Checked, Sweep};
use super::{memory, saved};

/// A checked point with the key of its state, or all reasons why it cannot run.
type Found = Result<(Checked, Option<String>), Vec<String>>;

impl Sweep {
    /// # Errors
    /// Points that cannot run, by reason.
    pub(super) fn check(&self, points: &[u64], threads: usize) -> Result<Vec<Checked>, SweepError> {
        let found = pool::map(points, threads, |point| self.check_one(*point));
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        let (mut all, mut reasons) = (Vec::new(), BTreeMap::<String, Vec<u64>>::new());
        for (point, found) in points.iter().copied().zip(found) {
            match found {
                Err(all) => {
                    for why in all {
                        reasons.entry(why).or_default().push(point);
                    }
                }
                Ok((mut checked, key)) => {
                    checked.state = key.map(|key| {
                        let next = states.len();
                        *states.entry(key).or_insert(next)
                    });
                    all.push(checked);
                }
            }
        }
        if reasons.is_empty() {
            return Ok(all);
        }
        let errors = reasons.into_iter().map(|(why, points)| self.reason(why, &points));
        let mut errors: Vec<PointErrorAt> = errors.collect();
        errors.sort_by_key(|error| error.first);
        Err(PointErrors { path: self.path.clone(), errors }.into())
    }

    fn check_one(&self, point: u64) -> Found {
        let case = self.case(point).map_err(|error| self.reasons(point, &error))?;
        let mut checked = Checked::default();
        match case.check() {
            Ok(()) => {}
            Err(error) if self.leave_out => {
                checked.left_out = Some(error.to_string());
                return Ok((checked, None));
            }
            Err(error) => return Err(vec![error.to_string()]),
        }
        let key = saved::key(&case.plan);
        checked.bytes = memory::of_point(&case.plan, &case.work.0, key.is_some());
        if key.is_some() {
            checked.state_bytes = memory::of_state(&case.plan);
        }
        Ok((checked, key))
    }

    /// All reasons: those of a plan one by one, and that of the work beside them.
    fn reasons(&self, point: u64, error: &PointError) -> Vec<String> {
        let mut all: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
        if matches!(error, PointError::Plan(_)) {
            let settings = self.settings(&self.space.at(point));
            let work = self.work(&settings.file, &settings.jobs);
            all.extend(work.err().iter().flat_map(|error| {
                error.to_string().lines().map(str::to_owned).collect::<Vec<_>>()
            }));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The reason with the values that its points have in common, of axes with several.
    fn reason(&self, why: String, points: &[u64]) -> PointErrorAt {
        let first = self.space.at(points[0]);
        let mut common = vec![true; first.len()];
        for point in points {
            let at = self.space.at(*point);
            for ((common, one), other) in common.iter_mut().zip(&first).zip(&at) {
                *common &= one == other;
            }
        }
        let axes = self.space.axes.iter().zip(&first).zip(common);
        let at = axes.filter(|((axis, _), common)| *common && axis.values.len() > 1);
        let at = at.map(|((axis, place), _)| (axis.name.clone(), axis.values[*place].text.clone()));
        PointErrorAt { at: at.collect(), points: points.len() as u64, first: points[0], why }
    }
}
