//! Errors in a plan. All errors are reported at once, each with its position and the expected value.

use std::fmt;

/// Number of errors that are printed; the remaining ones are only counted.
const PRINTED_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The plan as a whole.
    Whole,
    /// Line and column in the plan, both from 1. Columns count characters.
    At { line: usize, column: usize },
    /// Line and column in a base of the plan.
    Base { origin: String, line: usize, column: usize },
    /// A `--set` option as it was given: `link.lanes=8`.
    Set(String),
}

/// An error in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    pub place: Place,
    /// The full key: `link.credits.posted_data`. Empty if the error is not of one key.
    pub key: String,
    pub found: String,
    pub expected: String,
}

/// All errors of one plan, in the order of its lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanErrors {
    /// File name or other name of the plan's text.
    pub origin: String,
    pub errors: Vec<PlanError>,
}

impl PlanErrors {
    /// An error of the plan as a whole.
    pub(super) fn whole(origin: &str, found: String, expected: &str) -> PlanErrors {
        let (place, key) = (Place::Whole, String::new());
        let error = PlanError { place, key, found, expected: expected.to_owned() };
        PlanErrors { origin: origin.to_owned(), errors: vec![error] }
    }

    /// Sorts by position, because errors are found in another order.
    pub(super) fn sorted(origin: &str, mut errors: Vec<PlanError>) -> PlanErrors {
        errors.sort_by(|a, b| a.place.cmp(&b.place));
        PlanErrors { origin: origin.to_owned(), errors }
    }
}

impl fmt::Display for PlanErrors {
    /// One error per line, at most 20, then the number of further errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().take(PRINTED_MAX).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match &error.place {
                Place::Whole => write!(f, "{}: ", self.origin)?,
                Place::At { line, column } => write!(f, "{}:{line}:{column}: ", self.origin)?,
                Place::Base { origin, line, column } => write!(f, "{origin}:{line}:{column}: ")?,
                Place::Set(text) => write!(f, "{}, --set {text}: ", self.origin)?,
            }
            if !error.key.is_empty() {
                write!(f, "{}: ", error.key)?;
            }
            write!(f, "found {}, expected {}", error.found, error.expected)?;
        }
        match self.errors.len().saturating_sub(PRINTED_MAX) {
            0 => Ok(()),
            1 => write!(f, "\n{}: and one more error", self.origin),
            more => write!(f, "\n{}: and {more} more errors", self.origin),
        }
    }
}

impl std::error::Error for PlanErrors {}

/// Requirement of an interface that a plan does not meet. `interface` is its name, `origin` that of the plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The plan does not have the interface's table; the built-in plan `example` has it.
    #[error(
        "{origin}: interface {interface}: found no table [{table}], expected one: {example} has it"
    )]
    NoTable { origin: String, interface: String, table: &'static str, example: &'static str },
    /// `host.completion` is `"hybrid"`.
    #[error(
        "{origin}: interface {interface}: host.completion: found \"hybrid\", expected \"polled\" or \
         \"interrupt\": only drivers of NVMe queues have hybrid polling"
    )]
    HybridPolling { origin: String, interface: String },
    /// `host.protection` is `"host"`.
    #[error(
        "{origin}: interface {interface}: host.protection: found \"host\", expected \"device\": only \
         drivers of NVMe queues transfer protection information"
    )]
    HostProtection { origin: String, interface: String },
}

/// Names longer than this number of bytes get no suggestion.
const NAME_MAX: usize = 64;

/// The known name with the smallest edit distance to `name`, if that is small for its length.
pub(super) fn did_you_mean<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > NAME_MAX {
        return None;
    }
    let nearest = known.iter().map(|known| (edits(name, known), *known)).min()?;
    let (edits, known) = nearest;
    (edits <= 1 + known.len() / 4 && edits < known.chars().count()).then_some(known)
}

/// Edit distance with insertions, deletions, substitutions and transpositions (optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_edits() {
        for (a, b, count) in [
            ("", "", 0),
            ("", "mps", 3),
            ("lanes", "lanes", 0),
            ("lane", "lanes", 1),
            ("lnaes", "lanes", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edits(a, b), count, "{a} {b}");
            assert_eq!(edits(b, a), count, "{b} {a}");
        }
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["lanes", "mps", "completion_bytes"];
        assert_eq!(did_you_mean("lane", &known), Some("lanes"));
        assert_eq!(did_you_mean("mp", &known), Some("mps"));
        assert_eq!(did_you_mean("completion", &known), None);
        assert_eq!(did_you_mean("completion_byte", &known), Some("completion_bytes"));
        assert_eq!(did_you_mean("x", &known), None);
        assert_eq!(did_you_mean("x", &[]), None);
    }

    #[test]
    fn twenty_errors_are_printed_and_the_rest_is_counted() {
        let error = |line| PlanError {
            place: Place::At { line, column: 3 },
            key: "link.mps".to_owned(),
            found: "1".to_owned(),
            expected: "2".to_owned(),
        };
        let errors = |count| PlanErrors::sorted("p.toml", (1..=count).rev().map(error).collect());
        assert_eq!(
            errors(2).to_string(),
            "p.toml:1:3: link.mps: found 1, expected 2\np.toml:2:3: link.mps: found 1, expected 2"
        );
        assert_eq!(errors(20).to_string().lines().count(), 20);
        assert!(errors(21).to_string().ends_with(
            ":3: link.mps: found 1, expected 2\n\
            p.toml: and one more error"
        ));
        assert!(errors(41).to_string().ends_with("\np.toml: and 21 more errors"));
        assert_eq!(errors(41).to_string().lines().count(), 21);
    }
}
