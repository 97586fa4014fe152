//! All that the flash software knows, and the steps that take no time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use runtime::Rng;

use crate::blame::Clocks;
use crate::buffer::Buffer;
use crate::close::Closing;
use crate::layout::{Layout, NONE, WritePointer};
use crate::map::Map;
use crate::named::{Leader, Named};
use crate::options::{ENTRY_BYTES, Options, Space};
use crate::pages::{Header, LOST, META, Pages, Unit};
use crate::policy;
use crate::root::RootPlace;
use crate::space::{NOTES_MAX, Quota};
use crate::stats::Counters;
use crate::supers::Supers;

/// A part of the map.
pub(crate) const CHUNK: u32 = META;
pub(crate) const TRIM: u32 = META | 1 << 28;
/// Part of the root of a checkpoint.
pub(crate) const ROOT: u32 = META | 2 << 28;
pub(crate) const PAD: u32 = u32::MAX;
/// What is left of these is their number.
pub(crate) const NUMBER: u32 = (1 << 28) - 1;

/// What spare bytes say that a unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Data { logical: u32, lost: bool },
    Chunk(u32),
    Trim(u32),
    Other,
}

#[inline]
pub(crate) fn holds(logical: u32) -> Holds {
    match logical & !NUMBER {
        _ if logical & META == 0 => {
            Holds::Data { logical: logical & !LOST, lost: logical & LOST != 0 }
        }
        CHUNK => Holds::Chunk(logical & NUMBER),
        TRIM => Holds::Trim(logical & NUMBER),
        _ => Holds::Other,
    }
}

/// A row on its way to flash.
pub(crate) struct Job {
    pub write_pointer: WritePointer,
    pub planes: u32,
    pub header: Header,
    pub units: Vec<Unit>,
    /// For each unit, where it was before: it counts only if the map still says so. None: it comes from
    /// the buffer.
    pub from: Vec<u32>,
    pub collected: bool,
    /// It counts only when the trial of its superblock has ended.
    pub uncommitted: bool,
    /// It holds nothing: it closes word lines.
    pub filler: bool,
    /// It holds parts of a map that is cached.
    pub of_map: bool,
    /// When it was made up.
    pub made_up: Clocks,
}

/// What a die has to do.
pub(crate) struct Queue {
    pub jobs: VecDeque<Job>,
    /// The number of the row that is being programmed.
    pub flying: Option<u64>,
}

/// A note of trims on flash. It counts until a checkpoint has what it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrimNote {
    pub number: u32,
    pub at: u32,
    pub sequence: u64,
}

/// The note that is being written: its slot, and how many trims it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenNote {
    pub slot: u32,
    pub number: u32,
    pub count: u32,
    /// The oldest write in whose place it stands for those who wait for that: the write was trimmed.
    pub stands_for: u64,
}

/// What the collector has in hand.
#[derive(Default)]
pub(crate) struct Collection {
    /// The superblock that it goes over, and how far it has come.
    pub victim: Option<(u32, u32)>,
    /// What it has read: from where, and what the spare bytes say.
    pub gathered: Vec<(u32, u32)>,
    /// Room to note what is to be read.
    pub found: Vec<u32>,
    /// Superblocks that it has gone over and that are not erased yet.
    pub drained: Vec<u32>,
    /// Its rows on their way.
    pub rows: u32,
    /// One of them, if the notes of trims before which it must not be erased are on flash.
    pub noted: Option<u32>,
}

/// In [`Header::erases`]: the row counts only if its superblock holds one without this.
pub(crate) const UNCOMMITTED: u32 = 1 << 31;

/// What the collector has copied into the keep: see [`space`](crate::space).
pub(crate) struct ReserveCopy {
    /// The keep.
    pub at: u32,
    /// What takes its place.
    pub victim: u32,
    /// Notes of the trims so far are closed, and have a row.
    pub sealed: bool,
    pub noted: bool,
    /// The row that ends it has been made up.
    pub decided: bool,
    /// Rows that have arrived, and the planes in which they failed.
    pub landed: Vec<(Job, u32)>,
    /// The victim's units in them.
    pub copied: u32,
}

pub(crate) struct State {
    pub layout: Layout,
    pub options: Options,
    pub map: Map,
    /// Entries of a part of the map.
    pub per_part: u32,
    /// Parts of a map that is whole in memory that differ from those on flash.
    pub dirty: Vec<bool>,
    /// Where each part of the map lies on flash.
    pub chunks: Vec<u32>,
    pub supers: Supers,
    pub buffer: Buffer,
    pub queues: Vec<Queue>,
    pub closing: Closing,
    pub spare_jobs: Vec<Job>,
    pub next_sequence: u64,
    /// All writes up to this number are to be written as soon as can be.
    pub force: u64,
    /// Notes of trims are awaited by an erase: they go before everything, into what is kept for that.
    pub urgent: bool,
    pub note: Option<OpenNote>,
    pub next_note: u32,
    /// Notes in the buffer, each with the oldest write in whose place it stands.
    pub standing: Vec<(u32, u64)>,
    /// Notes that are in the buffer.
    pub waiting_notes: Vec<u32>,
    pub notes: Vec<TrimNote>,
    /// Parts of the map that are in the buffer.
    pub chunks_waiting: u32,
    /// The host has been refused a row, or a superblock.
    pub blocked: bool,
    pub collection: Collection,
    /// What somebody outside wants collected.
    pub named: Option<Named>,
    /// Who leads the collector, if somebody outside does.
    pub leader: Option<Leader>,
    /// The keep is being written.
    pub reserve_copy: Option<ReserveCopy>,
    /// The host may write a row though it would have to wait: the collector can do nothing.
    pub granted: bool,
    /// The last checkpoint found no block for its root.
    pub rootless: bool,
    pub space: Space,
    pub rng: Rng,
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
        let queue = |_| Queue { jobs: VecDeque::with_capacity(QUEUE + 1), flying: None };
        State {
            layout,
            options: options.clone(),
            map: Map::new(options, &layout.shape, Quota::of(&layout, options.units)),
            per_part: per_chunk,
            dirty: alloc::vec![false; chunks],
            chunks: alloc::vec![NONE; chunks],
            supers: Supers::new(pages, layout),
            buffer: Buffer::new(slots),
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
            counters: Counters::default(),
            rows_at_checkpoint: 0,
            root: RootPlace { group: layout.groups, ..RootPlace::default() },
            worn_out: false,
        }
    }

    /// Bytes of memory of the map.
    pub fn map_bytes(&self) -> u64 {
        self.map.bytes() + (size_of_val(&self.chunks[..]) + self.dirty.len()) as u64
    }

    /// Entries of one part of a map that is whole, as they are kept on flash.
    pub fn entries(&mut self, chunk: u32) -> &mut [u32] {
        let per_part = self.per_part as usize;
        let Map::Whole(map) = &mut self.map else { return &mut [] };
        let end = map.len().min((chunk as usize + 1) * per_part);
        &mut map[chunk as usize * per_part..end]
    }

    /// Where what the spare bytes name lies, as far as is known. Of data only if the map is whole: see
    /// [`is_still_at`](State::is_still_at).
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

    /// Something lies there from now on, and no more where it lay: `from`, if that is known.
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

    /// A unit that the host sees holds nothing any more. As [`Buffer::kill`].
    pub fn drop_unit(&mut self, logical: u32) -> (Option<u32>, u64) {
        if self.look(logical) != Some(NONE) {
            self.replace(logical, NONE, None);
        }
        self.buffer.kill(logical)
    }

    /// Space that is left, and what must be.
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
        policy::Space { left, hold: self.space.hold, start: self.space.start }
    }

    /// From when on the collector is to work.
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

    /// So many notes of trims may be on flash before a checkpoint is due.
    pub fn notes_most(&self) -> u64 {
        u64::from(NOTES_MAX) / 2
    }

    /// The oldest row that is still on its way, or the next to be made up.
    pub fn oldest_sequence(&self) -> u64 {
        let first = |q: &Queue| q.flying.or_else(|| q.jobs.front().map(|job| job.header.sequence));
        // What is on trial has not arrived.
        let tried = self
            .reserve_copy
            .as_ref()
            .map(|reserve_copy| self.supers.all[reserve_copy.at as usize].opened);
        let known = self.queues.iter().filter_map(first).chain(tried).chain(self.closing.oldest());
        known.min().unwrap_or(self.next_sequence)
    }

    /// A row is begun.
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

    /// A row has come to its end: its vectors serve another.
    pub fn recycle(&mut self, mut job: Job) {
        job.units.clear();
        job.from.clear();
        self.spare_jobs.push(job);
    }
}

/// Rows that wait for a die behind the one that is being programmed.
pub(crate) const QUEUE: usize = 2;

impl Job {
    /// Every unit of the row with its plane and its number.
    pub fn targets(&self, layout: &Layout) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (first, per_plane) = (layout.first(self.write_pointer), layout.plane_units);
        let planes = self.planes;
        (0..32).filter(move |plane| planes >> plane & 1 != 0).flat_map(move |plane| {
            (0..per_plane).map(move |at| (plane, first + plane * per_plane + at))
        })
    }
}
