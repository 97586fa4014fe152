//! Journal of an array with parity: a change is durable on the members that it will write, before the first
//! of them is written.
//!
//! ```text
//!   stripe held ─► each part and its head, after the stripes of its member ─► sync of the group
//!               ─► failed member, if new ─► the parts in place ─► acknowledged … later syncs: place free
//! ```
//!
//! *Group commit.* Parts are written to the caches of members, and one flush of all members makes those of
//! every change that waits durable: changes that arrive during a flush share the next one. The same flushes
//! free places, without any of their own: what was in place when a flush began is durable after it; the next
//! sync writes superblocks with a tail behind that, also to the caches and during its flush, and after the
//! flush of a later sync places are free. Members without a volatile cache need no flush.
//!
//! *The write hole.* At a start an entry is valid if all its parts are present except that of a member which
//! is out. If a part is missing, nothing of the entry has been written in place: the stripe has its old
//! content. If all are present, they are written again: then the remaining stripe is consistent, so the chunk
//! of the member that is out has its old content or, if the entry wrote it, the new one. Entries of a stripe
//! are in order, as it is held from the first journal write to the last write in place. An entry that is
//! skipped at a start has been flushed in place, with all earlier ones of its stripe; superblocks with the
//! new tail are durable before a place is reused.
//!
//! *Failed members* are recorded in the superblocks of all others before anything is written without them. So
//! a member that returns is not trusted: at a start the newest superblock counts, which at least one of any n
//! - 1 members has.

use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::{Buffer, HostPort};
use runtime::{Rt, Signal};

use super::record::{Change, Head, Region, Superblock, sum};
use super::together::all;
use super::trace::Way;
use super::{Out, Place, Shared, is_lost};
use host::{BlockDevice, IoError, Kind};

/// Bits of a sequence number below the life.
const LIFE_SHIFT: u32 = 40;

/// Part of a change on a member; no buffer for a deallocation.
pub type Part = (u32, Option<Buffer>);

/// Journal of one array: places for entries, and their state.
pub struct Journal {
    pub region: Region,
    pub state: RefCell<State>,
    /// Notified when a place is free, an entry is in place, or superblocks have been written.
    moved: Signal,
    recording: Cell<bool>,
    /// Number of the last flush of all members that has begun, and that has ended.
    begun: Cell<u64>,
    ended: Cell<u64>,
}

pub struct State {
    pub free: Vec<u32>,
    used: Vec<Used>,
    pub next: u64,
    /// Sequence number below which all entries are durable in place.
    flushed: u64,
    /// Newest superblock, present on all members that are not out.
    pub superblock: Superblock,
}

#[derive(Clone, Copy)]
struct Used {
    slot: u32,
    sequence: u64,
    /// True if its parts have been written in place.
    home: bool,
}

/// Guard of a superblock update: one at a time.
struct Recording<'a>(&'a Journal, &'a Rt);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.recording.set(false);
        self.0.moved.notify(self.1);
    }
}

impl Journal {
    pub fn new(region: Region, entries: u32, superblock: Superblock) -> Journal {
        let free = (0..entries).rev().collect();
        let state = State { free, used: Vec::new(), next: 0, flushed: 0, superblock };
        Journal {
            region,
            state: RefCell::new(state),
            moved: Signal::default(),
            recording: Cell::new(false),
            begun: Cell::new(0),
            ended: Cell::new(0),
        }
    }

    fn record<'a>(&'a self, rt: &'a Rt) -> Option<Recording<'a>> {
        (!self.recording.replace(true)).then(|| Recording(self, rt))
    }

    /// Continues from this superblock.
    pub fn begin(&self, superblock: Superblock) {
        let mut state = self.state.borrow_mut();
        (state.next, state.flushed) = (superblock.tail, superblock.tail);
        state.superblock = superblock;
    }

    /// Starts the next life, in which no entry is left.
    pub fn next_life(&self) {
        let mut state = self.state.borrow_mut();
        state.superblock.life += 1;
        state.superblock.tail = state.superblock.life << LIFE_SHIFT;
        (state.next, state.flushed) = (state.superblock.tail, state.superblock.tail);
    }

    /// Records that an entry has been written in place.
    pub fn is_home(&self, rt: &Rt, slot: u32) {
        let mut state = self.state.borrow_mut();
        let used = state.used.iter_mut().find(|used| used.slot == slot);
        used.expect("a place that is used").home = true;
        drop(state);
        self.moved.notify(rt);
    }

    /// Frees the place of an entry that was not and will not be written in place.
    fn give_back(&self, rt: &Rt, slot: u32) {
        let mut state = self.state.borrow_mut();
        state.used.retain(|used| used.slot != slot);
        state.free.push(slot);
        drop(state);
        self.moved.notify(rt);
    }

    /// Frees the places of entries below this sequence number.
    fn free_before(&self, tail: u64) {
        let State { free, used, .. } = &mut *self.state.borrow_mut();
        free.extend(used.iter().filter(|used| used.sequence < tail).map(|used| used.slot));
        used.retain(|used| used.sequence >= tail);
    }

    fn begin_sync(&self) -> u64 {
        self.begun.set(self.begun.get() + 1);
        self.begun.get()
    }

    /// Sequence number below which all entries are in place.
    fn in_place(&self) -> u64 {
        let state = self.state.borrow();
        let open = state.used.iter().filter(|used| !used.home).map(|used| used.sequence);
        open.min().unwrap_or(state.next)
    }

    fn take(&self) -> Option<Used> {
        let mut state = self.state.borrow_mut();
        let used = Used { slot: state.free.pop()?, sequence: state.next, home: false };
        state.next += 1;
        state.used.push(used);
        Some(used)
    }

    /// Returns true if syncs would free a place: the oldest entry is in place.
    fn can_be_freed(&self) -> bool {
        let state = self.state.borrow();
        state.used.iter().min_by_key(|used| used.sequence).is_some_and(|oldest| oldest.home)
    }
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    fn out_member(&self) -> Option<u32> {
        self.out.get().map(|out| out.member)
    }

    /// Writes a change to the journal; after that it may start. Returns its place.
    pub async fn note(
        &self,
        journal: &Journal,
        number: usize,
        change: Change,
        parts: &[Part],
        way: &Way<'_>,
    ) -> Result<u32, IoError> {
        let used = self.place(journal, number, way).await?;
        self.rt.record(self.journal_wait);
        let noted = self.note_at(journal, number, used, change, parts, way).await;
        if noted.is_err() {
            journal.give_back(&self.rt, used.slot);
        }
        way.passed();
        noted.map(|()| used.slot)
    }

    /// Takes a place for an entry; syncs the members if none is free.
    async fn place(
        &self,
        journal: &Journal,
        number: usize,
        way: &Way<'_>,
    ) -> Result<Used, IoError> {
        loop {
            self.validate()?;
            if let Some(used) = journal.take() {
                return Ok(used);
            }
            let seen = journal.moved.version();
            match journal.can_be_freed().then(|| journal.record(&self.rt)).flatten() {
                Some(recording) => {
                    self.sync(journal, number, &recording, way).await?;
                }
                None => {
                    journal.moved.changed(&self.rt, seen).await;
                    self.rt.record(self.journal_wait);
                }
            }
        }
    }

    async fn note_at(
        &self,
        journal: &Journal,
        number: usize,
        used: Used,
        change: Change,
        parts: &[Part],
        way: &Way<'_>,
    ) -> Result<(), IoError> {
        let members = parts.iter().fold(0, |members, (member, _)| members | 1 << member);
        let bytes = parts.iter().map(|(_, data)| data.as_ref().map_or(0, Buffer::bytes)).sum();
        // Each byte is read once more, for the sum.
        self.spend(number, bytes, 1).await;
        let region = &journal.region;
        let mut writes = Vec::with_capacity(2 * parts.len());
        for (member, data) in parts {
            let sum = self.sum_of(data.as_ref());
            let mut head = vec![0; self.geometry.block_bytes as usize];
            Head { sequence: used.sequence, parts: members, change, sum }.write(&mut head);
            let from = self.buffer(number, head.len())?;
            from.copy_in(0, &head);
            writes.push((*member, region.head(used.slot), from));
            let data = data.as_ref().map(|data| data.part(0, data.bytes()));
            writes.extend(data.map(|data| (*member, region.data(used.slot), data)));
        }
        let one = |(member, block, from)| {
            self.write_or_without(Place { number, member, block }, from, false)
        };
        all(&self.rt, writes.into_iter(), one).await?;
        way.passed();
        self.wait_for_sync(journal, number, way).await?;
        self.settle(journal, number).await
    }

    fn sum_of(&self, data: Option<&Buffer>) -> u64 {
        let Some(data) = data else { return sum(&[]) };
        let mut bytes = self.room(data.bytes());
        data.copy_out(0, &mut bytes);
        let sum = sum(&bytes);
        self.rooms.borrow_mut().push(bytes);
        sum
    }

    /// Waits until everything that members have acknowledged so far is durable. One of those that wait syncs
    /// for all.
    async fn wait_for_sync(
        &self,
        journal: &Journal,
        number: usize,
        way: &Way<'_>,
    ) -> Result<(), IoError> {
        if !self.geometry.volatile_cache {
            return Ok(());
        }
        let needed = journal.begun.get() + 1;
        while journal.ended.get() < needed {
            self.validate()?;
            let seen = journal.moved.version();
            match journal.record(&self.rt) {
                Some(recording) => self.sync(journal, number, &recording, way).await?,
                None => {
                    journal.moved.changed(&self.rt, seen).await;
                    self.rt.record(self.journal_wait);
                }
            }
        }
        self.validate()
    }

    /// Waits until the failed member is recorded in the superblocks of all others.
    pub async fn settle(&self, journal: &Journal, number: usize) -> Result<(), IoError> {
        while self.out_member() != journal.state.borrow().superblock.out {
            self.validate()?;
            let seen = journal.moved.version();
            match journal.record(&self.rt) {
                Some(recording) => self.record(journal, number, &recording, true, |_| ()).await?,
                None => {
                    journal.moved.changed(&self.rt, seen).await;
                    self.rt.record(self.journal_wait);
                }
            }
        }
        self.validate()
    }

    /// Writes superblocks; they are durable when this returns if `fua`, or if they name another failed
    /// member.
    async fn record(
        &self,
        journal: &Journal,
        number: usize,
        _: &Recording<'_>,
        fua: bool,
        change: impl Fn(&mut Superblock),
    ) -> Result<(), IoError> {
        loop {
            let mut next = journal.state.borrow().superblock;
            next.turn += 1;
            // It is relied on as soon as it is stored.
            let fua = fua || next.out != self.out_member();
            next.out = self.out_member();
            change(&mut next);
            let mut parts = Vec::with_capacity(self.layout.members() as usize);
            for member in (0..self.layout.members()).filter(|member| Some(*member) != next.out) {
                let mut image = vec![0; self.geometry.block_bytes as usize];
                Superblock { member, ..next }.write(&mut image);
                let from = self.buffer(number, image.len())?;
                from.copy_in(0, &image);
                parts.push((member, from));
            }
            let block = journal.region.superblock(next.turn);
            let one =
                |(member, from)| self.write_or_without(Place { number, member, block }, from, fua);
            all(&self.rt, parts.into_iter(), one).await?;
            self.validate()?;
            journal.state.borrow_mut().superblock = next;
            if self.out_member() == next.out {
                return Ok(());
            }
        }
    }

    /// Makes everything that members have acknowledged durable: entries, changes in place, and superblocks;
    /// frees the places before the tail of a superblock that is durable.
    ///
    /// The next superblock is written during the flush, and durable by the next one. If no place is free it
    /// is written before the flush, which frees places one flush earlier.
    async fn sync(
        &self,
        journal: &Journal,
        number: usize,
        recording: &Recording<'_>,
        way: &Way<'_>,
    ) -> Result<(), IoError> {
        let is_full = journal.state.borrow().free.is_empty();
        let superblock = |tail| self.record_tail(journal, number, recording, tail);
        if !self.geometry.volatile_cache {
            let tail = journal.in_place();
            superblock(tail).await?;
            way.passed();
            journal.free_before(tail);
            return Ok(());
        }
        let tail = journal.state.borrow().flushed;
        if is_full {
            superblock(tail).await?;
            way.passed();
        }
        let durable = journal.state.borrow().superblock.tail;
        let (begun, in_place) = (journal.begin_sync(), journal.in_place());
        let one = |is_flush| async move {
            if is_flush { self.flush_members(number).await } else { superblock(tail).await }
        };
        all(&self.rt, [true, false].into_iter(), one).await?;
        way.passed();
        journal.ended.set(begun);
        journal.state.borrow_mut().flushed = in_place;
        journal.free_before(durable);
        Ok(())
    }

    /// Writes superblocks with this tail, if theirs is before it.
    async fn record_tail(
        &self,
        journal: &Journal,
        number: usize,
        recording: &Recording<'_>,
        tail: u64,
    ) -> Result<(), IoError> {
        if tail <= journal.state.borrow().superblock.tail {
            return Ok(());
        }
        let change = |superblock: &mut Superblock| superblock.tail = tail;
        self.record(journal, number, recording, false, change).await
    }

    /// Flushes all members that are not out; a member that fails is out.
    pub async fn flush_members(&self, number: usize) -> Result<(), IoError> {
        let one = |member| async move {
            if self.out.get() == Some(Out { member, rebuilt: 0 }) {
                return Ok(());
            }
            match self.disk(Place { number, member, block: 0 }).flush().await {
                Err(error) if is_lost(error.kind) && self.goes_on_without(member, error) => Ok(()),
                done => done,
            }
        };
        all(&self.rt, 0..self.layout.members(), one).await?;
        self.validate()
    }

    /// Writes superblocks of a new life; twice the first time, because later a member without one is a
    /// foreign device.
    pub async fn begin_life(&self, journal: &Journal, number: usize) -> Result<(), IoError> {
        journal.next_life();
        let recording = journal.record(&self.rt).ok_or(IoError::of(Kind::Closed, None))?;
        self.record(journal, number, &recording, true, |_| ()).await?;
        if !journal.state.borrow().superblock.formed {
            self.record(journal, number, &recording, true, |next| next.formed = true).await?;
        }
        Ok(())
    }
}
