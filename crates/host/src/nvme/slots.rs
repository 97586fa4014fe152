//! Command slots of a queue: owners, buffers that the device may still write, matching of completions to
//! commands.
//!
//! ```text
//!             claim          launch            deliver             let go
//!     Free ----------► Claimed ------► Flying ---------► Done -----------► Free
//!      ▲                 │               │ │ abandon            let go │ launch again
//!      │     let go      │        let go │ └-----------► Lost ---------┴------► ...
//!      ├-----------------┘               ▼
//!      └-------- deliver, abandon -- Orphaned
//! ```
//!
//! From launch to delivery, or until the device can no longer write, the slot owns the buffer.
//!
//! A command identifier is ten bits of slot and six bits that count the uses of the slot, so that a late or
//! forged completion of an earlier use is recognised and counted, not delivered. A queue deeper than 1024 has
//! more bits of slot and distinguishes fewer uses ([`crate::slot_bits`]).

use alloc::boxed::Box;
use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use bus::Buffer;
use runtime::{Parked, Pool, Rt, Signal};
use wire::nvme::entry::Cqe;
use wire::{CommandId, QueueId};

use super::DEPTH_MAX;
use crate::quarantine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the pool, without an owner.
    Free,
    /// Owned; the device has not seen a command.
    Claimed,
    /// In flight, with an owner that waits.
    Flying,
    /// In flight, without an owner.
    Orphaned,
    /// Completed; the owner has not fetched the completion yet.
    Done,
    /// The device was stopped with the command in flight; the owner has not noticed yet.
    Lost,
}

pub(super) struct Slot {
    index: u16,
    stage: Cell<Stage>,
    generation: Cell<u8>,
    /// Number of watchdog checks that found this command in flight.
    looks: Cell<u32>,
    /// True if the command has exceeded its time.
    expired: Cell<bool>,
    /// True if an Abort was sent for it. Cleared after more watchdog checks, so that the Abort is repeated.
    aborted: Cell<bool>,
    /// True if the owner's deadline has passed: the command is to be aborted, and not retried.
    given_up: Cell<bool>,
    completion: Cell<Cqe>,
    /// Task that waits for the end of the command.
    pub owner: Cell<Option<Parked>>,
    buffer: Cell<Option<Buffer>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Completed: the slot holds the completion.
    Completed,
    /// Lost, because the device was stopped.
    Lost,
}

/// Reason why a completion is invalid. The number appears in the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// Submission queue that does not complete here.
    WrongQueue = 1,
    /// Submission queue head outside the queue.
    HeadOutOfRange = 2,
    /// The slot index is out of range.
    NoSuchSlot = 3,
    /// No command in flight in this slot.
    NotInFlight = 4,
    /// Stale use count: the slot has another command now.
    AnotherUse = 5,
}

/// Command slots of one queue.
pub(super) struct Slots {
    table: Box<[Slot]>,
    free: Pool<u16>,
    /// Notified when a slot is freed, for waiters outside the pool's FIFO.
    pub freed: Signal,
    /// Number of bits of a command identifier that hold the slot.
    bits: u32,
    /// Number of distinct uses of a slot: one less than the bits allow, so that no command has the identifier
    /// ffffh, which the error log uses for "none" (NVMe base 2.0, 5.16.1.2).
    generations: u8,
}

impl Slots {
    /// Creates `depth` free slots, 1 to [`DEPTH_MAX`].
    pub fn new(depth: u16) -> Slots {
        assert!((1..=DEPTH_MAX).contains(&depth));
        let slot = |index| Slot {
            index,
            stage: Cell::new(Stage::Free),
            generation: Cell::new(0),
            looks: Cell::new(0),
            expired: Cell::new(false),
            aborted: Cell::new(false),
            given_up: Cell::new(false),
            completion: Cell::new(Cqe::default()),
            owner: Cell::new(None),
            buffer: Cell::new(None),
        };
        // The pool returns its last item first, so slot 0 is the first to be used.
        let bits = crate::slot_bits(depth.into());
        Slots {
            table: (0..depth).map(slot).collect(),
            free: Pool::new((0..depth).rev()),
            freed: Signal::default(),
            bits,
            generations: ((1_u16 << (16 - bits)) - 1) as u8,
        }
    }

    /// Number of slots.
    pub fn depth(&self) -> u16 {
        self.table.len() as u16
    }

    /// Number of free slots.
    pub fn available(&self) -> usize {
        self.free.available()
    }

    /// Number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.table.iter().filter(|slot| slot.is_in_flight()).count()
    }

    /// Waits in FIFO order for a slot.
    pub async fn claim<'a>(&'a self, rt: &'a Rt) -> Claim<'a> {
        let index = self.free.take(rt).await;
        self.claimed(rt, index)
    }

    /// Takes a slot if one is free now.
    #[inline]
    pub fn try_claim<'a>(&'a self, rt: &'a Rt) -> Option<Claim<'a>> {
        self.free.try_take().map(|index| self.claimed(rt, index))
    }

    #[inline]
    fn claimed<'a>(&'a self, rt: &'a Rt, index: u16) -> Claim<'a> {
        let slot = self.slot(index);
        assert_eq!(slot.stage.get(), Stage::Free, "the pool holds free slots");
        slot.stage.set(Stage::Claimed);
        slot.given_up.set(false);
        Claim { slots: self, slot, rt }
    }

    /// Slot index of a command identifier; may be out of range.
    pub fn index(&self, cid: CommandId) -> u16 {
        cid.0 & ((1 << self.bits) - 1)
    }

    fn cid(&self, generation: u8, index: u16) -> CommandId {
        CommandId(u16::from(generation) << self.bits | index)
    }

    /// Validates a completion and delivers it. Returns its slot; the caller wakes the owner, if any.
    #[inline]
    pub fn deliver(
        &self,
        rt: &Rt,
        cqe: &Cqe,
        queue: QueueId,
        sq_entries: u32,
    ) -> Result<&Slot, Violation> {
        if cqe.queue() != queue {
            return Err(Violation::WrongQueue);
        }
        if u32::from(cqe.sq_head.get()) >= sq_entries {
            return Err(Violation::HeadOutOfRange);
        }
        let cid = cqe.id();
        let index = self.index(cid);
        let slot = self.table.get(usize::from(index)).ok_or(Violation::NoSuchSlot)?;
        if !slot.is_in_flight() {
            return Err(Violation::NotInFlight);
        }
        if self.cid(slot.generation.get(), index) != cid {
            return Err(Violation::AnotherUse);
        }
        if slot.stage.get() == Stage::Orphaned {
            self.recycle(rt, slot);
            return Ok(slot);
        }
        slot.completion.set(*cqe);
        slot.stage.set(Stage::Done);
        Ok(slot)
    }

    /// Marks all commands in flight as lost, wakes their owners and frees slots without an owner. The device
    /// must be unable to write.
    pub fn abandon(&self, rt: &Rt) {
        for slot in &self.table {
            match slot.stage.get() {
                Stage::Flying => {
                    slot.stage.set(Stage::Lost);
                    slot.wake(rt);
                }
                Stage::Orphaned => self.recycle(rt, slot),
                Stage::Free | Stage::Claimed | Stage::Done | Stage::Lost => {}
            }
        }
    }

    /// Quarantines the buffers of all commands in flight: the device may write to them at any time. They
    /// never go back to their arena, not even when their owners drop them.
    pub fn quarantine_buffers(&self) {
        for slot in self.table.iter().filter(|slot| slot.is_in_flight()) {
            if let Some(buffer) = slot.buffer.take() {
                quarantine(&buffer);
                slot.buffer.set(Some(buffer));
            }
        }
    }

    /// Counts a watchdog check. Returns true if a command was in flight at the previous check already.
    pub fn tick(&self) -> bool {
        let mut any_old = false;
        for slot in self.table.iter().filter(|slot| slot.is_in_flight()) {
            any_old |= slot.looks.get() > 0;
            let looks = slot.looks.get() + 1;
            slot.looks.set(looks);
            // An Abort that arrived before its command was fetched had no effect.
            if looks.is_power_of_two() {
                slot.aborted.set(false);
            }
        }
        any_old
    }

    /// Calls `tell` for each command in flight with its number of watchdog checks.
    pub fn ages(&self, mut tell: impl FnMut(CommandId, u32)) {
        for (index, slot) in self.table.iter().enumerate() {
            if slot.is_in_flight() {
                tell(self.current(index as u16), slot.looks.get());
            }
        }
    }

    /// Calls `tell` for each command in flight whose deadline has passed and for which no Abort was sent.
    pub fn given_up(&self, mut tell: impl FnMut(CommandId)) {
        for (index, slot) in self.table.iter().enumerate() {
            if slot.given_up.get() && slot.is_in_flight() && !slot.aborted.get() {
                tell(self.current(index as u16));
            }
        }
    }

    /// Marks a command as having exceeded its time. Returns true if it was not marked before.
    pub fn expire(&self, cid: CommandId) -> bool {
        self.command(cid).is_some_and(|slot| !slot.expired.replace(true))
    }

    /// Marks a command as aborted. Returns true if it was not marked before.
    pub fn mark_aborted(&self, cid: CommandId) -> bool {
        self.command(cid).is_some_and(|slot| !slot.aborted.replace(true))
    }

    /// Slot of a command in flight.
    fn command(&self, cid: CommandId) -> Option<&Slot> {
        let index = self.index(cid);
        let slot = self.table.get(usize::from(index))?;
        (slot.is_in_flight() && self.current(index) == cid).then_some(slot)
    }

    /// Identifier of the slot's current command.
    fn current(&self, index: u16) -> CommandId {
        self.cid(self.slot(index).generation.get(), index)
    }

    /// Returns a slot to the pool and drops its buffer.
    #[inline]
    fn recycle(&self, rt: &Rt, slot: &Slot) {
        slot.stage.set(Stage::Free);
        slot.buffer.take();
        self.free.give(rt, slot.index);
        self.freed.notify(rt);
    }

    fn slot(&self, index: u16) -> &Slot {
        &self.table[usize::from(index)]
    }
}

impl Slot {
    fn is_in_flight(&self) -> bool {
        matches!(self.stage.get(), Stage::Flying | Stage::Orphaned)
    }

    fn wake(&self, rt: &Rt) {
        if let Some(owner) = self.owner.take() {
            rt.unpark(owner);
        }
    }
}

/// An owned slot. If it is dropped while the command is in flight, the completion frees the slot and its
/// buffer; otherwise the slot is freed at once.
pub(super) struct Claim<'a> {
    slots: &'a Slots,
    slot: &'a Slot,
    rt: &'a Rt,
}

impl Claim<'_> {
    /// Index in the table.
    #[inline]
    pub fn index(&self) -> u16 {
        self.slot.index
    }

    /// Moves the buffer into the slot.
    #[inline]
    pub fn keep(&self, buffer: Buffer) {
        assert!(self.slot().stage.get() == Stage::Claimed, "a buffer comes before its command");
        self.slot().buffer.set(Some(buffer));
    }

    /// Takes the buffer back, if any. The device has completed the command, or never received one.
    #[inline]
    pub fn release(&self) -> Option<Buffer> {
        assert!(!self.slot().is_in_flight(), "the device may still write");
        self.slot().buffer.take()
    }

    /// Takes back the buffer of a slot that holds one.
    #[inline]
    pub fn take_back(&self) -> Buffer {
        self.release().expect("kept since the slot was claimed")
    }

    /// Identifier that the slot's next command will have.
    #[inline]
    pub fn next_cid(&self) -> CommandId {
        let slot = self.slot();
        let next = slot.generation.get() + 1;
        let next = if next == self.slots.generations { 0 } else { next };
        self.slots.cid(next, self.slot.index)
    }

    /// Marks the slot as in flight and returns the identifier of its command.
    #[inline]
    pub fn launch(&self) -> CommandId {
        let (slot, cid) = (self.slot(), self.next_cid());
        assert!(!slot.is_in_flight(), "a slot has one command at a time");
        slot.generation.set((cid.0 >> self.slots.bits) as u8);
        slot.looks.set(0);
        slot.expired.set(false);
        slot.aborted.set(false);
        slot.stage.set(Stage::Flying);
        cid
    }

    /// Waits for the end of the command.
    pub async fn end(&self) -> End {
        let slot = self.slot();
        poll_fn(|cx| match slot.stage.get() {
            Stage::Done => Poll::Ready(End::Completed),
            Stage::Lost => Poll::Ready(End::Lost),
            _ => {
                slot.owner.set(Some(self.rt.park(cx)));
                Poll::Pending
            }
        })
        .await
    }

    /// Completion of the slot's last completed command.
    #[inline]
    pub fn completion(&self) -> Cqe {
        self.slot().completion.get()
    }

    /// Gives up the command after the owner's deadline: it is not retried, and ends as one that has exceeded
    /// its time. Returns its identifier, or `None` if the device has no such command.
    pub fn give_up(&self) -> Option<CommandId> {
        let slot = self.slot();
        slot.given_up.set(true);
        slot.expired.set(true);
        let known = matches!(slot.stage.get(), Stage::Flying | Stage::Done);
        known.then(|| self.slots.current(self.slot.index))
    }

    /// Returns true if the owner's deadline has passed.
    pub fn is_given_up(&self) -> bool {
        self.slot().given_up.get()
    }

    /// Returns true if the slot's last command has exceeded its time.
    pub fn has_expired(&self) -> bool {
        self.slot().expired.get()
    }

    fn slot(&self) -> &Slot {
        self.slot
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        let slot = self.slot();
        match slot.stage.get() {
            Stage::Flying => {
                // The field is set only while the owner's command is in flight.
                slot.owner.take();
                slot.stage.set(Stage::Orphaned);
            }
            Stage::Claimed | Stage::Done | Stage::Lost => self.slots.recycle(self.rt, slot),
            Stage::Free | Stage::Orphaned => unreachable!("a claimed slot is neither"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bus::{Arena, Memory};
    use runtime::Log;
    use wire::BusAddr;
    use wire::nvme::status::Status;

    const QUEUE: QueueId = QueueId(1);

    fn complete(slots: &Slots, rt: &Rt, cid: CommandId) -> Result<(), Violation> {
        let cqe = Cqe::new(cid, Status::SUCCESS).with_queue(QUEUE, 0);
        slots.deliver(rt, &cqe, QUEUE, slots.table.len() as u32 + 1).map(|_| ())
    }

    #[test]
    fn duplicate_completion_rejected() {
        let rt = Rt::simulated(None, Log::Off);
        let slots = Slots::new(2);
        rt.block_on(async {
            let claim = slots.claim(&rt).await;
            let cid = claim.launch();
            assert_eq!(complete(&slots, &rt, cid), Ok(()));
            assert_eq!(complete(&slots, &rt, cid), Err(Violation::NotInFlight));
            assert_eq!((claim.end().await, claim.completion().id()), (End::Completed, cid));
            let next = claim.launch();
            assert_eq!(complete(&slots, &rt, cid), Err(Violation::AnotherUse));
            assert_eq!(complete(&slots, &rt, next), Ok(()));
        });
        assert_eq!(slots.available(), 2);
    }

    #[test]
    fn cqe_with_bad_sqid_head_or_cid_rejected() {
        let rt = Rt::simulated(None, Log::Off);
        let slots = Slots::new(2);
        rt.block_on(async {
            let claim = slots.claim(&rt).await;
            let cqe = Cqe::new(claim.launch(), Status::SUCCESS);
            let validate = |cqe: Cqe| slots.deliver(&rt, &cqe, QUEUE, 3).map(|_| ());
            assert_eq!(validate(cqe.with_queue(QueueId(2), 0)), Err(Violation::WrongQueue));
            assert_eq!(validate(cqe.with_queue(QUEUE, 3)), Err(Violation::HeadOutOfRange));
            let stray = Cqe { cid: 2.into(), ..cqe }.with_queue(QUEUE, 0);
            assert_eq!(validate(stray), Err(Violation::NoSuchSlot));
            assert_eq!(validate(cqe.with_queue(QUEUE, 2)), Ok(()));
        });
    }

    #[test]
    fn cid_never_ffffh() {
        let rt = Rt::simulated(None, Log::Off);
        let slots = Slots::new(DEPTH_MAX);
        rt.block_on(async {
            let mut claims = alloc::vec::Vec::new();
            for _ in 0..DEPTH_MAX {
                claims.push(slots.claim(&rt).await);
            }
            let last = claims.last().unwrap();
            assert_eq!(last.index(), DEPTH_MAX - 1);
            for _ in 0..200 {
                let cid = last.launch();
                assert_ne!(cid, CommandId(0xffff));
                complete(&slots, &rt, cid).unwrap();
            }
        });
    }

    #[test]
    fn orphan_buffer_freed_at_completion() {
        let rt = Rt::simulated(None, Log::Off);
        let arena = Arena::new(Memory::private(4096, BusAddr(0x10_0000)));
        let slots = Slots::new(1);
        rt.block_on(async {
            let claim = slots.claim(&rt).await;
            claim.keep(arena.buffer(4096).unwrap());
            let cid = claim.launch();
            drop(claim);
            assert_eq!((slots.available(), slots.in_flight()), (0, 1));
            assert!(arena.buffer(4096).is_err());
            complete(&slots, &rt, cid).unwrap();
            assert_eq!((slots.available(), slots.in_flight()), (1, 0));
            assert!(arena.buffer(4096).is_ok());
        });
    }

    #[test]
    fn quarantined_buffer_never_reused() {
        let rt = Rt::simulated(None, Log::Off);
        let arena = Arena::new(Memory::private(8192, BusAddr(0x10_0000)));
        let slots = Slots::new(2);
        rt.block_on(async {
            let claim = slots.claim(&rt).await;
            claim.keep(arena.buffer(4096).unwrap());
            claim.launch();
            slots.quarantine_buffers();
            slots.abandon(&rt);
            assert_eq!(claim.end().await, End::Lost);
            drop(claim.release());
            drop(claim);
            assert_eq!(slots.available(), 2);
            let _other = arena.buffer(4096).unwrap();
            assert!(arena.buffer(4096).is_err());
        });
    }
}
