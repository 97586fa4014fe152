//! Write path: units into slots, slots into superpages, superpages onto dies.

use alloc::rc::Rc;
use alloc::vec::Vec;

use runtime::{Either, race};

use crate::content::{Holds, PAD, holds};
use crate::ftl::{Inner, Task};
use crate::job::{Job, QUEUE};
use crate::layout::{NONE, WritePointer};
use crate::options::Error;
use crate::pages::{Failed, Pages, Source, Tag, Unit};
use crate::policy::{self, Heat, Stream};
use crate::slot::Phase;
use crate::space::{self, Opening};
use crate::state::State;
use crate::supers;

/// The turn of a request to take slots; passed on when it is dropped.
struct Turn<'a, P: Pages>(&'a Inner<P>);

impl<P: Pages> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        self.0.turns.give(&self.0.rt, ());
    }
}

/// A slot that is not filled yet; returned if the write is dropped, fails or finds another slot.
struct Taken<'a, P: Pages> {
    inner: &'a Inner<P>,
    slot: Option<u32>,
}

impl<P: Pages> Taken<'_, P> {
    /// The slot, which the caller fills at once.
    fn fill(mut self) -> u32 {
        self.slot.take().expect("filled once")
    }
}

impl<P: Pages> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.inner.slots.give(&self.inner.rt, slot);
        }
    }
}

impl<P: Pages> Inner<P> {
    /// Writes whole units first, in order, then the parts of units at both ends: these may have to read what
    /// the rest of the unit holds, and nothing waits for that.
    /// Returns the number of the newest of these writes.
    pub async fn write(&self, block: u64, data: &[u8]) -> Result<u64, Error> {
        let blocks = data.len() as u64 / u64::from(self.options.block_bytes);
        let pieces = self.pieces(block, u32::try_from(blocks).map_err(|_| Error::Range)?)?;
        let unit_bytes = self.layout.shape.unit_bytes;
        let part = |piece| &data[pieces.offset(piece) as usize..][..piece.2 as usize];
        let (mut turn, mut newest) = (None, 0);
        for piece in pieces.filter(|(_, _, bytes)| *bytes == unit_bytes) {
            newest = newest.max(self.write_whole(piece.0, part(piece), &mut turn).await?);
        }
        drop(turn);
        for piece in pieces.filter(|(_, _, bytes)| *bytes < unit_bytes) {
            newest = newest.max(self.write_unit(piece.0, piece.1, part(piece)).await?);
        }
        Ok(newest)
    }

    /// Writes a unit: into its pending slot, or else into a new one.
    async fn write_whole<'a>(
        &'a self,
        logical: u32,
        data: &[u8],
        turn: &mut Option<Turn<'a, P>>,
    ) -> Result<u64, Error> {
        if let Some(order) = self.merge(logical, 0, data) {
            return Ok(order);
        }
        let slot = self.take_slot(turn).await?;
        // Other writers may have come first during the wait.
        if let Some(order) = self.merge(logical, 0, data) {
            return Ok(order);
        }
        let order = self.put_into(slot.fill(), logical, 0, data, true);
        self.form();
        Ok(order)
    }

    /// Writes part of a unit: into its pending slot, or else into a new one together with the unit's old
    /// contents.
    pub async fn write_unit(&self, logical: u32, offset: u32, data: &[u8]) -> Result<u64, Error> {
        if let Some(order) = self.merge(logical, offset, data) {
            return Ok(order);
        }
        let slot = self.take_slot(&mut None).await?;
        let mut sensed = None;
        loop {
            if self.state.borrow().worn_out {
                return Err(Error::WornOut);
            }
            // Other writers may have come first during the wait.
            if let Some(order) = self.merge(logical, offset, data) {
                return Ok(order);
            }
            if self.state.borrow().buffer.find(logical).is_some() {
                break;
            }
            let known = self.state.borrow().look(logical);
            if known == Some(NONE) || (known.is_some() && sensed == known) {
                break;
            }
            sensed = self.sense(logical).await?;
        }
        let order = self.put_into(slot.fill(), logical, offset, data, false);
        self.form();
        Ok(order)
    }

    /// Takes a slot of the buffer for the host. If none is free, one request at a time takes slots: `turn`
    /// keeps it its place, so that its units go to flash next to each other, and a page that holds one of
    /// them holds others that a later read of the same range needs. With turns unit by unit, the units of all
    /// waiting requests would alternate.
    async fn take_slot<'a>(
        &'a self,
        turn: &mut Option<Turn<'a, P>>,
    ) -> Result<Taken<'a, P>, Error> {
        let is_next = turn.is_some() || self.turns.available() > 0;
        let slot = match if is_next { self.slots.try_take() } else { None } {
            Some(slot) => slot,
            None => {
                let since = self.blame.begin_wait(&self.rt, &*self.pages);
                let wait = async {
                    if turn.is_none() {
                        self.turns.take(&self.rt).await;
                        *turn = Some(Turn(self));
                    }
                    self.slots.take(&self.rt).await
                };
                let slot = race(wait, self.worn.changed(&self.rt, 0)).await;
                self.blame.end_wait(&self.rt, &*self.pages, since, self.blame.buffer);
                match slot {
                    Either::First(slot) => slot,
                    Either::Second(()) => return Err(Error::WornOut),
                }
            }
        };
        let slot = Taken { inner: self, slot: Some(slot) };
        if self.state.borrow().worn_out { Err(Error::WornOut) } else { Ok(slot) }
    }

    /// Merges the data into the pending slot of this unit, if there is one; returns its number.
    fn merge(&self, logical: u32, offset: u32, data: &[u8]) -> Option<u64> {
        let mut state = self.state.borrow_mut();
        let slot = state.buffer.find(logical)?;
        let known = state.buffer.slots[slot as usize];
        if known.phase != Phase::Pending {
            return None;
        }
        state.counters.host_units += 1;
        state.counters.merged_units += 1;
        self.pages.stage(slot, Tag { logical, order: known.order }, offset, data);
        Some(known.order)
    }

    fn put_into(&self, slot: u32, logical: u32, offset: u32, data: &[u8], whole: bool) -> u64 {
        let mut state = self.state.borrow_mut();
        let tag = Tag { logical, order: state.buffer.next_order() };
        if !whole {
            // Looked up above without an await in between.
            let at = state.look(logical).unwrap_or(NONE);
            match state.buffer.find(logical) {
                Some(older) => self.pages.stage_slot(slot, tag, older),
                None if at == NONE => self.pages.stage_copy(slot, tag, None),
                None => self.pages.stage_copy(slot, tag, Some(self.layout.place(at))),
            }
        }
        self.pages.stage(slot, tag, offset, data);
        let heat = state.heat(logical);
        let order = state.buffer.fill(slot, logical, heat);
        if !state.buffer.is_kept(slot) {
            self.pages.preserve(slot, false);
        }
        state.counters.host_units += 1;
        state.counters.hinted_units += u64::from(heat != Heat::Typical);
        order
    }

    /// Forms superpages of pending slots while dies and space are available.
    pub fn form(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            let Some((heat, stream, write_pointer, planes)) = state.host_row() else { break };
            let mut job = state.host_job((heat, stream), write_pointer, planes, false);
            job.made_up = self.blame.clocks(self.rt.now(), self.pages.collected(write_pointer.die));
            state.queues[write_pointer.die as usize].jobs.push_back(job);
            drop(state);
            self.dies[write_pointer.die as usize].notify(&self.rt);
        }
        self.close_forced();
        self.form_parts();
        self.blame.throttle(self.rt.now(), self.state.borrow().blocked);
        if self.state.borrow().wants_collector() {
            self.collect.notify(&self.rt);
        }
    }

    /// Task of one die: programs its superpages in order.
    pub async fn die(self: Rc<Self>, die: u32) {
        while !self.ends(Task::Die) {
            let seen = self.dies[die as usize].version();
            let next = {
                let mut state = self.state.borrow_mut();
                let queue = &mut state.queues[die as usize];
                let job = queue.jobs.pop_front();
                queue.flying = job.as_ref().map(|job| job.header.sequence);
                job
            };
            let Some(job) = next else {
                self.dies[die as usize].changed(&self.rt, seen).await;
                continue;
            };
            let failed = self.program(&job).await;
            self.arrived(job, failed);
        }
    }

    /// Programs a superpage without the planes that have failed since it was formed. Returns those planes and
    /// the ones that fail now.
    async fn program(&self, job: &Job) -> u32 {
        let WritePointer { superblock, die, .. } = job.write_pointer;
        let planes = job.planes & self.state.borrow().supers.members(superblock, die);
        let row = self.layout.row(job.write_pointer, planes);
        if planes == job.planes {
            let done = self.pages.program(row, job.header, &job.units).await;
            return done.err().map_or(0, |failed| failed.planes);
        }
        let left_out = job.planes & !planes;
        if planes == 0 {
            return left_out;
        }
        let targets = job.targets(&self.layout).zip(&job.units);
        let kept = targets.filter(|((plane, _), _)| planes >> plane & 1 != 0);
        let units: Vec<Unit> = kept.map(|(_, unit)| *unit).collect();
        let done = self.pages.program(row, job.header, &units).await;
        left_out | done.err().map_or(0, |Failed { planes }| planes)
    }

    /// Handles the completion of a superpage's program; `failed` is a mask of planes.
    pub fn arrived(&self, job: Job, failed: u32) {
        let mut state = self.state.borrow_mut();
        state.queues[job.write_pointer.die as usize].flying = None;
        state.counters.rows += 1;
        if failed != 0 {
            state.supers.doom(job.write_pointer.superblock, job.write_pointer.die, failed);
        }
        if job.collected {
            state.collection.rows -= 1;
        }
        if !job.collected && !job.of_map {
            self.blame.has_landed(self.rt.now(), job.write_pointer.die, job.made_up);
        }
        if self.layout.shape.reach == 0 || self.options.mistakes.word_lines_stay_open {
            self.is_safe(&mut state, job, failed);
        } else {
            self.hold(&mut state, job, failed);
        }
        let is_cached = state.cached().is_some();
        drop(state);
        self.form();
        self.landed.notify(&self.rt);
        self.collect.notify(&self.rt);
        if is_cached {
            self.mapped.notify(&self.rt);
        }
    }

    /// Handles a superpage that no torn program can destroy any more.
    pub fn is_safe(&self, state: &mut State, job: Job, failed: u32) {
        state.supers.all[job.write_pointer.superblock as usize].flying -= 1;
        if job.uncommitted {
            self.try_row(state, job, failed);
        } else {
            self.commit_reserve_copy(state, job.write_pointer.superblock, job.planes & !failed);
            self.settle(state, &job, failed, false);
            self.settle(state, &job, failed, true);
            state.recycle(job);
        }
    }

    /// Settles a superpage: arrived units count from now on; failed ones are queued again.
    pub fn settle(&self, state: &mut State, job: &Job, failed: u32, arrived: bool) {
        if !arrived && failed == 0 {
            return;
        }
        for (at, (plane, unit)) in (0..job.units.len()).zip(job.targets(&self.layout)) {
            let failed = failed >> plane & 1 != 0;
            if failed == arrived {
                continue;
            }
            match job.units[at].from {
                Source::Slot(slot) => self.slot_arrived(state, job, at, slot, unit, failed),
                _ => state.copy_arrived(job, at, unit, failed),
            }
        }
    }

    fn slot_arrived(
        &self,
        state: &mut State,
        job: &Job,
        at: usize,
        slot: u32,
        unit: u32,
        failed: bool,
    ) {
        let logical = job.units[at].logical;
        if job.of_map {
            if state.part_arrived(slot, unit, failed) {
                self.free_slot(slot);
            }
            return;
        }
        if failed {
            let order = state.buffer.slots[slot as usize].order;
            state.force = state.force.max(order);
            if state.buffer.fell(slot) {
                self.free_slot(slot);
            }
            return;
        }
        if !state.buffer.slots[slot as usize].dead {
            state.move_to(logical, unit, job.header.sequence, None);
        }
        state.buffer.landed(slot);
        self.retag_dead(state);
        match holds(logical) {
            Holds::Trim(number) => {
                state.standing.retain(|(note, _)| *note != number);
                state.waiting_notes.retain(|note| *note != number);
                state.urgent &= !state.waiting_notes.is_empty();
                state.counters.meta_units += 1;
            }
            Holds::Chunk(_) => {
                state.chunks_waiting -= 1;
                state.counters.meta_units += 1;
                state.counters.map_units += 1;
            }
            _ => state.counters.programmed_units += 1,
        }
        self.free_slot(slot);
    }
}

impl State {
    /// Heat, stream and write pointer for a superpage of the host, if one may be formed now.
    fn host_row(&mut self) -> Option<(Heat, Stream, WritePointer, u32)> {
        let was_blocked = core::mem::replace(&mut self.blocked, false);
        let row = self.find_host_row();
        self.counters.refusals += u64::from(self.blocked && !was_blocked);
        row
    }

    fn find_host_row(&mut self) -> Option<(Heat, Stream, WritePointer, u32)> {
        let buffer = &self.buffer;
        if buffer.waiting() == 0 {
            return None;
        }
        let urgent = self.urgent && buffer.has_note();
        let is_forced = |order: u64| order <= self.force;
        // The oldest slot of all is at hand; the oldest that waits is searched for.
        let oldest = match buffer.oldest_order().is_some_and(is_forced) {
            true => buffer.oldest_waiting().filter(|(order, _)| is_forced(*order)),
            false => None,
        };
        let oldest = oldest.map(|(_, heat)| heat);
        // Forced units come first, then the class with the most units.
        let first = if urgent { Some(Heat::Typical) } else { oldest };
        let mut classes = Heat::ALL;
        classes.sort_by_key(|heat| (Some(*heat) != first, u32::MAX - buffer.waiting_of(*heat)));
        classes.into_iter().find_map(|heat| {
            let forced = Some(heat) == first;
            let some = forced || self.buffer.waiting_of(heat) > 0;
            let row = if some { self.row_of(heat, forced, urgent && forced) } else { None };
            row.map(|(stream, write_pointer, planes)| (heat, stream, write_pointer, planes))
        })
    }

    /// As [`host_row`](State::host_row), for units of this heat.
    fn row_of(
        &mut self,
        heat: Heat,
        forced: bool,
        urgent: bool,
    ) -> Option<(Stream, WritePointer, u32)> {
        let waiting = self.buffer.waiting_of(heat);
        let forced = forced || waiting >= self.layout.row_units;
        let mut stream = self.host_stream(heat);
        let (write_pointer, planes) = match self.supers.peek(stream) {
            Some(row) => row,
            None if urgent && self.reserve_copy.is_none() && self.free() <= 1 => {
                stream = Stream::Collector;
                let row = self.supers.peek(stream);
                self.blocked = row.is_none();
                row?
            }
            None if !forced && waiting < self.layout.plane_units => return None,
            None => self.open_for_host(stream)?,
        };
        let room = planes.count_ones() * self.layout.plane_units;
        if (waiting < room && !forced) || (!urgent && self.is_map_full()) {
            return None;
        }
        let held = self.collection.run || !self.space().admits(room);
        if held && !urgent && !self.granted {
            self.blocked = true;
            return None;
        }
        (self.queues[write_pointer.die as usize].jobs.len() < QUEUE).then_some((
            stream,
            write_pointer,
            planes,
        ))
    }

    /// Opens a superblock for a stream of the host, if allowed.
    fn open_for_host(&mut self, stream: Stream) -> Option<(WritePointer, u32)> {
        let wanted = u32::from(self.supers.refreshing > 0);
        let may = space::may_open(Stream::Host, self.free(), wanted) == Opening::Plain;
        let row = if may { self.open_clean(stream) } else { None };
        self.blocked |= row.is_none();
        row
    }

    /// Opens an erased superblock for a stream, if there is one.
    pub fn open_clean(&mut self, stream: Stream) -> Option<(WritePointer, u32)> {
        let clean = |one: &supers::Super| {
            (one.phase == supers::Phase::Free { clean: true }).then_some(one.erases)
        };
        let found = policy::fresh(stream, self.supers.all.iter().map(clean))?;
        self.supers.open(stream, found as u32, self.next_sequence);
        self.supers.peek(stream)
    }

    /// Builds a superpage from the oldest pending slots of this heat, then of others, or from trim records
    /// only.
    pub fn host_job(
        &mut self,
        (heat, stream): (Heat, Stream),
        write_pointer: WritePointer,
        planes: u32,
        notes_alone: bool,
    ) -> Job {
        self.granted = false;
        let mut job = self.job(write_pointer, planes, false);
        for _ in 0..planes.count_ones() * self.layout.plane_units {
            let slot =
                if notes_alone { self.buffer.take_note() } else { self.buffer.take_off(heat) };
            let unit = match slot {
                Some(slot) => {
                    let logical = self.buffer.slots[slot as usize].logical;
                    Unit { logical, from: Source::Slot(slot) }
                }
                None => {
                    self.counters.padding_units += 1;
                    Unit { logical: PAD, from: Source::Nothing }
                }
            };
            job.units.push(unit);
            job.from.push(NONE);
        }
        self.made_up(stream, &job);
        job
    }

    /// Returns true if the collector should be woken.
    fn wants_collector(&self) -> bool {
        let space = self.space();
        self.blocked || space.left < space.start || self.must_tell()
    }

    /// Handles the arrival of a copied unit.
    fn copy_arrived(&mut self, job: &Job, at: usize, unit: u32, failed: bool) {
        let from = job.from[at];
        if from == NONE {
            return;
        }
        let source = self.layout.superblock(from);
        self.supers.all[source as usize].copies -= 1;
        let logical = job.units[at].logical;
        let still_there = self.is_still_at(logical, from);
        if failed {
            if still_there {
                self.collection.gathered.push((from, logical));
            }
            return;
        }
        self.counters.copied_units += 1;
        if still_there {
            self.move_to(logical, unit, job.header.sequence, Some(from));
        }
    }
}
