//! Storage of page contents, and access to it.

use std::sync::Arc;

use super::rows::Rows;
use super::{Block, Data, Error, Held, Laid, Nand, PageAt, Tables, WHOLE};
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
        let block = &mut self.blocks[block as usize];
        (block.held, block.born_s, block.next) = (Held::Laid(laid), age_s, pages as u16);
        Ok(())
    }

    /// Appends the row of a page to its block.
    pub(super) fn put(&mut self, at: PageAt, data: Data<'_>, spare: &[u8]) {
        let Nand { spec, tables, pool, .. } = self;
        let block = &mut self.blocks[at.block as usize];
        if let Held::Nothing = block.held {
            let most = tables.width * spec.geometry.pages() as usize;
            let new = || Rows { width: tables.width, bytes: Vec::with_capacity(most) };
            block.held = Held::Rows(pool.pop().unwrap_or_else(|| Arc::new(new())));
        }
        let Held::Rows(rows) = &mut block.held else {
            unreachable!("a block with room for a page is not packed");
        };
        let rows = &mut Arc::make_mut(rows).bytes;
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

    /// Packs the stamps of a full block, and recycles its memory.
    pub(super) fn pack(&mut self, block: u32) {
        if self.spec.keep == Keep::Everything {
            return;
        }
        let held = &mut self.blocks[block as usize].held;
        let Held::Rows(rows) = held else { return };
        let packed = Held::Packed(Arc::new(rows.pack(&mut self.room)));
        let rows = std::mem::replace(held, packed);
        self.take_back(rows);
    }

    /// Recycles the memory of a block's contents, unless a fork still reads it.
    pub(super) fn take_back(&mut self, held: Held) {
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
        let state = &mut self.blocks[block as usize];
        match &state.held {
            Held::Packed(packed) => {
                state.held = Held::Rows(Arc::new(packed.unpack(width, rows)));
            }
            Held::Laid(laid) => {
                let rows = laid_rows(&**laid, &self.tables, state.next);
                state.held = Held::Rows(Arc::new(rows));
            }
            Held::Nothing | Held::Rows(_) | Held::Stored => {}
        }
        state.next -= 1;
        let left = usize::from(state.next) * width;
        if let Held::Rows(rows) = &mut state.held {
            Arc::make_mut(rows).bytes.truncate(left);
        }
    }

    /// Passes the stored part of a unit of a programmed page to `put`, run by run, each with its offset in
    /// the unit; all other bytes are zero. Returns false, and passes nothing, if the page is not programmed
    /// or its block is still in its file: call [`Nand::sense`] first.
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
        match &block.held {
            Held::Rows(rows) => {
                let row = &rows.row(at.page as usize)[from..from + kept];
                for (place, run) in row.chunks_exact(bytes).enumerate() {
                    put(place as u32 * apart, run);
                }
            }
            Held::Packed(packed) => {
                let mut stamp = [0; STAMP_BYTES];
                for place in 0..kept / STAMP_BYTES {
                    packed.copy(at.page as usize, from + place * STAMP_BYTES, &mut stamp);
                    put(place as u32 * apart, &stamp);
                }
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

    fn copy(&self, at: PageAt, from: usize, out: &mut [u8]) -> bool {
        let block = &self.blocks[at.block as usize];
        if at.page >= u32::from(block.next) {
            return false;
        }
        match &block.held {
            Held::Rows(rows) => {
                out.copy_from_slice(&rows.row(at.page as usize)[from..from + out.len()]);
            }
            Held::Packed(packed) => packed.copy(at.page as usize, from, out),
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
        let blocks = self.blocks.iter().map(|block| match &block.held {
            Held::Rows(rows) => rows.bytes.capacity() as u64,
            Held::Packed(packed) => packed.allocated_bytes(),
            Held::Laid(laid) => laid.allocated_bytes(),
            Held::Nothing | Held::Stored => 0,
        });
        let pool = self.pool.iter().map(|rows| rows.bytes.capacity() as u64);
        let whole = self.whole.values().map(|unit| unit.len() as u64 + 48);
        let sum: u64 = blocks.chain(pool).chain(whole).sum();
        let table = self.blocks.capacity() * size_of::<Block>() + self.tables.cells.len() * 6;
        sum + (table + self.harm.len() * 24) as u64
    }
}
