//! Closing word lines, where their pages are programmed one by one.
//!
//! The program of a page that is torn may take those with it that share its cells and were programmed
//! before ([`Shape::reach`](crate::Shape::reach)). So a row that has been programmed is *held*: its slots
//! stay taken, the map points to where things were, what was copied may not be erased. It counts when the
//! last row that could take it along has been programmed behind it, or its blocks are full. Rows that the
//! host or the collector writes anyway do that; where somebody waits, rows of nothing do.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::ftl::Inner;
use crate::layout::{NONE, WritePointer};
use crate::pages::{Pages, Source, Unit};
use crate::policy::Stream;
use crate::state::{Job, PAD, QUEUE, State};

/// A row that has been made up, and the row that closes it not yet.
struct Open {
    write_pointer: WritePointer,
    /// The oldest write in it.
    oldest: u64,
}

/// What is not closed.
pub(crate) struct Closing {
    /// By stream: rows that nothing has been made up for yet that would close them.
    open: [VecDeque<Open>; 3],
    /// By die: rows that have been programmed, with the planes in which they failed.
    held: Vec<Vec<(Job, u32)>>,
}

impl Closing {
    pub fn new(dies: u32) -> Closing {
        Closing { open: Default::default(), held: (0..dies).map(|_| Vec::new()).collect() }
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.iter().all(Vec::is_empty)
    }

    /// The number of the oldest row that is held.
    pub fn oldest(&self) -> Option<u64> {
        self.held.iter().flatten().map(|(job, _)| job.header.sequence).min()
    }

    /// The host goes on where the collector was.
    pub fn hand_over(&mut self) {
        self.open[Stream::Host as usize] =
            core::mem::take(&mut self.open[Stream::Collector as usize]);
    }
}

impl<P: Pages> Inner<P> {
    /// A row has been programmed: what it closes counts.
    pub fn hold(&self, state: &mut State, job: Job, failed: u32) {
        let WritePointer { superblock, group, die } = job.write_pointer;
        if job.filler {
            self.is_safe(state, job, failed);
        } else {
            state.closing.held[die as usize].push((job, failed));
        }
        // Nothing is programmed any more where no plane is left.
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

    /// Closes what somebody wants on flash now.
    pub fn close_forced(&self) {
        if self.layout.shape.reach == 0 {
            return;
        }
        let force = self.state.borrow().force;
        self.close(&DATA, |open| open.oldest <= force);
    }

    /// Closes everything.
    pub fn close_all(&self) {
        if self.layout.shape.reach > 0 {
            self.close(&DATA, |_| true);
        }
    }

    /// Closes parts of the map.
    pub fn close_parts(&self) {
        if self.layout.shape.reach > 0 {
            self.close(&[Stream::Map], |_| true);
        }
    }

    /// Nothing is on its way, and somebody waits for what is held. True: then it is being closed.
    pub fn close_idle(&self) -> bool {
        if self.layout.shape.reach == 0
            || !self.state.borrow().waits_for_held(self.slots.available())
        {
            return false;
        }
        self.close(&DATA, |_| true)
    }

    /// Makes up rows of nothing until such rows are closed, as far as there is room in front of the dies.
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

/// Streams of what the host sees.
const DATA: [Stream; 2] = [Stream::Host, Stream::Collector];

impl State {
    /// A row has been made up for a stream.
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

    /// The next row of a stream, if one is wanted that closes something and its die can take it.
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

    /// Whether rows are held that somebody waits for, and nothing is on its way that might close them.
    fn waits_for_held(&self, slots: usize) -> bool {
        let idle = |queue: &crate::state::Queue| queue.jobs.is_empty() && queue.flying.is_none();
        let waits = self.blocked
            || self.urgent
            || self.reserve_copy.is_some()
            || slots == 0
            || !self.collection.drained.is_empty();
        waits && !self.closing.is_empty() && self.queues.iter().all(idle)
    }
}
