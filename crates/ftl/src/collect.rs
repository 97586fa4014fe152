//! Garbage collection: copies the valid units of a superblock, and erases it.
//!
//! A copy must never count as newer than a host write. Superpages are numbered when they are formed, and
//! after a power cut the highest number counts. So the collector skips a unit whose newer version is already
//! in a superpage: it will be invalid soon, and if that superpage fails it is examined again. A newer version
//! that still waits gets a higher number later.

use alloc::rc::Rc;
use alloc::vec::Vec;

use runtime::Span;

use crate::content::{Holds, PAD, holds};
use crate::ftl::{Inner, Task};
use crate::job::{Job, QUEUE};
use crate::layout::{NONE, WritePointer};
use crate::named::PATIENCE;
use crate::options::Cache;
use crate::pages::{Erase, LOST, META, Page, PageRead, Pages, Part, Source, Unit};
use crate::policy::{self, Candidate, Heat, Stream};
use crate::state::State;
use crate::supers::Phase;

/// Next step of the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read,
    /// Form a superpage of the gathered units, padded if necessary.
    Row,
    /// Open the reserve superblock for trim records only.
    Keep,
    /// Form an uncommitted superpage of trim records.
    Notes,
    /// Form the superpage that commits.
    End,
    /// Cancel the uncommitted collection: failures have left no space for it.
    Cancel,
    /// Let the host write a superpage: the collector cannot free space for it.
    Grant,
    /// Read map parts, so that the counts of valid units are exact.
    Resolve,
    Wait,
}

impl<P: Pages> Inner<P> {
    /// Task that copies.
    pub async fn collector(self: Rc<Self>) {
        // Deadline of the wait for the host-directed collector.
        let mut until = None;
        while !self.ends(Task::Collector) {
            let seen = self.collect.version();
            let was_run = self.state.borrow().collection.run;
            let step = self.state.borrow_mut().next_step();
            if was_run && !self.state.borrow().collection.run {
                self.form();
                continue;
            }
            if self.state.borrow_mut().validate_named() {
                self.named.notify(&self.rt);
            }
            let awaited = self.state.borrow().awaits_leader();
            until = until.filter(|_| awaited).or(awaited.then(|| self.rt.now() + PATIENCE));
            match step {
                Step::Read => self.gather().await,
                Step::Row => self.copy_row(),
                Step::Keep => drop(self.state.borrow_mut().collector_row()),
                Step::Cancel => self.cancel_reserve_copy(),
                Step::Notes => self.uncommitted_row(true),
                Step::End => self.uncommitted_row(false),
                Step::Grant => self.form(),
                Step::Resolve => self.resolve().await,
                Step::Wait if self.close_idle() => {}
                Step::Wait if self.state.borrow_mut().gives_up() => self.worn_out(),
                Step::Wait => match until {
                    None => self.collect.changed(&self.rt, seen).await,
                    Some(until) => self.await_leader(seen, until).await,
                },
            }
        }
    }

    /// Marks the drive as worn out, and wakes all that wait for space.
    pub fn worn_out(&self) {
        self.worn.notify(&self.rt);
        self.landed.notify(&self.rt);
    }

    /// Reads as many valid units as the next superpages still lack.
    async fn gather(&self) {
        let mut parts = self.take_parts();
        let mut found = core::mem::take(&mut self.state.borrow_mut().collection.found);
        self.state.borrow_mut().find_more(&mut found);
        for at in &found {
            self.add_part(&mut parts, *at);
        }
        if !parts.is_empty() {
            self.process_collected(&parts).await;
            self.pages.read_for_collector(&mut parts).await;
            let lost = self.owners_of_lost(&found, &parts).await;
            self.sort_out(&found, &parts, &lost);
        }
        self.give_parts(parts);
        found.clear();
        self.state.borrow_mut().collection.found = found;
        self.form();
    }

    /// Takes the processor's time for units to collect. A page at a time: requests come between.
    async fn process_collected(&self, parts: &[Part]) {
        let each = self.options.processing.collect;
        if each == Span::ZERO {
            return;
        }
        for part in parts {
            let service = each * u64::from(part.units.count_ones());
            let turn = self.processor.reserve(self.rt.now(), service);
            self.rt.sleep_until(turn.end).await;
        }
    }

    /// Sorts units that have been read into the gathered list, with their tags.
    fn sort_out(&self, found: &[u32], parts: &[Part], lost: &[(u32, u32)]) {
        let mut state = self.state.borrow_mut();
        let mut parts = parts.iter();
        let mut part = parts.next();
        let mut gathered = core::mem::take(&mut state.collection.gathered);
        let before = gathered.len();
        for at in found {
            let place = self.layout.place(*at);
            while part.is_some_and(|part| part.page != place.page) {
                part = parts.next();
            }
            if !state.supers.is_valid(*at) {
                continue;
            }
            let good = part.is_some_and(|part| matches!(part.seen, PageRead::Good { .. }));
            let logical =
                if good { Some(self.pages.logical(place)) } else { state.lost(*at, lost) };
            gathered.extend(logical.map(|logical| (*at, logical)));
        }
        // In a loop of its own: look-ups that miss the CPU caches overlap.
        let mut kept = before;
        for next in before..gathered.len() {
            let (at, logical) = gathered[next];
            if state.is_still_at(logical, at) {
                gathered[kept] = (at, logical);
                kept += 1;
            }
        }
        gathered.truncate(kept);
        state.collection.gathered = gathered;
    }

    /// Owners of unreadable locations, for a cached map: location and unit.
    async fn owners_of_lost(&self, found: &[u32], parts: &[Part]) -> Vec<(u32, u32)> {
        let mut lost = Vec::new();
        let is_good = |part: &Part| matches!(part.seen, PageRead::Good { .. });
        if self.state.borrow().cached().is_none() || parts.iter().all(is_good) {
            return lost;
        }
        for at in found {
            let page = self.layout.place(*at).page;
            let good = parts.iter().any(|part| part.page == page && is_good(part));
            if good || !self.state.borrow().supers.is_valid(*at) {
                continue;
            }
            if let Some(logical) = self.owner_of_lost(*at).await {
                lost.push((*at, logical));
            }
        }
        lost
    }

    fn copy_row(&self) {
        let mut state = self.state.borrow_mut();
        let Some((write_pointer, planes)) = state.collector_row() else { return };
        let job = state.copy_job(write_pointer, planes);
        state.queues[write_pointer.die as usize].jobs.push_back(job);
        drop(state);
        self.dies[write_pointer.die as usize].notify(&self.rt);
    }

    /// Task that erases collected superblocks.
    pub async fn eraser(self: Rc<Self>) {
        while !self.ends(Task::Eraser) {
            let seen = self.collect.version();
            let next = self.state.borrow_mut().next_erase();
            match next {
                Some((superblock, noted)) => self.erase(superblock, noted).await,
                None => self.collect.changed(&self.rt, seen).await,
            }
        }
    }

    /// Erases a superblock without live data. Trim records are written first unless `noted`; otherwise a
    /// power cut could restore data older than those erased here.
    async fn erase(&self, superblock: u32, noted: bool) {
        if !noted && self.options.cache != Cache::Protected {
            self.write_notes().await;
        }
        let mut erases: Vec<Erase> = Vec::new();
        {
            let state = self.state.borrow();
            for die in 0..self.layout.shape.dies {
                let planes = state.supers.members(superblock, die);
                if planes != 0 {
                    let blocks =
                        self.layout.row(WritePointer { superblock, group: 0, die }, planes).blocks;
                    erases.push(Erase { blocks, failed: 0 });
                }
            }
        }
        if !erases.is_empty() {
            self.pages.erase(&mut erases).await;
        }
        let mut state = self.state.borrow_mut();
        for die in 0..self.layout.shape.dies {
            let mut bad = state.supers.doomed(superblock, die);
            bad |=
                erases.iter().filter(|one| one.blocks.die == die).fold(0, |all, e| all | e.failed);
            for plane in (0..self.layout.shape.planes).filter(|plane| bad >> plane & 1 != 0) {
                self.pages.mark_bad(Page { die, plane, block: superblock, page: 0 });
                state.counters.retired += 1;
            }
            state.supers.drop_members(superblock, die, bad);
        }
        state.erased(superblock);
        drop(state);
        self.form();
        self.landed.notify(&self.rt);
        self.collect.notify(&self.rt);
    }

    /// Returns when the trims so far are on flash.
    async fn write_notes(&self) {
        let last = {
            let mut state = self.state.borrow_mut();
            state.seal_note();
            state.urgent = !state.waiting_notes.is_empty();
            state.waiting_notes.iter().copied().max()
        };
        let Some(last) = last else { return };
        self.form();
        loop {
            let seen = self.landed.version();
            if self.state.borrow().waiting_notes.iter().all(|number| *number > last) {
                return;
            }
            self.landed.changed(&self.rt, seen).await;
        }
    }
}

/// Number of erased superblocks to keep ready after a power cut has left the state of some unknown.
const READY: u32 = 4;

impl State {
    fn next_step(&mut self) -> Step {
        if let Some(leader) = &mut self.leader {
            leader.awaited = false;
        }
        if self.reserve_copy_failed() {
            return Step::Cancel;
        }
        self.continue_run();
        if self.collection.rows >= self.gc_parallelism()
            || (self.reserve_copy.is_none() && self.is_map_full())
        {
            return Step::Wait;
        }
        if self.stale() > 0 && self.free() <= 1 {
            return Step::Resolve;
        }
        let counts = self.drop_stale();
        let (all_ready, mixed) = (counts.iter().sum::<u32>(), self.mixes_classes());
        // The first of those with the most.
        let heat = Heat::ALL.into_iter().rev().max_by_key(|heat| counts[*heat as usize]);
        self.collection.heat = heat.unwrap_or_default();
        let ready = if mixed { all_ready } else { counts[self.collection.heat as usize] };
        let stream = self.collector_stream();
        let row = self.supers.peek(stream);
        let room = row.map_or(self.layout.row_units, |(_, planes)| {
            planes.count_ones() * self.layout.plane_units
        });
        let free = row.is_none_or(|(write_pointer, _)| {
            self.queues[write_pointer.die as usize].jobs.len() < QUEUE
        });
        if let Some(step) = self.reserve_copy_step(all_ready > 0, free) {
            return step;
        }
        if row.is_none() && self.reserve_copy.is_some() {
            return Step::Wait;
        }
        // Don't use the reserve superblock while an erase will free another, unless that erase waits for a
        // superpage itself.
        let erases = self.collection.drained.iter().any(|at| self.is_empty(*at));
        if row.is_none() && self.free() <= 1 && erases {
            return if self.needs_keep_for_notes() { Step::Keep } else { Step::Wait };
        }
        if ready >= room {
            return if free { self.row_or_wait(row) } else { Step::Wait };
        }
        let trying = self.reserve_copy.as_ref().is_some_and(|reserve_copy| !reserve_copy.decided);
        if self.collection.victim.is_some() || (!trying && self.begin()) {
            return Step::Read;
        }
        // Nothing more to read: units in danger, and those that a task waits for, go into a padded superpage.
        let danger = |at: &u32| self.supers.all[*at as usize].refresh;
        let hurry = self.blocked || self.collection.drained.iter().any(danger);
        let all = all_ready as usize == self.collection.gathered.len();
        let hurry = if trying { all } else { hurry };
        if all_ready > 0 && hurry {
            return if free { self.row_or_wait(row) } else { Step::Wait };
        }
        let host = |stream| self.supers.peek(stream).is_some();
        let has_row = Stream::OF_HOST.into_iter().any(host);
        if all_ready == 0 && has_row && !self.granted && self.is_stuck() {
            if self.stale() > 0 {
                return Step::Resolve;
            }
            self.granted = true;
            return Step::Grant;
        }
        Step::Wait
    }

    /// Continues a run into a superblock that is being collected, and ends it when it has freed its share.
    fn continue_run(&mut self) {
        if self.options.gc_run > 0 {
            let space = self.space();
            let goes_on = self.collection.run || self.collection.victim.is_some();
            self.collection.run = goes_on && space.left < space.start;
        }
    }

    fn row_or_wait(&self, row: Option<(WritePointer, u32)>) -> Step {
        if row.is_some() || self.supers.clean > 0 { Step::Row } else { Step::Wait }
    }

    /// Returns true if the host is blocked, the collector has no work, and nothing is in flight.
    fn is_stuck(&mut self) -> bool {
        let has_row = self.free() > 0 || self.supers.has_rows();
        let idle = |queue: &crate::job::Queue| queue.jobs.is_empty() && queue.flying.is_none();
        let collection = &self.collection;
        self.blocked
            && !self.granted
            && !self.awaits_leader()
            && self.reserve_copy.is_none()
            && !collection.drained.iter().any(|at| self.is_empty(*at))
            && (!has_row || (collection.victim.is_none() && collection.drained.is_empty()))
            && self.queues.iter().all(idle)
            && self.closing.is_empty()
            && self.supers.clean == self.supers.free
            && !self.is_map_full()
    }

    /// Checks, when the collector has no work, whether the drive is worn out; returns true if that is found
    /// now.
    fn gives_up(&mut self) -> bool {
        let stuck = !self.worn_out && (self.is_stuck() || self.is_map_stuck());
        self.worn_out |= stuck;
        stuck
    }

    /// Current limit of the collector's superpages in flight.
    fn gc_parallelism(&self) -> u32 {
        let most = self.options.gc_parallelism.max(1);
        let at_full = self.blocked || self.collection.run;
        let gc_parallelism = if at_full { most } else { self.space().gc_parallelism(most) };
        // Refreshes, and uncommitted collections begun for them, always proceed slowly.
        let gc_parallelism = gc_parallelism.max(self.named_rows().min(most));
        gc_parallelism.max(u32::from(self.supers.refreshing > 0 || self.reserve_copy.is_some()))
    }

    /// Chooses the next victim, if one is needed.
    fn begin(&mut self) -> bool {
        let blocks = self.layout.shape.blocks;
        let supers = &self.supers;
        let in_danger = |at: &u32| {
            let one = &supers.all[*at as usize];
            one.refresh && one.phase == Phase::Filled && one.flying == 0 && !one.of_map
        };
        let space = self.space();
        // A full superblock needs a whole one, which must not be the last.
        let urgent = if supers.refreshing > 0 && self.free() >= 2 {
            (0..blocks).find(in_danger)
        } else {
            None
        };
        let found = if let Some(at) = urgent {
            self.counters.refreshed += 1;
            at
        } else if let Some(at) = self.take_named() {
            self.counters.named += 1;
            at
        } else if space.left < space.start || self.blocked {
            if self.leaves_it_to_the_leader() {
                return false;
            }
            let last = self.free() <= 1;
            let keep = self.reserve_units().filter(|_| last);
            let fitting = keep.and_then(|keep| self.find_victim(keep));
            // A run that copies without a gain would not end.
            let found = fitting.or_else(|| self.find_gaining(last || self.collection.run));
            self.collection.run = self.options.gc_run > 0 && found.is_some();
            let Some(at) = found else { return false };
            at
        } else {
            return false;
        };
        self.counters.collected += 1;
        self.supers.all[found as usize].phase = Phase::Victim;
        self.collection.victim = Some((found, self.supers.range(found).0));
        true
    }

    /// Finds a victim that frees space; with `last`, at least one superpage.
    fn find_gaining(&mut self, last: bool) -> Option<u32> {
        let (now, supers) = (self.next_sequence, &self.supers);
        let least = if last { self.layout.row_units } else { 0 };
        let enough = move |one: &Candidate| one.valid + least <= one.units;
        let candidates = (0..self.layout.shape.blocks).map(|at| supers.candidate(at, now));
        let candidates = candidates.map(move |one| one.filter(enough));
        policy::victim(self.options.choice, candidates, &mut self.rng).map(|at| at as u32)
    }

    /// Next valid units of the victim, as many as [`Options::gc_reads`](crate::Options::gc_reads) superpages
    /// still lack.
    fn find_more(&mut self, found: &mut Vec<u32>) {
        let Some((victim, mut cursor)) = self.collection.victim else { return };
        let end = self.supers.range(victim).1;
        let classes = if self.mixes_classes() { 1 } else { Heat::ALL.len() };
        let rows = classes * self.options.gc_reads.max(1) as usize;
        let room = rows * self.layout.row_units as usize;
        while found.len() + self.collection.gathered.len()
            < room.max(self.collection.gathered.len() + 1)
        {
            match self.supers.next_valid(cursor, end) {
                Some(at) => {
                    found.push(at);
                    cursor = at + 1;
                }
                None => {
                    self.collection.victim = None;
                    self.collection.drained.push(victim);
                    return;
                }
            }
        }
        self.collection.victim = Some((victim, cursor));
    }

    /// Drops stale units. Returns how many of the others may be copied now, by heat.
    fn drop_stale(&mut self) -> [u32; Heat::ALL.len()] {
        let mut gathered = core::mem::take(&mut self.collection.gathered);
        // Compare contents, not valid bits: the location may have been reused.
        gathered.retain(|(at, logical)| self.is_still_at(*logical, *at));
        let mut ready = [0; Heat::ALL.len()];
        for (_, logical) in gathered.iter().filter(|(_, logical)| !self.is_flying(*logical)) {
            ready[self.heat(*logical) as usize] += 1;
        }
        self.collection.gathered = gathered;
        ready
    }

    /// Returns true if a newer version is in a superpage already.
    fn is_flying(&self, logical: u32) -> bool {
        match holds(logical) {
            Holds::Data { logical, .. } => self.buffer.is_flying(logical),
            Holds::Chunk(_) => self.buffer.is_flying(logical),
            _ => false,
        }
    }

    fn copy_job(&mut self, write_pointer: WritePointer, planes: u32) -> Job {
        let stream = self.collector_stream();
        let mut job = self.job(write_pointer, planes, true);
        let room = (planes.count_ones() * self.layout.plane_units) as usize;
        let mut gathered = core::mem::take(&mut self.collection.gathered);
        // Units of the superpage's class first; if they do not fill it, others.
        let class = self.options.hints.then_some(self.collection.heat);
        for pass in class.map(Some).into_iter().chain([None]) {
            gathered.retain(|(at, logical)| {
                if job.units.len() == room
                    || pass.is_some_and(|heat| self.heat(*logical) != heat)
                    || self.is_flying(*logical)
                {
                    return true;
                }
                let lost = logical & META == 0 && logical & LOST != 0;
                let from =
                    if lost { Source::Nothing } else { Source::Flash(self.layout.place(*at)) };
                job.units.push(Unit { logical: *logical, from });
                job.from.push(*at);
                self.supers.all[self.layout.superblock(*at) as usize].copies += 1;
                false
            });
        }
        self.collection.gathered = gathered;
        while job.units.len() < room {
            self.counters.padding_units += 1;
            job.units.push(Unit { logical: PAD, from: Source::Nothing });
            job.from.push(NONE);
        }
        self.made_up(stream, &job);
        self.collection.rows += 1;
        job
    }

    /// Marks an unreadable unit of the host as lost, by the owner that the map has. `None` if it was
    /// metadata, which is rewritten. `known`: locations and units, if the map is cached.
    fn lost(&mut self, at: u32, known: &[(u32, u32)]) -> Option<u32> {
        let owner = match known.iter().find(|(place, _)| *place == at) {
            Some((_, logical)) => Some(*logical),
            None if self.cached().is_some() => None,
            None => (0..self.options.units).find(|logical| self.look(*logical) == Some(at)),
        };
        if let Some(logical) = owner {
            self.counters.lost_units += 1;
            return Some(logical | LOST);
        }
        self.supers.clear_valid(at);
        if let Some(chunk) = self.chunks.iter().position(|chunk| *chunk == at) {
            (self.chunks[chunk], self.dirty[chunk]) = (NONE, true);
        }
        self.notes.retain(|note| note.at != at);
        None
    }

    /// Returns true if the superblock has no valid unit and no copy from it is in flight.
    pub fn is_empty(&self, superblock: u32) -> bool {
        let one = &self.supers.all[superblock as usize];
        one.valid == 0 && one.copies == 0
    }

    /// Next superblock to erase, and whether the required trim records are on flash. After a power cut,
    /// superblocks in an unknown state need none: no later trim concerns their old data.
    fn next_erase(&mut self) -> Option<(u32, bool)> {
        if let Some(doubtful) = self.next_doubtful() {
            return Some((doubtful, true));
        }
        let found = self.collection.drained.iter().copied().find(|at| self.is_empty(*at))?;
        let noted = self.collection.noted.take_if(|noted| *noted == found).is_some();
        Some((found, noted))
    }

    fn next_doubtful(&mut self) -> Option<u32> {
        let owed = self.owed();
        let supers = &mut self.supers;
        if supers.clean >= READY + owed || supers.clean == supers.free {
            return None;
        }
        let doubtful =
            supers.all.iter().position(|one| one.phase == Phase::Free { clean: false })?;
        supers.take(doubtful as u32);
        self.collection.drained.push(doubtful as u32);
        Some(doubtful as u32)
    }

    /// Handles a completed erase: the superblock is free.
    pub fn erased(&mut self, superblock: u32) {
        self.collection.drained.retain(|at| *at != superblock);
        // Forget units read there: they must not be confused with future contents.
        let layout = self.layout;
        self.collection.gathered.retain(|(at, _)| layout.superblock(*at) != superblock);
        self.collection.noted.take_if(|noted| *noted == superblock);
        let one = &mut self.supers.all[superblock as usize];
        one.erases += 1;
        self.supers.most_erases = self.supers.most_erases.max(one.erases);
        self.counters.erased += 1;
        self.supers.release(superblock);
        if self.counters.erased.is_multiple_of(LEVEL_EVERY) {
            self.level_wear();
        }
    }

    /// Moves cold data from the least worn superblock, so that its blocks are worn by others.
    fn level_wear(&mut self) {
        let now = self.next_sequence;
        let (supers, spread) = (&self.supers, self.options.wear_spread);
        let candidates = (0..self.layout.shape.blocks).map(|at| supers.candidate(at, now));
        if let Some(at) = policy::wear_victim(spread, supers.most_erases, candidates) {
            self.supers.set_refresh(at as u32);
            self.counters.levelled += 1;
        }
    }
}

/// Number of erases between two checks of the wear spread.
const LEVEL_EVERY: u64 = 4;
