//! Parts of a cached map: read on demand, and written back with their changes.
//!
//! Parts have superblocks of their own, which are never collected. Every checkpoint rewrites all parts; once
//! its root is on flash, the superblocks of older parts are erased. Between two checkpoints, parts are
//! written when their changes outgrow the cache. A mount ignores those: it starts from the last root and
//! scans all superpages written since. So a power cut never leaves data there that must be saved, and the
//! space that the map needs is known in advance: [`Quota`](crate::space::Quota).

use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::content::{CHUNK, PAD};
use crate::ftl::{Inner, Task};
use crate::job::{Job, QUEUE};
use crate::layout::{NONE, WritePointer};
use crate::map::{Cached, Dump, Map};
use crate::options::Error;
use crate::pages::{PageRead, Pages, Part, Source, Tag, Unit};
use crate::policy::Stream;
use crate::state::State;
use crate::supers::Phase;

impl<P: Pages> Inner<P> {
    /// Looks up the location of a unit; reads it from flash on a cache miss.
    pub async fn place_of(&self, logical: u32) -> Result<u32, Error> {
        if let Some(at) = self.state.borrow().look(logical) {
            return Ok(at);
        }
        let part = self.state.borrow().cached().map_or(0, |cached| cached.part(logical));
        loop {
            // All waits in here count as one stage.
            let trace = self.rt.trace();
            self.rt.detach_trace();
            let done = self.load(part).await;
            self.rt.attach_trace_number(trace);
            self.rt.record(self.blame.map);
            done?;
            if let Some(at) = self.state.borrow().look(logical) {
                return Ok(at);
            }
        }
    }

    /// Location of a unit whose part has been loaded before.
    pub fn known_place(&self, logical: u32) -> Option<u32> {
        let state = self.state.borrow();
        if let Some(at) = state.look(logical) {
            return Some(at);
        }
        // The frame has been reused for another part; the caller still has the number.
        let cached = state.cached()?;
        let part = cached.part(logical);
        let first = (logical % state.per_part) * 4;
        let mut word = [0; 4];
        let mut take = |at: u32, run: &[u8]| {
            for (byte, into) in (first..).zip(&mut word) {
                if let Some(found) = byte.checked_sub(at).and_then(|at| run.get(at as usize)) {
                    *into = *found;
                }
            }
        };
        if let Some(map) = &cached.laid {
            return Some(map[logical as usize].wrapping_sub(1));
        }
        match (cached.slot_of(part), state.chunks[part as usize]) {
            (Some(slot), _) => self.pages.lend_slot(slot, &mut take),
            (None, NONE) => {}
            (None, at) => {
                if !self.pages.lend(self.layout.place(at), &mut take) {
                    return None;
                }
            }
        }
        Some(u32::from_le_bytes(word).wrapping_sub(1))
    }

    /// Reads a part into the cache unless it is cached.
    async fn load(&self, part: u32) -> Result<(), Error> {
        loop {
            let seen = self.mapped.version();
            let at = {
                let mut state = self.state.borrow_mut();
                let Some(cached) = state.cached_mut() else { return Ok(()) };
                if cached.is_loaded(part) {
                    return Ok(());
                }
                if cached.loading.contains(&part) {
                    None
                } else if self.load_at_once(&mut state, part) {
                    return Ok(());
                } else {
                    let at = state.chunks[part as usize];
                    state.cached_mut().expect("as above").loading.push(part);
                    Some(at)
                }
            };
            let Some(at) = at else {
                self.mapped.changed(&self.rt, seen).await;
                continue;
            };
            let mut parts = self.take_parts();
            self.add_part(&mut parts, at);
            self.pages.read(&mut parts).await;
            let good = matches!(parts[0].seen, PageRead::Good { .. });
            self.note(&parts[0]);
            self.give_parts(parts);
            let mut state = self.state.borrow_mut();
            state.counters.map_reads += 1;
            let here = state.chunks[part as usize] == at;
            let cached = state.cached_mut().expect("as above");
            cached.loading.retain(|one| *one != part);
            let newer = cached.slot_of(part).is_some();
            if here && !newer && !(good && self.install(&mut state, part, at)) {
                // The location of data is no longer known.
                state.worn_out = true;
                drop(state);
                self.mapped.notify(&self.rt);
                self.worn_out();
                return Err(Error::Unreadable);
            }
            drop(state);
            self.mapped.notify(&self.rt);
        }
    }

    /// Takes a part that need not be read from flash; returns false if it must be read.
    fn load_at_once(&self, state: &mut State, part: u32) -> bool {
        let (at, per_part) = (state.chunks[part as usize], state.per_part);
        let State { map: Map::Cached(cached), supers, .. } = state else { return true };
        let clear = |place| _ = supers.clear_valid(place);
        if let Some(slot) = cached.slot_of(part) {
            let bytes = self.bytes(|put| self.pages.lend_slot(slot, put));
            cached.install(part, |entry| word(&bytes, entry), clear);
        } else if let Some(laid) = cached.laid.take() {
            let first = (part * per_part) as usize;
            cached.install(part, |entry| laid[first + entry].wrapping_sub(1), clear);
            cached.laid = Some(laid);
        } else if at == NONE {
            cached.install(part, |_| NONE, clear);
        } else {
            return false;
        }
        true
    }

    /// Installs a part that has been read; returns false if other data were at that location.
    fn install(&self, state: &mut State, part: u32, at: u32) -> bool {
        let Some(bytes) = self.part_bytes(part, at) else { return false };
        let State { map: Map::Cached(cached), supers, .. } = state else { return true };
        cached.install(part, |entry| word(&bytes, entry), |place| _ = supers.clear_valid(place));
        true
    }

    /// Bytes of a part that has been read.
    fn part_bytes(&self, part: u32, at: u32) -> Option<Vec<u8>> {
        let place = self.layout.place(at);
        if self.pages.logical(place) != CHUNK | part {
            return None;
        }
        let mut lent = false;
        let bytes = self.bytes(|put| lent = self.pages.lend(place, put));
        lent.then_some(bytes)
    }

    fn bytes(&self, lend: impl FnOnce(&mut dyn FnMut(u32, &[u8]))) -> Vec<u8> {
        let mut bytes = alloc::vec![0; self.layout.shape.unit_bytes as usize];
        lend(&mut |at, run| bytes[at as usize..][..run.len()].copy_from_slice(run));
        bytes
    }

    /// Task that writes parts: those with many changes, and at a checkpoint all of them.
    pub async fn mapper(self: Rc<Self>) {
        while !self.ends(Task::Mapper) {
            let seen = self.mapped.version();
            let next = self.state.borrow_mut().part_to_write();
            let Some(part) = next else {
                self.mapped.changed(&self.rt, seen).await;
                continue;
            };
            let done = self.write_part(part).await;
            if let Some(cached) = self.state.borrow_mut().cached_mut() {
                cached.busy -= 1;
            }
            self.form();
            self.mapped.notify(&self.rt);
            self.collect.notify(&self.rt);
            if done.is_err() {
                return;
            }
        }
    }

    /// Copies a part with all its changes into a slot.
    async fn write_part(&self, part: u32) -> Result<(), Error> {
        let mut taken = None;
        let done = loop {
            let (waiting, is_loaded) = {
                let state = self.state.borrow();
                let Some(cached) = state.cached() else { return Ok(()) };
                let of_part = |(_, one): &&(u32, u32)| *one == part;
                let waiting = cached.waiting.iter().find(of_part).map(|(slot, _)| *slot);
                (waiting, cached.is_loaded(part))
            };
            if !is_loaded {
                match self.load(part).await {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                }
            } else if let Some(slot) = waiting.or_else(|| taken.take()) {
                self.stage_part(part, slot, waiting.is_none());
                break Ok(());
            } else if let Some(slot) = self.meta_slots.try_take() {
                taken = Some(slot);
            } else {
                // There are enough slots that some are always in flight: see `Inner::new`.
                taken = Some(self.meta_slots.take(&self.rt).await);
            }
        };
        if let Some(slot) = taken {
            self.meta_slots.give(&self.rt, slot);
        }
        done
    }

    fn stage_part(&self, part: u32, slot: u32, is_new: bool) {
        let mut state = self.state.borrow_mut();
        let mut bytes = alloc::vec![0; self.layout.shape.unit_bytes as usize];
        let tag = Tag { logical: CHUNK | part, order: state.buffer.next_order() };
        let Some(cached) = state.cached_mut() else { return };
        cached.merge(part, |at, place| {
            bytes[4 * at..][..4].copy_from_slice(&place.wrapping_add(1).to_le_bytes());
        });
        if is_new {
            cached.waiting.push_back((slot, part));
        }
        self.pages.stage(slot, tag, 0, &bytes);
    }

    /// Flushes waiting parts to flash without delay.
    pub fn hurry_parts(&self) {
        if let Some(cached) = self.state.borrow_mut().cached_mut() {
            (cached.force, cached.closing) = (true, true);
        }
        self.form();
    }

    /// Forms superpages of parts while dies and space are available.
    pub fn form_parts(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            let Some((write_pointer, planes)) = state.part_row() else { break };
            let job = state.part_job(write_pointer, planes);
            state.queues[write_pointer.die as usize].jobs.push_back(job);
            drop(state);
            self.dies[write_pointer.die as usize].notify(&self.rt);
        }
        let closes = self.state.borrow().cached().is_some_and(|cached| cached.closing);
        if closes {
            self.close_parts();
        }
    }

    /// Rewrites every part; returns false on failure.
    pub async fn dump(&self) -> bool {
        if let Some(cached) = self.state.borrow_mut().cached_mut() {
            cached.dump = Dump::At(0);
        }
        self.mapped.notify(&self.rt);
        loop {
            let seen = self.mapped.version();
            let (all, over) = {
                let state = self.state.borrow();
                let Some(cached) = state.cached() else { return true };
                if state.worn_out {
                    return false;
                }
                let all = cached.dump == Dump::Done && cached.busy == 0;
                (all, all && cached.is_quiet())
            };
            if over {
                return true;
            }
            if all {
                self.hurry_parts();
            }
            self.mapped.changed(&self.rt, seen).await;
        }
    }

    /// Loads all parts that have stale changes, so that the counts of valid units are exact.
    pub async fn resolve(&self) {
        let mut from = 0;
        loop {
            let found = self.state.borrow().cached().and_then(|cached| cached.next_stale(from));
            let Some((part, at)) = found else { return };
            from = at;
            if self.load(part).await.is_err() {
                return;
            }
        }
    }

    /// Owner of a valid location that cannot be read; `None` if it has no owner any more.
    pub async fn owner_of_lost(&self, at: u32) -> Option<u32> {
        let changed = self.state.borrow().cached().and_then(|cached| cached.changed_to(at));
        if changed.is_some() {
            return changed;
        }
        let parts = self.state.borrow().cached().map_or(0, Cached::parts);
        for part in 0..parts {
            self.load(part).await.ok()?;
            let state = self.state.borrow();
            if !state.supers.is_valid(at) {
                return None;
            }
            let found = state.cached().and_then(|cached| cached.unit_at(part, at));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// After a mount has scanned all superpages: reads every part that the root names and marks each location
    /// valid or not. Returns false if a part cannot be read.
    pub async fn claim_parts(&self) -> Result<bool, crate::MountError> {
        let mut parts: Vec<Part> = self.take_parts();
        let count = self.state.borrow().chunks.len();
        for first in (0..count).step_by(PARTS_AT_ONCE) {
            let some = first..count.min(first + PARTS_AT_ONCE);
            let places = self.state.borrow().chunks[some.clone()].to_vec();
            parts.clear();
            places.iter().filter(|at| **at != NONE).for_each(|at| self.add_part(&mut parts, *at));
            self.pages.read(&mut parts).await;
            self.state.borrow_mut().counters.map_reads += parts.len() as u64;
            if !parts.iter().all(|part| matches!(part.seen, PageRead::Good { .. })) {
                return Ok(false);
            }
            for (part, at) in some.zip(places) {
                let bytes = match at {
                    NONE => Some(Vec::new()),
                    at => self.part_bytes(part as u32, at),
                };
                let Some(bytes) = bytes else { return Ok(false) };
                self.state.borrow_mut().claim_part(part as u32, &bytes)?;
            }
        }
        self.give_parts(parts);
        self.state.borrow_mut().find_supers_of_parts()?;
        Ok(true)
    }
}

/// Parts that a mount reads concurrently.
const PARTS_AT_ONCE: usize = 256;

/// Location in one entry of a part's bytes.
fn word(bytes: &[u8], entry: usize) -> u32 {
    let word = bytes.get(4 * entry..4 * entry + 4).and_then(|bytes| bytes.try_into().ok());
    word.map_or(NONE, |word| u32::from_le_bytes(word).wrapping_sub(1))
}

impl State {
    /// Picks a part to be written now and marks the write as begun.
    fn part_to_write(&mut self) -> Option<u32> {
        let room = self.has_room_for_parts();
        let count = self.chunks.len() as u32;
        let cached = self.cached_mut()?;
        let part = match cached.dump {
            Dump::Done => None,
            Dump::Off if room && cached.is_filling() => cached.next_part(),
            Dump::Off => None,
            Dump::At(next) => {
                let laid = cached.laid.is_some();
                let chunks = &self.chunks;
                let Map::Cached(cached) = &mut self.map else { return None };
                let is_there =
                    |part: &u32| laid || chunks[*part as usize] != NONE || cached.is_touched(*part);
                let found = (next..count).find(is_there);
                cached.dump = match found {
                    Some(part) if part + 1 < count => Dump::At(part + 1),
                    _ => Dump::Done,
                };
                found
            }
        }?;
        self.cached_mut()?.busy += 1;
        Some(part)
    }

    /// Mapping units that can be written before all superblocks of the map are full.
    fn left_for_parts(&self) -> u64 {
        let frontier = self.supers.frontiers[Stream::Map as usize].at;
        let open = frontier.map_or(0, |at| self.supers.all[at.superblock as usize].left);
        u64::from(open) + u64::from(self.owed()) * u64::from(self.layout.super_units)
    }

    /// Returns true if a part may be written between checkpoints: the space must suffice for all parts.
    fn has_room_for_parts(&self) -> bool {
        let Some(cached) = self.cached() else { return true };
        let waiting = cached.waiting.len() as u64 + u64::from(cached.busy);
        let rows = 2 + self.layout.closing_rows();
        let next = waiting + u64::from(rows * self.layout.row_units);
        self.left_for_parts() >= cached.quota.units + next
    }

    /// Returns true if the map needs a checkpoint.
    pub fn is_dump_due(&self) -> bool {
        self.supers.map_in_danger
            || self.cached().is_some_and(|cached| cached.is_filling() && !self.has_room_for_parts())
    }

    /// Write pointer and planes for a superpage of parts, if one may be formed now.
    fn part_row(&mut self) -> Option<(WritePointer, u32)> {
        let cached = self.cached_mut()?;
        let waiting = cached.waiting.len() as u32;
        if waiting == 0 {
            cached.force = false;
            cached.closing &= !cached.flying.is_empty();
            return None;
        }
        let force = cached.force;
        let (write_pointer, planes) = match self.supers.peek(Stream::Map) {
            Some(row) => row,
            None => {
                // Beyond the quota only after failed programs.
                let may = self.owed() > 0 || self.free() > 1;
                let row = if may { self.open_clean(Stream::Map) } else { None };
                if row.is_some() {
                    self.cached_mut()?.supers += 1;
                }
                row?
            }
        };
        let room = planes.count_ones() * self.layout.plane_units;
        let has_place = self.queues[write_pointer.die as usize].jobs.len() < QUEUE;
        (has_place && (waiting >= room || force)).then_some((write_pointer, planes))
    }

    /// Returns true if parts wait for a superblock that will never be free: too many programs have failed.
    pub fn is_map_stuck(&mut self) -> bool {
        let waits = self.cached().is_some_and(|cached| !cached.waiting.is_empty());
        waits
            && self.supers.peek(Stream::Map).is_none()
            && self.owed() == 0
            && self.free() <= 1
            && self.supers.clean == self.supers.free
            && !self.collection.drained.iter().any(|at| self.is_empty(*at))
            && self.queues.iter().all(|queue| queue.jobs.is_empty() && queue.flying.is_none())
    }

    fn part_job(&mut self, write_pointer: WritePointer, planes: u32) -> Job {
        let mut job = self.job(write_pointer, planes, false);
        job.of_map = true;
        for _ in 0..planes.count_ones() * self.layout.plane_units {
            let next = self.cached_mut().and_then(|cached| {
                let next = cached.waiting.pop_front()?;
                cached.flying.push(next);
                Some(next)
            });
            let unit = match next {
                Some((slot, part)) => Unit { logical: CHUNK | part, from: Source::Slot(slot) },
                None => {
                    self.counters.padding_units += 1;
                    Unit { logical: PAD, from: Source::Nothing }
                }
            };
            job.units.push(unit);
            job.from.push(NONE);
        }
        self.made_up(Stream::Map, &job);
        job
    }

    /// Handles the arrival of a part on flash, or its failure, after which it waits again. Returns true if
    /// its slot is free.
    pub fn part_arrived(&mut self, slot: u32, unit: u32, failed: bool) -> bool {
        let Some(cached) = self.cached_mut() else { return false };
        let Some(at) = cached.flying.iter().position(|(one, _)| *one == slot) else { return false };
        let (_, part) = cached.flying.remove(at);
        let of_part = |(_, one): &(u32, u32)| *one == part;
        if failed {
            let newer = cached.flying[at..].iter().chain(&cached.waiting).any(of_part);
            if newer || part == NONE {
                return true;
            }
            cached.waiting.push_front((slot, part));
            return false;
        }
        if part != NONE {
            // Older copies that are still in flight arrive too late.
            cached.flying[..at].iter_mut().filter(|one| of_part(one)).for_each(|one| one.1 = NONE);
            self.chunks[part as usize] = unit;
        }
        self.counters.meta_units += 1;
        self.counters.map_units += 1;
        true
    }

    /// After a root is on flash: releases the superblocks of parts that it does not name.
    pub fn release_parts(&mut self) {
        let mut named = alloc::vec![false; self.supers.all.len()];
        for at in self.chunks.iter().filter(|at| **at != NONE) {
            named[self.layout.superblock(*at) as usize] = true;
        }
        let State { supers, map: Map::Cached(cached), .. } = self else { return };
        for (one, _) in supers.all.iter_mut().zip(named).filter(|(one, named)| one.of_map && !named)
        {
            if one.phase == Phase::Filled && one.flying == 0 {
                one.phase = Phase::Free { clean: false };
                one.of_map = false;
                supers.free += 1;
                supers.free_units += u64::from(one.units);
                cached.supers -= 1;
            }
        }
        cached.dump = Dump::Off;
        supers.map_in_danger = false;
    }

    /// Marks the locations of a part's units as valid, from its bytes and later changes.
    fn claim_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), crate::MountError> {
        let first = part * self.per_part;
        let end = (first + self.per_part).min(self.options.units);
        for (entry, logical) in (first..end).enumerate() {
            let changed = self.cached().and_then(|cached| cached.change(logical));
            self.claim(changed.unwrap_or_else(|| word(bytes, entry)))?;
        }
        Ok(())
    }

    /// After a mount: finds the superblocks of live parts. Those must hold nothing else.
    fn find_supers_of_parts(&mut self) -> Result<(), crate::MountError> {
        for at in self.chunks.clone().into_iter().filter(|at| *at != NONE) {
            let one = &mut self.supers.all[self.layout.superblock(at) as usize];
            // A map that was whole has its parts among the data.
            if one.valid > 0 || one.phase != Phase::Filled {
                return Err(crate::MountError::Options);
            }
            one.of_map = true;
        }
        let supers = self.supers.all.iter().filter(|one| one.of_map).count() as u32;
        if let Some(cached) = self.cached_mut() {
            cached.supers = supers;
        }
        Ok(())
    }
}
