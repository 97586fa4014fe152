//! What reads are held against.

use std::cell::RefCell;

use host::Deallocated;
use workload::verify::{Ledger, Stamps, WriteTicket};

/// What verification needs: shared by all clones that use one disk.
pub struct Checks {
    /// Which versions a read may find.
    pub ledger: RefCell<Ledger>,
    /// What a block of this run looks like.
    pub stamps: Stamps,
    /// The medium keeps nothing but stamps.
    pub stamps_only: bool,
}

impl Checks {
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
            _ => Ok(self.ledger.borrow_mut().start_trim(lba, blocks)),
        }
    }

    /// A write or a deallocation has ended.
    pub(super) fn finish(&self, write: WriteTicket, result: &Result<(), String>) {
        let mut ledger = self.ledger.borrow_mut();
        match result {
            Ok(()) => ledger.finish_write(write, false),
            Err(_) => ledger.fail_write(write),
        }
    }
}
