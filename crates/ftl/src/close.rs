//! Closing word lines, where their pages are programmed one by one.
//!
//! A torn program may destroy earlier pages that share its cells ([`Shape::reach`](crate::Shape::reach)). So
//! a programmed superpage is *held*: its slots stay taken, the map points to the old locations, and the
//! sources of its copies may not be erased. It counts when the last superpage that could destroy it has been
//! programmed, or its blocks are full. Superpages that host or collector write anyway do that; if a request
//! waits, filler superpages do.

use crate::closing::Open;
use crate::content::PAD;
use crate::ftl::Inner;
use crate::job::{Job, QUEUE, Queue};
use crate::layout::{NONE, WritePointer};
use crate::pages::{Pages, Source, Unit};
use crate::policy::Stream;
use crate::state::State;

impl<P: Pages> Inner<P> {
    /// Holds a superpage that has been programmed, and settles those that it closes.
    pub fn hold(&self, state: &mut State, job: Job, failed: u32) {
        let WritePointer { superblock, group, die } = job.write_pointer;
        if job.filler {
            self.is_safe(state, job, failed);
        } else {
            state.closing.held[die as usize].push((job, failed));
        }
        // Without a plane left, nothing is programmed behind it.
        let over = group + 1 == self.layout.groups || state.supers.members(superblock, die) == 0;
        let closed = |(one, _): &(Job, u32)| {
            one.write_pointer.superblock == superblock
                && (over || one.write_pointer.group + self.layout.shape.reach <= group)
        };
        while let Some(at) = state.closing.held[die as usize].iter().position(closed) {
            let (job, failed) = state.closing.held[die as usize].remove(at);
            self.is_safe(state, job, failed);
        }
    }

    /// Closes the superpages that a flush waits for.
    pub fn close_forced(&self) {
        if self.layout.shape.reach == 0 {
            return;
        }
        let force = self.state.borrow().force;
        self.close(&Stream::DATA, |open| open.oldest <= force);
    }

    pub fn close_all(&self) {
        if self.layout.shape.reach > 0 {
            self.close(&Stream::DATA, |_| true);
        }
    }

    /// Closes superpages of map parts.
    pub fn close_parts(&self) {
        if self.layout.shape.reach > 0 {
            self.close(&[Stream::Map], |_| true);
        }
    }

    /// If nothing is in flight and held superpages are waited for: starts closing them and returns true.
    pub fn close_idle(&self) -> bool {
        if self.layout.shape.reach == 0
            || !self.state.borrow().waits_for_held(self.slots.available())
        {
            return false;
        }
        self.close(&Stream::DATA, |_| true)
    }

    /// Forms filler superpages until the wanted ones are closed, as far as the die queues have space.
    fn close(&self, streams: &[Stream], wanted: impl Fn(&Open) -> bool) -> bool {
        let mut any = false;
        for stream in streams.iter().copied() {
            loop {
                let mut state = self.state.borrow_mut();
                let Some((write_pointer, planes)) = state.closing_row(stream, &wanted) else {
                    break;
                };
                let job = state.filler(stream, write_pointer, planes);
                state.queues[write_pointer.die as usize].jobs.push_back(job);
                drop(state);
                self.dies[write_pointer.die as usize].notify(&self.rt);
                any = true;
            }
        }
        any
    }
}

impl State {
    /// Records that a superpage has been formed for a stream.
    pub fn made_up(&mut self, stream: Stream, job: &Job) {
        self.supers.advance(stream, job.planes, self.next_sequence);
        if self.layout.shape.reach > 0 && !job.filler {
            let order = |unit: &Unit| match unit.from {
                Source::Slot(slot) if !job.of_map => self.buffer.slots[slot as usize].order,
                _ => u64::MAX,
            };
            let oldest = job.units.iter().map(order).min().unwrap_or(u64::MAX);
            self.closing.open[stream as usize]
                .push_back(Open { write_pointer: job.write_pointer, oldest });
        }
    }

    /// Next superpage of a stream, if it would close a wanted one and its die can take it.
    fn closing_row(
        &mut self,
        stream: Stream,
        wanted: impl Fn(&Open) -> bool,
    ) -> Option<(WritePointer, u32)> {
        let row = self.supers.peek(stream);
        let reach = self.layout.shape.reach;
        let open = &mut self.closing.open[stream as usize];
        open.retain(|one| {
            row.is_some_and(|(at, _)| {
                let last =
                    WritePointer { group: one.write_pointer.group + reach, ..one.write_pointer };
                at.superblock == last.superblock && at <= last
            })
        });
        let (write_pointer, planes) = row.filter(|_| open.iter().any(wanted))?;
        (self.queues[write_pointer.die as usize].jobs.len() < QUEUE)
            .then_some((write_pointer, planes))
    }

    fn filler(&mut self, stream: Stream, write_pointer: WritePointer, planes: u32) -> Job {
        let mut job = self.job(write_pointer, planes, false);
        job.of_map = stream == Stream::Map;
        job.filler = true;
        let units = planes.count_ones() * self.layout.plane_units;
        for _ in 0..units {
            job.units.push(Unit { logical: PAD, from: Source::Nothing });
            job.from.push(NONE);
        }
        self.counters.padding_units += u64::from(units);
        self.made_up(stream, &job);
        job
    }

    /// Returns true if held superpages are waited for and nothing in flight might close them.
    fn waits_for_held(&self, slots: usize) -> bool {
        let idle = |queue: &Queue| queue.jobs.is_empty() && queue.flying.is_none();
        let waits = self.blocked
            || self.urgent
            || self.reserve_copy.is_some()
            || slots == 0
            || self.buffer.lacks_room()
            || !self.collection.drained.is_empty();
        waits && !self.closing.is_empty() && self.queues.iter().all(idle)
    }
}
