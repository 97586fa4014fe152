//! Storage of page contents, and access to it.

use std::sync::Arc;

use super::file::own_name;
use super::journal::path_of;
use super::rows::{Packed, Room, Rows};
use super::{Block, Data, Error, Held, Laid, Nand, PageAt, Spec, Tables, WHOLE, pages};
use crate::contents::{Keep, STAMP_BYTES};

/// Maximum number of free spare bytes per page in a laid block.
const LAID_BYTES_MAX: usize = 256;

/// The first `rows` rows of a laid block.
pub(super) fn laid_rows(laid: &dyn Laid, tables: &Tables, rows: u16) -> Rows {
    let mut bytes = vec![0; tables.width * usize::from(rows)];
    for (page, row) in (0..).zip(bytes.chunks_exact_mut(tables.width)) {
        laid.spare(page, &mut row[tables.data..]);
    }
    Rows { width: tables.width, bytes }
}

/// Its packed rows: zeros before the spare bytes.
pub(super) fn laid_packed(laid: &dyn Laid, tables: &Tables, rows: u16, room: &mut Room) -> Packed {
    let width = tables.width - tables.data;
    let mut bytes = vec![0; width * usize::from(rows)];
    for (page, row) in (0..).zip(bytes.chunks_exact_mut(width)) {
        laid.spare(page, row);
    }
    Rows { width, bytes }.pack(room).behind_zeros(tables.data)
}

/// Spare bytes of a block of zeros.
struct Spares {
    packed: Packed,
    width: usize,
}

impl Laid for Spares {
    fn spare(&self, page: u32, out: &mut [u8]) {
        let (spare, rest) = out.split_at_mut(out.len().min(self.width));
        self.packed.copy(page as usize, 0, spare);
        rest.fill(0);
    }

    fn allocated_bytes(&self) -> u64 {
        self.packed.allocated_bytes()
    }
}

/// Appends the stored bytes of a page to `rows`.
fn append(spec: &Spec, tables: &Tables, rows: &mut Vec<u8>, data: Data<'_>, spare: &[u8]) {
    let begin = rows.len();
    match (spec.keep, data) {
        (_, Data::Zeros) => {}
        (Keep::Everything, Data::Bytes(bytes)) | (_, Data::Kept(bytes)) => rows.extend(bytes),
        (Keep::Stamps, Data::Bytes(bytes)) => {
            for block in bytes.chunks_exact(spec.block_bytes as usize) {
                rows.extend(&block[..STAMP_BYTES]);
            }
        }
    }
    rows.resize(begin + tables.data, 0);
    rows.extend(spare);
    rows.resize(begin + tables.width, 0);
}

impl Nand {
    /// Fills an erased block with zeros and these spare bytes, as if all its pages had been programmed.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Bad`]; [`Error::Order`] if it is not erased; [`Error::Length`] if its pages
    /// have too many free spare bytes. Nothing has changed.
    pub fn lay(&mut self, block: u32, laid: Arc<dyn Laid>) -> Result<(), Error> {
        let at = PageAt { block, page: 0 };
        self.check(at)?;
        let (found, expected) = (self.spec.geometry.free_bytes as usize, LAID_BYTES_MAX);
        if found > expected {
            return Err(Error::Length { found, expected });
        }
        if self.is_bad(block) {
            return Err(Error::Bad { block });
        }
        let next = self.next_page(block);
        if next != Some(0) {
            return Err(Error::Order { at, next });
        }
        self.note_laid();
        let (pages, age_s) = (self.spec.geometry.pages(), self.age_s);
        self.held[block] = Held::Laid(laid);
        let block = &mut self.blocks[block as usize];
        (block.born_s, block.next) = (age_s, pages as u16);
        Ok(())
    }

    /// Flash that has kept stamps, all of them zero, as flash that keeps every byte. Blocks of zeros take
    /// memory for their spare bytes alone. It has no file.
    ///
    /// # Errors
    /// [`Error::BadSpec`].
    ///
    /// # Panics
    /// If a stamp is not zero, or the flash is in a file.
    pub fn keep_every_byte(mut self) -> Result<Nand, Error> {
        let spec = Spec { keep: Keep::Everything, ..self.spec.clone() };
        let (tables, before) = (Tables::new(&spec)?, self.tables.clone());
        let (unit, whole) = (spec.geometry.unit_bytes as usize, std::mem::take(&mut self.whole));
        for (number, block) in (0..).zip(&mut self.blocks) {
            let held = &mut self.held[number];
            let rows = match held {
                Held::Nothing | Held::Laid(_) => continue,
                Held::Rows(rows) => rows.clone(),
                Held::Packed(packed) => {
                    Arc::new(packed.unpack(before.width, usize::from(block.next)))
                }
                Held::Stored | Held::Filed(_) => panic!("flash in a file keeps what it kept"),
            };
            let rows = rows.bytes.chunks_exact(before.width).map(|row| row.split_at(before.data));
            assert!(rows.clone().all(|(stamps, _)| stamps.iter().all(|byte| *byte == 0)));
            let width = tables.width - tables.data;
            let mut bytes = Vec::with_capacity(rows.len() * width);
            rows.for_each(|(_, spare)| bytes.extend(spare));
            let packed = Rows { width, bytes }.pack(&mut self.room);
            *held = Held::Laid(Arc::new(Spares { packed, width }));
            if block.flags & WHOLE != 0 {
                let Held::Laid(laid) = held else { unreachable!("laid above") };
                let mut rows = laid_rows(&**laid, &tables, block.next);
                let of = |page| PageAt { block: number, page };
                for ((at, place), bytes) in whole.range((of(0), 0)..(of(u32::MAX), 0)) {
                    let at = at.page as usize * tables.width + *place as usize * unit;
                    rows.bytes[at..at + unit].copy_from_slice(bytes);
                }
                *held = Held::Rows(Arc::new(rows));
                block.flags &= !WHOLE;
            }
        }
        self.pool.clear();
        (self.spec, self.tables) = (spec, Arc::new(tables));
        Ok(self)
    }

    /// Keeps rows in a file beside this state from now on, with `resident_bytes` of memory for those in use.
    /// Only the owner of the state may write: with `writable` false, new rows are in memory. Called after the
    /// state was loaded and its journal replayed, before any other change.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep_pages(
        &mut self,
        state: &std::path::Path,
        resident_bytes: u64,
        writable: bool,
    ) -> Result<(), Error> {
        if !writable {
            return Ok(());
        }
        let state = own_name(state)?;
        let (width, rows) = (self.tables.width, self.spec.geometry.pages());
        let mut pages = match self.pages.take() {
            Some(pages) => pages,
            None => Box::new(pages::Pages::create(&self.files, &state, width, rows)?),
        };
        pages.own(&self.files, resident_bytes)?;
        let journal = path_of(&state);
        let failed = |source| Error::Io { path: journal.clone(), attempt: "look for it", source };
        if !self.files.exists(&journal).map_err(failed)? {
            // The state alone is durable, and this is it.
            pages.has_state(self.areas());
        }
        self.pages = Some(pages);
        Ok(())
    }

    /// Areas of all blocks that have one.
    pub(super) fn areas(&self) -> impl Iterator<Item = u32> {
        self.held.iter().filter_map(|held| match *held {
            Held::Filed(area) => Some(area),
            _ => None,
        })
    }

    /// True if rows are in a file of pages.
    pub fn has_pages(&self) -> bool {
        self.areas().next().is_some()
    }

    /// The file of pages, if new rows go there.
    pub(super) fn own_pages(&mut self) -> Option<&mut pages::Pages> {
        self.pages.as_deref_mut().filter(|pages| pages.writable)
    }

    /// Moves the rows of a block to the file of pages.
    pub(super) fn file_block(&mut self, block: u32) -> Result<(), Error> {
        if let Held::Stored = self.held[block] {
            self.load(block)?;
        }
        let count = usize::from(self.blocks[block as usize].next);
        let width = self.tables.width;
        let rows = match &self.held[block] {
            Held::Nothing | Held::Stored | Held::Filed(_) => return Ok(()),
            Held::Rows(rows) => rows.clone(),
            Held::Packed(packed) => Arc::new(packed.unpack(width, count)),
            Held::Laid(laid) => Arc::new(laid_rows(&**laid, &self.tables, count as u16)),
        };
        let Some(pages) = self.own_pages() else { return Ok(()) };
        let area = pages.take();
        for row in 0..count {
            if let Err(error) = pages.push(area, rows.row(row)) {
                pages.give_up(area, true);
                return Err(error);
            }
        }
        self.held[block] = Held::Filed(area);
        Ok(())
    }

    /// Takes the rows of a block from the file of pages into memory. Records name those in the file, so that
    /// its area is free only with the next state.
    pub(super) fn unfile_block(&mut self, block: u32) -> Result<(), Error> {
        let Held::Filed(area) = self.held[block] else { return Ok(()) };
        let Some(pages) = &self.pages else { unreachable!("a block in a file of pages") };
        let width = self.tables.width;
        let most = width * self.spec.geometry.pages() as usize;
        let mut bytes = Vec::with_capacity(most);
        for row in 0..u32::from(self.blocks[block as usize].next) {
            pages.with(area, row, 0, width, |row| bytes.extend_from_slice(row))?;
        }
        self.held[block] = Held::Rows(Arc::new(Rows { width, bytes }));
        Ok(())
    }

    /// Appends the row of a page to its block. On an error nothing has changed.
    pub(super) fn put(&mut self, at: PageAt, data: Data<'_>, spare: &[u8]) -> Result<(), Error> {
        let held = &self.held[at.block];
        let (is_empty, is_filed) = (matches!(held, Held::Nothing), matches!(held, Held::Filed(_)));
        if self.own_pages().is_some() && (is_empty || is_filed) {
            return self.put_in_file(at, data, spare);
        }
        if is_filed {
            self.unfile_block(at.block)?;
        }
        self.put_in_memory(at, data, spare);
        Ok(())
    }

    fn put_in_file(&mut self, at: PageAt, data: Data<'_>, spare: &[u8]) -> Result<(), Error> {
        let blocks = self.blocks.len();
        // Without a journal no sync makes room: a saved state does. Within a group it would end the batch,
        // and a journal that ends there has a part of a program.
        let may_sync = self.journal.is_some() && at.page.is_multiple_of(self.spec.geometry.group);
        let pages = self.own_pages().expect("a file of pages");
        let (taken_back, waits) = (pages.is_taken_back(), pages.wants_sync(blocks));
        // If it fails the next flush says why.
        let has_failed = may_sync && (taken_back || waits) && self.sync().is_err();
        if has_failed && taken_back {
            // Rows that were taken back may still count. This one goes to memory, as a program that fails
            // would retire its block.
            self.unfile_block(at.block)?;
            self.put_in_memory(at, data, spare);
            return Ok(());
        }
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        append(&self.spec, &self.tables, &mut row, data, spare);
        let held = &mut self.held[at.block];
        let pages = self.pages.as_deref_mut().expect("a file of pages");
        let area = match held {
            Held::Filed(area) => *area,
            _ => pages.take(),
        };
        let done = pages.push(area, &row);
        if let (Err(_), Held::Nothing) = (&done, &*held) {
            pages.give_up(area, true);
        } else {
            *held = Held::Filed(area);
        }
        self.row = row;
        done.map(drop)
    }

    fn put_in_memory(&mut self, at: PageAt, data: Data<'_>, spare: &[u8]) {
        let Nand { spec, tables, pool, .. } = self;
        let held = &mut self.held[at.block];
        if let Held::Nothing = held {
            let most = tables.width * spec.geometry.pages() as usize;
            let new = || Rows { width: tables.width, bytes: Vec::with_capacity(most) };
            *held = Held::Rows(pool.pop().unwrap_or_else(|| Arc::new(new())));
        }
        let next = self.blocks[at.block as usize].next;
        let rows = match held {
            Held::Laid(laid) => Some(laid_rows(&**laid, tables, next)),
            Held::Packed(packed) => Some(packed.unpack(tables.width, usize::from(next))),
            _ => None,
        };
        if let Some(rows) = rows {
            *held = Held::Rows(Arc::new(rows));
        }
        let Held::Rows(rows) = held else {
            unreachable!("rows in memory");
        };
        append(spec, tables, &mut Arc::make_mut(rows).bytes, data, spare);
    }

    /// Packs the stamps of a full block, and recycles its memory.
    pub(super) fn pack(&mut self, block: u32) {
        if self.spec.keep == Keep::Everything {
            return;
        }
        let held = &mut self.held[block];
        let Held::Rows(rows) = held else { return };
        let packed = Held::Packed(rows.pack(&mut self.room));
        let rows = std::mem::replace(held, packed);
        self.take_back(rows);
    }

    /// Recycles the memory or the area of a block's contents, unless a fork still reads it.
    pub(super) fn take_back(&mut self, held: Held) {
        if let Held::Filed(area) = held {
            let has_journal = self.journal.is_some();
            let pages = self.pages.as_deref_mut().expect("a file of pages");
            pages.give_up(area, has_journal);
            return;
        }
        let most = (self.spec.geometry.all_dies() * self.spec.geometry.planes) as usize;
        if let Held::Rows(mut rows) = held
            && let Some(alone) = Arc::get_mut(&mut rows)
            && self.pool.len() < most
        {
            alone.bytes.clear();
            self.pool.push(rows);
        }
    }

    /// Removes the last page of a block: its program never began.
    pub(super) fn pop(&mut self, block: u32) {
        let (width, rows) = (self.tables.width, self.spec.geometry.pages() as usize);
        let (state, held) = (&mut self.blocks[block as usize], &mut self.held[block]);
        match held {
            Held::Packed(packed) => {
                *held = Held::Rows(Arc::new(packed.unpack(width, rows)));
            }
            Held::Laid(laid) => {
                let rows = laid_rows(&**laid, &self.tables, state.next);
                *held = Held::Rows(Arc::new(rows));
            }
            Held::Filed(area) => {
                let pages = self.pages.as_deref_mut().expect("a file of pages");
                pages.pop(*area);
            }
            Held::Nothing | Held::Rows(_) | Held::Stored => {}
        }
        state.next -= 1;
        let left = usize::from(state.next) * width;
        if let Held::Rows(rows) = held {
            Arc::make_mut(rows).bytes.truncate(left);
        }
    }

    /// Passes the stored part of a unit of a programmed page to `put`, run by run, each with its offset in
    /// the unit; all other bytes are zero. Returns false, and passes nothing, if the page is not programmed
    /// or its block is still in its file: call [`Nand::sense`] first. Rows in a file of pages are read
    /// again if they have left memory since; false if that fails.
    ///
    /// # Panics
    /// If the block is out of range.
    #[inline]
    pub fn runs(&self, at: PageAt, unit: u32, put: &mut dyn FnMut(u32, &[u8])) -> bool {
        let block = &self.blocks[at.block as usize];
        if at.page >= u32::from(block.next) {
            return false;
        }
        if block.flags & WHOLE != 0
            && let Some(whole) = self.whole.get(&(at, unit))
        {
            put(0, whole);
            return true;
        }
        let (apart, bytes) = self.grain();
        let kept = self.kept_bytes() as usize;
        let from = unit as usize * kept;
        match &self.held[at.block] {
            Held::Rows(rows) => {
                let row = &rows.row(at.page as usize)[from..from + kept];
                for (place, run) in row.chunks_exact(bytes).enumerate() {
                    put(place as u32 * apart, run);
                }
            }
            Held::Packed(packed) if packed.is_zero(from, kept) => {}
            Held::Packed(packed) => {
                let (mut some, all) = ([0; STAMP_BYTES], self.spec.keep == Keep::Everything);
                let apart = if all { STAMP_BYTES as u32 } else { apart };
                for place in 0..kept / STAMP_BYTES {
                    packed.copy(at.page as usize, from + place * STAMP_BYTES, &mut some);
                    put(place as u32 * apart, &some);
                }
            }
            Held::Filed(area) => {
                let page = at.page;
                let all = |row: &[u8]| {
                    for (place, run) in row.chunks_exact(bytes).enumerate() {
                        put(place as u32 * apart, run);
                    }
                };
                return self
                    .pages
                    .as_ref()
                    .is_some_and(|pages| pages.with(*area, page, from, kept, all).is_ok());
            }
            // All zero.
            Held::Laid(_) => {}
            Held::Nothing | Held::Stored => return false,
        }
        true
    }

    /// Copies the stored part of a unit, run after run, in the format of [`Data::Kept`]. Returns false, and
    /// copies nothing, in the cases of [`Nand::runs`].
    ///
    /// # Panics
    /// If the block is out of range, or the length of `out` is not [`Nand::kept_bytes`].
    pub fn kept(&self, at: PageAt, unit: u32, out: &mut [u8]) -> bool {
        self.copy(at, unit as usize * self.kept_bytes() as usize, out)
    }

    /// The unit, if it is stored in full while others are stored as stamps.
    pub fn whole(&self, at: PageAt, unit: u32) -> Option<&[u8]> {
        let some = self.blocks[at.block as usize].flags & WHOLE != 0;
        if some { self.whole.get(&(at, unit)).map(|bytes| &bytes[..]) } else { None }
    }

    /// Copies free spare bytes of a programmed page, from index `from` on, to `out`. Returns false, and
    /// copies nothing, in the cases of [`Nand::runs`].
    ///
    /// # Panics
    /// If the block is out of range, or the range exceeds the free spare bytes.
    #[inline]
    pub fn spare(&self, at: PageAt, from: u32, out: &mut [u8]) -> bool {
        self.copy(at, self.tables.data + from as usize, out)
    }

    /// Reason why a programmed page that is in the file of pages could not be read; the last one.
    pub fn row_error(&self, at: PageAt) -> Option<String> {
        let block = &self.blocks[at.block as usize];
        let is_filed =
            matches!(self.held[at.block], Held::Filed(_)) && at.page < u32::from(block.next);
        if is_filed { self.pages.as_ref()?.error() } else { None }
    }

    fn copy(&self, at: PageAt, from: usize, out: &mut [u8]) -> bool {
        let block = &self.blocks[at.block as usize];
        if at.page >= u32::from(block.next) {
            return false;
        }
        match &self.held[at.block] {
            Held::Rows(rows) => {
                out.copy_from_slice(&rows.row(at.page as usize)[from..from + out.len()]);
            }
            Held::Packed(packed) => packed.copy(at.page as usize, from, out),
            Held::Filed(area) => {
                let (page, bytes) = (at.page, out.len());
                return self.pages.as_ref().is_some_and(|pages| {
                    pages.with(*area, page, from, bytes, |row| out.copy_from_slice(row)).is_ok()
                });
            }
            Held::Laid(laid) if from < self.tables.data => {
                let (zeros, spare) = out.split_at_mut(out.len().min(self.tables.data - from));
                zeros.fill(0);
                laid.spare(at.page, spare);
            }
            Held::Laid(laid) => {
                let mut spare = [0; LAID_BYTES_MAX];
                let from = from - self.tables.data;
                laid.spare(at.page, &mut spare[..from + out.len()]);
                out.copy_from_slice(&spare[from..from + out.len()]);
            }
            Held::Nothing | Held::Stored => return false,
        }
        true
    }

    /// Bytes of memory held in total. Each fork counts what it shares.
    pub fn allocated_bytes(&self) -> u64 {
        let blocks = self.held.iter().map(|held| match held {
            Held::Rows(rows) => rows.bytes.capacity() as u64,
            Held::Packed(packed) => packed.allocated_bytes(),
            Held::Laid(laid) => laid.allocated_bytes(),
            Held::Nothing | Held::Stored | Held::Filed(_) => 0,
        });
        let pool = self.pool.iter().map(|rows| rows.bytes.capacity() as u64);
        let filed = self.pages.as_ref().map_or(0, |pages| pages.allocated_bytes());
        let whole = self.whole.values().map(|unit| unit.len() as u64 + 48);
        let sum: u64 = blocks.chain(pool).chain(whole).sum();
        let table = self.blocks.capacity() * size_of::<Block>()
            + self.held.bytes()
            + self.tables.cells.len() * 6;
        filed + sum + (table + self.harm.len() * 24) as u64
    }
}
