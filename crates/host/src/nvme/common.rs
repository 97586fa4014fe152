//! Queue pair that several executors use at once under a real lock: threads, or cores without an operating
//! system.
//!
//! ```text
//!   core 0 ──┐ lock: slot, entry, doorbell                         ┌── core 0 waits for its slot's word
//!   core 1 ──┼────────► submission queue ─► device ─► completion ──┼── core 1 ...
//!   core 2 ──┘                              queue ─► home core ────┘   writes the words
//! ```
//!
//! The lock is held while a command is formed, stored and rung for. One core, the home of the queue, takes
//! its completions in; the others wait for a word of their command's slot. A core that finds the queue full
//! releases the lock, waits until a slot is free, and tries again.
//!
//! There are no retries and no Aborts: a command that exceeds its time fails, and its slot and buffer are
//! never used again. A reset of the controller ends the queue.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bus::{Buffer, HostPort, Memory, OutOfMemory, OutOfRange};
use runtime::{Span, Time};
use wire::nvme::admin::{CreateCq, CreateSq, Priority};
use wire::nvme::entry::{Cqe, DataPointer, Sqe};
use wire::nvme::status::Status;
use wire::nvme::{io, prp, registers};
use wire::{BusAddr, CommandId, Lba, Nsid, QueueId};

use super::granted::Rings;
use super::lists::list_bytes;
use super::spin::{SpinLock, SpinOrder};
use super::{Controller, PAGE_BYTES, QueueOptions};
use crate::{BlockDevice, Deallocated, Geometry, InitError, IoError, Kind, quarantine};

const SQE_BYTES: u64 = size_of::<Sqe>() as u64;
const CQE_BYTES: u64 = size_of::<Cqe>() as u64;

/// Checks of a slot's word between two looks at the clock.
const CHECKS_PER_LOOK: u32 = 1024;

// A slot's word: 0, or one of these flags with a command identifier or a status.
const IN_FLIGHT: u32 = 1 << 31;
const ENDED: u32 = 1 << 30;

/// State of the pair that all its cores reach.
pub struct CommonPair {
    qid: QueueId,
    memory: Memory,
    sq_at: BusAddr,
    cq_at: BusAddr,
    lists_at: BusAddr,
    list_bytes: u64,
    sq_entries: u32,
    cq_entries: u32,
    sq_doorbell: u32,
    cq_doorbell: u32,
    nsid: Nsid,
    geometry: Geometry,
    deallocated: Deallocated,
    timeout: Span,
    bits: u32,
    lock: SpinLock,
    /// Written by the holder of the lock.
    tail: AtomicU32,
    slots: Box<[AtomicU32]>,
    /// Uses of each slot, by the slot's owner.
    uses: Box<[AtomicU32]>,
    /// One bit per free slot: cleared under the lock, set by any core.
    free: Box<[AtomicU64]>,
    violations: AtomicU64,
    stopped: AtomicBool,
}

/// Memory of a pair, in the arena of the controller's owner. If it is dropped before the controller has
/// deleted the pair, it is quarantined.
pub struct CommonMemory {
    rings: Rings,
    buffers: [Buffer; 3],
    deleted: Cell<bool>,
}

impl Drop for CommonMemory {
    fn drop(&mut self) {
        if !self.deleted.get() {
            self.buffers.iter().for_each(quarantine);
        }
    }
}

impl<P: HostPort> Controller<P> {
    /// Creates a queue pair for several executors, in memory of this one.
    ///
    /// # Errors
    /// As [`Controller::grant`]; the namespace has protection information; not enough memory.
    pub async fn common(
        &self,
        options: QueueOptions,
        order: SpinOrder,
    ) -> Result<(Arc<CommonPair>, CommonMemory), InitError> {
        let core = self.core();
        core.running().await?;
        let (options, facts) = (core.validate(options)?, core.facts());
        if let Some(kind) = facts.kind {
            let expected = "none: a pair of several executors has no memory for it";
            let (what, found) = ("protection information", kind as u64);
            return Err(InitError::Unsupported { what, found, expected });
        }
        let arena = core.admin.pair.port().arena();
        let (depth, entries) = (usize::from(options.depth), u32::from(options.depth) + 1);
        let list_bytes = list_bytes(facts.geometry.transfer_bytes_max);
        let sq = arena.buffer(entries as usize * SQE_BYTES as usize)?;
        let cq = arena.buffer(entries as usize * CQE_BYTES as usize)?;
        let lists = arena.buffer(depth * list_bytes)?;
        sq.zero();
        cq.zero();
        let qid = core.next_queue_id();
        let stride = core.admin.bar.cap().dstrd();
        let rings = Rings::polled(qid, entries, (sq.at(), cq.at()), options.priority);
        let pair = CommonPair {
            qid,
            memory: sq.memory().clone(),
            sq_at: sq.at(),
            cq_at: cq.at(),
            lists_at: lists.at(),
            list_bytes: list_bytes as u64,
            sq_entries: entries,
            cq_entries: entries,
            sq_doorbell: registers::sq_tail_doorbell(qid, stride),
            cq_doorbell: registers::cq_head_doorbell(qid, stride),
            nsid: facts.nsid,
            geometry: facts.geometry,
            deallocated: facts.deallocated,
            timeout: core.options.timeout,
            bits: crate::slot_bits(depth as u32),
            lock: SpinLock::new(order),
            tail: AtomicU32::new(0),
            slots: (0..depth).map(|_| AtomicU32::new(0)).collect(),
            uses: (0..depth).map(|_| AtomicU32::new(0)).collect(),
            free: (0..depth.div_ceil(64)).map(|word| free_bits(depth, word)).collect(),
            violations: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        };
        let memory = CommonMemory { rings, buffers: [sq, cq, lists], deleted: Cell::new(false) };
        self.create_granted(&rings).await?;
        Ok((Arc::new(pair), memory))
    }

    /// Deletes a pair on the controller and frees its memory. No core may use it any more.
    ///
    /// # Errors
    /// The controller does not respond; the memory is quarantined.
    pub async fn delete_common(&self, memory: CommonMemory) -> Result<(), InitError> {
        self.delete_granted(&memory.rings).await?;
        self.core().take_back(memory.rings.qid());
        memory.deleted.set(true);
        Ok(())
    }
}

/// Word `word` of the bits of `depth` free slots.
fn free_bits(depth: usize, word: usize) -> AtomicU64 {
    let bits = (depth - word * 64).min(64);
    AtomicU64::new(u64::MAX >> (64 - bits))
}

impl CommonPair {
    /// Number of times that a core found the lock taken.
    pub fn lock_waits(&self) -> u64 {
        self.lock.waits()
    }

    /// Number of invalid completions, which were ignored.
    pub fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// Depth of the queue.
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Ends [`CommonQueue::take_completions`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Takes a free slot, under the lock.
    fn take_slot(&self) -> Option<u16> {
        for (word, free) in self.free.iter().enumerate() {
            let bits = free.load(Ordering::Acquire);
            if bits != 0 {
                let bit = bits.trailing_zeros();
                free.fetch_and(!(1 << bit), Ordering::Acquire);
                return Some((word * 64) as u16 + bit as u16);
            }
        }
        None
    }

    fn has_free(&self) -> bool {
        self.free.iter().any(|free| free.load(Ordering::Relaxed) != 0)
    }

    fn give_back(&self, slot: u16) {
        let (word, bit) = (usize::from(slot / 64), slot % 64);
        self.slots[usize::from(slot)].store(0, Ordering::Relaxed);
        self.free[word].fetch_or(1 << bit, Ordering::Release);
    }

    /// Identifier of a slot's next command. None is ffffh, which the error log uses for "none".
    fn next_cid(&self, slot: u16) -> CommandId {
        let uses = &self.uses[usize::from(slot)];
        let (used, most) = (uses.load(Ordering::Relaxed), (1 << (16 - self.bits)) - 1);
        let next = if used + 1 >= most { 0 } else { used + 1 };
        uses.store(next, Ordering::Relaxed);
        CommandId((next << self.bits) as u16 | slot)
    }

    /// Describes a validated buffer by PRPs, with the slot's list if needed.
    fn describe(&self, slot: u16, buffer: &Buffer) -> DataPointer {
        let bytes = buffer.bytes() as u64;
        if let Some(pages) = prp::without_list(buffer.at(), bytes, PAGE_BYTES) {
            return pages;
        }
        let first = self.lists_at.0 + u64::from(slot) * self.list_bytes;
        let lists = (0..self.list_bytes.div_ceil(PAGE_BYTES))
            .map(|page| BusAddr(first + page * PAGE_BYTES));
        let pages = prp::contiguous(buffer.at(), PAGE_BYTES);
        prp::build(pages, bytes, PAGE_BYTES, lists, |at, entry| {
            inside(self.memory.write(at, &entry.to_le_bytes()));
        })
        .expect("the list has room for the longest transfer")
    }

    /// Stores an entry, under the lock; returns the new tail.
    fn push(&self, sqe: Sqe) -> u32 {
        let tail = self.tail.load(Ordering::Relaxed);
        let at = BusAddr(self.sq_at.0 + u64::from(tail) * SQE_BYTES);
        inside(self.memory.write_words(at, sqe.to_words()));
        let next = if tail + 1 == self.sq_entries { 0 } else { tail + 1 };
        self.tail.store(next, Ordering::Relaxed);
        next
    }

    /// Delivers a completion to its slot, if it belongs to the command in flight there.
    fn deliver(&self, cqe: &Cqe) {
        let cid = cqe.id();
        let slot = usize::from(cid.0) & ((1 << self.bits) - 1);
        let is_ours = cqe.queue() == self.qid && u32::from(cqe.sq_head.get()) < self.sq_entries;
        let word = self.slots.get(slot).filter(|_| is_ours);
        let expected = IN_FLIGHT | u32::from(cid.0);
        let ended = ENDED | u32::from(cqe.status().bits());
        // Release: the device's writes before its phase tag are visible to the core that sees the word.
        let delivered = word.map(|word| {
            word.compare_exchange(expected, ended, Ordering::Release, Ordering::Relaxed)
        });
        if !matches!(delivered, Some(Ok(_))) {
            self.violations.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Rings and lists lie inside the memory that they were allocated in.
fn inside<T>(accessed: Result<T, OutOfRange>) -> T {
    accessed.expect("inside the pair's memory")
}

/// One core's handle on a common pair.
pub struct CommonQueue<P> {
    pair: Arc<CommonPair>,
    port: P,
}

/// A command in flight. If its future is dropped, the device may still write to the buffer.
struct Flight<'a> {
    pair: &'a CommonPair,
    slot: u16,
    buffer: Option<&'a Buffer>,
    ended: Cell<bool>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.ended.get() {
            self.pair.give_back(self.slot);
        } else if let Some(buffer) = self.buffer {
            quarantine(buffer);
        }
    }
}

impl<P: HostPort> CommonQueue<P> {
    /// Handle for the executor of `port`.
    pub fn new(pair: &Arc<CommonPair>, port: &P) -> Rc<CommonQueue<P>> {
        Rc::new(CommonQueue { pair: pair.clone(), port: port.clone() })
    }

    /// Takes completions in until the pair is stopped or the device is gone: the task of the home core.
    pub async fn take_completions(self: Rc<Self>) {
        let pair = &*self.pair;
        let (mut head, mut phase, mut unacknowledged) = (0_u32, true, 0_u32);
        let quarter = (pair.cq_entries / 4).max(1);
        loop {
            let next = || {
                let at = BusAddr(pair.cq_at.0 + u64::from(head) * CQE_BYTES);
                let is_new = |last: u64| (u64::from_le(last) >> 48 & 1 != 0) == phase;
                match inside(pair.memory.read_words_if(at, is_new)) {
                    Some(words) => Some(Some(Cqe::from_words(words))),
                    None if pair.stopped.load(Ordering::Relaxed) || self.port.is_gone() => {
                        Some(None)
                    }
                    None => None,
                }
            };
            let Some(cqe) = bus::until(self.port.rt(), next).await else { return };
            head += 1;
            if head == pair.cq_entries {
                (head, phase) = (0, !phase);
            }
            unacknowledged += 1;
            if unacknowledged == quarter {
                unacknowledged = 0;
                self.port.write32(pair.cq_doorbell, head);
            }
            pair.deliver(&cqe);
        }
    }

    /// Runs a command to its end.
    async fn run(
        &self,
        lba: Option<Lba>,
        buffer: Option<&Buffer>,
        build: impl Fn(CommandId, DataPointer) -> Sqe,
    ) -> Result<(), IoError> {
        let (pair, rt) = (&*self.pair, self.port.rt());
        let begun = rt.now();
        let mut flight = None;
        while flight.is_none() {
            flight = self.try_submit(buffer, &build);
            if flight.is_none() {
                let freed = || pair.has_free() || self.port.is_gone();
                bus::until(rt, || freed().then_some(())).await;
            }
            if self.port.is_gone() {
                return Err(IoError::of(Kind::Gone, lba));
            }
        }
        let flight = flight.expect("submitted");
        let word = &pair.slots[usize::from(flight.slot)];
        let mut checks = 0_u32;
        let end = || match word.load(Ordering::Acquire) {
            ended if ended & ENDED != 0 => Some(Ok(Status::from_bits(ended as u16))),
            _ => {
                checks = checks.wrapping_add(1);
                self.has_failed(begun, checks).map(Err)
            }
        };
        let end = bus::until(rt, end).await;
        flight.ended.set(end.is_ok());
        match end {
            Err(kind) => Err(IoError::of(kind, lba)),
            Ok(status) => status.ok().map_err(|status| IoError::answered(status, lba)),
        }
    }

    /// Submits a command, unless the queue is full.
    fn try_submit<'a>(
        &'a self,
        buffer: Option<&'a Buffer>,
        build: &impl Fn(CommandId, DataPointer) -> Sqe,
    ) -> Option<Flight<'a>> {
        let pair = &*self.pair;
        let _held = pair.lock.lock();
        let slot = pair.take_slot()?;
        let cid = pair.next_cid(slot);
        let nothing = DataPointer::Prp { prp1: BusAddr(0), prp2: BusAddr(0) };
        let data = buffer.map_or(nothing, |buffer| pair.describe(slot, buffer));
        pair.slots[usize::from(slot)].store(IN_FLIGHT | u32::from(cid.0), Ordering::Relaxed);
        // The doorbell is a release.
        self.port.write32(pair.sq_doorbell, pair.push(build(cid, data)));
        Some(Flight { pair, slot, buffer, ended: Cell::new(false) })
    }

    /// Why a command in flight will not end, if so.
    fn has_failed(&self, begun: Time, checks: u32) -> Option<Kind> {
        if self.port.is_gone() {
            return Some(Kind::Gone);
        }
        let limit = self.pair.timeout;
        let is_late = || limit > Span::ZERO && self.port.rt().now().since(begun) > limit;
        (checks.is_multiple_of(CHECKS_PER_LOOK) && is_late()).then_some(Kind::TimedOut)
    }

    fn validate(&self, lba: Lba, buffer: &Buffer) -> Result<u32, IoError> {
        self.pair.geometry.validate(lba, buffer)
    }
}

impl<P: HostPort> BlockDevice for CommonQueue<P> {
    fn geometry(&self) -> Geometry {
        self.pair.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.port.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let nsid = self.pair.nsid;
        let result = match self.validate(lba, &into) {
            Ok(blocks) => {
                let build = |cid, data| io::read(cid, nsid, lba, blocks, false, data);
                self.run(Some(lba), Some(&into), build).await
            }
            Err(error) => Err(error),
        };
        (into, result)
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let nsid = self.pair.nsid;
        let result = match self.validate(lba, &from) {
            Ok(blocks) => {
                let build = |cid, data| io::write(cid, nsid, lba, blocks, fua, data);
                self.run(Some(lba), Some(&from), build).await
            }
            Err(error) => Err(error),
        };
        (from, result)
    }

    async fn flush(&self) -> Result<(), IoError> {
        let nsid = self.pair.nsid;
        self.run(None, None, |cid, _| io::flush(cid, nsid)).await
    }

    fn deallocated(&self) -> Deallocated {
        self.pair.deallocated
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.pair.geometry.validate_range(lba, blocks.into())?;
        let why = "a queue of one executor: this one has no memory for ranges";
        Err(IoError::refused(Kind::Unsupported, lba, why))
    }
}

impl Rings {
    /// A pair without interrupts at these addresses of its submission and its completion queue.
    fn polled(qid: QueueId, size: u32, at: (BusAddr, BusAddr), priority: Priority) -> Rings {
        let cq = CreateCq { qid, size, vector: 0, irq_enabled: false, contiguous: true };
        let sq = CreateSq { qid, size, cqid: qid, priority, contiguous: true };
        Rings::of(cq, at.1, sq, at.0)
    }
}
