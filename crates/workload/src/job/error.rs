//! Errors in a job file, and notes on settings that have no effect.

use std::fmt;

use crate::limits::JOB_FILE_BYTES_MAX;

/// One mistake, with its place. Prints as `file:line: mistake, and the expected form`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {wrong}")]
pub struct JobError {
    /// The file's name, as given.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    pub wrong: Wrong,
}

impl JobError {
    pub(super) fn new(file: &str, line: u32, wrong: Wrong) -> JobError {
        JobError { file: file.to_owned(), line, wrong }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// The file is not a job file.
    #[error("the file has {bytes} bytes; a job file has at most {JOB_FILE_BYTES_MAX}")]
    FileTooLong { bytes: usize },
    #[error("no job: expected at least one section [name] besides [global]")]
    NoJob,
    /// A header that does not end, or is empty.
    #[error("{text:?} is not a section header: expected [name]")]
    Header { text: String },
    /// A setting before the first header.
    #[error("{key:?} stands before any section: expected [global] or [name] above it")]
    Homeless { key: String },
    /// A line `include file`.
    #[error("\"include\" is not supported: expected the included settings themselves")]
    Include,
    /// A value with `${...}`.
    #[error("{key}={value}: environment variables are not expanded: expected the value itself")]
    Variable { key: String, value: String },
    /// A key that is not in the table [`KEYS`](super::KEYS).
    #[error("unknown key {key:?}: {}", suggestion(.close))]
    UnknownKey {
        key: String,
        /// The nearest known key, if one is near.
        close: Option<&'static str>,
    },
    /// A key of fio that is not supported.
    #[error("{key} is not supported: {why}")]
    Refused {
        key: String,
        /// The reason, and the alternative.
        why: &'static str,
    },
    /// A value that does not parse or is out of range.
    #[error("{}: {why}; expected {expects}", shown(.key, .value))]
    Value {
        key: String,
        /// The value, if there was one.
        value: Option<String>,
        why: String,
        expects: &'static str,
    },
    #[error("{key}: {why}")]
    Contradiction { key: &'static str, why: String },
}

fn suggestion(close: &Option<&'static str>) -> String {
    match close {
        Some(key) => format!("did you mean {key:?}?"),
        None => "expected a key of a fio job file".to_owned(),
    }
}

fn shown(key: &str, value: &Option<String>) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => key.to_owned(),
    }
}

/// Every mistake of a file, one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobErrors(pub Vec<JobError>);

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for JobErrors {}

/// A setting that was accepted but does not have its effect in fio. Prints as
/// `file:line: key: why`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The file's name, as given.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    pub key: String,
    /// The reason why it has no effect, or its effect here.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.key, self.why)
    }
}
