//! Programs and erases.

use ftl::{Header, META, Page, Row, Source, Unit};
use media::nand::{Data, Error, PageAt, Timing};
use runtime::Span;

use super::die::Work;
use super::{
    Chips, HEADER_BYTES, erase_time, on_wires, page_at, pages_of, planes_of, stop_without_row,
    undo_plane,
};

/// Result of the program of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Whole,
    Failed,
    /// The file of pages has no place for it: nothing has changed.
    Not,
}

impl Chips {
    /// Programs a superpage without timing. Returns the mask of planes that failed.
    pub(super) fn write_row(&self, row: Row, header: Header, units: &[Unit]) -> u32 {
        assert_eq!(units.len() as u32, self.shape.row_units(row.blocks.planes), "units of a row");
        let mut failed = 0;
        let planes = units.chunks_exact((self.shape.units * self.shape.group) as usize);
        for (plane, units) in planes_of(row.blocks.planes).zip(planes) {
            let pages = units.chunks_exact(self.shape.units as usize);
            for (at, units) in pages_of(self.shape, row, plane).zip(pages) {
                match self.write_page(at, header, units) {
                    Written::Whole => {}
                    Written::Failed => failed |= 1 << plane,
                    Written::Not => {
                        failed |= 1 << plane;
                        // Its pages before this one.
                        undo_plane(&mut self.nand.borrow_mut(), self.shape, row, plane);
                        break;
                    }
                }
            }
        }
        failed
    }

    /// Programs a page.
    fn write_page(&self, at: PageAt, header: Header, units: &[Unit]) -> Written {
        let (mut nand, buffer) = (self.nand.borrow_mut(), self.buffer.borrow());
        let kept = nand.kept_bytes() as usize;
        let mut page = self.room.page.borrow_mut();
        page.resize(kept * units.len(), 0);
        for (unit, out) in units.iter().zip(page.chunks_exact_mut(kept)) {
            match unit.from {
                Source::Nothing => out.fill(0),
                Source::Slot(slot) => out.copy_from_slice(buffer.kept(slot)),
                Source::Flash(from) => {
                    let found = nand.kept(self.at(from.page), from.unit, out);
                    stop_without_row(&nand, self.at(from.page), found);
                    assert!(found, "{from:?} is copied and holds nothing");
                }
            }
        }
        let spare = spare_bytes(header, units.iter().map(|unit| unit.logical));
        let spare = &spare[..HEADER_BYTES as usize + 4 * units.len()];
        self.rt.log("flash", "program", at.block.into(), at.page.into());
        let done = nand.program(at, Data::Kept(&page), spare);
        // Without room in the host's file nothing was programmed.
        let stored = !matches!(done, Err(Error::Io { .. } | Error::State { .. }));
        let is_whole = |unit: &Unit| stored && unit.logical & META != 0;
        for (number, unit) in units.iter().enumerate().filter(|(_, unit)| is_whole(unit)) {
            match unit.from {
                Source::Nothing => {}
                Source::Slot(slot) => {
                    if let Some(bytes) = buffer.whole(slot) {
                        nand.keep_whole(at, number as u32, bytes).expect("just programmed");
                    }
                }
                Source::Flash(from) => {
                    let from = (self.at(from.page), from.unit);
                    nand.copy_whole(from, (at, number as u32)).expect("just programmed");
                }
            }
        }
        self.validate(done)
    }

    fn validate(&self, done: Result<(), Error>) -> Written {
        self.count(|counts| counts.programs += 1);
        match done {
            Ok(()) => Written::Whole,
            Err(Error::ProgramFailed { .. }) => {
                self.count(|counts| counts.failures += 1);
                Written::Failed
            }
            Err(error @ (Error::Io { .. } | Error::State { .. })) => {
                self.note(error);
                Written::Not
            }
            Err(error) => panic!("a rule of flash was broken: {error}"),
        }
    }

    /// Programs a superpage of zeros without timing.
    pub(super) fn lay_row(&self, row: Row, header: Header, logicals: &[u32]) {
        assert_eq!(
            logicals.len() as u32,
            self.shape.row_units(row.blocks.planes),
            "units of a row"
        );
        let mut pages = logicals.chunks_exact(self.shape.units as usize);
        let mut nand = self.nand.borrow_mut();
        for plane in planes_of(row.blocks.planes) {
            for at in pages_of(self.shape, row, plane) {
                let logicals = pages.next().expect("as many as the row has");
                let spare = spare_bytes(header, logicals.iter().copied());
                let spare = &spare[..HEADER_BYTES as usize + 4 * logicals.len()];
                self.validate(nand.program(at, Data::Zeros, spare));
            }
        }
    }

    /// Timing of a program: the data transfer, then the array operation.
    pub(super) async fn program_time(&self, timing: &Timing, row: Row, collects: bool) {
        let (now, die) = (self.rt.now(), row.blocks.die);
        let planes = u64::from(row.blocks.planes.count_ones());
        let (bytes, array) = {
            let nand = self.nand.borrow();
            let geometry = nand.geometry();
            let page = u64::from(geometry.page_bytes + geometry.spare_bytes);
            let kinds = (row.page..row.page + self.shape.group).map(|page| nand.cells(page).kind);
            let array = kinds.fold(Span::ZERO, |sum, kind| sum + timing.program[usize::from(kind)]);
            (planes * u64::from(self.shape.group) * page, array)
        };
        let times = if timing.multi_plane { 1 } else { planes };
        let wires = self.channel_of(die).reserve(now, timing.command + on_wires(timing, bytes));
        // Without a cache register, the array is idle while its page register is filled.
        let ticket = {
            let mut turns = self.dies[die as usize].borrow_mut();
            let free = if timing.cache { now } else { turns.free_at().max(now) };
            let ready = wires.end.max(free + wires.end.since(wires.begin));
            turns.operate(
                now,
                ready,
                self.stretched(die, array * times),
                (Work::Program(row), collects),
            )
        };
        self.rt.record_turn(self.waits[1], wires);
        self.turn_of(die, ticket).await;
    }

    pub(super) fn erase_now(&self, erase: &mut ftl::Erase) {
        let blocks = erase.blocks;
        erase.failed = 0;
        for plane in planes_of(blocks.planes) {
            let page = Page { die: blocks.die, plane, block: blocks.block, page: 0 };
            let at = page_at(self.shape, page);
            let erased = self.nand.borrow_mut().erase(at.block);
            if let Err(Error::Bad { .. }) = erased {
                // A bad block holds nothing.
                erase.failed |= 1 << plane;
                continue;
            }
            self.count(|counts| counts.erases += 1);
            self.rt.log("flash", "erased", at.block.into(), 0);
            match erased {
                Ok(()) => {}
                Err(Error::EraseFailed { .. }) => {
                    self.count(|counts| counts.failures += 1);
                    erase.failed |= 1 << plane;
                }
                Err(error) => panic!("a rule of flash was broken: {error}"),
            }
        }
        if !self.commit() {
            erase.failed = blocks.planes;
        }
    }

    /// Reports to the flash journal, if there is one, that these erases are about to begin.
    fn erases_begin(&self, blocks: &[ftl::Erase]) {
        let mut nand = self.nand.borrow_mut();
        if !nand.has_journal() {
            return;
        }
        for ftl::Blocks { die, block, planes } in blocks.iter().map(|erase| erase.blocks) {
            for plane in planes_of(planes) {
                nand.erase_begins(page_at(self.shape, Page { die, plane, block, page: 0 }).block);
            }
        }
        drop(nand);
        self.commit();
    }

    /// Erases with timing: dies work in parallel, and each block is erased at the end of its turn.
    pub(super) async fn erase_in_time(&self, timing: &Timing, blocks: &mut [ftl::Erase]) {
        let mut turns = self.room.erases.borrow_mut().pop().unwrap_or_default();
        turns.clear();
        self.erases_begin(blocks);
        let now = self.rt.now();
        for (at, erase) in (0..).zip(blocks.iter()) {
            let span = erase_time(timing, erase.blocks.planes.count_ones());
            let span = self.stretched(erase.blocks.die, span);
            let mut die = self.dies[erase.blocks.die as usize].borrow_mut();
            turns.push((at, die.operate(now, now, span, (Work::Erase(erase.blocks), true))));
        }
        let end = |(at, ticket): (u32, _)| {
            let die = &self.dies[blocks[at as usize].blocks.die as usize];
            die.borrow().turn(ticket).map_or(now, |turn| turn.end)
        };
        turns.sort_by_key(|turn| end(*turn));
        for (at, ticket) in &turns {
            let erase = &mut blocks[*at as usize];
            self.turn_of(erase.blocks.die, *ticket).await;
            self.come_of_age();
            self.erase_now(erase);
        }
        self.room.erases.borrow_mut().push(turns);
    }
}

/// Spare bytes of a page of at most 32 units.
pub(super) fn spare_bytes(header: Header, logicals: impl Iterator<Item = u32>) -> [u8; 140] {
    let mut spare = [0; 140];
    spare[..8].copy_from_slice(&header.sequence.to_le_bytes());
    spare[8..12].copy_from_slice(&header.erases.to_le_bytes());
    for (logical, out) in logicals.zip(spare[12..].chunks_exact_mut(4)) {
        out.copy_from_slice(&logical.to_le_bytes());
    }
    spare
}
