//! The journal beside the flash, as chips see it: what goes there, and what becomes of a host's writes while
//! it can't be written.

use ftl::{Page, Unkept};
use media::nand::Error;

use super::{Chips, page_at, planes_of};

/// After a failed sync, a new state is tried at the first of so many writes.
const REFUSED_TO_RETRY: u32 = 64;

impl Chips {
    /// For a journal beside the flash: the programs of these blocks have ended.
    pub(super) fn programs_ended(&self, blocks: ftl::Blocks) {
        let mut nand = self.nand.borrow_mut();
        if nand.has_journal() {
            let ftl::Blocks { die, block, planes } = blocks;
            for plane in planes_of(planes) {
                nand.programs_ended(page_at(self.shape, Page { die, plane, block, page: 0 }).block);
            }
        }
    }

    /// From now on a program or an erase that has ended survives the machine's power, for software that knows
    /// no flush: the host's own.
    pub fn make_operations_durable(&self) {
        self.durable.set(true);
    }

    /// What was noted in a journal beside the flash outlives this process. If it can't be written it stays
    /// noted, in order: no flush returns before it is there, and no more is taken from the host. That is
    /// no failure of the chips, whose blocks would be retired for it. False: software that knows no flush has
    /// to be told at once.
    pub(super) fn commit(&self) -> bool {
        let durable = self.durable.get();
        let done = {
            let mut nand = self.nand.borrow_mut();
            if durable { nand.sync() } else { nand.commit() }
        };
        self.took(done).is_ok() || !durable
    }

    /// Whether the journal beside the flash can be written, and why not.
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

    /// Tries again to write the journal. After a sync that failed only a whole new state helps: then at one
    /// write in [`REFUSED_TO_RETRY`].
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
