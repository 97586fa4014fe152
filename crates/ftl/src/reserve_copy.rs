//! Uncommitted collection into the reserve superblock: see [`space`](crate::space).

use crate::collect::Step;
use crate::ftl::Inner;
use crate::job::Job;
use crate::layout::WritePointer;
use crate::options::Cache;
use crate::pages::Pages;
use crate::policy::{self, Candidate, Heat, Stream};
use crate::space::{self, Opening};
use crate::state::{ReserveCopy, State};
use crate::supers::Phase;

impl<P: Pages> Inner<P> {
    /// Forms a superpage of the collection that is not made of copies: trim records only, or the committing
    /// one, with host data.
    pub fn uncommitted_row(&self, notes_alone: bool) {
        let mut state = self.state.borrow_mut();
        let Some((write_pointer, planes)) = state.supers.peek(Stream::Collector) else { return };
        if let Some(reserve_copy) = &mut state.reserve_copy {
            reserve_copy.noted |= notes_alone;
        }
        let job =
            state.host_job((Heat::Typical, Stream::Collector), write_pointer, planes, notes_alone);
        state.queues[write_pointer.die as usize].jobs.push_back(job);
        drop(state);
        self.dies[write_pointer.die as usize].notify(&self.rt);
    }

    /// Handles the arrival of an uncommitted superpage: it waits for the commit, except for units that
    /// failed.
    pub fn try_row(&self, state: &mut State, job: Job, failed: u32) {
        self.settle(state, &job, failed, false);
        let Some(victim) = state.reserve_copy.as_ref().map(|reserve_copy| reserve_copy.victim)
        else {
            return;
        };
        let good = |(at, (plane, _)): &(usize, (u32, u32))| {
            failed >> plane & 1 == 0 && state.is_of(job.from[*at], victim)
        };
        let targets = job.targets(&self.layout);
        let copied = (0..job.units.len()).zip(targets).filter(good).count() as u32;
        if let Some(reserve_copy) = &mut state.reserve_copy {
            reserve_copy.copied += copied;
            reserve_copy.landed.push((job, failed));
        }
    }

    /// Handles the arrival of the committing superpage: the uncommitted ones before it count from now on.
    pub fn commit_reserve_copy(&self, state: &mut State, superblock: u32, planes: u32) {
        if planes == 0
            || state.reserve_copy.as_ref().is_none_or(|reserve_copy| reserve_copy.at != superblock)
        {
            return;
        }
        let Some(reserve_copy) = state.reserve_copy.take() else { return };
        for (job, failed) in reserve_copy.landed {
            self.settle(state, &job, failed, true);
            state.recycle(job);
        }
        let drained = state.collection.drained.contains(&reserve_copy.victim);
        state.collection.noted = Some(reserve_copy.victim).filter(|_| drained);
        let frontiers = &mut state.supers.frontiers;
        if !self.options.separate_streams && frontiers[Stream::Host as usize].at.is_none() {
            frontiers[Stream::Host as usize] =
                core::mem::take(&mut frontiers[Stream::Collector as usize]);
            state.closing.hand_over();
        }
    }
}

impl<P: Pages> Inner<P> {
    /// Cancels the collection: the reserve superblock is erased and its remaining good part may be used
    /// again. The victim becomes an ordinary superblock.
    pub fn cancel_reserve_copy(&self) {
        let mut state = self.state.borrow_mut();
        let Some(reserve_copy) = state.reserve_copy.take() else { return };
        for (job, failed) in reserve_copy.landed {
            // Units that had failed are queued again already.
            self.settle(&mut state, &job, !failed, false);
            state.recycle(job);
        }
        let (layout, victim) = (self.layout, reserve_copy.victim);
        let is_empty = state.is_empty(victim);
        let collection = &mut state.collection;
        if !is_empty {
            collection.gathered.retain(|(at, _)| layout.superblock(*at) != victim);
            collection.drained.retain(|at| *at != victim);
            collection.victim.take_if(|(at, _)| *at == victim);
        }
        collection.drained.push(reserve_copy.at);
        collection.noted = Some(reserve_copy.at);
        if !is_empty {
            state.supers.all[victim as usize].phase = Phase::Filled;
        }
        state.supers.all[reserve_copy.at as usize].phase = Phase::Victim;
        drop(state);
        self.collect.notify(&self.rt);
    }
}

impl State {
    /// Returns true if failed programs have left no superpage for the collection.
    pub fn reserve_copy_failed(&self) -> bool {
        self.reserve_copy.as_ref().is_some_and(|reserve_copy| {
            let keep = &self.supers.all[reserve_copy.at as usize];
            keep.phase != Phase::Open && keep.flying == 0
        })
    }

    /// Returns true if `unit` is a location in this superblock.
    fn is_of(&self, unit: u32, superblock: u32) -> bool {
        unit != crate::layout::NONE && self.layout.superblock(unit) == superblock
    }

    /// Returns true if every unit that was valid there is in a superpage.
    fn has_passed(&self, superblock: u32) -> bool {
        self.collection.victim.is_none_or(|(victim, _)| victim != superblock)
            && !self.collection.gathered.iter().any(|(at, _)| self.is_of(*at, superblock))
    }

    /// Returns true if a superpage that is formed now in this superblock is uncommitted.
    pub fn is_uncommitted(&mut self, superblock: u32) -> bool {
        let Some(reserve_copy) =
            self.reserve_copy.as_ref().filter(|reserve_copy| reserve_copy.at == superblock)
        else {
            return false;
        };
        let decided = reserve_copy.decided || self.may_decide(reserve_copy);
        if let Some(reserve_copy) = &mut self.reserve_copy {
            reserve_copy.decided = decided;
        }
        !decided
    }

    /// Returns true if all of the victim and the trim records have arrived.
    fn may_decide(&self, reserve_copy: &ReserveCopy) -> bool {
        reserve_copy.sealed
            && self.has_passed(reserve_copy.victim)
            && self.supers.all[reserve_copy.victim as usize].copies == reserve_copy.copied
            && self.supers.all[reserve_copy.at as usize].flying == 0
            && (reserve_copy.noted || !self.owes_notes())
    }

    /// Returns true if trim records must be written before an erase. Slots that survive a power cut count as
    /// written.
    fn owes_notes(&self) -> bool {
        self.options.cache != Cache::Protected && self.buffer.has_note()
    }

    /// Next step of an uncommitted collection after its victim has been read; `None`: proceed as in ordinary
    /// collection.
    pub fn reserve_copy_step(&mut self, ready: bool, has_place: bool) -> Option<Step> {
        let reserve_copy = self.reserve_copy.as_ref()?;
        let (decided, victim, at) =
            (reserve_copy.decided, reserve_copy.victim, reserve_copy.at as usize);
        if !decided && !self.has_passed(victim) {
            return None;
        }
        if decided {
            // The committing superpage has failed: another is needed.
            let again = self.supers.all[at].flying == 0 && self.supers.all[at].phase == Phase::Open;
            return again.then_some(Step::End);
        }
        if !reserve_copy.sealed {
            self.seal_note();
        }
        let owes = self.owes_notes();
        let reserve_copy = self.reserve_copy.as_mut()?;
        reserve_copy.sealed = true;
        if !has_place || self.supers.all[at].phase != Phase::Open {
            return Some(Step::Wait);
        }
        if owes && !reserve_copy.noted {
            return Some(Step::Notes);
        }
        let reserve_copy = self.reserve_copy.as_ref()?;
        if !self.may_decide(reserve_copy) {
            return Some(Step::Wait);
        }
        Some(if ready { Step::Row } else { Step::End })
    }

    /// Returns true if trim records that an erase waits for fit only in the reserve superblock.
    pub fn needs_keep_for_notes(&mut self) -> bool {
        self.urgent && self.buffer.has_note() && self.supers.clean > 0 && !self.supers.has_rows()
    }

    /// Next superpage of the collector; opens a superblock for it if needed.
    pub fn collector_row(&mut self) -> Option<(WritePointer, u32)> {
        let stream = self.collector_stream();
        if let Some(row) = self.supers.peek(stream) {
            return Some(row);
        }
        match space::may_open(Stream::Collector, self.free(), 0) {
            // One uncommitted collection at a time.
            _ if self.reserve_copy.is_some() => None,
            Opening::No => None,
            Opening::Plain => self.open_clean(stream),
            Opening::ReserveCopy => self.open_keep(),
        }
    }

    /// Opens the reserve superblock, if the collection in progress leaves enough space there; otherwise drops
    /// it in favour of a victim that does.
    fn open_keep(&mut self) -> Option<(WritePointer, u32)> {
        let keep = self.reserve_units()?;
        let collection = &self.collection;
        let drained = collection.drained.iter().copied().find(|at| !self.is_empty(*at));
        let gathered = collection.gathered.len() as u32;
        let (victim, moved) = match (drained, collection.victim) {
            (Some(drained), _) => (drained, gathered),
            // Gathered units are the victim's, and still counted as valid there.
            (None, Some((victim, _))) => (victim, self.supers.all[victim as usize].valid),
            // For trim records only.
            (None, None) => (*collection.drained.first()?, gathered),
        };
        let rows = space::uncommitted_rows(&self.layout.shape);
        let fits = space::fits(moved, keep, self.layout.row_units, rows);
        let chosen = self.collection.victim.is_some();
        if !fits && chosen && self.find_victim(keep).is_some() {
            self.let_go();
            return None;
        }
        let row = self.open_clean(Stream::Collector);
        if fits {
            let at = self.supers.frontiers[Stream::Collector as usize].at?.superblock;
            self.reserve_copy = Some(ReserveCopy {
                at,
                victim,
                sealed: false,
                noted: false,
                decided: false,
                landed: alloc::vec::Vec::new(),
                copied: 0,
            });
        }
        row
    }

    /// Abandons the collector's victim: it becomes an ordinary superblock.
    fn let_go(&mut self) {
        if let Some((victim, _)) = self.collection.victim.take() {
            self.supers.all[victim as usize].phase = Phase::Filled;
            let layout = self.layout;
            self.collection.gathered.retain(|(at, _)| layout.superblock(*at) != victim);
        }
    }

    /// Units of the reserve superblock.
    pub fn reserve_units(&self) -> Option<u32> {
        let clean = |one: &&crate::supers::Super| matches!(one.phase, Phase::Free { .. });
        self.supers.all.iter().filter(clean).map(|one| one.units).max()
    }

    /// Victim that fits into a reserve superblock of this size.
    pub fn find_victim(&mut self, keep: u32) -> Option<u32> {
        let (now, supers, row) = (self.next_sequence, &self.supers, self.layout.row_units);
        let rows = space::uncommitted_rows(&self.layout.shape);
        let fits = move |one: &Candidate| space::fits(one.valid, keep.min(one.units), row, rows);
        let candidates = (0..self.layout.shape.blocks).map(|at| supers.candidate(at, now));
        let candidates = candidates.map(move |one| one.filter(fits));
        policy::victim(self.options.choice, candidates, &mut self.rng).map(|at| at as u32)
    }
}
