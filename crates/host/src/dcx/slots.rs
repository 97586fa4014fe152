//! Command slots of a queue: owners, buffers that the device may still write, ended commands.
//!
//! ```text
//!             claim          launch          tags, report         let go
//!     Free ──────────► Claimed ──────► Flying ──────────► Done ──────────► Free
//!      ▲                 │               │ │ fence, abandon        let go │ launch again
//!      │     let go      │    let go     │ └──────────► Lost ──────┴──────► ...
//!      ├─────────────────┘               ▼
//!      └── tags, report, fence, abandon ── Quarantined
//! ```
//!
//! From launch until the device can no longer write, the slot owns the buffer.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::Poll;

use bus::{Buffer, Memory};
use runtime::{Parked, Pool, Rt};
use wire::BusAddr;
use wire::dcx::report::Code;
use wire::dcx::tag::{Places, Tag};

use super::tags::Marks;
use super::{DEPTH_MAX, SLOT_BITS};
use crate::quarantine;

/// Distinct uses of a slot: one less than the bits allow, because all ones is the name of a fence.
const GENERATIONS: u8 = (1 << (16 - SLOT_BITS)) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the pool, without an owner.
    Free,
    /// Owned; the device has not seen a command.
    Claimed,
    /// In flight, with an owner that waits.
    Flying,
    /// In flight, without an owner.
    Quarantined,
    /// Ended; the owner has not noticed yet.
    Done,
    /// A fence behind it was passed, or the queue was disabled; the owner has not noticed yet.
    Lost,
}

/// A read in flight, with the address of the first tag that has not vanished.
struct Flight {
    at: BusAddr,
    tag: Tag,
    index: u16,
}

/// The tags after that one.
#[derive(Clone, Copy)]
struct Rest {
    buffer: BusAddr,
    places: Places,
}

struct Slot {
    stage: Cell<Stage>,
    /// Use count, for request traces.
    generation: Cell<u8>,
    /// Number of its command in the ring.
    command: Cell<u32>,
    /// Tags after the one that is polled; `None` if a report ends the command.
    rest: Cell<Option<Rest>>,
    /// Number of watchdog checks that found this command in flight, and the number after which it is late.
    looks: Cell<u32>,
    patience: Cell<u32>,
    end: Cell<Result<(), Code>>,
    owner: Cell<Option<Parked>>,
    buffer: Cell<Option<Buffer>>,
}

/// End of a command, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Completed, or ended by a report.
    Done(Result<(), Code>),
    /// A fence behind it was passed, or the queue was disabled, and it had not ended.
    Lost,
}

/// Reason why a report is invalid. The number appears in the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// The slot index is out of range.
    NoSuchSlot = 1,
    /// No command in flight in this slot, or another one.
    NotInFlight = 2,
    /// A report that a read is done, which only tags can signal.
    NotAReport = 3,
}

/// Command slots of one queue.
pub(super) struct Slots {
    table: Box<[Slot]>,
    free: Pool<u16>,
    /// Reads in flight, oldest first.
    flying: RefCell<Vec<Flight>>,
}

impl Slots {
    /// Creates `depth` free slots.
    pub fn new(depth: u16) -> Slots {
        assert!((1..=DEPTH_MAX).contains(&depth));
        let slot = |_| Slot {
            stage: Cell::new(Stage::Free),
            generation: Cell::new(0),
            command: Cell::new(0),
            rest: Cell::new(None),
            looks: Cell::new(0),
            patience: Cell::new(0),
            end: Cell::new(Ok(())),
            owner: Cell::new(None),
            buffer: Cell::new(None),
        };
        Slots {
            table: (0..depth).map(slot).collect(),
            free: Pool::new((0..depth).rev()),
            flying: RefCell::new(Vec::with_capacity(usize::from(depth))),
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

    /// Returns true if a command is in flight.
    pub fn any_in_flight(&self) -> bool {
        self.free.available() < self.table.len() && self.table.iter().any(Slot::is_in_flight)
    }

    /// Waits in FIFO order for a slot.
    pub async fn claim<'a>(&'a self, rt: &'a Rt) -> Claim<'a> {
        let index = self.free.take(rt).await;
        let slot = self.slot(index);
        assert_eq!(slot.stage.get(), Stage::Free, "the pool holds free slots");
        slot.stage.set(Stage::Claimed);
        slot.generation.set((slot.generation.get() + 1) % GENERATIONS);
        Claim { slots: self, rt, index }
    }

    /// Returns true if all tags of some read have vanished. Vanished tags are not loaded again.
    #[inline]
    pub fn any_settled(&self, memory: &Memory) -> bool {
        self.flying.borrow_mut().iter_mut().any(|flight| self.settles(flight, memory))
    }

    #[inline]
    fn settles(&self, flight: &mut Flight, memory: &Memory) -> bool {
        loop {
            let stands = match flight.tag.is_wide() {
                false => memory.load_u32(flight.at).map(|word| flight.tag.is_in(word)),
                true => {
                    memory.load_u64(BusAddr(flight.at.0 - 4)).map(|end| flight.tag.is_in_end(end))
                }
            };
            if stands.expect("judged when the buffer was given") {
                return false;
            }
            let rest = &self.slot(flight.index).rest;
            let mut left = rest.get().expect("a read has them");
            let Some(next) = left.places.next() else { return true };
            flight.at = BusAddr(left.buffer.0 + u64::from(next));
            rest.set(Some(left));
        }
    }

    /// Ends the reads whose tags have all vanished; calls `tell` for each slot.
    pub fn settle(&self, rt: &Rt, memory: &Memory, mut tell: impl FnMut(u16)) {
        let mut at = 0;
        loop {
            // A woken owner may act at once, and add to the list.
            let mut flying = self.flying.borrow_mut();
            let Some(flight) = flying.get_mut(at) else { return };
            if self.settles(flight, memory) {
                let index = flying.remove(at).index;
                drop(flying);
                tell(self.named(index));
                self.end(rt, index, Ok(()));
            } else {
                at += 1;
            }
        }
    }

    /// Slot index and use count, as in commands and reports.
    fn named(&self, index: u16) -> u16 {
        u16::from(self.slot(index).generation.get()) << SLOT_BITS | index
    }

    /// Validates a report and delivers it.
    pub fn deliver(&self, rt: &Rt, name: u16, command: u32, code: Code) -> Result<(), Violation> {
        let index = name & (DEPTH_MAX - 1);
        let slot = self.table.get(usize::from(index)).ok_or(Violation::NoSuchSlot)?;
        if !slot.is_in_flight() || slot.command.get() != command {
            return Err(Violation::NotInFlight);
        }
        let is_read = slot.rest.get().is_some();
        if is_read && code == Code::DONE {
            return Err(Violation::NotAReport);
        }
        if is_read {
            self.flying.borrow_mut().retain(|flight| flight.index != index);
        }
        let end = if code == Code::DONE { Ok(()) } else { Err(code) };
        self.end(rt, index, end);
        Ok(())
    }

    fn end(&self, rt: &Rt, index: u16, end: Result<(), Code>) {
        let slot = self.slot(index);
        slot.rest.set(None);
        if slot.stage.get() == Stage::Quarantined {
            self.recycle(rt, index);
        } else {
            slot.end.set(end);
            slot.stage.set(Stage::Done);
            if let Some(owner) = slot.owner.take() {
                rt.hand_over(owner);
            }
        }
    }

    /// Ends the commands before a fence that was passed: none of their writes can reach host memory any more.
    /// Slots without an owner are freed; commands with an owner that have not ended are lost.
    pub fn pass(&self, rt: &Rt, fence: u32) {
        let before = |command: u32| fence.wrapping_sub(command).wrapping_sub(1) < u32::MAX / 2;
        self.lose(rt, |slot| before(slot.command.get()));
    }

    /// Marks all commands as lost: the queue is disabled.
    pub fn abandon(&self, rt: &Rt) {
        self.lose(rt, |_| true);
    }

    fn lose(&self, rt: &Rt, which: impl Fn(&Slot) -> bool) {
        for (index, slot) in (0..).zip(&self.table) {
            if !slot.is_in_flight() || !which(slot) {
                continue;
            }
            slot.rest.set(None);
            self.flying.borrow_mut().retain(|flight| flight.index != index);
            if slot.stage.get() == Stage::Quarantined {
                self.recycle(rt, index);
            } else {
                slot.stage.set(Stage::Lost);
                slot.wake(rt);
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

    /// Counts a watchdog check; calls `timed_out` for each read that became late. Returns the number of late
    /// commands, with or without an owner: each stays in flight until it ends, or a fence is passed.
    pub fn tick(&self, mut timed_out: impl FnMut()) -> u32 {
        let mut late = 0;
        for slot in self.table.iter().filter(|slot| slot.is_in_flight()) {
            let was_late = slot.is_late();
            slot.looks.set(slot.looks.get().saturating_add(1));
            if slot.is_late() {
                late += 1;
                if !was_late && slot.rest.get().is_some() {
                    timed_out();
                }
            }
        }
        late
    }

    /// Returns a slot to the pool and drops its buffer.
    fn recycle(&self, rt: &Rt, index: u16) {
        let slot = self.slot(index);
        slot.stage.set(Stage::Free);
        slot.buffer.take();
        self.free.give(rt, index);
    }

    fn slot(&self, index: u16) -> &Slot {
        &self.table[usize::from(index)]
    }
}

impl Slot {
    fn is_in_flight(&self) -> bool {
        matches!(self.stage.get(), Stage::Flying | Stage::Quarantined)
    }

    fn is_late(&self) -> bool {
        self.looks.get() > self.patience.get()
    }

    fn wake(&self, rt: &Rt) {
        if let Some(owner) = self.owner.take() {
            rt.unpark(owner);
        }
    }
}

/// An owned slot. If it is dropped while the command is in flight, the end of the command frees the slot and
/// its buffer; otherwise the slot is freed at once.
pub(super) struct Claim<'a> {
    slots: &'a Slots,
    rt: &'a Rt,
    index: u16,
}

impl Claim<'_> {
    /// Slot index with use count.
    pub fn name(&self) -> u16 {
        self.slots.named(self.index)
    }

    /// Moves the buffer into the slot.
    pub fn keep(&self, buffer: Buffer) {
        assert!(self.slot().stage.get() == Stage::Claimed, "a buffer comes before its command");
        self.slot().buffer.set(Some(buffer));
    }

    /// Takes the buffer back, if any. The device has ended the command, or never received one.
    pub fn release(&self) -> Option<Buffer> {
        assert!(!self.slot().is_in_flight(), "the device may still write");
        self.slot().buffer.take()
    }

    /// Marks the slot as in flight. The command is late after `patience` watchdog checks. A read ends when
    /// its marks have vanished.
    pub fn launch(&self, command: u32, marks: Option<(BusAddr, Marks)>, patience: u32) {
        let slot = self.slot();
        assert!(!slot.is_in_flight(), "a slot has one command at a time");
        slot.command.set(command);
        slot.looks.set(0);
        slot.patience.set(patience);
        slot.stage.set(Stage::Flying);
        let Some((buffer, Marks { tag, mut places, .. })) = marks else { return };
        let first = places.next().expect("a buffer has at least one tag");
        slot.rest.set(Some(Rest { buffer, places }));
        let at = BusAddr(buffer.0 + u64::from(first));
        self.slots.flying.borrow_mut().push(Flight { at, tag, index: self.index });
    }

    /// Waits until the command has ended: the device can no longer write to its buffer, or is gone.
    pub async fn end(&self) -> End {
        let slot = self.slot();
        poll_fn(|cx| match slot.stage.get() {
            Stage::Done => Poll::Ready(End::Done(slot.end.get())),
            Stage::Lost => Poll::Ready(End::Lost),
            _ => {
                slot.owner.set(Some(self.rt.park(cx)));
                Poll::Pending
            }
        })
        .await
    }

    /// Returns true if the watchdog has found the command late.
    pub fn is_late(&self) -> bool {
        self.slot().is_late()
    }

    fn slot(&self) -> &Slot {
        self.slots.slot(self.index)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let slot = self.slot();
        slot.owner.take();
        match slot.stage.get() {
            Stage::Flying => slot.stage.set(Stage::Quarantined),
            Stage::Claimed | Stage::Done | Stage::Lost => self.slots.recycle(self.rt, self.index),
            Stage::Free | Stage::Quarantined => unreachable!("a claimed slot is neither"),
        }
    }
}
