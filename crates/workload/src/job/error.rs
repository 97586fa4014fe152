//! Errors in a job file, and notes on settings that have no effect.

use std::fmt;
use std::path::PathBuf;

use super::Decimal;
use crate::limits::{IO_BYTES_MAX, JOB_FILE_BYTES_MAX};

/// One mistake, with its place. Prints as `file:line: mistake, and the expected form`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {wrong}", place(.file, *.line))]
pub struct JobError {
    /// The file's name, as given.
    pub file: String,
    /// The line, from 1; 0 for a setting that is not in a file.
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
    NoSection { key: String },
    /// A line `include file` whose file cannot be read.
    #[error("include {name}: {why}")]
    Include { name: String, why: IncludeError },
    /// A value with a `${NAME}` that has no value.
    #[error("{key}={value}: {why}; expected ${{NAME}}, of a variable that is set")]
    Variable { key: String, value: String, why: String },
    /// A key that is not in the table [`KEYS`](super::KEYS).
    #[error("unknown key {key:?}: {}", suggestion(.close))]
    UnknownKey {
        key: String,
        /// The nearest known key, if one is near.
        close: Option<&'static str>,
    },
    /// A key of fio that is not supported.
    #[error("{key} is not supported: {why}")]
    Rejected {
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
        why: ValueError,
        expects: &'static str,
    },
    #[error("{key}: {why}")]
    Contradiction { key: &'static str, why: String },
}

/// Why an included file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IncludeError {
    /// The job file was given as text.
    #[error("this text is not in a file, expected the included settings themselves")]
    NotInFile,
    #[error("found more than {most} files, one in the other")]
    TooDeep { most: usize },
    #[error("{}: cannot be read: {why}", path.display())]
    Io {
        path: PathBuf,
        /// Text of the system's error.
        why: String,
    },
    #[error("found {bytes} bytes, expected a job file of at most {JOB_FILE_BYTES_MAX}")]
    TooLong { bytes: u64 },
}

/// Why a value does not parse or is out of range. `text` is the value, or the part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    #[error("it has no value")]
    Missing,
    #[error("{text:?} is neither 1 nor 0")]
    Flag { text: String },
    /// The value is not one of the two that the key has.
    #[error("{text:?} is neither")]
    Neither { text: String },
    /// The value is not one of the words of this kind.
    #[error("{text:?} is not a {kind}")]
    Unknown { text: String, kind: &'static str },
    /// A value of fio that is not supported.
    #[error("{0}")]
    NotSupported(&'static str),
    #[error("{text:?} is not a number with at most six digits after the point")]
    Decimal { text: String },
    /// A skewed distribution with more numbers than parameter and centre.
    #[error("{text:?} has more than two numbers")]
    SkewNumbers { text: String },
    /// A parameter of a skewed distribution out of range.
    #[error("{name} is {found}, outside of {low} to {high}")]
    Parameter { name: &'static str, found: Decimal, low: Decimal, high: Decimal },
    #[error("{text:?} does not begin with a number")]
    NoNumber { text: String },
    #[error("{text:?} does not fit in 64 bits")]
    Overflow { text: String },
    #[error("{found} is less than {least}")]
    TooSmall { found: u64, least: u64 },
    #[error("{found} is more than {most}")]
    TooLarge { found: u64, most: u64 },
    /// `ki`, or the like: see the units of a job file.
    #[error(
        "\"{letter}i\" is read differently by fio's manual and by fio: write {letter} (times {kb_base}) or \
         {letter}ib (times {other_base})"
    )]
    AmbiguousUnit { letter: char, kb_base: u64, other_base: u64 },
    #[error("{text:?} is longer than the 213 days a clock of picoseconds lasts")]
    TooLong { text: String },
    #[error("{text:?} has no '-' between its ends")]
    NoRange { text: String },
    #[error("{text:?} is not within 1 to {IO_BYTES_MAX} bytes")]
    OperationBytes { text: String },
    #[error("{found} parts where at most three are allowed")]
    Parts { found: usize },
    #[error("{found} entries where at most {most} are allowed")]
    Entries { found: usize, most: usize },
    #[error("the percentages add to {sum}, not 100")]
    Percentages { sum: u32 },
    #[error("zone {text:?} has no '/' between access and size")]
    Zone { text: String },
    #[error("a zone of no bytes")]
    EmptyZone,
    #[error("the sizes of the zones add to {sum}%, not 100%")]
    ZoneSizes { sum: u32 },
    #[error("the accesses of the zones add to {sum}%, not 100%")]
    ZoneAccesses { sum: u32 },
    #[error("one of the paths is empty")]
    EmptyPath,
}

/// Place of a setting, as errors and notes print it.
fn place(file: &str, line: u32) -> String {
    if line == 0 { file.to_owned() } else { format!("{file}:{line}") }
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
    /// The line, from 1; 0 for a setting that is not in a file.
    pub line: u32,
    pub key: String,
    /// The reason why it has no effect, or its effect here.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", place(&self.file, self.line), self.key, self.why)
    }
}
