//! Data verification: stamps in the contents, and a ledger of versions.
//!
//! Every logical block begins with a stamp of its LBA and version, and the rest of the block is
//! derived from the stamp. So each block can be checked on its own, and a wrong one classified:
//! another LBA's (misdirected), an old version (stale), partly written (torn), zeroes, or foreign to
//! this run. [`Stamps`] generates and decodes contents; [`Ledger`] tracks the versions that a read may
//! return, with writes in flight, after flushes and after a power cut. Neither performs I/O.
//!
//! ```
//! use workload::verify::{Ledger, Stamps};
//!
//! let (stamps, mut ledger) = (Stamps::new(7), Ledger::new(100));
//! let mut buffer = vec![0; 8192];
//! let write = ledger.start_write(10, 2);
//! stamps.fill(&mut buffer, 10, 4096, write.version);
//! ledger.finish_write(write, false);
//!
//! let read = ledger.start_read(10, 2);
//! assert!(ledger.check_read(&read, &stamps, &buffer, 4096, false).is_ok());
//! buffer[5000] ^= 1;
//! let said = ledger.check_read(&read, &stamps, &buffer, 4096, false).unwrap_err();
//! assert_eq!(
//!     said.to_string(),
//!     "LBA 11: torn or damaged: begins as LBA 11 version 1, which may be there, but differs from \
//!      byte 904: expected version 1"
//! );
//! ```

mod ledger;
mod stamp;
mod versions;

use std::fmt;

pub use ledger::{FlushTicket, Ledger, ReadTicket, WriteTicket};
pub use stamp::{Found, Stamps};
pub use versions::Versions;

/// A block with unexpected contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The block that was read.
    pub lba: u64,
    pub found: Found,
    /// The versions that were allowed.
    pub expected: Versions,
    /// Index of the first wrong byte in the block.
    pub byte: u32,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { lba, found, expected, byte } = self;
        write!(f, "LBA {lba}: ")?;
        match found {
            Found::Stamp { lba: other, version } if other != lba => {
                write!(f, "misdirected: holds LBA {other} version {version}")?;
            }
            Found::Stamp { version, .. } if *byte > 0 => write!(
                f,
                "torn or damaged: begins as LBA {lba} version {version}, which may be there, but \
                 differs from byte {byte}"
            )?,
            Found::Stamp { version, .. } => write!(f, "stale or early: holds version {version}")?,
            Found::Zeroes if *byte > 0 => write!(f, "zeroes, but not from byte {byte} on")?,
            Found::Zeroes => write!(f, "holds zeroes")?,
            Found::Foreign { word } => {
                write!(f, "begins with {word:#018x}, which is no stamp of this run")?;
            }
        }
        write!(f, ": expected {expected}")
    }
}

impl std::error::Error for Mismatch {}
