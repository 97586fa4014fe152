//! Weighted least squares for a few unknowns: steps of a search, and standard errors.

/// The change of each figure for a change of each key by 1, in logarithms: a column for each key.
#[derive(Clone, Debug, Default)]
pub(super) struct Slopes {
    pub columns: Vec<Vec<f64>>,
}

impl Slopes {
    /// The change of the keys that lessens these errors most, if the slopes held everywhere. A larger
    /// `damping` gives a shorter step.
    pub fn step(&self, errors: &[f64], weights: &[f64], damping: f64) -> Option<Vec<f64>> {
        let mut normal = self.normal(weights);
        for (at, line) in normal.iter_mut().enumerate() {
            line[at] += damping * line[at] + TINY;
        }
        let towards = |column: &Vec<f64>| {
            let each = column.iter().zip(errors).zip(weights);
            -each.map(|((slope, error), weight)| slope * error * weight).sum::<f64>()
        };
        solved(normal, self.columns.iter().map(towards).collect())
    }

    /// Variance of each key for errors of variance 1, if the other keys are free as well. None: a key has no
    /// effect, or others can compensate for it.
    pub fn variances(&self, weights: &[f64]) -> Option<Vec<f64>> {
        let normal = self.normal(weights);
        let unit = |at: usize| (0..normal.len()).map(move |of| f64::from(u8::from(of == at)));
        let of_key = |at: usize| Some(solved(normal.clone(), unit(at).collect())?[at]);
        (0..normal.len()).map(of_key).collect()
    }

    /// Correlation of the effects of two keys: 1 or -1 if one can compensate for the other.
    pub fn correlation(&self, weights: &[f64], (one, other): (usize, usize)) -> f64 {
        let product = |a: usize, b: usize| dot(&self.columns[a], &self.columns[b], weights);
        let sizes = product(one, one) * product(other, other);
        if sizes > 0.0 { product(one, other) / sizes.sqrt() } else { 0.0 }
    }

    /// Change of the figures, in the mean of squares, for a change of a key by 1.
    pub fn effect(&self, weights: &[f64], at: usize) -> f64 {
        let sum: f64 = weights.iter().sum();
        (dot(&self.columns[at], &self.columns[at], weights) / sum.max(TINY)).sqrt()
    }

    fn normal(&self, weights: &[f64]) -> Vec<Vec<f64>> {
        let columns = &self.columns;
        let line = |one: &Vec<f64>| columns.iter().map(|other| dot(one, other, weights)).collect();
        columns.iter().map(line).collect()
    }
}

const TINY: f64 = 1e-12;

fn dot(one: &[f64], other: &[f64], weights: &[f64]) -> f64 {
    one.iter().zip(other).zip(weights).map(|((one, other), weight)| one * other * weight).sum()
}

/// The solution of a symmetric positive system, by elimination. None: it has none, within rounding.
fn solved(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let count = right.len();
    let sizes: Vec<f64> = (0..count).map(|at| matrix[at][at]).collect();
    for at in 0..count {
        // A pivot that has lost all but rounding: this line is one of the lines before it.
        if matrix[at][at] <= sizes[at] * 1e-9 {
            return None;
        }
        for below in at + 1..count {
            let factor = matrix[below][at] / matrix[at][at];
            let (above, rest) = matrix.split_at_mut(below);
            for (value, of) in rest[0].iter_mut().zip(&above[at]) {
                *value -= factor * of;
            }
            right[below] -= factor * right[at];
        }
    }
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count).map(|of| matrix[at][of] * right[of]).sum();
        right[at] = (right[at] - known) / matrix[at][at];
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three errors that two keys make: 2a, a + b, 3b.
    fn slopes() -> Slopes {
        Slopes { columns: vec![vec![2.0, 1.0, 0.0], vec![0.0, 1.0, 3.0]] }
    }

    #[test]
    fn step_undoes_errors_of_known_keys() {
        let step = slopes().step(&[4.0, 3.0, 3.0], &[1.0; 3], 0.0).expect("a step");
        assert!((step[0] + 2.0).abs() < 1e-9 && (step[1] + 1.0).abs() < 1e-9, "{step:?}");
        let short = slopes().step(&[4.0, 3.0, 3.0], &[1.0; 3], 1.0).expect("a step");
        assert!(short[0].abs() < 2.0 && short[1].abs() < 1.0, "{short:?}");
        // A row without weight has no say.
        let step = slopes().step(&[4.0, 99.0, 3.0], &[1.0, 0.0, 1.0], 0.0).expect("a step");
        assert!((step[0] + 2.0).abs() < 1e-9 && (step[1] + 1.0).abs() < 1e-9, "{step:?}");
    }

    #[test]
    fn confounded_keys_have_no_variance() {
        // Of 5 0; 0 5 less nothing: by hand, the inverse of (5 1; 1 10) is (10 -1; -1 5) / 49.
        let variances = slopes().variances(&[1.0; 3]).expect("two keys apart");
        assert!((variances[0] - 10.0 / 49.0).abs() < 1e-9, "{variances:?}");
        assert!((variances[1] - 5.0 / 49.0).abs() < 1e-9, "{variances:?}");
        let column = vec![1.0, 2.0, 3.0];
        let twice = column.iter().map(|slope| -2.0 * slope).collect();
        let confounded = Slopes { columns: vec![column, twice] };
        assert_eq!(confounded.variances(&[1.0; 3]), None);
        assert!((confounded.correlation(&[1.0; 3], (0, 1)) + 1.0).abs() < 1e-9);
        let without = Slopes { columns: vec![vec![1.0, 1.0], vec![0.0, 0.0]] };
        assert_eq!(without.variances(&[1.0; 2]), None);
        assert_eq!(without.effect(&[1.0; 2], 1), 0.0);
        assert_eq!(without.effect(&[1.0; 2], 0), 1.0);
    }
}
