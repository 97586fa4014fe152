//! The collector: goes over a superblock, copies what is still valid, and erases it.
//!
//! What it copies must never be taken for newer than what the host has written. Rows are numbered when they
//! are made up, and after a power cut the greatest number counts. So a unit whose newer version is already
//! in a row is left alone: it will be invalid soon, and if that row fails it is looked at again. A newer
//! version that still waits gets a greater number later.

use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::ftl::Inner;
use crate::layout::{NONE, WritePointer};
use crate::named::PATIENCE;
use crate::options::Cache;
use crate::pages::{Erase, LOST, META, Page, PageRead, Pages, Part, Source, Unit};
use crate::policy::{self, Candidate, Stream};
use crate::purge::Task;
use crate::state::{Holds, Job, PAD, QUEUE, State, holds};
use crate::supers::Phase;

/// What the collector does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read,
    /// A row of what is gathered, padded if need be.
    Row,
    /// The keep is opened, for nothing but notes of trims.
    Keep,
    /// A row of notes of trims, on trial.
    Notes,
    /// The row that ends a trial.
    End,
    /// The trial is given up: what has failed has left no room for it.
    Cancel,
    /// The host may write a row: the collector can do nothing for it.
    Grant,
    /// What counts as valid is to be what is: parts of the map are read.
    Resolve,
    Wait,
}

impl<P: Pages> Inner<P> {
    /// The task that copies.
    pub async fn collector(self: Rc<Self>) {
        // Until then it waits for whoever leads it.
        let mut until = None;
        while !self.ends(Task::Collector) {
            let seen = self.collect.version();
            let step = self.state.borrow_mut().next_step();
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

    /// Whoever waits for space is told.
    pub fn worn_out(&self) {
        self.worn.notify(&self.rt);
        self.landed.notify(&self.rt);
    }

    /// Reads as many valid units as a row still lacks.
    async fn gather(&self) {
        let mut parts = self.take_parts();
        let mut found = core::mem::take(&mut self.state.borrow_mut().collection.found);
        self.state.borrow_mut().find_more(&mut found);
        for at in &found {
            self.add_part(&mut parts, *at);
        }
        if !parts.is_empty() {
            self.pages.read_for_collector(&mut parts).await;
            let lost = self.owners_of_lost(&found, &parts).await;
            self.sort_out(&found, &parts, &lost);
        }
        self.give_parts(parts);
        found.clear();
        self.state.borrow_mut().collection.found = found;
        self.form();
    }

    /// What has been read is gathered, with what its spare bytes say.
    fn sort_out(&self, found: &[u32], parts: &[Part], lost: &[(u32, u32)]) {
        let mut state = self.state.borrow_mut();
        let mut parts = parts.iter();
        let mut part = parts.next();
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
            if let Some(logical) = logical
                && state.is_still_at(logical, *at)
            {
                state.collection.gathered.push((*at, logical));
            }
        }
    }

    /// Of those places which can't be read and of which the map that is cached knows whose they are: place
    /// and unit.
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

    /// The task that erases what the collector has gone over.
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

    /// Erases a superblock that nothing points to. Notes of trims come first, if they have not yet: else a
    /// power cut could bring back what is older than what is erased here.
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

/// Erased superblocks that are kept ready after a power cut has left some in doubt.
const READY: u32 = 4;

impl State {
    /// Where the collector writes: with the host, where it has no superblock of its own and there is none
    /// to be had, as after programs that have failed.
    pub fn collector_stream(&mut self) -> Stream {
        let own = self.supers.peek(Stream::Collector).is_some()
            || self.reserve_copy.is_some()
            || (self.options.separate_streams && self.supers.clean > 0);
        if own { Stream::Collector } else { Stream::Host }
    }

    fn next_step(&mut self) -> Step {
        if let Some(leader) = &mut self.leader {
            leader.awaited = false;
        }
        if self.reserve_copy_failed() {
            return Step::Cancel;
        }
        if self.collection.rows >= self.gc_parallelism()
            || (self.reserve_copy.is_none() && self.is_map_full())
        {
            return Step::Wait;
        }
        if self.stale() > 0 && self.free() <= 1 {
            return Step::Resolve;
        }
        let ready = self.drop_stale();
        let stream = self.collector_stream();
        let row = self.supers.peek(stream);
        let room = row.map_or(self.layout.row_units, |(_, planes)| {
            planes.count_ones() * self.layout.plane_units
        });
        let free = row.is_none_or(|(write_pointer, _)| {
            self.queues[write_pointer.die as usize].jobs.len() < QUEUE
        });
        if let Some(step) = self.reserve_copy_step(ready > 0, free) {
            return step;
        }
        if row.is_none() && self.reserve_copy.is_some() {
            return Step::Wait;
        }
        // The keep is not touched while an erase gives another; unless that waits for a row itself.
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
        // Nothing more to read: what is in danger, and what somebody waits for, goes in a padded row.
        let danger = |at: &u32| self.supers.all[*at as usize].refresh;
        let hurry = self.blocked || self.collection.drained.iter().any(danger);
        let all = ready as usize == self.collection.gathered.len();
        let hurry = if trying { all } else { hurry };
        if ready > 0 && hurry {
            return if free { self.row_or_wait(row) } else { Step::Wait };
        }
        if ready == 0
            && self.is_stuck()
            && !self.granted
            && self.supers.peek(Stream::Host).is_some()
        {
            if self.stale() > 0 {
                return Step::Resolve;
            }
            self.granted = true;
            return Step::Grant;
        }
        Step::Wait
    }

    fn row_or_wait(&self, row: Option<(WritePointer, u32)>) -> Step {
        if row.is_some() || self.supers.clean > 0 { Step::Row } else { Step::Wait }
    }

    /// The host is blocked, the collector has nothing to do, and nothing is on its way.
    fn is_stuck(&mut self) -> bool {
        let has_row = self.free() > 0 || self.supers.has_rows();
        let idle = |queue: &crate::state::Queue| queue.jobs.is_empty() && queue.flying.is_none();
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

    /// When the collector has nothing to do: whether that stays so for good. True when that is found.
    fn gives_up(&mut self) -> bool {
        let stuck = !self.worn_out && (self.is_stuck() || self.is_map_stuck());
        self.worn_out |= stuck;
        stuck
    }

    /// How many rows of the collector may be under way.
    fn gc_parallelism(&self) -> u32 {
        let most = self.options.gc_parallelism.max(1);
        let gc_parallelism = if self.blocked { most } else { self.space().gc_parallelism(most) };
        // What is in danger, and what is begun for that, goes on slowly in any case.
        let gc_parallelism = gc_parallelism.max(self.named_rows().min(most));
        gc_parallelism.max(u32::from(self.supers.refreshing > 0 || self.reserve_copy.is_some()))
    }

    /// Chooses the next superblock, if one is wanted.
    fn begin(&mut self) -> bool {
        let blocks = self.layout.shape.blocks;
        let supers = &self.supers;
        let in_danger = |at: &u32| {
            let one = &supers.all[*at as usize];
            one.refresh && one.phase == Phase::Filled && one.flying == 0 && !one.of_map
        };
        let space = self.space();
        // What is full takes a whole superblock, so the last must not be needed for it.
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
            let Some(at) = fitting.or_else(|| self.find_gaining(last)) else { return false };
            at
        } else {
            return false;
        };
        self.counters.collected += 1;
        self.supers.all[found as usize].phase = Phase::Victim;
        self.collection.victim = Some((found, self.supers.range(found).0));
        true
    }

    /// What gains space; at the very end, a row at least.
    fn find_gaining(&mut self, last: bool) -> Option<u32> {
        let (now, supers) = (self.next_sequence, &self.supers);
        let least = if last { self.layout.row_units } else { 0 };
        let enough = move |one: &Candidate| one.valid + least <= one.units;
        let candidates = (0..self.layout.shape.blocks).map(|at| supers.candidate(at, now));
        let candidates = candidates.map(move |one| one.filter(enough));
        policy::victim(self.options.choice, candidates, &mut self.rng).map(|at| at as u32)
    }

    /// The next valid units of the victim, as many as a row still lacks.
    fn find_more(&mut self, found: &mut Vec<u32>) {
        let Some((victim, mut cursor)) = self.collection.victim else { return };
        let end = self.supers.range(victim).1;
        let room = self.layout.row_units as usize;
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

    /// Forgets what has become invalid. Returns how many of the rest may be copied now.
    fn drop_stale(&mut self) -> u32 {
        let mut gathered = core::mem::take(&mut self.collection.gathered);
        // By what it holds, not by whether that place is valid: it may hold something else by now.
        gathered.retain(|(at, logical)| self.is_still_at(*logical, *at));
        let ready = gathered.iter().filter(|(_, logical)| !self.is_flying(*logical)).count();
        self.collection.gathered = gathered;
        ready as u32
    }

    /// Whether a newer version is in a row already.
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
        gathered.retain(|(at, logical)| {
            if job.units.len() == room || self.is_flying(*logical) {
                return true;
            }
            let lost = logical & META == 0 && logical & LOST != 0;
            let from = if lost { Source::Nothing } else { Source::Flash(self.layout.place(*at)) };
            job.units.push(Unit { logical: *logical, from });
            job.from.push(*at);
            self.supers.all[self.layout.superblock(*at) as usize].copies += 1;
            false
        });
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

    /// What could not be read is lost: whose it was, the map still knows. None: it was not the host's,
    /// and is written anew. `known`: places and units, where the map is cached.
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

    /// Nothing points to it, and nothing is copied out of it.
    pub fn is_empty(&self, superblock: u32) -> bool {
        let one = &self.supers.all[superblock as usize];
        one.valid == 0 && one.copies == 0
    }

    /// A superblock that can be erased, and whether the notes of trims before it are on flash. They
    /// are for what was in doubt after a power cut: no trim since is about what it held.
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

    /// A superblock is erased, and free.
    pub fn erased(&mut self, superblock: u32) {
        self.collection.drained.retain(|at| *at != superblock);
        // What was read there is not to be taken for what will be.
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

    /// Cold data rest where wear is least: they are moved, so that others may wear those blocks.
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

/// After every so many erases one looks whether wear is even.
const LEVEL_EVERY: u64 = 4;
