//! What reads are held against.

use std::sync::{Mutex, MutexGuard, PoisonError};

use host::Deallocated;
use workload::verify::{Ledger, Stamps, WriteTicket};

/// What verification needs: shared by all clones that use one disk, in whichever thread.
pub struct Checks {
    /// Which versions a read may find.
    pub ledger: Mutex<Ledger>,
    /// What a block of this run looks like.
    pub stamps: Stamps,
    /// The medium keeps nothing but stamps.
    pub stamps_only: bool,
}

impl Checks {
    /// The ledger, for as long as nothing is waited for. A thread that has panicked is said elsewhere.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A deallocation is about to be submitted, of a device that gives this from then on.
    pub(super) fn start_trim(
        &self,
        gives: Deallocated,
        lba: u64,
        blocks: u32,
    ) -> Result<WriteTicket, String> {
        match gives {
            Deallocated::Unknown => Err(format!(
                "trim: LBA {lba}: not verified: the device does not say what deallocated blocks read as; \
                 expected zeros (DLFEAT 1)"
            )),
            _ => Ok(self.ledger().start_trim(lba, blocks)),
        }
    }

    /// A write or a deallocation has ended.
    pub(super) fn finish(&self, write: WriteTicket, result: &Result<(), String>) {
        let mut ledger = self.ledger();
        match result {
            Ok(()) => ledger.finish_write(write, false),
            Err(_) => ledger.fail_write(write),
        }
    }
}
