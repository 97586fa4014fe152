//! State of the flash translation layer, and the transitions that take no time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use runtime::Rng;

use crate::blame::Clocks;
use crate::buffer::Buffer;
use crate::closing::Closing;
use crate::content::{Holds, UNCOMMITTED, holds};
use crate::hints::Hints;
use crate::job::{Job, QUEUE, Queue};
use crate::layout::{ENTRY_BYTES, Layout, NONE, WritePointer};
use crate::map::Map;
use crate::moves::Moves;
use crate::options::{Options, Space};
use crate::pages::{Header, Pages};
use crate::policy::{self, Heat};
use crate::region::Region;
use crate::request::{Leader, Named};
use crate::space::{NOTES_MAX, Quota};
use crate::stats::Counters;
use crate::supers::Supers;

/// A trim record on flash. It is needed until a checkpoint includes its trims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrimNote {
    pub number: u32,
    pub at: u32,
    pub sequence: u64,
}

/// The trim record being filled: its slot, and the number of trims in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenNote {
    pub slot: u32,
    pub number: u32,
    pub count: u32,
    /// Oldest write that this record replaces for waiters: that write was trimmed.
    pub stands_for: u64,
}

/// Current work of the collector.
#[derive(Clone, Default)]
pub(crate) struct Collection {
    /// The superblock being collected, and the progress in it.
    pub victim: Option<(u32, u32)>,
    /// Units read: source location, and content by the spare bytes.
    pub gathered: Vec<(u32, u32)>,
    /// Scratch list of locations to be read.
    pub found: Vec<u32>,
    /// Superblocks that are collected but not erased yet.
    pub drained: Vec<u32>,
    /// Class of the next superpage.
    pub heat: Heat,
    /// The collector's superpages in flight.
    pub rows: u32,
    /// The collector is in a run ([`Options::gc_run`]).
    pub run: bool,
    /// A drained superblock that may be erased: the trim records that must precede the erase are on flash.
    pub noted: Option<u32>,
}

/// State of a collection into the reserve superblock: see [`space`](crate::space).
#[derive(Clone)]
pub(crate) struct ReserveCopy {
    /// The reserve superblock.
    pub at: u32,
    /// The victim that becomes the next reserve superblock.
    pub victim: u32,
    /// The trim records so far are closed, and have a superpage.
    pub sealed: bool,
    pub noted: bool,
    /// The committing superpage has been formed.
    pub decided: bool,
    /// Superpages that have arrived, each with the planes in which it failed.
    pub landed: Vec<(Job, u32)>,
    /// The victim's units in them.
    pub copied: u32,
}

/// Position of the next root.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RootPlace {
    pub number: u64,
    pub block: u32,
    /// Next group in the block. Past the end: another block has to be erased first.
    pub group: u32,
}

#[derive(Clone)]
pub(crate) struct State {
    pub layout: Layout,
    pub options: Options,
    pub map: Map,
    /// Map entries per part.
    pub per_part: u32,
    /// For each part of a fully resident map: true if it differs from the copy on flash.
    pub dirty: Vec<bool>,
    /// Location of each map part on flash.
    pub chunks: Vec<u32>,
    pub supers: Supers,
    pub buffer: Buffer,
    pub queues: Vec<Queue>,
    pub closing: Closing,
    pub spare_jobs: Vec<Job>,
    pub next_sequence: u64,
    /// All writes up to this number are to be written without delay.
    pub force: u64,
    /// An erase waits for trim records: they are written first, into the space reserved for them.
    pub urgent: bool,
    pub note: Option<OpenNote>,
    pub next_note: u32,
    /// Trim records in the buffer, each with the oldest write that it replaces for waiters.
    pub standing: Vec<(u32, u64)>,
    /// Trim records in the buffer.
    pub waiting_notes: Vec<u32>,
    pub notes: Vec<TrimNote>,
    /// Map parts in the buffer.
    pub chunks_waiting: u32,
    /// The host has been refused a superpage or a superblock.
    pub blocked: bool,
    pub collection: Collection,
    /// Superblock requested by host-directed GC.
    pub named: Option<Named>,
    /// The host-directed collector, if there is one.
    pub leader: Option<Leader>,
    /// The collection that is writing the reserve superblock.
    pub reserve_copy: Option<ReserveCopy>,
    /// The host may write one superpage although space is short: the collector cannot proceed.
    pub granted: bool,
    /// The last checkpoint found no block for its root.
    pub rootless: bool,
    pub space: Space,
    pub rng: Rng,
    /// Moves of units for a host that keeps the map.
    pub moves: Moves,
    pub hints: Hints,
    pub counters: Counters,
    pub rows_at_checkpoint: u64,
    pub root: RootPlace,
    pub worn_out: bool,
}

impl State {
    pub fn new<P: Pages>(pages: &P, layout: Layout, options: &Options, slots: u32) -> State {
        let per_chunk = layout.shape.unit_bytes / ENTRY_BYTES;
        let chunks = options.units.div_ceil(per_chunk) as usize;
        let dies = layout.shape.dies;
        let region = options.nv_slots.map(|room| Region::new(options.slots, room));
        let queue = |_| Queue { jobs: VecDeque::with_capacity(QUEUE + 1), flying: None };
        State {
            layout,
            options: options.clone(),
            map: Map::new(options, &layout.shape, Quota::of(&layout, options.units)),
            per_part: per_chunk,
            dirty: alloc::vec![false; chunks],
            chunks: alloc::vec![NONE; chunks],
            supers: Supers::new(pages, layout),
            buffer: Buffer::new(slots, options.hints, region),
            queues: (0..dies).map(queue).collect(),
            closing: Closing::new(dies),
            spare_jobs: Vec::new(),
            next_sequence: 1,
            force: 0,
            urgent: false,
            note: None,
            next_note: 0,
            standing: Vec::new(),
            waiting_notes: Vec::new(),
            notes: Vec::new(),
            chunks_waiting: 0,
            blocked: false,
            collection: Collection::default(),
            named: None,
            leader: None,
            reserve_copy: None,
            granted: false,
            rootless: false,
            space: Space::of(&layout, options.reserve),
            rng: Rng::for_part(options.seed, "flash collector"),
            moves: Moves::default(),
            hints: Hints::new(options.hints),
            counters: Counters::default(),
            rows_at_checkpoint: 0,
            root: RootPlace { group: layout.groups, ..RootPlace::default() },
            worn_out: false,
        }
    }

    /// Memory that the map takes, in bytes.
    pub fn map_bytes(&self) -> u64 {
        self.map.bytes() + (size_of_val(&self.chunks[..]) + self.dirty.len()) as u64
    }

    /// Entries of one part of a fully resident map, as stored on flash.
    pub fn entries(&mut self, chunk: u32) -> &mut [u32] {
        let per_part = self.per_part as usize;
        let Map::Whole(map) = &mut self.map else { return &mut [] };
        map.part_mut(chunk as usize * per_part, per_part)
    }

    /// Last known location of the content with this tag. For data this is exact only if the map is fully
    /// resident: see [`is_still_at`](State::is_still_at).
    pub fn owner(&self, logical: u32) -> u32 {
        match holds(logical) {
            Holds::Data { logical, .. } if logical < self.options.units => {
                self.look(logical).unwrap_or(NONE)
            }
            Holds::Chunk(chunk) if (chunk as usize) < self.chunks.len() => {
                self.chunks[chunk as usize]
            }
            Holds::Trim(number) => {
                self.notes.iter().find(|note| note.number == number).map_or(NONE, |note| note.at)
            }
            _ => NONE,
        }
    }

    /// Moves the mapping to a new location, and invalidates the old one: `from`, if known.
    #[inline]
    pub fn move_to(&mut self, logical: u32, unit: u32, sequence: u64, from: Option<u32>) {
        if let Holds::Data { logical, .. } = holds(logical) {
            self.replace(logical, unit, from);
            self.supers.set_valid(unit);
            return;
        }
        let before = self.owner(logical);
        match holds(logical) {
            Holds::Chunk(chunk) => self.chunks[chunk as usize] = unit,
            Holds::Trim(number) => match self.notes.iter_mut().find(|n| n.number == number) {
                Some(note) => note.at = unit,
                None => self.notes.push(TrimNote { number, at: unit, sequence }),
            },
            Holds::Data { .. } | Holds::Other => return,
        }
        if before != NONE {
            self.supers.clear_valid(before);
        }
        self.supers.set_valid(unit);
    }

    /// Unmaps a unit of the host. Returns as [`Buffer::kill`].
    pub fn drop_unit(&mut self, logical: u32) -> (Option<u32>, u64) {
        if self.look(logical) != Some(NONE) {
            self.replace(logical, NONE, None);
        }
        self.buffer.kill(logical)
    }

    /// Free space and its thresholds.
    pub fn space(&self) -> policy::Space {
        let supers = &self.supers;
        let drained = |at: &u32| u64::from(supers.all[*at as usize].units);
        let passed = self.collection.victim.map_or(0, |(at, cursor)| {
            let done = cursor - supers.range(at).0;
            u64::from(done.min(supers.all[at as usize].units))
        });
        let passed = passed + self.collection.drained.iter().map(drained).sum::<u64>();
        let owed = u64::from(self.owed()) * u64::from(self.layout.super_units);
        let left = (supers.left() + passed).saturating_sub(owed);
        let more = if self.collection.run { self.options.gc_run } else { 0 };
        let start = self.space.start + u64::from(more);
        policy::Space { left, hold: self.space.hold, start }
    }

    /// Sets when the collector starts.
    pub fn set_gc_control(&mut self, lead: policy::GcControl) {
        let own = Space::of(&self.layout, self.options.reserve);
        let one = u64::from(self.layout.super_units);
        self.space.start = match lead {
            policy::GcControl::Own => own.start,
            policy::GcControl::Held | policy::GcControl::Named(_) => own.hold,
            policy::GcControl::Early(superblocks) => own.start + u64::from(superblocks) * one,
        };
        self.leader = match lead {
            policy::GcControl::Named(below) => Some(Leader::new(below)),
            _ => None,
        };
    }

    /// Trim records that may be on flash before a checkpoint is due.
    pub fn notes_most(&self) -> u64 {
        u64::from(NOTES_MAX) / 2
    }

    /// Oldest superpage in flight, or else the next to be formed.
    pub fn oldest_sequence(&self) -> u64 {
        let first = |q: &Queue| q.flying.or_else(|| q.jobs.front().map(|job| job.header.sequence));
        // Uncommitted superpages count as not arrived.
        let tried = self
            .reserve_copy
            .as_ref()
            .map(|reserve_copy| self.supers.all[reserve_copy.at as usize].opened);
        let known = self.queues.iter().filter_map(first).chain(tried).chain(self.closing.oldest());
        known.min().unwrap_or(self.next_sequence)
    }

    /// Begins a superpage.
    pub fn job(&mut self, write_pointer: WritePointer, planes: u32, collected: bool) -> Job {
        let uncommitted = self.is_uncommitted(write_pointer.superblock);
        let header = Header {
            sequence: self.next_sequence,
            erases: self.supers.all[write_pointer.superblock as usize].erases
                | if uncommitted { UNCOMMITTED } else { 0 },
        };
        self.next_sequence += 1;
        let (units, from) = match self.spare_jobs.pop() {
            Some(job) => (job.units, job.from),
            None => {
                let room = self.layout.row_units as usize;
                (Vec::with_capacity(room), Vec::with_capacity(room))
            }
        };
        let made_up = Clocks::default();
        Job {
            write_pointer,
            planes,
            header,
            units,
            from,
            collected,
            uncommitted,
            filler: false,
            of_map: false,
            made_up,
        }
    }

    /// Recycles the vectors of a finished superpage.
    pub fn recycle(&mut self, mut job: Job) {
        job.units.clear();
        job.from.clear();
        self.spare_jobs.push(job);
    }
}
