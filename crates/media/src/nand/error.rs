//! Errors of flash operations and of state files.

use std::path::PathBuf;
use std::{error, fmt, io};

use super::PageAt;
use crate::files::is_full;

/// Error of a flash operation or of a state file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A value of the specification is invalid.
    BadSpec {
        /// Field of the specification.
        key: &'static str,
        /// Its value.
        found: u64,
        /// Allowed values.
        expected: &'static str,
    },
    /// No such block, page or unit.
    Range {
        /// The address.
        at: PageAt,
    },
    /// The block was bad when it left the factory.
    Bad {
        /// Block number.
        block: u32,
    },
    /// The page is not the next one of its block: pages are programmed in order, each once after an erase.
    /// Nothing has changed.
    Order {
        /// The requested page.
        at: PageAt,
        /// The page that may be programmed; `None` if the block is full or its erase was interrupted.
        next: Option<u32>,
    },
    /// Data or spare bytes do not have the length that the geometry requires.
    Length {
        /// Number of bytes passed.
        found: usize,
        /// Bytes of a page, of its stamps or of its free spare bytes.
        expected: usize,
    },
    /// The chip reports that the program failed: the page is used up and empty.
    ProgramFailed {
        /// The page.
        at: PageAt,
    },
    /// The chip reports that the erase failed: the block is unusable.
    EraseFailed {
        /// Block number.
        block: u32,
    },
    /// The operating system reported an error on a state file.
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted operation, as a verb phrase.
        attempt: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process has locked the state file.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The state file has unexpected contents.
    State {
        /// The file.
        path: PathBuf,
        /// The part of the file.
        field: &'static str,
        /// Description of the found and the expected contents.
        found: String,
    },
}

impl Error {
    /// Returns true if the file system had no space left, or the file may not grow.
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
