//! State of flash after an operation that has lost power.

use std::sync::Arc;

use runtime::Rng;

use super::{Error, HALF_ERASED, HOPELESS, Held, Nand, PageAt, mix};

/// A whole operation, in parts of which progress is measured.
pub const WHOLE: u32 = 1 << 16;

impl Nand {
    /// Tears the program of this page by [`Nand::program`], as if power was lost after `done` of
    /// [`TORN_OF`](super::TORN_OF) parts: some of its cells are incomplete. Earlier lower pages of the same
    /// word line share those cells and may be lost too ("Understanding the Impact of Power Loss on Flash
    /// Memory", Tseng, Grupp and Swanson, DAC 2011).
    ///
    /// # Errors
    /// [`Error::Order`] if it was not of the last operation on its block. Nothing has changed.
    ///
    /// # Panics
    /// If the block is out of range.
    pub fn tear_program(&mut self, at: PageAt, done: u32) -> Result<(), Error> {
        self.check_last(at, self.spec.geometry.group)?;
        self.note_torn_program(at, done);
        let mut rng = self.torn(at);
        // An unmoved cell reads correctly in half of the cases: every second data bit equals its erased
        // value.
        let short = u64::from(WHOLE - done.min(WHOLE));
        let rate = HOPELESS / u64::from(WHOLE) * short;
        self.harm(at, rate / 2 + rng.below(rate / 2 + 1));
        let place = self.cells(at.page);
        let first = u32::from(place.word_line) * self.spec.geometry.cell.bits();
        let group = at.page - at.page % self.spec.geometry.group;
        for kind in 0..u32::from(place.kind) {
            let page = self.tables.pages[(first + kind) as usize];
            if u32::from(page) >= group {
                // It belonged to the same program operation.
                continue;
            }
            // From one bit in eight down to an unnoticeable rate.
            let rate = HOPELESS >> (2 + rng.below(12));
            self.harm(PageAt { page: page.into(), ..at }, rate);
        }
        Ok(())
    }

    /// Undoes the program of this page by [`Nand::program`]: it had not begun when power was lost.
    ///
    /// # Errors
    /// [`Error::Order`] if it was not the last page programmed in its block. Nothing has changed.
    ///
    /// # Panics
    /// If the block is out of range.
    pub fn undo_program(&mut self, at: PageAt) -> Result<(), Error> {
        self.check_last(at, 1)?;
        if let Held::Stored = self.held[at.block] {
            self.load(at.block)?;
        }
        self.note_undone(at);
        self.pop(at.block);
        self.harm.remove(&at);
        if self.blocks[at.block as usize].flags & super::WHOLE != 0 {
            let whole = Arc::make_mut(&mut self.whole);
            (0..self.spec.geometry.units()).for_each(|unit| drop(whole.remove(&(at, unit))));
        }
        Ok(())
    }

    /// Undoes programs of which some pages are missing, for chips that program a group of pages at once: a
    /// state or a journal may end within one, which then had not begun.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::State`] if a block cannot be loaded from its file.
    pub fn undo_partial_programs(&mut self) -> Result<(), Error> {
        let group = self.spec.geometry.group;
        for block in 0..self.blocks.len() as u32 {
            let next = u32::from(self.blocks[block as usize].next);
            for page in (next - next % group..next).rev() {
                self.undo_program(PageAt { block, page })?;
            }
        }
        Ok(())
    }

    /// Checks that the page is one of the last `pages` that were programmed.
    fn check_last(&self, at: PageAt, pages: u32) -> Result<(), Error> {
        self.check(at)?;
        let next = u32::from(self.blocks[at.block as usize].next);
        let last = at.page < next && next <= at.page + pages;
        if last { Ok(()) } else { Err(Error::Order { at, next: self.next_page(at.block) }) }
    }

    /// Tears an erase of this block that has not been done yet, after `done` of [`TORN_OF`](super::TORN_OF)
    /// parts. The contents become unreadable, except by chance after an early cut; the block must be erased
    /// before it is programmed.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Bad`] for an empty bad block: nothing has changed.
    pub fn tear_erase(&mut self, block: u32, done: u32) -> Result<(), Error> {
        let first = PageAt { block, page: 0 };
        self.check(first)?;
        if self.is_bad(block) && self.blocks[block as usize].next == 0 {
            return Err(Error::Bad { block });
        }
        self.note_torn_erase(block, done);
        let mut rng = self.torn(first);
        let rate = HOPELESS / u64::from(WHOLE) * u64::from(done.min(WHOLE));
        for page in 0..u32::from(self.blocks[block as usize].next) {
            self.harm(PageAt { block, page }, rate / 2 + rng.below(rate / 2 + 1));
        }
        let state = &mut self.blocks[block as usize];
        state.flags |= HALF_ERASED;
        state.erases = state.erases.saturating_add(1);
        Ok(())
    }

    /// RNG of this power cut at this place.
    fn torn(&mut self, at: PageAt) -> Rng {
        self.cuts = self.cuts.wrapping_add(1);
        Rng::new(mix(self.tables.seeds.tears, at, self.cuts))
    }
}
