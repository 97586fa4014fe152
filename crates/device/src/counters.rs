//! Counts of completed NVMe commands, of one thread or of several.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one thread writes and any may read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the count. Only its own thread may: there is no read-modify-write operation.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }
}

/// Counts of one thread, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub reads: Count,
    pub writes: Count,
    pub blocks_read: Count,
    pub blocks_written: Count,
    pub media_errors: Count,
    /// Entries of the error log.
    pub errors: Count,
}
