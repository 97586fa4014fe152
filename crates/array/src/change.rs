//! Changes of stripes with parity, and reconstruction from parity.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use bus::{Buffer, HostPort};
use wire::Lba;

use super::failure::{does_not_write, is_lost, is_unreadable};
use super::journal::{Journal, Part};
use super::layout::{Layout, Piece, Segment};
use super::mailbox::Asked;
use super::record::Change;
use super::stripes::Held;
use super::together::{all, many};
use super::trace::{Way, fold};
use super::{PARITY_BYTES, Place, Shared};
use host::{BlockDevice, IoError, Kind};

/// Retries of a change after a member has failed: each failure leaves one member fewer.
const TRIES: u32 = 3;

/// Number of blocks of one write of zeros, at most a chunk.
fn zeros(layout: &Layout, lba: u64, end: u64) -> u32 {
    (end - lba).min(layout.chunk()) as u32
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    /// Change task: one change at a time.
    pub async fn work(self: Rc<Self>, number: usize) {
        loop {
            let (asked, trace) = self.mailbox.next(number).await;
            self.rt.attach_trace_number(trace);
            let done = match &asked {
                Asked::Write { number, lba, from, fua } => {
                    let blocks = from.bytes() as u32 / self.geometry.block_bytes;
                    let stripes = self.layout.stripes_of(lba.0, blocks.into());
                    let _held = self.hold(stripes).await;
                    self.write(*number, lba.0, from, *fua).await
                }
                Asked::Deallocate { number, lba, blocks } => {
                    let stripes = self.layout.stripes_of(lba.0, (*blocks).into());
                    let _held = self.hold(stripes).await;
                    Box::pin(self.deallocate(*number, lba.0, *blocks)).await
                }
            };
            fold(&self.rt, trace);
            self.rt.detach_trace();
            drop(asked);
            self.mailbox.answer(&self.rt, number, done);
        }
    }

    async fn write(
        &self,
        number: usize,
        lba: u64,
        from: &Buffer,
        fua: bool,
    ) -> Result<(), IoError> {
        let blocks = from.bytes() as u32 / self.geometry.block_bytes;
        let one = |segment| self.write_segment(Write { number, lba, from, fua }, segment);
        many(&self.rt, self.layout.segments(lba, blocks), one).await
    }

    async fn write_segment(&self, write: Write<'_>, segment: Segment) -> Result<(), IoError> {
        let mut tries = TRIES;
        loop {
            self.validate()?;
            tries -= 1;
            let before = self.out.get();
            let done = self.try_segment(write, segment).await;
            // The data to be read is on a member that has just failed: the others can reconstruct it.
            if done.is_ok() || tries == 0 || self.out.get() == before {
                return done;
            }
        }
    }

    async fn try_segment(&self, write: Write<'_>, segment: Segment) -> Result<(), IoError> {
        let stripe = segment.stripe;
        let parity = self.layout.parity_of(stripe).expect("an array with parities");
        let way = self.ways.begin(&self.rt);
        let sum = match self.is_out(parity, stripe) {
            true => None,
            false => Some(self.new_parity(write, segment, parity, &way).await?),
        };
        let sum = sum.as_ref().map(|sum| (parity, sum.part(0, sum.bytes())));
        let data = segment.data.0..=segment.data.1;
        let data =
            data.map(|data| (self.layout.member_of(stripe, data), self.part(write, segment, data)));
        let there = data.chain(sum).filter(|(member, _)| !self.is_out(*member, stripe));
        let block = stripe * self.layout.chunk() + segment.offset;
        let number = write.number;
        let one = |fua| {
            move |(member, from)| self.write_or_without(Place { number, member, block }, from, fua)
        };
        let Some(journal) = &self.journal else {
            let done = all(&self.rt, there, one(write.fua)).await;
            way.passed();
            return done;
        };
        let parts: Vec<Part> = there.map(|(member, from)| (member, Some(from))).collect();
        let change = Change::Write { block, blocks: segment.blocks };
        let slot = self.note(journal, number, change, &parts, &way).await?;
        let parts = parts.into_iter().filter_map(|(member, from)| Some((member, from?)));
        let parts = parts.filter(|(member, _)| !self.is_out(*member, stripe));
        // FUA is not needed: the change is durable in the journal.
        let done = all(&self.rt, parts, one(false)).await;
        way.passed();
        self.is_home(journal, slot, done)
    }

    /// The part of the caller's buffer for this chunk of a segment.
    fn part(&self, write: Write<'_>, segment: Segment, data: u32) -> Buffer {
        let begin = segment.stripe * self.layout.stripe_blocks()
            + u64::from(data) * self.layout.chunk()
            + segment.offset;
        let block = self.geometry.block_bytes as usize;
        write.from.part((begin - write.lba) as usize * block, segment.blocks as usize * block)
    }

    /// Completes a change. A failed change fails the array, as its stripe is inconsistent.
    fn is_home(
        &self,
        journal: &Journal,
        slot: u32,
        done: Result<(), IoError>,
    ) -> Result<(), IoError> {
        if let Err(error) = done {
            self.failed.set(self.failed.get().or(Some(error)));
        }
        journal.is_home(&self.rt, slot);
        done
    }

    /// Writes to a member. If it fails it is out, and its data follows from the other members.
    pub async fn write_or_without(
        &self,
        at: Place,
        from: Buffer,
        fua: bool,
    ) -> Result<(), IoError> {
        match self.disk(at).write(Lba(at.block), from, fua).await {
            (_, Err(error)) if does_not_write(error.kind) => {
                if self.goes_on_without(at.member, error) { Ok(()) } else { Err(error) }
            }
            (_, done) => done,
        }
    }

    /// Computes the new parity of a segment.
    async fn new_parity(
        &self,
        write: Write<'_>,
        segment: Segment,
        parity: u32,
        way: &Way<'_>,
    ) -> Result<Buffer, IoError> {
        let (layout, stripe) = (&self.layout, segment.stripe);
        let (first, last) = segment.data;
        let is_new = |data: &u32| (first..=last).contains(data);
        let (new, others) = (last - first + 1, layout.data() - (last - first + 1));
        let member = |data| layout.member_of(stripe, data);
        let is_out = |data: &u32| self.is_out(member(*data), stripe);
        let out = (0..layout.data()).find(is_out);
        let (out_new, out_others) =
            (out.is_some_and(|data| is_new(&data)), out.is_some_and(|data| !is_new(&data)));
        // Old parity minus old data, or the data of the other chunks: the variant with fewer reads.
        let by_others = out_new || (!out_others && others <= new);
        let spare = !out_new && !out_others;
        let block = stripe * layout.chunk() + segment.offset;
        let at = |member| Place { number: write.number, member, block };
        let bytes = segment.blocks as usize * self.geometry.block_bytes as usize;
        let mut done = Ok(());
        for by_others in [by_others, !by_others] {
            let sum = RefCell::new(self.room(bytes));
            for data in first..=last {
                add(&mut sum.borrow_mut(), &self.part(write, segment, data));
            }
            let of = |data: &u32| is_new(data) != by_others;
            let old = (0..layout.data()).filter(of).map(member);
            let old = old.chain((!by_others).then_some(parity));
            done = all(&self.rt, old, |member| self.add_up(at(member), &sum)).await;
            if !by_others || others > 0 {
                way.passed();
            }
            if done.is_ok() {
                let sum = sum.into_inner();
                self.count(|counters| match by_others && others == 0 {
                    true => counters.whole += 1,
                    false => counters.modified += 1,
                });
                let read = if by_others { others } else { new + 1 };
                self.spend(write.number, bytes, new + read).await;
                return self.buffer_of(write.number, sum);
            }
            self.rooms.borrow_mut().push(sum.into_inner());
            let unreadable = done.is_err_and(|error| is_unreadable(error.kind));
            if !spare || !unreadable {
                break;
            }
        }
        done.map(|()| unreachable!("what could be read has been returned"))
    }

    /// Waits for the lock on a range of stripes.
    pub async fn hold(&self, stripes: (u64, u64)) -> Held<'_> {
        let held = self.stripes.hold(&self.rt, stripes).await;
        self.rt.record(self.stripe_wait);
        held
    }

    pub async fn spend(&self, number: usize, bytes: usize, buffers: u32) {
        let units = (bytes as u32).div_ceil(PARITY_BYTES) * buffers;
        self.ports[number].spend_times(self.parity[number], units).await;
    }

    pub fn room(&self, bytes: usize) -> Vec<u8> {
        let mut room = self.rooms.borrow_mut().pop().unwrap_or_default();
        room.clear();
        room.resize(bytes, 0);
        room
    }

    pub fn buffer(&self, number: usize, bytes: usize) -> Result<Buffer, IoError> {
        let buffer = self.ports[number].arena().buffer(bytes);
        buffer.map_err(|_| IoError::of(Kind::OutOfMemory, None))
    }

    fn buffer_of(&self, number: usize, sum: Vec<u8>) -> Result<Buffer, IoError> {
        let buffer = self.buffer(number, sum.len());
        if let Ok(buffer) = &buffer {
            buffer.copy_in(0, &sum);
        }
        self.rooms.borrow_mut().push(sum);
        buffer
    }

    /// Reads a chunk of a member and adds it to a sum.
    async fn add_up(&self, at: Place, sum: &RefCell<Vec<u8>>) -> Result<(), IoError> {
        let bytes = sum.borrow().len();
        let into = self.buffer(at.number, bytes)?;
        let (read, done) = self.disk(at).read(Lba(at.block), into).await;
        if let Err(error) = done {
            if is_lost(error.kind) {
                self.goes_on_without(at.member, error);
            }
            return Err(error);
        }
        add(&mut sum.borrow_mut(), &read);
        Ok(())
    }

    /// Sum of all members but one, which is that member's content. The stripe must be held.
    async fn sum_of_others(
        &self,
        at: Place,
        bytes: usize,
        way: &Way<'_>,
    ) -> Result<Vec<u8>, IoError> {
        let stripe = at.block / self.layout.chunk();
        if self.out.get().is_some_and(|out| out.member != at.member && stripe >= out.rebuilt) {
            let why = "no other member of the array out";
            return Err(IoError::refused(Kind::MediaFailed, Lba(at.block), why));
        }
        let sum = RefCell::new(self.room(bytes));
        let others = (0..self.layout.members()).filter(|other| *other != at.member);
        let done = all(&self.rt, others, |member| self.add_up(Place { member, ..at }, &sum)).await;
        let sum = sum.into_inner();
        way.passed();
        self.spend(at.number, bytes, self.layout.members() - 1).await;
        match done {
            Ok(()) => Ok(sum),
            Err(error) => {
                self.rooms.borrow_mut().push(sum);
                Err(error)
            }
        }
    }

    /// Reconstructs a member's content from the others. The stripe must be held.
    pub async fn recover(&self, at: Place, into: &Buffer, way: &Way<'_>) -> Result<(), IoError> {
        let sum = self.sum_of_others(at, into.bytes(), way).await?;
        into.copy_in(0, &sum);
        self.rooms.borrow_mut().push(sum);
        Ok(())
    }

    fn chunk_bytes(&self) -> usize {
        self.layout.chunk() as usize * self.geometry.block_bytes as usize
    }

    pub async fn rebuild_stripe(
        &self,
        number: usize,
        member: u32,
        stripe: u64,
    ) -> Result<(), IoError> {
        self.validate()?;
        let at = Place { number, member, block: stripe * self.layout.chunk() };
        let way = self.ways.begin(&self.rt);
        let sum = self.sum_of_others(at, self.chunk_bytes(), &way).await?;
        let from = self.buffer_of(number, sum)?;
        self.disk(at).write(Lba(at.block), from, false).await.1
    }

    /// Corrects a stripe's parity; returns true if it was wrong.
    pub async fn resync_stripe(&self, number: usize, stripe: u64) -> Result<bool, IoError> {
        let Some(member) = self.layout.parity_of(stripe) else { return Ok(false) };
        let at = Place { number, member, block: stripe * self.layout.chunk() };
        let way = self.ways.begin(&self.rt);
        let sum = RefCell::new(self.sum_of_others(at, self.chunk_bytes(), &way).await?);
        let right = self.buffer_of(number, sum.borrow().clone())?;
        self.add_up(at, &sum).await?;
        let wrong = sum.borrow().iter().any(|byte| *byte != 0);
        self.rooms.borrow_mut().push(sum.into_inner());
        if wrong {
            self.disk(at).write(Lba(at.block), right, false).await.1?;
        }
        Ok(wrong)
    }

    pub async fn write_piece(
        &self,
        number: usize,
        piece: Piece,
        from: &Buffer,
        fua: bool,
    ) -> Result<(), IoError> {
        let block_bytes = self.geometry.block_bytes as usize;
        let (begin, bytes) =
            (piece.from as usize * block_bytes, piece.blocks as usize * block_bytes);
        let disk = self.disk(Place { number, member: piece.member, block: piece.block });
        disk.write(Lba(piece.block), from.part(begin, bytes), fua).await.1
    }

    /// Deallocates whole stripes on all members, with their parity: the parity of zeros is zero. Writes zeros
    /// to the blocks before and after them.
    async fn deallocate(&self, number: usize, lba: u64, blocks: u32) -> Result<(), IoError> {
        let (stripe, end) = (self.layout.stripe_blocks(), lba + u64::from(blocks));
        let (first, last) = (lba.div_ceil(stripe), end / stripe);
        if first >= last {
            return self.write_zeros(number, lba, end).await;
        }
        self.write_zeros(number, lba, first * stripe).await?;
        self.write_zeros(number, last * stripe, end).await?;
        let chunk = self.layout.chunk();
        let one =
            |member| async move {
                let block = first * chunk;
                let disk = self.disk(Place { number, member, block });
                match disk.deallocate(Lba(block), ((last - first) * chunk) as u32).await {
                    Err(error) if does_not_write(error.kind) => {
                        if self.goes_on_without(member, error) { Ok(()) } else { Err(error) }
                    }
                    done => done,
                }
            };
        let Some(journal) = &self.journal else {
            return all(&self.rt, 0..self.layout.members(), one).await;
        };
        let there = (0..self.layout.members()).filter(|member| !self.is_out(*member, first));
        let parts: Vec<Part> = there.map(|member| (member, None)).collect();
        let change =
            Change::Deallocate { block: first * chunk, blocks: ((last - first) * chunk) as u32 };
        let way = self.ways.begin(&self.rt);
        let slot = self.note(journal, number, change, &parts, &way).await?;
        let parts = parts.into_iter().map(|(member, _)| member);
        let parts = parts.filter(|member| !self.is_out(*member, first));
        let done = all(&self.rt, parts, one).await;
        way.passed();
        self.is_home(journal, slot, done)
    }

    async fn write_zeros(&self, number: usize, mut lba: u64, end: u64) -> Result<(), IoError> {
        if lba == end {
            return Ok(());
        }
        let block = self.geometry.block_bytes;
        let room = self.buffer(number, (zeros(&self.layout, lba, end) * block) as usize)?;
        room.zero();
        while lba < end {
            let blocks = zeros(&self.layout, lba, end);
            let from = room.part(0, (blocks * block) as usize);
            self.write(number, lba, &from, false).await?;
            lba += u64::from(blocks);
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Write<'a> {
    number: usize,
    lba: u64,
    from: &'a Buffer,
    fua: bool,
}

/// XORs a buffer's bytes into a sum.
fn add(sum: &mut [u8], bytes: &Buffer) {
    let mut part = [0; PARITY_BYTES as usize];
    for (number, sum) in sum.chunks_mut(part.len()).enumerate() {
        let part = &mut part[..sum.len()];
        bytes.copy_out(number * PARITY_BYTES as usize, part);
        sum.iter_mut().zip(part).for_each(|(sum, byte)| *sum ^= *byte);
    }
}
