//! Mount: reconstructs the state from the spare bytes, as a power cut has left them.
//!
//! Every superpage has a sequence number; of several copies, the one in the superpage with the highest number
//! counts. A trim record holds, for each trim, the superpage before which it came. With a checkpoint only
//! superpages written since are scanned; without one, all of them.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;

use runtime::{Rt, Span};

use crate::content::{Holds, NUMBER, PAD, SEQUENCE_MAX, TRIM, UNCOMMITTED, holds};
use crate::ftl::{Ftl, Inner};
use crate::layout::{Layout, NONE, WritePointer};
use crate::map::Map;
use crate::nearby::Nearby;
use crate::options::{Cache, MountError, Options};
use crate::pages::{Header, Page, PageRead, Pages, Part, Shape, Source, Tag, Unit};
use crate::policy::{Heat, Stream};
use crate::root::Root;
use crate::space;
use crate::state::State;
use crate::supers::Phase;
use crate::trim::{TrimRecord, trim_records};

impl<P: Pages> Ftl<P> {
    /// Mounts flash in its current state, new or after a power cut. Returns when it can be read and written.
    pub async fn mount(rt: &Rt, pages: Rc<P>, options: &Options) -> Result<Ftl<P>, MountError> {
        let layout = check(pages.shape(), options)?;
        let (inner, kept) = Inner::new(rt, pages, options, layout, None);
        let inner = Rc::new(inner);
        let root = inner.find_root().await;
        let done = match root {
            Some(root) => inner.recover(&kept, root).await?,
            None => false,
        };
        if !done {
            inner.state.borrow_mut().forget();
            inner.recover(&kept, Root::default()).await?;
        }
        // Older copies of what those pages hold are no substitute.
        if inner.pages.has_unread() {
            return Err(MountError::File);
        }
        inner.state.borrow_mut().count_valid()?;
        inner.state.borrow_mut().supers.free_empty();
        inner.resume().await;
        inner.refill(&kept);
        inner.state.borrow().check_space()?;
        Ok(inner.start())
    }
}

/// Number of superblocks with an interrupted erase that a mount may find. None of their pages can be read.
/// Equal to the default reserve.
const TORN: u64 = 4;
/// Number of streams of data, in the order of [`Stream::DATA`]. A superblock of each may be open, and is
/// padded behind torn superpages. The class that it held is unknown after a power cut, and does not matter.
fn open_streams(options: &Options) -> usize {
    match (options.hints, options.separate_streams) {
        (true, _) => Stream::DATA.len(),
        (false, true) => 2,
        (false, false) => 1,
    }
}
/// Upper bound of the software time per page.
const PER_PAGE: Span = Span::us(1);

/// Upper bound of the time of a mount: it scans all pages, as if no checkpoint were readable, and retries
/// those of `TORN` superblocks. Retries elsewhere are not included.
pub fn mount_time<P: Pages>(pages: &P, options: &Options) -> Span {
    let shape = pages.shape();
    let count = u64::from(shape.dies * shape.planes) * u64::from(shape.blocks * shape.pages);
    let software = PER_PAGE * count;
    let Some(times) = pages.mount_times() else { return software };
    // At least two, whatever the streams. An open superblock is also scanned from its end.
    let open = open_streams(options).max(2) as u64;
    let read = times.read * (u64::from(shape.blocks) + open);
    (read + times.reread * TORN + times.fill * open).max(software)
}

pub(crate) fn check(shape: Shape, options: &Options) -> Result<Layout, MountError> {
    let Shape { dies, planes, blocks, pages, group, units, unit_bytes, reach } = shape;
    let counts = [dies, planes, blocks, pages, group, units];
    let sensible = counts.iter().all(|count| (1..1 << 24).contains(count))
        && planes <= 32
        && units <= 32
        && pages.is_multiple_of(group)
        && reach < pages / group
        && unit_bytes.is_power_of_two()
        && shape.all_units() < u64::from(u32::MAX);
    if !sensible {
        return Err(MountError::Shape);
    }
    let layout = Layout::new(shape);
    let whole = options.block_bytes >= 512 && unit_bytes.is_multiple_of(options.block_bytes);
    let slots = if options.hints { space::hinted_slots_min(&shape) } else { 2 * layout.row_units };
    let few = options.slots < slots || options.slots > 1 << 24;
    let short = options.reserve < space::reserve_min(options.hints);
    let unhinted = options.hints
        && (!options.separate_streams || layout.groups * dies < space::hinted_rows_min(&shape));
    let much = options.units == 0 || options.units >= crate::pages::LOST;
    let little = options.map_cache.is_some_and(|bytes| bytes < space::least_map_cache(&shape));
    let unbounded = options.nv_slots.is_none_or(|most| {
        options.cache == Cache::Protected && (1..=options.slots).contains(&most)
    });
    if !whole || few || much || little || short || unhinted || !unbounded {
        return Err(MountError::Options);
    }
    Ok(layout)
}

/// A superpage that was found: its sequence number, and its first unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    sequence: u64,
    first: u32,
}

impl<P: Pages> Inner<P> {
    /// Restores the map; returns false if part of it cannot be read.
    async fn recover(&self, kept: &[(u32, Tag)], root: Root) -> Result<bool, MountError> {
        let mut found = Vec::new();
        // The next mount would not scan a number that the checkpoint treats as old.
        {
            let mut state = self.state.borrow_mut();
            state.next_sequence = state.next_sequence.max(root.from);
        }
        for superblock in 0..self.layout.shape.blocks {
            if root.knows(superblock) {
                self.state.borrow_mut().settle(superblock, &root);
            }
            self.scan(superblock, &root, &mut found).await;
        }
        if self.options.mistakes.replay_out_of_order {
            found.sort_unstable_by_key(|row| row.first);
        } else {
            found.sort_unstable();
        }
        self.state.borrow_mut().take_chunks(&root);
        self.find_meta(&found);
        let is_cached = self.state.borrow().cached().is_some();
        if !is_cached && !self.load_chunks(&root).await {
            return Ok(false);
        }
        // Trims from before the checkpoint are in the map already. The units may have been written since, in
        // superpages that are not scanned, while the collector has moved the record.
        let mut trims = self.trims(kept).await;
        trims.retain(|trim| trim.before >= root.from);
        self.replay(&found, &trims);
        if is_cached { self.claim_parts().await } else { Ok(true) }
    }

    /// Scans the spare bytes of a superblock's superpages, except those that the root covers.
    async fn scan(&self, superblock: u32, root: &Root, found: &mut Vec<Found>) {
        let Layout { groups, shape, .. } = self.layout;
        let mut parts = self.take_parts();
        let (mut any, mut all_erased) = (false, true);
        let (before, mut counts) = (found.len(), false);
        for group in 0..groups {
            parts.clear();
            for die in 0..shape.dies {
                let planes = self.state.borrow().supers.members(superblock, die);
                self.add_row(&mut parts, WritePointer { superblock, group, die }, planes);
            }
            self.pages.read(&mut parts).await;
            if parts.iter().all(|part| part.seen == PageRead::Erased) {
                break;
            }
            (any, all_erased) = (true, false);
            let mut last = None;
            for part in &parts {
                let Some(header) = self.pages.header(part.page) else { continue };
                if header.sequence > SEQUENCE_MAX {
                    continue;
                }
                let write_pointer = WritePointer {
                    superblock,
                    group: part.page.page / shape.group,
                    die: part.page.die,
                };
                let row =
                    Found { sequence: header.sequence, first: self.layout.first(write_pointer) };
                self.state.borrow_mut().saw(superblock, header);
                counts |= header.erases & UNCOMMITTED == 0;
                if last.replace(row) != Some(row) && header.sequence >= root.from {
                    found.push(row);
                }
            }
            // The first superpage identifies a superblock that was filled before the checkpoint.
            let opened = self.state.borrow().supers.all[superblock as usize].opened;
            if root.filled_before(superblock, opened) {
                counts = true;
                break;
            }
        }
        self.give_parts(parts);
        if !counts {
            // An uncommitted superblock is ignored.
            found.truncate(before);
        }
        if !any && all_erased {
            self.state.borrow_mut().supers.set_clean(superblock);
        }
    }

    fn add_row(&self, parts: &mut Vec<Part>, write_pointer: WritePointer, planes: u32) {
        let group = self.layout.shape.group;
        for plane in (0..self.layout.shape.planes).filter(|plane| planes >> plane & 1 != 0) {
            for page in write_pointer.group * group..(write_pointer.group + 1) * group {
                let page =
                    Page { die: write_pointer.die, plane, block: write_pointer.superblock, page };
                parts.push(Part { page, units: 0, seen: PageRead::Unreadable });
            }
        }
    }

    /// Calls `with` for every readable unit of a superpage: number, and tag in the spare bytes.
    fn each_unit(&self, row: Found, mut with: impl FnMut(u32, u32)) {
        let per_page = self.layout.shape.units;
        for first in (row.first..row.first + self.layout.row_units).step_by(per_page as usize) {
            let place = self.layout.place(first);
            match self.pages.header(place.page) {
                Some(header) if header.sequence == row.sequence => {}
                _ => continue,
            }
            for unit in 0..per_page {
                with(first + unit, self.pages.logical(crate::Place { unit, ..place }));
            }
        }
    }

    /// Finds the newest map parts and the trim records.
    fn find_meta(&self, found: &[Found]) {
        let mut state = self.state.borrow_mut();
        for row in found {
            self.each_unit(*row, |unit, logical| match holds(logical) {
                // A cached map is located by its root: parts written since may be incomplete.
                Holds::Chunk(_) if state.cached().is_some() => {}
                Holds::Chunk(chunk) if (chunk as usize) < state.chunks.len() => {
                    state.chunks[chunk as usize] = unit;
                }
                Holds::Trim(number) => {
                    state.next_note = state.next_note.max(number + 1) & NUMBER;
                    let note = crate::state::TrimNote { number, at: unit, sequence: row.sequence };
                    match state.notes.iter_mut().find(|note| note.number == number) {
                        Some(old) => *old = note,
                        None => state.notes.push(note),
                    }
                }
                _ => {}
            });
        }
    }

    /// All recorded trims, on flash and in slots, in order.
    async fn trims(&self, kept: &[(u32, Tag)]) -> Vec<TrimRecord> {
        let mut trims = Vec::new();
        let notes = self.state.borrow().notes.clone();
        let mut parts = self.take_parts();
        for note in notes {
            let place = self.layout.place(note.at);
            parts.clear();
            self.add_part(&mut parts, note.at);
            self.pages.read(&mut parts).await;
            let mut bytes = alloc::vec![0; self.layout.shape.unit_bytes as usize];
            self.pages.lend(place, &mut |at, run| {
                bytes[at as usize..][..run.len()].copy_from_slice(run);
            });
            trim_records(&bytes, &mut trims);
        }
        self.give_parts(parts);
        for (slot, tag) in kept {
            if let Holds::Trim(number) = holds(tag.logical) {
                let mut bytes = alloc::vec![0; self.layout.shape.unit_bytes as usize];
                self.pages.lend_slot(*slot, &mut |at, run| {
                    bytes[at as usize..][..run.len()].copy_from_slice(run);
                });
                trim_records(&bytes, &mut trims);
                let mut state = self.state.borrow_mut();
                state.next_note = state.next_note.max(number + 1) & NUMBER;
            }
        }
        trims.retain(|trim| trim.before <= SEQUENCE_MAX);
        trims.sort_unstable_by_key(|trim| trim.before);
        trims
    }

    /// Replays superpages and trims in order.
    fn replay(&self, found: &[Found], trims: &[TrimRecord]) {
        let mut state = self.state.borrow_mut();
        let mut trims = trims.iter().peekable();
        for row in found {
            while let Some(trim) = trims.next_if(|trim| trim.before <= row.sequence) {
                state.replay_trim(trim);
            }
            self.each_unit(*row, |unit, logical| match holds(logical) {
                Holds::Data { logical, .. } if logical < state.options.units => {
                    state.put(logical, unit);
                }
                _ => {}
            });
        }
        for trim in trims {
            state.replay_trim(trim);
        }
    }

    /// Resumes writing after a power cut: behind superpages that it may have torn, and behind one that pads
    /// those that a torn superpage may have disturbed.
    async fn resume(self: &Rc<Self>) {
        let mut streams = Stream::DATA[..open_streams(&self.options)].iter();
        let mut open: Vec<(u32, u32)> = Vec::new();
        for superblock in 0..self.layout.shape.blocks {
            if let Some(group) = self.first_untouched(superblock).await {
                open.push((group, superblock));
            }
        }
        open.sort_unstable();
        for (group, superblock) in open {
            // Word lines that the power cut left open are closed before their data are relied on.
            let group = (group + self.layout.shape.reach).min(self.layout.groups - 1);
            let next = (group + 1 < self.layout.groups).then(|| streams.next()).flatten();
            let Some(stream) = next else {
                // No later mount may take a committed superblock for uncommitted.
                if self.state.borrow().supers.all[superblock as usize].tried {
                    self.fill_to(superblock, group).await;
                }
                self.state.borrow_mut().supers.fill_up(superblock);
                continue;
            };
            self.fill_to(superblock, group).await;
            let mut state = self.state.borrow_mut();
            let next = state.next_sequence;
            state.supers.reopen(*stream, superblock, group + 1, next);
        }
    }

    /// First group of a superblock in use that is untouched on all dies, if any.
    async fn first_untouched(&self, superblock: u32) -> Option<u32> {
        let Layout { groups, shape, .. } = self.layout;
        let one = self.state.borrow().supers.all[superblock as usize];
        // Superblocks of map parts are not written further.
        if one.phase != Phase::Filled || one.of_map {
            return None;
        }
        let mut parts = self.take_parts();
        // A filled superblock is filled to its end, so the scan starts there.
        let mut untouched = None;
        for group in (0..groups).rev() {
            parts.clear();
            for die in 0..shape.dies {
                let planes = self.state.borrow().supers.members(superblock, die);
                self.add_row(&mut parts, WritePointer { superblock, group, die }, planes);
            }
            self.pages.read(&mut parts).await;
            if parts.iter().any(|part| part.seen != PageRead::Erased) {
                break;
            }
            untouched = Some(group);
        }
        self.give_parts(parts);
        untouched
    }

    /// Pads all untouched groups up to and including `last`, on all dies in parallel.
    async fn fill_to(self: &Rc<Self>, superblock: u32, last: u32) {
        let left = Rc::new(Cell::new(self.layout.shape.dies));
        for die in 0..self.layout.shape.dies {
            let (inner, left) = (self.clone(), left.clone());
            self.rt.spawn(async move {
                inner.fill_die(superblock, die, last).await;
                left.set(left.get() - 1);
                inner.landed.notify(&inner.rt);
            });
        }
        while left.get() > 0 {
            self.landed.changed(&self.rt, self.landed.version()).await;
        }
    }

    async fn fill_die(&self, superblock: u32, die: u32, last: u32) {
        let mut parts = self.take_parts();
        let mut rows = Vec::new();
        // Blocks are written from the beginning, so the scan starts at the end.
        for group in (0..=last).rev() {
            let write_pointer = WritePointer { superblock, group, die };
            let planes = self.state.borrow().supers.members(superblock, die);
            parts.clear();
            self.add_row(&mut parts, write_pointer, planes);
            self.pages.read(&mut parts).await;
            // Checked plane by plane: a failed plane was left out afterwards.
            let touched = parts.iter().filter(|part| part.seen != PageRead::Erased);
            let planes = planes & !touched.fold(0, |all, part| all | 1 << part.page.plane);
            if planes == 0 {
                break;
            }
            rows.push((write_pointer, planes));
        }
        self.give_parts(parts);
        for (write_pointer, planes) in rows.into_iter().rev() {
            let planes = planes & self.state.borrow().supers.members(superblock, die);
            if planes == 0 {
                continue;
            }
            let (header, units) = self.state.borrow_mut().padding(write_pointer, planes);
            let row = self.layout.row(write_pointer, planes);
            if let Err(failed) = self.pages.program(row, header, &units).await {
                self.state.borrow_mut().supers.doom(superblock, die, failed.planes);
            }
        }
    }

    /// Queues the preserved contents of the write buffer for flash.
    fn refill(&self, kept: &[(u32, Tag)]) {
        for (slot, tag) in kept {
            let mut state = self.state.borrow_mut();
            match holds(tag.logical) {
                Holds::Data { logical, .. } if logical < self.options.units => {
                    if let (Some(older), _) = state.buffer.kill(logical) {
                        self.free_slot(older);
                    }
                    let order = state.buffer.fill(*slot, logical, Heat::Typical);
                    self.pages.stage(*slot, Tag { logical, order }, 0, &[]);
                }
                Holds::Trim(number) => {
                    let order = state.buffer.fill_first(*slot, TRIM | number);
                    self.pages.stage(*slot, Tag { logical: TRIM | number, order }, 0, &[]);
                    state.waiting_notes.push(number);
                }
                _ => self.free_slot(*slot),
            }
        }
    }
}

/// Returns true if a map part maps nothing. Memory that was never written stays so.
fn is_blank(entries: &[u32]) -> bool {
    static BLANK: [u32; 1024] = [0; 1024];
    entries.chunks(BLANK.len()).all(|some| *some == BLANK[..some.len()])
}

impl State {
    /// Resets the state to that before the scan.
    fn forget(&mut self) {
        for chunk in 0..self.chunks.len() as u32 {
            let entries = self.entries(chunk);
            if !is_blank(entries) {
                entries.fill(0);
            }
        }
        if let Some(cached) = self.cached_mut() {
            cached.forget();
            self.supers.forget_valid();
        }
        self.dirty.fill(false);
        self.chunks.fill(NONE);
        self.notes.clear();
    }

    /// Records that a superpage of this superblock was found.
    fn saw(&mut self, superblock: u32, header: Header) {
        self.next_sequence = self.next_sequence.max(header.sequence + 1);
        self.supers.saw(superblock, header);
    }

    fn replay_trim(&mut self, trim: &TrimRecord) {
        self.next_sequence = self.next_sequence.max(trim.before);
        let end = trim.first.saturating_add(trim.count).min(self.options.units);
        for logical in trim.first..end {
            self.put(logical, NONE);
        }
    }

    /// Counts the valid units of all superblocks, from the map.
    fn count_valid(&mut self) -> Result<(), MountError> {
        if self.cached().is_none() {
            self.claim_entries()?;
            for chunk in 0..self.chunks.len() {
                self.claim(self.chunks[chunk])?;
            }
        }
        for note in 0..self.notes.len() {
            self.claim(self.notes[note].at)?;
        }
        Ok(())
    }

    /// Claims the locations in all map parts. On a large new drive hardly any part holds entries.
    ///
    /// First a bit is set for each; then the bits of each superblock are counted. They take more memory than
    /// a CPU cache has, so those of nearby locations are set together.
    fn claim_entries(&mut self) -> Result<(), MountError> {
        let State { map: Map::Whole(map), supers, per_part, chunks, layout, .. } = self else {
            return Ok(());
        };
        let units = layout.shape.all_units();
        let (mut nearby, marks, mut is_claimed_twice) = (Nearby::new(units), supers.marks(), false);
        let mut claim = |at: u32| {
            let (word, bit) = (&mut marks[(at / 64) as usize], 1 << (at % 64));
            is_claimed_twice |= *word & bit != 0;
            *word |= bit;
        };
        for part in 0..chunks.len() {
            let entries = map.part(part * *per_part as usize, *per_part as usize);
            if is_blank(entries) {
                continue;
            }
            for at in entries.iter().filter(|entry| **entry != 0).map(|entry| entry - 1) {
                if u64::from(at) >= units {
                    return Err(MountError::Map);
                }
                nearby.put(at, at, &mut claim);
            }
        }
        nearby.finish(claim);
        if is_claimed_twice || !supers.count_marked() { Err(MountError::Map) } else { Ok(()) }
    }

    /// Marks a location as valid. It must not be valid already.
    pub fn claim(&mut self, at: u32) -> Result<(), MountError> {
        if at == NONE {
            return Ok(());
        }
        let there = u64::from(at) < self.layout.shape.all_units()
            && self.supers.all[self.layout.superblock(at) as usize].phase == Phase::Filled;
        if !there || self.supers.is_valid(at) {
            return Err(MountError::Map);
        }
        self.supers.set_valid(at);
        Ok(())
    }

    /// Builds a superpage of padding.
    fn padding(&mut self, write_pointer: WritePointer, planes: u32) -> (Header, Vec<Unit>) {
        let job = self.job(write_pointer, planes, false);
        let pad = Unit { logical: PAD, from: Source::Nothing };
        let count = planes.count_ones() * self.layout.plane_units;
        (job.header, alloc::vec![pad; count as usize])
    }

    /// Checks that the space suffices for everything that the host may write.
    fn check_space(&self) -> Result<(), MountError> {
        let good: u64 = self.supers.all.iter().map(|one| u64::from(one.units)).sum();
        let map = match self.cached() {
            None => self.chunks.len() as u64,
            Some(cached) => {
                u64::from(cached.quota.superblocks) * u64::from(self.layout.super_units)
            }
        };
        let kept = map + self.space.start;
        if u64::from(self.options.units) + kept < good {
            return Ok(());
        }
        Err(MountError::Space { most: good.saturating_sub(kept) })
    }
}
