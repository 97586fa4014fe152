//! The command slots of one queue: who waits, what the device may still touch, and which completion
//! belongs to whom.
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
//! From launch to delivery, or until the device can no longer write, a slot owns its buffer.

use alloc::boxed::Box;
use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use bus::Buffer;
use runtime::{Parked, Pool, Rt, Signal, slot_bits};
use wire::nvme::entry::Cqe;
use wire::{CommandId, QueueId};

use super::DEPTH_MAX;
use crate::quarantine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// Somebody has it, and the device knows nothing of it.
    Claimed,
    /// The device has the command, and its owner waits.
    Flying,
    /// The device has the command, and nobody waits.
    Orphaned,
    /// The completion is there, and its owner will fetch it.
    Done,
    /// The device was stopped under the command; its owner will see.
    Lost,
}

pub(super) struct Slot {
    /// Its number in the table.
    index: u16,
    stage: Cell<Stage>,
    generation: Cell<u8>,
    /// How often the watchdog has seen this command in flight.
    looks: Cell<u32>,
    /// Whether the command has exceeded its time.
    expired: Cell<bool>,
    /// Whether the controller was asked to abort it, and need not be asked again before the watchdog has
    /// looked a while longer.
    aborted: Cell<bool>,
    /// Whether its owner's deadline has passed: it is to be aborted, and not tried again.
    given_up: Cell<bool>,
    completion: Cell<Cqe>,
    /// Who waits for the command's end.
    pub owner: Cell<Option<Parked>>,
    buffer: Cell<Option<Buffer>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With a completion, which the slot has.
    Completed,
    Lost,
}

/// Why a completion makes no sense. The number goes into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// It names a submission queue that doesn't complete here.
    WrongQueue = 1,
    /// Its submission queue head lies outside the queue.
    HeadOutOfRange = 2,
    /// There is no such slot.
    NoSuchSlot = 3,
    /// The slot has no command in flight.
    NotInFlight = 4,
    /// The slot's command is another one by now.
    AnotherUse = 5,
}

/// The slots of one queue.
pub(super) struct Slots {
    table: Box<[Slot]>,
    free: Pool<u16>,
    /// A slot has come back, for who would rather not stand in line.
    pub freed: Signal,
    /// The bits of a command's number that name its slot.
    bits: u32,
    /// Uses of a slot that are told apart. One less than the bits can tell, so that no command has the
    /// number ffffh, which the error log uses for "none" (NVMe base 2.0, 5.16.1.2).
    generations: u8,
}

impl Slots {
    /// As many free slots as commands may be in flight.
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
        // The pool gives its last item first; slot 0 comes first.
        let bits = slot_bits(depth.into());
        Slots {
            table: (0..depth).map(slot).collect(),
            free: Pool::new((0..depth).rev()),
            freed: Signal::default(),
            bits,
            generations: ((1_u16 << (16 - bits)) - 1) as u8,
        }
    }

    /// How many there are.
    pub fn depth(&self) -> u16 {
        self.table.len() as u16
    }

    /// How many nobody has.
    pub fn available(&self) -> usize {
        self.free.available()
    }

    /// How many commands the device has.
    pub fn in_flight(&self) -> usize {
        self.table.iter().filter(|slot| slot.is_in_flight()).count()
    }

    /// Waits for a turn, and takes a slot.
    pub async fn claim<'a>(&'a self, rt: &'a Rt) -> Claim<'a> {
        let index = self.free.take(rt).await;
        self.claimed(rt, index)
    }

    /// A slot, if there is one now.
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

    /// The slot that a command's number names, which may not be there.
    pub fn index(&self, cid: CommandId) -> u16 {
        cid.0 & ((1 << self.bits) - 1)
    }

    fn cid(&self, generation: u8, index: u16) -> CommandId {
        CommandId(u16::from(generation) << self.bits | index)
    }

    /// Judges a completion and delivers it. Gives its slot, whose owner, if one waits, is to be told.
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

    /// The device has lost all its commands and can no longer write: owners are told, and what
    /// nobody waits for is free again.
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

    /// The device may write to the buffers of its commands for ever: they never go back to their
    /// arena, not even when their owners drop them.
    pub fn quarantine_buffers(&self) {
        for slot in self.table.iter().filter(|slot| slot.is_in_flight()) {
            if let Some(buffer) = slot.buffer.take() {
                quarantine(&buffer);
                slot.buffer.set(Some(buffer));
            }
        }
    }

    /// The watchdog has looked. Says whether any command was in flight at its last look already.
    pub fn tick(&self) -> bool {
        let mut any_old = false;
        for slot in self.table.iter().filter(|slot| slot.is_in_flight()) {
            any_old |= slot.looks.get() > 0;
            let looks = slot.looks.get() + 1;
            slot.looks.set(looks);
            // An Abort that came before its command was fetched had no effect.
            if looks.is_power_of_two() {
                slot.aborted.set(false);
            }
        }
        any_old
    }

    /// Tells of each command in flight how often the watchdog has seen it.
    pub fn ages(&self, mut tell: impl FnMut(CommandId, u32)) {
        for (index, slot) in self.table.iter().enumerate() {
            if slot.is_in_flight() {
                tell(self.current(index as u16), slot.looks.get());
            }
        }
    }

    /// Commands in flight whose owners' deadlines have passed, and which nobody was asked to abort.
    pub fn given_up(&self, mut tell: impl FnMut(CommandId)) {
        for (index, slot) in self.table.iter().enumerate() {
            if slot.given_up.get() && slot.is_in_flight() && !slot.aborted.get() {
                tell(self.current(index as u16));
            }
        }
    }

    /// This command has exceeded its time. True if that is new.
    pub fn expire(&self, cid: CommandId) -> bool {
        self.command(cid).is_some_and(|slot| !slot.expired.replace(true))
    }

    /// The controller is asked to abort this command. True if that is new.
    pub fn mark_aborted(&self, cid: CommandId) -> bool {
        self.command(cid).is_some_and(|slot| !slot.aborted.replace(true))
    }

    /// The slot of a command in flight.
    fn command(&self, cid: CommandId) -> Option<&Slot> {
        let index = self.index(cid);
        let slot = self.table.get(usize::from(index))?;
        (slot.is_in_flight() && self.current(index) == cid).then_some(slot)
    }

    /// The number of the slot's command.
    fn current(&self, index: u16) -> CommandId {
        self.cid(self.slot(index).generation.get(), index)
    }

    /// Back to the pool, without its buffer.
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

/// A slot that somebody has. Dropped while the device has the command, it leaves the slot, and the
/// buffer in it, to the completion; else the slot is free at once.
pub(super) struct Claim<'a> {
    slots: &'a Slots,
    slot: &'a Slot,
    rt: &'a Rt,
}

impl Claim<'_> {
    /// Its number in the table.
    #[inline]
    pub fn index(&self) -> u16 {
        self.slot.index
    }

    /// From here on the buffer is the slot's.
    #[inline]
    pub fn keep(&self, buffer: Buffer) {
        assert!(self.slot().stage.get() == Stage::Claimed, "a buffer comes before its command");
        self.slot().buffer.set(Some(buffer));
    }

    /// The buffer comes back: the device has completed its command, or never got one.
    #[inline]
    pub fn release(&self) -> Option<Buffer> {
        assert!(!self.slot().is_in_flight(), "the device may still write");
        self.slot().buffer.take()
    }

    /// The same, of a slot that was given one.
    #[inline]
    pub fn take_back(&self) -> Buffer {
        self.release().expect("kept since the slot was claimed")
    }

    /// The number that the slot's next command will have.
    #[inline]
    pub fn next_cid(&self) -> CommandId {
        let slot = self.slot();
        let next = slot.generation.get() + 1;
        let next = if next == self.slots.generations { 0 } else { next };
        self.slots.cid(next, self.slot.index)
    }

    /// The number of the slot's next command, which the device is about to get.
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

    /// Waits until the command has ended.
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

    /// What the slot's last command that was completed has been completed with.
    #[inline]
    pub fn completion(&self) -> Cqe {
        self.slot().completion.get()
    }

    /// The owner's deadline has passed: the slot's command is not tried again, and ends as one that has
    /// exceeded its time. Gives its number, unless the device knows of none.
    pub fn give_up(&self) -> Option<CommandId> {
        let slot = self.slot();
        slot.given_up.set(true);
        slot.expired.set(true);
        let known = matches!(slot.stage.get(), Stage::Flying | Stage::Done);
        known.then(|| self.slots.current(self.slot.index))
    }

    /// Whether its owner's deadline has passed.
    pub fn is_given_up(&self) -> bool {
        self.slot().given_up.get()
    }

    /// Whether the watchdog has found the slot's last command to be too old.
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
                // Only while its command is in flight does an owner stand there.
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
    fn a_completion_is_delivered_once() {
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
    fn what_a_completion_may_say() {
        let rt = Rt::simulated(None, Log::Off);
        let slots = Slots::new(2);
        rt.block_on(async {
            let claim = slots.claim(&rt).await;
            let cqe = Cqe::new(claim.launch(), Status::SUCCESS);
            let validate = |cqe: Cqe| slots.deliver(&rt, &cqe, QUEUE, 3).map(|_| ());
            assert_eq!(validate(cqe.with_queue(QueueId(2), 0)), Err(Violation::WrongQueue));
            assert_eq!(validate(cqe.with_queue(QUEUE, 3)), Err(Violation::HeadOutOfRange));
            let nobody = Cqe { cid: 2.into(), ..cqe }.with_queue(QUEUE, 0);
            assert_eq!(validate(nobody), Err(Violation::NoSuchSlot));
            assert_eq!(validate(cqe.with_queue(QUEUE, 2)), Ok(()));
        });
    }

    #[test]
    fn no_command_has_the_number_that_means_none() {
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
    fn an_orphan_keeps_its_buffer_until_its_completion() {
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
    fn a_quarantined_buffer_never_comes_back() {
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
