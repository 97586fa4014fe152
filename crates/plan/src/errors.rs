//! What can be wrong with a plan: all of it at once, each with its place and what was expected.

use std::fmt;

/// How many errors are printed; the rest is counted.
const PRINTED_MAX: usize = 20;

/// Where in its source an error is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The source as a whole: it could not be read.
    Whole,
    /// A line and a column of it, both from 1; columns count characters.
    At { line: usize, column: usize },
    /// A value given beside the source, as it was written: `link.lanes=8`.
    Set(String),
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    pub place: Place,
    /// The key, from the top: `link.credits.posted_data`. Empty where there is none.
    pub key: String,
    pub found: String,
    pub expected: String,
}

/// Everything that is wrong with one plan, in the order of its lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanErrors {
    /// The file, or whatever else the text came from.
    pub origin: String,
    pub errors: Vec<PlanError>,
}

impl PlanErrors {
    /// A source of which nothing could be read.
    pub(super) fn whole(origin: &str, found: String, expected: &str) -> PlanErrors {
        let (place, key) = (Place::Whole, String::new());
        let error = PlanError { place, key, found, expected: expected.to_owned() };
        PlanErrors { origin: origin.to_owned(), errors: vec![error] }
    }

    /// Sorts by place: what was found out first is not what is read first.
    pub(super) fn sorted(origin: &str, mut errors: Vec<PlanError>) -> PlanErrors {
        errors.sort_by(|a, b| a.place.cmp(&b.place));
        PlanErrors { origin: origin.to_owned(), errors }
    }
}

impl fmt::Display for PlanErrors {
    /// One error a line, at most twenty of them, and how many more there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().take(PRINTED_MAX).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match &error.place {
                Place::Whole => write!(f, "{}: ", self.origin)?,
                Place::At { line, column } => write!(f, "{}:{line}:{column}: ", self.origin)?,
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

/// Bytes of a name beyond which no suggestion is looked for.
const NAME_MAX: usize = 64;

/// The known name that `name` was probably meant to be: few edits away, for its length.
pub(super) fn did_you_mean<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > NAME_MAX {
        return None;
    }
    let nearest = known.iter().map(|known| (edits(name, known), *known)).min()?;
    let (edits, known) = nearest;
    (edits <= 1 + known.len() / 4 && edits < known.chars().count()).then_some(known)
}

/// Letters to insert, drop, change or swap with their neighbours to get from `a` to `b`.
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
    fn edits_are_counted() {
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
    fn only_what_is_near_is_suggested() {
        let known = ["lanes", "mps", "completion_bytes"];
        assert_eq!(did_you_mean("lane", &known), Some("lanes"));
        assert_eq!(did_you_mean("mp", &known), Some("mps"));
        assert_eq!(did_you_mean("completion", &known), None);
        assert_eq!(did_you_mean("completion_byte", &known), Some("completion_bytes"));
        assert_eq!(did_you_mean("x", &known), None);
        assert_eq!(did_you_mean("x", &[]), None);
    }

    #[test]
    fn twenty_are_printed_and_the_rest_is_counted() {
        let error = |line| PlanError {
            place: Place::At { line, column: 3 },
            key: "link.mps".to_owned(),
            found: "1".to_owned(),
            expected: "2".to_owned(),
        };
        let said = |count| PlanErrors::sorted("p.toml", (1..=count).rev().map(error).collect());
        assert_eq!(
            said(2).to_string(),
            "p.toml:1:3: link.mps: found 1, expected 2\np.toml:2:3: link.mps: found 1, expected 2"
        );
        assert_eq!(said(20).to_string().lines().count(), 20);
        assert!(said(21).to_string().ends_with(
            ":3: link.mps: found 1, expected 2\n\
            p.toml: and one more error"
        ));
        assert!(said(41).to_string().ends_with("\np.toml: and 21 more errors"));
        assert_eq!(said(41).to_string().lines().count(), 21);
    }
}
