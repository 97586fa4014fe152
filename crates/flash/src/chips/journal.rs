//! The flash journal as used by the chips: journal entries, and the handling of host writes while the journal
//! cannot be written.

use ftl::{Page, Unkept};
use media::nand::Error;

use super::{Chips, page_at, planes_of};

/// After a failed sync, writing a complete new state is attempted once per this number of writes.
const REFUSED_TO_RETRY: u32 = 64;

impl Chips {
    /// Reports to the flash journal, if there is one, that the programs of these blocks have ended.
    pub(super) fn programs_ended(&self, blocks: ftl::Blocks) {
        let mut nand = self.nand.borrow_mut();
        if nand.has_journal() {
            let ftl::Blocks { die, block, planes } = blocks;
            for plane in planes_of(planes) {
                nand.programs_ended(page_at(self.shape, Page { die, plane, block, page: 0 }).block);
            }
        }
    }

    /// Makes every completed program and erase durable, for flash software without a flush: that of the host.
    pub fn make_operations_durable(&self) {
        self.durable.set(true);
    }

    /// Writes the journal entries to the file, so that they outlive this process. If that fails, the entries
    /// are kept in order: no flush returns before they are written, and no more host writes are accepted.
    /// This is not a failure of the chips, or their blocks would be retired. Returns false if the caller must
    /// be informed at once, because its flash software has no flush.
    pub(super) fn commit(&self) -> bool {
        let durable = self.durable.get();
        let done = {
            let mut nand = self.nand.borrow_mut();
            if durable { nand.sync() } else { nand.commit() }
        };
        self.took(done).is_ok() || !durable
    }

    /// Updates the state of the journal after an attempt to write it; returns the reason of a failure.
    pub(super) fn took(&self, done: Result<(), Error>) -> Result<(), Unkept> {
        let stuck = self.nand.borrow().is_stuck();
        let refused = stuck.then(|| self.refused.get().unwrap_or(0));
        self.refused.set(refused);
        done.map_err(|error| {
            let why = if error.is_full() { Unkept::Full } else { Unkept::Failed };
            self.note(error);
            why
        })
    }

    /// Attempts to write the journal. After a failed sync, only a complete new state helps, which is
    /// expensive: one attempt per [`REFUSED_TO_RETRY`] writes.
    pub(super) fn retry(&self, refused: u32) -> Result<(), Unkept> {
        self.refused.set(Some(refused.wrapping_add(1)));
        let dear = self.nand.borrow().is_distrusted();
        if dear && !refused.is_multiple_of(REFUSED_TO_RETRY) {
            return Err(Unkept::Failed);
        }
        let done = self.nand.borrow_mut().sync();
        self.took(done)
    }
}
