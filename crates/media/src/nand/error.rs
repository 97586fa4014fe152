//! Errors of flash operations and of state files.

use std::io;
use std::path::PathBuf;

use super::PageAt;
use crate::files::is_full;

/// Why flash refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the specification makes no sense.
    #[error("flash: {key} is {found}, expected {expected}")]
    BadSpec {
        /// Field of the specification.
        key: &'static str,
        /// Its value.
        found: u64,
        /// Allowed values.
        expected: &'static str,
    },
    /// A block, page or unit that there is not.
    #[error("flash has no block {}, page {}", at.block, at.page)]
    Range {
        /// The address.
        at: PageAt,
    },
    /// The block was bad when it left the factory.
    #[error("block {block} has been bad since the factory")]
    Bad {
        /// Block number.
        block: u32,
    },
    /// The page is not the next one of its block: pages are programmed in order, each once after an
    /// erase. Nothing has changed.
    #[error("block {}: page {} programmed, expected {}", at.block, at.page, expected(next))]
    Order {
        /// The requested page.
        at: PageAt,
        /// The page that may be programmed; `None` if the block is full or its erase was interrupted.
        next: Option<u32>,
    },
    /// Data or spare bytes of another length than the geometry has.
    #[error("{found} bytes for a page, expected {expected}")]
    Length {
        /// Number of bytes passed.
        found: usize,
        /// Bytes of a page, of its stamps or of its free spare bytes.
        expected: usize,
    },
    /// The chip reports that the program failed: the page is used up and holds nothing.
    #[error("block {}, page {}: the program failed", at.block, at.page)]
    ProgramFailed {
        /// The page.
        at: PageAt,
    },
    /// The chip reports that the erase failed: the block can't be used any more.
    #[error("block {block}: the erase failed")]
    EraseFailed {
        /// Block number.
        block: u32,
    },
    /// The operating system failed on a file of state.
    #[error("{path}: could not {attempt}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted operation, as a verb phrase.
        attempt: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file of state that another process has locked.
    #[error("{path}: found in use by another process, expected this one alone")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A file of state holds something else.
    #[error("{path}: {field}: {found}")]
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

/// Operation expected next by a block.
fn expected(next: &Option<u32>) -> String {
    next.map_or("an erase".to_owned(), |next| format!("page {next}"))
}
