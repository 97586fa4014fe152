//! Chip operations: program, erase, sense.

use std::sync::Arc;

use super::{BAD, Data, Error, FAILED, HALF_ERASED, HARMED, HOPELESS, Held, Nand, PageAt, Sense};
use super::{WHOLE, mix};
use crate::contents::{Keep, STAMP_BYTES};

impl Nand {
    /// Programs the next page of a block. `spare` holds the first spare bytes, zero-padded.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Bad`], [`Error::Order`], [`Error::Length`]: nothing has changed.
    /// [`Error::ProgramFailed`]: the page is used up and unreadable. [`Error::Io`], [`Error::State`]: the
    /// block cannot be loaded from its file, or the row not be written; nothing has changed.
    pub fn program(&mut self, at: PageAt, data: Data<'_>, spare: &[u8]) -> Result<(), Error> {
        self.check_lengths(data, spare)?;
        let fails = self.program_fails(at)?;
        if let Held::Stored = self.held[at.block] {
            self.load(at.block)?;
        }
        self.put(at, data, spare)?;
        self.note_program(at);
        self.programmed(at, fails)
    }

    /// As [`program`](Nand::program), of a row that is in the file of pages already.
    pub(super) fn program_filed(&mut self, at: PageAt, area: u32, sum: u64) -> Result<(), Error> {
        let fails = self.program_fails(at)?;
        let fits = match self.held[at.block] {
            Held::Nothing => at.page == 0,
            Held::Filed(own) => own == area,
            _ => false,
        };
        let pages = self.pages.as_deref_mut().filter(|_| fits).ok_or(Error::Range { at })?;
        if !pages.found(area, &[sum]) {
            return Err(Error::Range { at });
        }
        self.held[at.block] = Held::Filed(area);
        self.programmed(at, fails)
    }

    /// Checks that this page is the next of its block, and draws the result of its program.
    fn program_fails(&self, at: PageAt) -> Result<bool, Error> {
        self.check(at)?;
        let block = &self.blocks[at.block as usize];
        if block.flags & BAD != 0 {
            return Err(Error::Bad { block: at.block });
        }
        let next = self.next_page(at.block);
        if next != Some(at.page) {
            return Err(Error::Order { at, next });
        }
        let place = mix(self.tables.seeds.programs, at, block.erases);
        Ok(block.flags & FAILED != 0
            || self.spec.errors.happens(self.spec.errors.program_fails, block.erases, place))
    }

    fn programmed(&mut self, at: PageAt, fails: bool) -> Result<(), Error> {
        let block = &mut self.blocks[at.block as usize];
        if block.next == 0 {
            block.born_s = self.age_s;
        }
        block.next += 1;
        if at.page + 1 == self.spec.geometry.pages() {
            self.pack(at.block);
        }
        if fails {
            self.blocks[at.block as usize].flags |= FAILED;
            self.harm(at, HOPELESS);
            return Err(Error::ProgramFailed { at });
        }
        Ok(())
    }

    fn check_lengths(&self, data: Data<'_>, spare: &[u8]) -> Result<(), Error> {
        let (found, expected) = match data {
            Data::Bytes(bytes) => (bytes.len(), self.spec.geometry.page_bytes as usize),
            Data::Kept(bytes) => (bytes.len(), self.tables.data),
            Data::Zeros => (0, 0),
        };
        if found != expected {
            return Err(Error::Length { found, expected });
        }
        let (found, expected) = (spare.len(), self.spec.geometry.free_bytes as usize);
        if found > expected { Err(Error::Length { found, expected }) } else { Ok(()) }
    }

    /// Adds bit errors to a page permanently.
    pub(super) fn harm(&mut self, at: PageAt, rate: u64) {
        let sum = self.harm.entry(at).or_default();
        *sum = sum.saturating_add(rate).min(HOPELESS);
        self.blocks[at.block as usize].flags |= HARMED;
    }

    /// Fault injection: adds `rate` raw bit errors in 10^12 to this page until its block is erased. From 5 *
    /// 10^11 on no information is left.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn spoil(&mut self, at: PageAt, rate: u64) -> Result<(), Error> {
        self.check(at)?;
        self.note_harm(at, rate);
        self.harm(at, rate);
        Ok(())
    }

    /// Fault injection: every program and erase of this block fails from now on.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn break_block(&mut self, block: u32) -> Result<(), Error> {
        self.check(PageAt { block, page: 0 })?;
        self.note_broken(block);
        self.blocks[block as usize].flags |= FAILED;
        Ok(())
    }

    /// Stores a unit of a programmed page in full, independent of the amount stored of host data. Used for
    /// tables and journals of software.
    ///
    /// # Errors
    /// [`Error::Range`] if the page is not programmed, or has no such unit. [`Error::Length`]. Nothing has
    /// changed.
    pub fn keep_whole(&mut self, at: PageAt, unit: u32, bytes: &[u8]) -> Result<(), Error> {
        self.check(at)?;
        let geometry = &self.spec.geometry;
        let block = &mut self.blocks[at.block as usize];
        if at.page >= u32::from(block.next) || unit >= geometry.units() {
            return Err(Error::Range { at });
        }
        if bytes.len() != geometry.unit_bytes as usize {
            let expected = geometry.unit_bytes as usize;
            return Err(Error::Length { found: bytes.len(), expected });
        }
        if self.spec.keep == Keep::Stamps {
            block.flags |= WHOLE;
            Arc::make_mut(&mut self.whole).insert((at, unit), bytes.into());
            self.note_whole(at, unit);
        }
        Ok(())
    }

    /// Stores a unit of a programmed page in full, if the unit that it was copied from is.
    ///
    /// # Errors
    /// As [`Nand::keep_whole`].
    pub fn copy_whole(&mut self, from: (PageAt, u32), to: (PageAt, u32)) -> Result<(), Error> {
        self.check(to.0)?;
        if to.0.page >= u32::from(self.blocks[to.0.block as usize].next) {
            return Err(Error::Range { at: to.0 });
        }
        if let Some(bytes) = self.whole.get(&from).cloned() {
            self.blocks[to.0.block as usize].flags |= WHOLE;
            Arc::make_mut(&mut self.whole).insert(to, bytes);
            self.note_whole(to.0, to.1);
        }
        Ok(())
    }

    /// Erases a block. A bad block stays bad, but becomes empty.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Bad`] for an empty bad block: nothing has changed. [`Error::EraseFailed`]:
    /// the block and its contents are lost.
    pub fn erase(&mut self, block: u32) -> Result<(), Error> {
        let at = PageAt { block, page: 0 };
        self.check(at)?;
        let state = &mut self.blocks[block as usize];
        let bad = state.flags & BAD;
        if bad != 0 && state.next == 0 {
            return Err(Error::Bad { block });
        }
        self.note_erase(block);
        let state = &mut self.blocks[block as usize];
        let place = mix(self.tables.seeds.erases, at, state.erases);
        let odds = self.spec.errors.erase_fails;
        let fails =
            state.flags & FAILED != 0 || self.spec.errors.happens(odds, state.erases, place);
        state.erases = state.erases.saturating_add(1);
        state.reads = 0;
        state.next = 0;
        let flags = std::mem::replace(&mut state.flags, bad);
        if fails {
            state.flags |= FAILED | HALF_ERASED;
        }
        let held = std::mem::take(&mut self.held[block]);
        self.take_back(held);
        self.forget(block, flags);
        if fails { Err(Error::EraseFailed { block }) } else { Ok(()) }
    }

    /// Clears the per-page records of a block that these flags announce.
    pub(super) fn forget(&mut self, block: u32, flags: u8) {
        let (first, end) = (PageAt { block, page: 0 }, PageAt { block, page: u32::MAX });
        if flags & HARMED != 0 {
            while let Some((at, _)) = self.harm.range(first..end).next() {
                let at = *at;
                self.harm.remove(&at);
            }
        }
        if flags & WHOLE != 0 {
            let whole = Arc::make_mut(&mut self.whole);
            while let Some((at, _)) = whole.range((first, 0)..(end, 0)).next() {
                let at = *at;
                whole.remove(&at);
            }
        }
    }

    /// Fetches into the CPU caches what reads of a unit of this page will need.
    ///
    /// # Panics
    /// If the block is out of range.
    #[inline]
    pub fn prefetch(&self, at: PageAt) {
        if let Held::Packed(packed) = &self.held[at.block]
            && at.page < u32::from(self.blocks[at.block as usize].next)
        {
            packed.prefetch(at.page as usize, self.tables.data);
        }
    }

    /// Reads the units in the bit mask `units`, or the spare bytes alone if it is 0, at retry `step`. On
    /// success their contents are available from [`Nand::runs`] and [`Nand::spare`].
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Io`] and [`Error::State`] if the block cannot be loaded from its file.
    pub fn sense(&mut self, at: PageAt, units: u128, step: u32) -> Result<Sense, Error> {
        self.check(at)?;
        if units.checked_shr(self.spec.geometry.units()).unwrap_or(0) != 0 {
            return Err(Error::Range { at });
        }
        let block = &mut self.blocks[at.block as usize];
        block.reads = block.reads.saturating_add(1);
        match self.held[at.block] {
            Held::Stored => self.load(at.block)?,
            Held::Filed(area) if at.page < u32::from(block.next) => {
                let pages = self.pages.as_ref().expect("a file of pages");
                pages.load(area, at.page)?;
            }
            _ => {}
        }
        Ok(self.validate(at, units, step))
    }

    /// Result that a read would have now, without read disturb.
    ///
    /// # Panics
    /// If the page is out of range.
    #[inline]
    pub fn validate(&self, at: PageAt, units: u128, step: u32) -> Sense {
        let block = &self.blocks[at.block as usize];
        if at.page >= u32::from(block.next) {
            // After a failed or interrupted erase, cells are in neither state.
            let erased = block.flags & HALF_ERASED == 0;
            return if erased { Sense::Erased } else { Sense::Uncorrectable };
        }
        let errors = &self.spec.errors;
        let kind = self.tables.cells[at.page as usize].kind;
        let mut rate = errors.rate(self.wear(at.block), kind, step);
        if block.flags & HARMED != 0
            && let Some(harm) = self.harm.get(&at)
        {
            rate = rate.saturating_add(*harm).min(HOPELESS);
        }
        match self.worst(at, units, rate) {
            Some(errors) => Sense::Good { errors },
            None => Sense::Uncorrectable,
        }
    }

    /// Bit errors in the worst codeword of these units; `None` if one is uncorrectable.
    fn worst(&self, at: PageAt, units: u128, rate: u64) -> Option<u32> {
        let errors = &self.spec.errors;
        if rate <= self.tables.quiet_rate {
            return Some(errors.mean(rate));
        }
        if rate >= self.tables.hopeless_rate {
            return None;
        }
        let place = mix(self.tables.seeds.reads, at, self.blocks[at.block as usize].erases);
        let draw = |word: u32| errors.correctable(rate, place ^ u64::from(word));
        let of_unit = self.spec.geometry.unit_bytes / errors.codeword_bytes;
        // The spare bytes are spread over all codewords.
        let units = if units == 0 { u128::MAX } else { units };
        let units = (0..self.spec.geometry.units()).filter(|unit| units >> unit & 1 != 0);
        let words = units.flat_map(|unit| unit * of_unit..(unit + 1) * of_unit);
        words.map(draw).try_fold(0, |worst, errors| Some(errors?.max(worst)))
    }

    /// Loads a block from its file on first use.
    pub(super) fn load(&mut self, block: u32) -> Result<(), Error> {
        let Some(source) = self.source.clone() else {
            unreachable!("a block is in a file only where there is one");
        };
        self.held[block] = source.read(block, self.tables.width)?;
        Ok(())
    }

    /// Distance between stored runs in a unit, and bytes stored of each.
    pub(super) fn grain(&self) -> (u32, usize) {
        match self.spec.keep {
            Keep::Everything => {
                (self.spec.geometry.unit_bytes, self.spec.geometry.unit_bytes as usize)
            }
            Keep::Stamps => (self.spec.block_bytes, STAMP_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::noise::DRAWS;
    use super::super::{Errors, Profile, Spec, TORN_OF};
    use super::*;

    /// A mount reads every page of a torn superblock with all retries. At some hundred thousand random
    /// numbers per page, that would take minutes.
    #[test]
    fn torn_erase_pages_read_uncorrectable_without_rng_draws() {
        let Profile { mut geometry, errors, .. } = Profile::tlc();
        (geometry.blocks, geometry.word_lines) = (2, 16);
        let (pages, retries) = (geometry.pages(), errors.retries);
        let (keep, errors) = (Keep::Stamps, Errors { factory_bad: 0, ..errors });
        let spec = Spec { geometry, keep, block_bytes: 4096, errors, seed: 1 };
        let mut nand = Nand::new(spec).expect("flash");
        let at = |page| PageAt { block: 0, page };
        for page in 0..pages {
            nand.program(at(page), Data::Zeros, &[]).expect("a page");
        }
        nand.tear_erase(0, TORN_OF / 2).expect("a block");
        DRAWS.set(0);
        for page in 0..pages {
            for step in 0..=retries {
                assert_eq!(nand.sense(at(page), 0, step).expect("a page"), Sense::Uncorrectable);
            }
        }
        assert_eq!(DRAWS.get(), 0, "numbers drawn for pages that nothing can correct");
        // A partly torn page is counted only up to the correctable number.
        nand.erase(0).expect("a block");
        nand.program(at(0), Data::Zeros, &[]).expect("a page");
        nand.spoil(at(0), errors_rate(&nand)).expect("a page");
        assert_eq!(nand.sense(at(0), 0, 0).expect("a page"), Sense::Uncorrectable);
        let most = u64::from(nand.spec().errors.corrects) + 1;
        assert!(DRAWS.get() <= most, "{} numbers drawn, expected at most {most}", DRAWS.get());
    }

    /// A rate below the one given up without a draw, and far above the correctable one.
    fn errors_rate(nand: &Nand) -> u64 {
        nand.spec().errors.hopeless_rate() * 3 / 4
    }
}
