//! What flash refuses, what fails, and what can be wrong with a file of its state.

use std::path::PathBuf;
use std::{error, fmt, io};

use super::PageAt;
use crate::files::is_full;

/// Why flash refused or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A value of the specification makes no sense.
    BadSpec {
        /// The field.
        key: &'static str,
        /// What it holds.
        found: u64,
        /// What it may hold.
        expected: &'static str,
    },
    /// A block, page or unit that there is not.
    Range {
        /// Where.
        at: PageAt,
    },
    /// The block was bad when it left the factory.
    Bad {
        /// The block.
        block: u32,
    },
    /// The page is not the next one of its block: pages are programmed in order, each once after an
    /// erase. Nothing has changed.
    Order {
        /// The page asked for.
        at: PageAt,
        /// The one that may be programmed; none: the block is full, or its erase was cut short.
        next: Option<u32>,
    },
    /// Data or spare bytes of another length than the geometry has.
    Length {
        /// Bytes given.
        found: usize,
        /// Bytes of a page, of its stamps or of its free spare bytes.
        expected: usize,
    },
    /// The chip reports that the program failed: the page is used up and holds nothing.
    ProgramFailed {
        /// The page.
        at: PageAt,
    },
    /// The chip reports that the erase failed: the block can't be used any more.
    EraseFailed {
        /// The block.
        block: u32,
    },
    /// The operating system failed on a file of state.
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted, as a verb phrase.
        attempt: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file of state that another process has locked.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A file of state holds something else.
    State {
        /// The file.
        path: PathBuf,
        /// The part of it.
        field: &'static str,
        /// What was found, and what was expected.
        found: String,
    },
}

impl Error {
    /// Whether the file system had no space left, or the file may not grow.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Io { source, .. } if is_full(source))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadSpec { key, found, expected } => {
                write!(f, "flash: {key} is {found}, expected {expected}")
            }
            Error::Range { at } => {
                write!(f, "flash has no block {}, page {}", at.block, at.page)
            }
            Error::Bad { block } => write!(f, "block {block} has been bad since the factory"),
            Error::Order { at, next: Some(next) } => {
                write!(f, "block {}: page {} programmed, expected page {next}", at.block, at.page)
            }
            Error::Order { at, next: None } => {
                write!(f, "block {}: page {} programmed, expected an erase", at.block, at.page)
            }
            Error::Length { found, expected } => {
                write!(f, "{found} bytes for a page, expected {expected}")
            }
            Error::ProgramFailed { at } => {
                write!(f, "block {}, page {}: the program failed", at.block, at.page)
            }
            Error::EraseFailed { block } => write!(f, "block {block}: the erase failed"),
            Error::Io { path, attempt, source } => {
                write!(f, "{}: could not {attempt}: {source}", path.display())
            }
            Error::InUse { path } => {
                let path = path.display();
                write!(f, "{path}: found in use by another process, expected this one alone")
            }
            Error::State { path, field, found } => {
                write!(f, "{}: {field}: {found}", path.display())
            }
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
