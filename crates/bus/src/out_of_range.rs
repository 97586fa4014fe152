//! Error of an access to memory that is not there.

use core::fmt;

use wire::BusAddr;

/// Error: an access does not lie completely inside the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Bus address of the first byte.
    pub at: BusAddr,
    /// Length in bytes.
    pub bytes: usize,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} are not in memory that the bus reaches", self.bytes, self.at.0)
    }
}

impl core::error::Error for OutOfRange {}
