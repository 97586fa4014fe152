//! The public interface of the flash translation layer: read, write, trim and flush of logical blocks.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Line, Pool, Rt, Signal, Span, Turn};

use crate::blame::Blame;
use crate::content::PAD;
use crate::layout::{Layout, NONE};
use crate::options::{Cache, Error, Options, Space};
use crate::pages::{Page, PageRead, Pages, Part, Tag};
use crate::policy::{GcControl, Heat};
use crate::state::State;
use crate::stats::{Histogram, Stats};
use crate::supers::Phase;

/// A flash translation layer: logical blocks that may be written in any order and any number of times. Clones
/// share one instance.
///
/// Its tasks run until the executor is dropped or drops them, as at a power cut.
pub struct Ftl<P: Pages>(pub(crate) Rc<Inner<P>>);

impl<P: Pages> Clone for Ftl<P> {
    fn clone(&self) -> Ftl<P> {
        Ftl(self.0.clone())
    }
}

/// Kinds of task in stop order: none waits for one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Keeper,
    Mapper,
    Eraser,
    Collector,
    Die,
}

/// Number of kinds of task.
pub(crate) const TASKS: usize = 5;

pub(crate) struct Inner<P> {
    pub rt: Rt,
    pub pages: Rc<P>,
    pub options: Options,
    pub layout: Layout,
    pub state: RefCell<State>,
    /// Write buffer slots for host data, and slots for the layer's own metadata.
    pub slots: Pool<u32>,
    pub meta_slots: Pool<u32>,
    /// One request at a time waits for slots.
    pub turns: Pool<()>,
    /// Per die: work is queued.
    pub dies: Vec<Signal>,
    /// A superpage has been programmed, or space has been freed.
    pub landed: Signal,
    /// The collector may have work.
    pub collect: Signal,
    /// Host-directed GC of a superblock has completed or failed.
    pub named: Signal,
    /// The drive is worn out: no more writes.
    pub worn: Signal,
    /// Free vectors of parts, for reuse.
    spare_parts: RefCell<Vec<Vec<Part>>>,
    /// A part of a cached map was read or written, or the cache's state changed.
    pub mapped: Signal,
    /// True while a checkpoint is being written; at most one at a time.
    pub checkpointing: Cell<bool>,
    pub unit_shift: u32,
    pub blame: Blame,
    /// Runs the flash software, for the times of [`Processing`](crate::Processing).
    pub processor: Line,
    /// Tasks up to this kind are to stop.
    pub stopped: Cell<Option<Task>>,
    /// Number of running tasks of each kind.
    pub running: [Cell<u32>; TASKS],
}

/// Slots for metadata, in addition to those of one superpage in one plane.
const META_SLOTS: u32 = 8;

impl<P: Pages> Inner<P> {
    /// Starts with nothing known but the preserved write buffer; returns the entries of that buffer, oldest
    /// first.
    pub fn new(
        rt: &Rt,
        pages: Rc<P>,
        options: &Options,
        layout: Layout,
        suspended: Option<State>,
    ) -> (Inner<P>, Vec<(u32, Tag)>) {
        // Enough slots that superpages of map parts close each other's word lines.
        let rows = if options.map_cache.is_some() { 2 + layout.closing_rows() } else { 0 };
        let meta = layout.plane_units + META_SLOTS + rows * layout.row_units;
        let all = options.slots + meta;
        pages.slots(all);
        let has = |slot: u32| pages.kept(slot).map(|tag| (slot, tag));
        let mut kept: Vec<(u32, Tag)> = (0..all).filter_map(has).collect();
        kept.sort_unstable_by_key(|(_, tag)| tag.order);
        let is_free = |slot: &u32| pages.kept(*slot).is_none();
        let state = suspended.unwrap_or_else(|| State::new(&*pages, layout, options, all));
        let inner = Inner {
            rt: rt.clone(),
            options: options.clone(),
            layout,
            state: RefCell::new(state),
            slots: Pool::new((0..options.slots).rev().filter(is_free)),
            meta_slots: Pool::new((options.slots..all).rev().filter(is_free)),
            turns: Pool::new([()]),
            dies: (0..layout.shape.dies).map(|_| Signal::default()).collect(),
            landed: Signal::default(),
            collect: Signal::default(),
            named: Signal::default(),
            worn: Signal::default(),
            mapped: Signal::default(),
            spare_parts: RefCell::default(),
            checkpointing: Cell::new(false),
            unit_shift: layout.shape.unit_bytes.trailing_zeros(),
            blame: Blame::new(rt),
            processor: Line::default(),
            stopped: Cell::new(None),
            running: Default::default(),
            pages: pages.clone(),
        };
        (inner, kept)
    }

    pub fn take_parts(&self) -> Vec<Part> {
        self.spare_parts.borrow_mut().pop().unwrap_or_default()
    }

    pub fn give_parts(&self, mut parts: Vec<Part>) {
        parts.clear();
        self.spare_parts.borrow_mut().push(parts);
    }

    /// Frees the slot and wakes its waiters.
    pub fn free_slot(&self, slot: u32) {
        self.pages.release(slot);
        let pool = if slot < self.options.slots { &self.slots } else { &self.meta_slots };
        pool.give(&self.rt, slot);
    }

    /// Retags slots whose data are superseded, so that a mount after a power cut ignores them.
    pub fn retag_dead(&self, state: &mut State) {
        while let Some(slot) = state.buffer.died.pop() {
            self.pages.stage(slot, Tag { logical: PAD, order: 0 }, 0, &[]);
        }
    }

    /// Splits a range of blocks into pieces: mapping unit, first byte in it, length in bytes.
    pub fn pieces(&self, block: u64, blocks: u32) -> Result<Pieces, Error> {
        let bytes = u64::from(self.options.block_bytes);
        let all = u64::from(self.options.units) << self.unit_shift;
        let begin = block.checked_mul(bytes).ok_or(Error::Range)?;
        let end = begin + u64::from(blocks) * bytes;
        if end > all {
            Err(Error::Range)
        } else {
            Ok(Pieces { begin, end, shift: self.unit_shift })
        }
    }

    /// Appends a unit to a list of parts, merging it into the part of the same page, if there is one: a page
    /// is sensed once, however its units are ordered. The search begins at the last part, where data that
    /// were written together are found.
    pub fn add_part(&self, parts: &mut Vec<Part>, at: u32) {
        let place = self.layout.place(at);
        match parts.iter_mut().rev().find(|part| part.page == place.page) {
            Some(part) => part.units |= 1 << place.unit,
            None => parts.push(Part {
                page: place.page,
                units: 1 << place.unit,
                seen: PageRead::Unreadable,
            }),
        }
    }

    /// Updates the health of the superblock from a read.
    pub fn note(&self, part: &Part) {
        let mut state = self.state.borrow_mut();
        let now = state.next_sequence;
        let limits = self.options.limits;
        let one = &mut state.supers.all[part.page.block as usize];
        one.health.reads += 1;
        if let PageRead::Good { corrected, .. } = part.seen {
            one.health.corrected = one.health.corrected.max(corrected);
        }
        one.health.age = now - one.filled.min(now);
        if limits.are_passed(one.health) && !one.refresh && one.phase == Phase::Filled {
            state.supers.set_refresh(part.page.block);
            drop(state);
            self.collect.notify(&self.rt);
        }
    }
}

/// Contents of some bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This many zeros.
    Zeros(u32),
}

/// Iterator over a byte range, split into mapping units.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    begin: u64,
    end: u64,
    shift: u32,
}

impl Pieces {
    /// Offset of a piece from the beginning of the range, in bytes.
    pub fn offset(&self, (logical, first, _): (u32, u32, u32)) -> u32 {
        ((u64::from(logical) << self.shift) + u64::from(first) - self.begin) as u32
    }
}

impl Iterator for Pieces {
    /// Mapping unit, first byte in it, length in bytes.
    type Item = (u32, u32, u32);
    fn next(&mut self) -> Option<(u32, u32, u32)> {
        if self.begin >= self.end {
            return None;
        }
        let unit = self.begin >> self.shift;
        let end = ((unit + 1) << self.shift).min(self.end);
        let offset = self.begin - (unit << self.shift);
        let bytes = end - self.begin;
        self.begin = end;
        Some((unit as u32, offset as u32, bytes as u32))
    }
}

impl<P: Pages> Ftl<P> {
    /// Capacity in logical blocks.
    pub fn blocks(&self) -> u64 {
        (u64::from(self.0.options.units) << self.0.unit_shift)
            / u64::from(self.0.options.block_bytes)
    }

    /// Bytes of a logical block.
    pub fn block_bytes(&self) -> u32 {
        self.0.options.block_bytes
    }

    /// Reserves the next turn of the processor that runs the flash software, from now.
    pub fn process(&self, service: Span) -> Turn {
        self.0.processor.reserve(self.0.rt.now(), service)
    }

    /// The underlying flash.
    pub fn pages(&self) -> &Rc<P> {
        &self.0.pages
    }

    /// Reads blocks, so that [`lend`](Ftl::lend) can return their bytes. Blocks that were never written or
    /// are trimmed take no time.
    pub async fn read(&self, block: u64, blocks: u32) -> Result<(), Error> {
        self.0.read(block, blocks).await
    }

    /// Reads blocks, and passes their newest bytes to a callback, run by run, each with its byte offset from
    /// the first block: a mapping unit as soon as the page that holds it has been read. Runs cover all bytes,
    /// each once. In order of offsets, except for units that moved while they were read: these are read
    /// again, all of them together.
    ///
    /// # Errors
    /// As for [`read`](Ftl::read). Some runs may have been passed before.
    pub async fn read_to(
        &self,
        block: u64,
        blocks: u32,
        put: &mut dyn FnMut(u32, Run<'_>),
    ) -> Result<(), Error> {
        self.0.read_to(block, blocks, put).await
    }

    /// Passes the newest bytes of these blocks to a callback, run by run, each with its byte offset from the
    /// first block. Bytes that no run covers are zero. The blocks must have been read before.
    pub fn lend(
        &self,
        block: u64,
        blocks: u32,
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), Error> {
        self.0.lend(block, blocks, &[], put)
    }

    /// Writes whole blocks. Each mapping unit is written atomically. After the return all reads see the data;
    /// when it survives a power cut depends on [`Cache`].
    pub async fn write(&self, block: u64, data: &[u8]) -> Result<(), Error> {
        self.0.pages.admits()?;
        let newest = self.0.write(block, data).await?;
        self.0.until_kept(newest).await?;
        if self.0.options.cache == Cache::Through { self.0.flush().await } else { Ok(()) }
    }

    /// As [`write`](Ftl::write), but returns when the data are on flash, also if the buffer survives power
    /// cuts.
    pub async fn write_through(&self, block: u64, data: &[u8]) -> Result<(), Error> {
        self.0.pages.admits()?;
        self.0.write(block, data).await?;
        self.0.until_on_flash().await
    }

    /// Trims blocks: they read as zeros from now on, and their space is freed. After a completed flush they
    /// stay trimmed across power cuts; before that, a power cut may restore the data that they held, but
    /// nothing older.
    pub async fn trim(&self, block: u64, blocks: u32) -> Result<(), Error> {
        self.0.pages.admits()?;
        self.0.trim(block, blocks).await?;
        if self.0.options.cache == Cache::Through { self.0.flush().await } else { Ok(()) }
    }

    /// Returns when all earlier writes and trims survive a power cut.
    pub async fn flush(&self) -> Result<(), Error> {
        self.0.flush().await
    }

    /// Writes a checkpoint, which shortens the next mount.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        self.0.checkpoint().await
    }

    /// Hint: how often these blocks will be written, compared with others. The last hint for a block of a
    /// mapping unit holds for the unit. Without [`Options::hints`](crate::Options::hints) it does nothing.
    ///
    /// # Errors
    /// [`Error::Range`] for blocks past the end.
    pub fn hint(&self, block: u64, blocks: u64, heat: Heat) -> Result<(), Error> {
        let end = block.checked_add(blocks).filter(|end| *end <= self.blocks());
        let end = end.ok_or(Error::Range)?;
        if self.0.options.hints && blocks > 0 {
            let per_unit = u64::from(self.0.layout.shape.unit_bytes / self.block_bytes());
            let (first, end) = (block / per_unit, end.div_ceil(per_unit));
            self.0.state.borrow_mut().hints.set(first as u32, end as u32, heat);
        }
        Ok(())
    }

    /// Number of ranges that are hinted at present, at most [`HINTED_RANGES_MAX`](crate::HINTED_RANGES_MAX).
    pub fn hinted_ranges(&self) -> usize {
        self.0.state.borrow().hints.len()
    }

    /// Sets when the collector starts from now on, so that the owner of several drives can let them collect
    /// in turn. The host's usable space does not change.
    pub fn lead(&self, lead: GcControl) {
        self.0.state.borrow_mut().set_gc_control(lead);
        self.0.collect.notify(&self.0.rt);
    }

    /// Mapping units that can be written before the collector starts on its own; negative if it is due.
    pub fn slack(&self) -> i64 {
        let state = self.0.state.borrow();
        let own = Space::of(&self.0.layout, self.0.options.reserve);
        state.space().left as i64 - own.start as i64
    }

    /// Bytes of a mapping unit.
    pub fn unit_bytes(&self) -> u64 {
        1 << self.0.unit_shift
    }

    /// Mapping units per superblock.
    pub fn superblock_units(&self) -> u32 {
        self.0.layout.super_units
    }

    /// Returns counters and the state of the flash.
    pub fn stats(&self) -> Stats {
        let state = self.0.state.borrow();
        let supers = state.supers.all.iter().filter(|one| one.phase != Phase::Gone);
        let erases = || supers.clone().map(|one| one.erases);
        let meta = |at: &&u32| **at != NONE;
        let chunks = match state.cached() {
            Some(cached) => cached.stale as usize,
            None => state.chunks.iter().filter(meta).count(),
        };
        let notes = (chunks + state.notes.len()) as u64;
        let valid: u64 = supers.clone().map(|one| u64::from(one.valid)).sum();
        Stats {
            counters: state.counters,
            mapped_units: valid - notes.min(valid),
            good_units: supers.clone().map(|one| u64::from(one.units)).sum(),
            left_units: state.supers.left(),
            erases_least: erases().min().unwrap_or(0),
            erases_most: erases().max().unwrap_or(0),
            erases: erases().map(u64::from).sum(),
            capacity_bytes: u64::from(self.0.options.units) << self.0.unit_shift,
            memory_bytes: state.map_bytes() + state.supers.memory_bytes() + state.hints.bytes(),
            map_bytes: state.map_bytes(),
            buffer_bytes: state.buffer.table_bytes(),
        }
    }

    /// Histogram of filled superblocks by their share of valid units.
    pub fn histogram(&self) -> Histogram {
        let state = self.0.state.borrow();
        let mut histogram = Histogram::default();
        let holds = |one: &&crate::supers::Super| one.phase == Phase::Filled && !one.of_map;
        for one in state.supers.all.iter().filter(holds).filter(|one| one.units > 0) {
            let tenth = u64::from(one.valid) * 10 / u64::from(one.units);
            histogram[tenth.min(10) as usize] += 1;
        }
        histogram
    }

    /// Page that holds a block; `None` if the block is buffered or unmapped.
    pub fn locate(&self, block: u64) -> Option<Page> {
        let (logical, _, _) = self.0.pieces(block, 1).ok()?.next()?;
        if self.0.state.borrow().buffer.find(logical).is_some() {
            return None;
        }
        let at = self.0.known_place(logical).filter(|at| *at != NONE)?;
        Some(self.0.layout.place(at).page)
    }
}
