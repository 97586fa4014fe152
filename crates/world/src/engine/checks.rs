//! Verification of reads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use host::Deallocated;
use workload::verify::{Ledger, Stamps, WriteTicket};

/// Verification state, shared by all clones of one disk across threads.
pub struct Checks {
    /// The block versions that a read may return.
    pub ledger: Mutex<Ledger>,
    /// Generator of the block contents of this run.
    pub stamps: Stamps,
    /// The medium retains only stamps.
    pub stamps_only: bool,
}

impl Checks {
    /// Locks the ledger; the guard must not be held across an await. A panic of another thread is reported
    /// elsewhere.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a deallocation; `gives` is the device's read behaviour of deallocated blocks.
    pub(super) fn start_trim(
        &self,
        gives: Deallocated,
        lba: u64,
        blocks: u32,
    ) -> Result<WriteTicket, String> {
        match gives {
            Deallocated::Unknown => Err(format!(
                "trim: LBA {lba}: not verified: the device does not report the value of deallocated blocks; \
                 expected zeros (DLFEAT 1)"
            )),
            _ => Ok(self.ledger().start_trim(lba, blocks)),
        }
    }

    /// Ends a write or a deallocation; `durable`: it is on the medium if it succeeded.
    pub(super) fn finish(&self, write: WriteTicket, result: &Result<(), String>, durable: bool) {
        let mut ledger = self.ledger();
        match result {
            Ok(()) => ledger.finish_write(write, durable),
            Err(_) => ledger.fail_write(write),
        }
    }
}
