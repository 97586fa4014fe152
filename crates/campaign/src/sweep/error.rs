//! Errors of sweeps.

use std::fmt;
use std::io;
use std::path::PathBuf;

use plan::PlanErrors;
use report::RebuildError;
use world::work::WorkError;
use world::{RunError, UnknownInterface};

/// Most errors that are printed; the others are counted.
const PRINTED_MAX: usize = 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// A file cannot be read or written.
    #[error("{}: cannot be {attempt}: {why}", path.display())]
    Io { path: PathBuf, attempt: &'static str, why: io::Error },
    #[error("{}:{line}: {why}", path.display())]
    Syntax { path: PathBuf, line: usize, why: String },
    /// A key of the sweep file, outside of its axes.
    #[error("{}: {key}: found {found}, expected {expected}", path.display())]
    Key { path: PathBuf, key: &'static str, found: String, expected: String },
    #[error("{}: axis {axis}: found {found}, expected {expected}", path.display())]
    Axis { path: PathBuf, axis: String, found: String, expected: String },
    #[error(transparent)]
    Points(#[from] PointErrors),
    /// The file of the results is of something else.
    #[error("{}: found {found}, expected no file, an empty one, or results of a sweep", path.display())]
    NotResults { path: PathBuf, found: String },
    /// The file has results of another sweep.
    #[error(
        "{}: found results of another sweep: {}; give another --out, or --restart to begin again",
        path.display(),
        differences.join("; ")
    )]
    Changed { path: PathBuf, differences: Vec<String> },
    #[error("{}:{line}: found a damaged line: {why}; --restart begins again", path.display())]
    Damaged { path: PathBuf, line: usize, why: String },
    #[error("{}: in use by another sweep", path.display())]
    Locked { path: PathBuf },
    /// Stopped by [`Sweep::stop_flag`](super::Sweep::stop_flag).
    #[error("the sweep was stopped; the results have the points that ended")]
    Stopped,
    /// The expression of a search.
    #[error("--find {text:?}: found {found}, expected {expected}")]
    Find { text: String, found: String, expected: String },
}

/// Points that cannot run, by reason.
#[derive(Debug)]
pub struct PointErrors {
    pub path: PathBuf,
    pub errors: Vec<PointErrorAt>,
}

/// A reason for which points cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointErrorAt {
    /// Names and values of the axes that these points have in common.
    pub at: Vec<(String, String)>,
    pub points: u64,
    pub first: u64,
    pub why: String,
}

impl fmt::Display for PointErrors {
    /// A line for each reason, at most 20.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.errors.iter().take(PRINTED_MAX).enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "{}: ", self.path.display())?;
            for (axis, value) in &error.at {
                write!(f, "axis {axis}, value {value}: ")?;
            }
            let why = error.why.replace('\n', "; ");
            match error.points {
                1 => write!(f, "point {}: {why}", error.first)?,
                points => write!(f, "{points} points: {why}")?,
            }
        }
        match self.errors.len().saturating_sub(PRINTED_MAX) {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.path.display()),
        }
    }
}

impl std::error::Error for PointErrors {}

/// Why a point cannot run, or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointError {
    #[error(transparent)]
    Plan(#[from] PlanErrors),
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Interface(#[from] UnknownInterface),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Recording(#[from] RebuildError),
    /// Every point would write the same file.
    #[error(
        "{origin}: {key}: found a file, expected none: the points of a sweep would all write it"
    )]
    File { origin: String, key: &'static str },
    #[error(
        "{origin}: medium.flash.state: found no file {}, expected a saved state: a sweep writes none",
        path.display()
    )]
    NoState { origin: String, path: PathBuf },
    /// The state that the points share could not be made.
    #[error("{0}")]
    State(String),
    #[error("the program failed: {0}")]
    Panic(String),
}
