//! Journal of an array with parity: a change is durable on the members that it will write, before the first
//! of them is written.
//!
//! ```text
//!   stripe held ─► each part, behind the stripes of its member ─► sync of the group: records, flush
//!               ─► failed member, if new ─► the parts in place ─► acknowledged … later syncs: place free
//! ```
//!
//! *Group commit.* Parts are written to the caches of members. A sync writes one record on each member for
//! the parts of every change that waits, and one flush of all members makes parts and records durable:
//! changes that arrive during a flush form the next group. A change of its own writes its data alone, so a
//! member writes each part twice and little more.
//!
//! *Free places.* The same syncs free places, without any write of their own: what was in place when a flush
//! began is durable after it (`flushed`); the records of the next sync say so (`tail`), and after its flush
//! the places before that tail are free. Sequence numbers are given when a group is formed, so that an entry
//! whose data are late delays no other.
//!
//! Members without a volatile cache need no flush.
//!
//! *The write hole.* At a start an entry is valid if all its parts are present except that of a member which
//! is out. If a part is missing, nothing of the entry has been written in place: the stripe has its old
//! content. If all are present, they are written again: then the remaining stripe is consistent, so the chunk
//! of the member that is out has its old content or, if the entry wrote it, the new one. Entries of a stripe
//! are in order, as it is held from the first journal write to the last write in place. An entry that is
//! skipped at a start, as it is before the tail, is durable in place, with all earlier ones of its stripe. A
//! record with the newest durable tail is not written over: its own entries are behind that tail.
//!
//! *Failed members* are recorded in the superblocks of all others before a change is begun without them, and
//! before a record says that entries are in place that a member failed to write. So a member that returns is
//! not trusted: at a start the newest superblock counts, which at least one of any n - 1 members has.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::{Buffer, HostPort};
use runtime::{Rt, Signal};

use super::failure::{does_not_write, is_lost};
use super::layout::MEMBERS_MAX;
use super::record::{
    Change, Group, ITEMS_MAX, Item, LIFE_SHIFT, RECORD_BYTES, Region, Superblock, sum,
};
use super::together::all;
use super::trace::Way;
use super::{Out, Place, Shared};
use host::{BlockDevice, IoError};

/// Part of a change on a member; no buffer for a deallocation.
pub type Part = (u32, Option<Buffer>);

/// Journal of one array: places for entries, and their state.
pub struct Journal {
    pub region: Region,
    /// Identity for superblocks that have none.
    identity: u64,
    pub state: RefCell<State>,
    /// Notified when a place is free, an entry is durable or in place, or superblocks have been written.
    moved: Signal,
    recording: Cell<bool>,
    syncing: Cell<bool>,
    /// One per member, for its record.
    pub buffers: RefCell<Vec<Buffer>>,
}

pub struct State {
    pub free: Vec<u32>,
    /// Indexed by place, also those that are free.
    entries: Vec<Entry>,
    /// Places of entries whose parts members have acknowledged, and that are in no group.
    waiting: VecDeque<u32>,
    /// Groups with places that are not free, in order.
    groups: VecDeque<Formed>,
    /// Number of the next group, and so of its record.
    group: u32,
    pub next: u64,
    /// Sequence number below which all entries are durable in place.
    flushed: u64,
    /// The highest such number that a durable record or superblock has.
    tail: u64,
    /// Newest superblock, present on all members that are not out.
    pub superblock: Superblock,
}

/// A group whose records are written. One that frees places alone has one sequence number, and no entry.
struct Formed {
    /// Sequence number of the first place.
    begin: u64,
    end: u64,
    /// Places that are not free.
    slots: VecDeque<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    step: Step,
    change: Change,
    /// Bitmap of the members with a part, and the sum of each.
    parts: u32,
    sums: [u64; MEMBERS_MAX],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Its parts are being written to the journal, or are in no record yet, or that is not durable.
    Noted,
    Durable,
    /// Its parts have been written in place.
    Home,
}

const EMPTY: Entry = Entry {
    step: Step::Home,
    change: Change::Write { block: 0, blocks: 0 },
    parts: 0,
    sums: [0; MEMBERS_MAX],
};

/// Group that a sync writes before its flush.
struct Sync {
    record: u32,
    group: Vec<u32>,
    begin: u64,
    tail: u64,
}

/// Guard of an operation that runs once at a time: an update of superblocks, or a sync.
pub struct Once<'a> {
    busy: &'a Cell<bool>,
    moved: &'a Signal,
    rt: &'a Rt,
}

impl Drop for Once<'_> {
    fn drop(&mut self) {
        self.busy.set(false);
        self.moved.notify(self.rt);
    }
}

impl Journal {
    pub fn new(identity: u64, region: Region, superblock: Superblock) -> Journal {
        let entries = region.entries();
        let state = State {
            free: (0..entries).rev().collect(),
            entries: vec![EMPTY; entries as usize],
            waiting: VecDeque::with_capacity(entries as usize),
            groups: VecDeque::with_capacity(region.records() as usize),
            group: 0,
            next: 0,
            flushed: 0,
            tail: 0,
            superblock,
        };
        Journal {
            region,
            identity,
            state: RefCell::new(state),
            moved: Signal::default(),
            recording: Cell::new(false),
            syncing: Cell::new(false),
            buffers: RefCell::default(),
        }
    }

    fn once<'a>(&'a self, rt: &'a Rt, busy: &'a Cell<bool>) -> Option<Once<'a>> {
        (!busy.replace(true)).then(|| Once { busy, moved: &self.moved, rt })
    }

    pub fn record<'a>(&'a self, rt: &'a Rt) -> Option<Once<'a>> {
        self.once(rt, &self.recording)
    }

    /// Begins a sync, if none is in progress and it would make an entry durable or free a place.
    fn begin_sync<'a>(&'a self, rt: &'a Rt) -> Option<Once<'a>> {
        let (state, records) = (self.state.borrow(), self.region.records());
        let forms = !state.waiting.is_empty() && state.has_record(records);
        let is_useful = forms || state.frees(records) || state.in_place() > state.flushed;
        is_useful.then(|| self.once(rt, &self.syncing)).flatten()
    }

    /// Continues from this superblock.
    pub fn begin(&self, superblock: Superblock) {
        let mut state = self.state.borrow_mut();
        state.superblock = superblock;
        state.begin_at(superblock.tail);
    }

    /// Starts the next life, in which no entry is left.
    pub fn next_life(&self) {
        let mut state = self.state.borrow_mut();
        state.superblock.life += 1;
        if state.superblock.array == 0 {
            state.superblock.array = self.identity;
        }
        state.superblock.tail = state.superblock.life << LIFE_SHIFT;
        let tail = state.superblock.tail;
        state.begin_at(tail);
    }

    /// Records that an entry has been written in place.
    pub fn is_home(&self, rt: &Rt, slot: u32) {
        self.state.borrow_mut().entries[slot as usize].step = Step::Home;
        self.moved.notify(rt);
    }

    /// Frees the place of an entry that is in no record.
    fn give_back(&self, rt: &Rt, slot: u32) {
        self.state.borrow_mut().free.push(slot);
        self.moved.notify(rt);
    }

    fn take(&self) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        let slot = state.free.pop()?;
        state.entries[slot as usize] = Entry { step: Step::Noted, ..EMPTY };
        Some(slot)
    }

    /// Adds an entry to those that wait for a record.
    fn waits(&self, slot: u32, change: Change, parts: u32, sums: [u64; MEMBERS_MAX]) {
        let mut state = self.state.borrow_mut();
        state.entries[slot as usize] = Entry { step: Step::Noted, change, parts, sums };
        state.waiting.push_back(slot);
    }

    fn is_durable(&self, slot: u32) -> bool {
        self.state.borrow().entries[slot as usize].step != Step::Noted
    }

    /// Forms a group of the entries that wait, or one that frees places alone.
    fn form(&self) -> Option<Sync> {
        let records = self.region.records();
        let state = &mut *self.state.borrow_mut();
        let group = match state.has_record(records) {
            true => state.take_group(),
            false => Vec::new(),
        };
        if group.is_empty() && !state.frees(records) {
            return None;
        }
        let begin = state.next;
        state.next += group.len().max(1) as u64;
        let record = state.group % records;
        state.group = state.group.wrapping_add(1);
        let slots = group.iter().copied().collect();
        state.groups.push_back(Formed { begin, end: state.next, slots });
        assert!(state.groups.len() <= records as usize, "each group has a record");
        Some(Sync { record, group, begin, tail: state.flushed })
    }

    /// A flush has ended that began after the records of this group were written, and when entries below
    /// `in_place` were.
    fn flushed(&self, sync: Option<Sync>, in_place: u64) {
        let state = &mut *self.state.borrow_mut();
        state.flushed = in_place;
        let Some(sync) = sync else { return };
        for slot in &sync.group {
            state.entries[*slot as usize].step = Step::Durable;
        }
        state.tail = sync.tail;
        state.free_before(sync.tail);
    }

    /// The record of a member for a group.
    fn record_of(&self, sync: &Sync, member: u32, image: &mut [u8]) {
        let state = self.state.borrow();
        let entry = |slot: &u32| &state.entries[*slot as usize];
        let numbered = (sync.begin..).zip(&sync.group);
        let has_part = |(_, slot): &(u64, &u32)| entry(slot).parts & 1 << member != 0;
        let item = |(sequence, slot): (u64, &u32)| {
            let Entry { change, parts, sums, .. } = *entry(slot);
            Item { sequence, slot: *slot, parts, change, sum: sums[member as usize] }
        };
        let items = numbered.filter(has_part).map(item).collect();
        Group { tail: sync.tail, begin: sync.begin, items }.write(image);
    }
}

impl State {
    fn begin_at(&mut self, tail: u64) {
        (self.next, self.flushed, self.tail) = (tail, tail, tail);
    }

    /// Returns true if there is a record for a group with entries: the last one is for a group that frees
    /// places.
    fn has_record(&self, records: u32) -> bool {
        self.groups.len() + 1 < records as usize
    }

    /// Returns true if a record without entries would free places. The last record must free a group.
    fn frees(&self, records: u32) -> bool {
        let frees_group = || self.groups.front().is_some_and(|group| group.end <= self.flushed);
        self.flushed > self.tail && (self.has_record(records) || frees_group())
    }

    /// Takes as many of the entries that wait as the records of members hold.
    fn take_group(&mut self) -> Vec<u32> {
        let mut items = [0; MEMBERS_MAX];
        let mut group = Vec::with_capacity(self.waiting.len());
        while let Some(slot) = self.waiting.front() {
            let parts = self.entries[*slot as usize].parts;
            let of_parts = || (0..MEMBERS_MAX).filter(|member| parts & 1 << member != 0);
            if of_parts().any(|member| items[member] == ITEMS_MAX) {
                break;
            }
            of_parts().for_each(|member| items[member] += 1);
            group.extend(self.waiting.pop_front());
        }
        group
    }

    /// Sequence number below which all entries are in place.
    fn in_place(&self) -> u64 {
        let numbered = |group: &Formed| (group.begin..).zip(group.slots.clone());
        let is_open = |(_, slot): &(u64, u32)| self.entries[*slot as usize].step != Step::Home;
        let open = self.groups.iter().flat_map(numbered).find(is_open);
        open.map_or(self.next, |(sequence, _)| sequence)
    }

    /// Frees the places of entries below this sequence number.
    fn free_before(&mut self, tail: u64) {
        while let Some(group) = self.groups.front_mut() {
            while group.begin < tail
                && let Some(slot) = group.slots.pop_front()
            {
                self.free.push(slot);
                group.begin += 1;
            }
            if group.end > tail {
                return;
            }
            self.groups.pop_front();
        }
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
        let slot = self.place(journal, number, way).await?;
        self.rt.record(self.journal_wait);
        let noted = self.note_at(journal, number, slot, change, parts).await;
        way.passed();
        if let Err(error) = noted {
            journal.give_back(&self.rt, slot);
            return Err(error);
        }
        self.until_durable(journal, number, slot, way).await.map_err(|error| self.fails(error))?;
        Ok(slot)
    }

    /// Fails the array: a change is in the journal and cannot be written in place, nor taken back.
    fn fails(&self, error: IoError) -> IoError {
        self.failed.set(self.failed.get().or(Some(error)));
        error
    }

    async fn until_durable(
        &self,
        journal: &Journal,
        number: usize,
        slot: u32,
        way: &Way<'_>,
    ) -> Result<(), IoError> {
        while !journal.is_durable(slot) {
            self.sync_or_wait(journal, number, way).await?;
        }
        self.settle(journal, number).await
    }

    /// Takes a place for an entry; syncs the members if none is free.
    async fn place(&self, journal: &Journal, number: usize, way: &Way<'_>) -> Result<u32, IoError> {
        loop {
            self.validate()?;
            if let Some(slot) = journal.take() {
                return Ok(slot);
            }
            self.sync_or_wait(journal, number, way).await?;
        }
    }

    /// Writes the parts of a change behind the stripes.
    async fn note_at(
        &self,
        journal: &Journal,
        number: usize,
        slot: u32,
        change: Change,
        parts: &[Part],
    ) -> Result<(), IoError> {
        let members = parts.iter().fold(0, |members, (member, _)| members | 1 << member);
        let bytes = parts.iter().map(|(_, data)| data.as_ref().map_or(0, Buffer::bytes)).sum();
        // Each byte is read once more, for the sum.
        self.spend(number, bytes, 1).await;
        let mut sums = [0; MEMBERS_MAX];
        for (member, data) in parts {
            sums[*member as usize] = self.sum_of(data.as_ref());
        }
        let block = journal.region.data(slot);
        let with_data =
            |(member, data): &Part| data.as_ref().map(|data| (*member, data.part(0, data.bytes())));
        let one =
            |(member, from)| self.write_or_without(Place { number, member, block }, from, false);
        all(&self.rt, parts.iter().filter_map(with_data), one).await?;
        journal.waits(slot, change, members, sums);
        Ok(())
    }

    fn sum_of(&self, data: Option<&Buffer>) -> u64 {
        let Some(data) = data else { return sum(&[]) };
        let mut bytes = self.room(data.bytes());
        data.copy_out(0, &mut bytes);
        let sum = sum(&bytes);
        self.rooms.borrow_mut().push(bytes);
        sum
    }

    /// One of those that wait for a sync does it for all.
    async fn sync_or_wait(
        &self,
        journal: &Journal,
        number: usize,
        way: &Way<'_>,
    ) -> Result<(), IoError> {
        self.validate()?;
        let seen = journal.moved.version();
        match journal.begin_sync(&self.rt) {
            Some(_syncing) => {
                self.sync(journal, number, way).await.map_err(|error| self.fails(error))
            }
            None => {
                journal.moved.changed(&self.rt, seen).await;
                self.rt.record(self.journal_wait);
                self.validate()
            }
        }
    }

    /// Makes everything that members have acknowledged durable, with the records of a group of entries, and
    /// frees places.
    async fn sync(&self, journal: &Journal, number: usize, way: &Way<'_>) -> Result<(), IoError> {
        let is_volatile = self.geometry.volatile_cache;
        // Of all that this number covers, members have acknowledged the writes in place before the flush.
        let in_place = journal.state.borrow().in_place();
        // Entries may be in place on all members but one that failed then. Superblocks must say so before a
        // record has them behind it: that member would be believed when it returns, without these entries.
        self.settle(journal, number).await?;
        if !is_volatile {
            journal.state.borrow_mut().flushed = in_place;
        }
        let sync = journal.form();
        if let Some(sync) = &sync {
            self.write_records(journal, number, sync).await?;
            way.passed();
        }
        if is_volatile {
            self.flush_members(number).await?;
            way.passed();
        }
        self.validate()?;
        journal.flushed(sync, in_place);
        Ok(())
    }

    /// Writes the records of a group: on the members with a part, or on all if it frees places alone.
    async fn write_records(
        &self,
        journal: &Journal,
        number: usize,
        sync: &Sync,
    ) -> Result<(), IoError> {
        let all_parts = |journal: &Journal| {
            let state = journal.state.borrow();
            let parts = |slot: &u32| state.entries[*slot as usize].parts;
            sync.group.iter().map(parts).fold(0, |all, parts| all | parts)
        };
        let members = if sync.group.is_empty() { u32::MAX } else { all_parts(journal) };
        let mut records = Vec::with_capacity(MEMBERS_MAX);
        for (member, buffer) in (0..).zip(&*journal.buffers.borrow()) {
            if members & 1 << member == 0 || self.is_left_out(member) {
                continue;
            }
            let mut image = self.room(buffer.bytes());
            journal.record_of(sync, member, &mut image);
            buffer.copy_in(0, &image);
            self.rooms.borrow_mut().push(image);
            records.push((member, buffer.part(0, buffer.bytes())));
        }
        self.spend(number, RECORD_BYTES as usize, records.len() as u32).await;
        let block = journal.region.record(sync.record);
        let one =
            |(member, from)| self.write_or_without(Place { number, member, block }, from, false);
        all(&self.rt, records.into_iter(), one).await
    }

    /// Waits until the failed member is recorded in the superblocks of all others.
    pub async fn settle(&self, journal: &Journal, number: usize) -> Result<(), IoError> {
        while self.out_member() != journal.state.borrow().superblock.out {
            self.validate()?;
            let seen = journal.moved.version();
            match journal.record(&self.rt) {
                Some(recording) => self.record(journal, number, &recording, |_| ()).await?,
                None => {
                    journal.moved.changed(&self.rt, seen).await;
                    self.rt.record(self.journal_wait);
                }
            }
        }
        self.validate()
    }

    /// Writes superblocks, which are durable when this returns.
    pub async fn record(
        &self,
        journal: &Journal,
        number: usize,
        _: &Once<'_>,
        change: impl Fn(&mut Superblock),
    ) -> Result<(), IoError> {
        loop {
            let mut next = journal.state.borrow().superblock;
            next.turn += 1;
            next.out = self.out_member();
            // While a member was out, a record of one other may have freed places that are in use again.
            next.tail = journal.state.borrow().tail;
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
                |(member, from)| self.write_or_without(Place { number, member, block }, from, true);
            all(&self.rt, parts.into_iter(), one).await?;
            self.validate()?;
            journal.state.borrow_mut().superblock = next;
            if self.out_member() == next.out {
                return Ok(());
            }
        }
    }

    /// Returns true if a member is out, and nothing of it has been rebuilt.
    fn is_left_out(&self, member: u32) -> bool {
        self.out.get() == Some(Out { member, rebuilt: 0 })
    }

    /// Flushes all members that are not out; a member that fails is out.
    pub async fn flush_members(&self, number: usize) -> Result<(), IoError> {
        // A journal cannot go on with a member that is not durable, and records that it is out.
        let fails = |kind| is_lost(kind) || self.journal.is_some() && does_not_write(kind);
        let one = |member| async move {
            if self.is_left_out(member) {
                return Ok(());
            }
            match self.disk(Place { number, member, block: 0 }).flush().await {
                Err(error) if fails(error.kind) && self.goes_on_without(member, error) => Ok(()),
                done => done,
            }
        };
        all(&self.rt, 0..self.layout.members(), one).await?;
        self.validate()
    }
}
