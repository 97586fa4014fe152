//! The command slots of one queue: who waits, what the device may still write to, what has ended.
//!
//! ```text
//!             claim          launch          tags, report         let go
//!     Free ──────────► Claimed ──────► Flying ──────────► Done ──────────► Free
//!      ▲                 │               │ │ abandon        let go │ launch again
//!      │     let go      │   too late,   │ └──────────► Lost ──────┴──────► ...
//!      ├─────────────────┘   or let go   ▼
//!      └── tags, report, fence, abandon ── Quarantined
//! ```
//!
//! From launch until the device can no longer write, a slot owns its buffer.

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

/// Uses of a slot that are told apart. One less than the bits can tell: all ones is a fence's name.
const GENERATIONS: u8 = (1 << (16 - SLOT_BITS)) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// Somebody has it, and the device knows nothing of it.
    Claimed,
    /// The device has the command, and its owner waits.
    Flying,
    /// The device has the command, and nobody waits.
    Quarantined,
    /// It has ended, and its owner will see.
    Done,
    /// The queue was disabled under it; its owner will see.
    Lost,
}

/// A read whose tags are watched: where the first stands that has not vanished.
struct Flight {
    at: BusAddr,
    tag: Tag,
    index: u16,
}

/// The tags behind that one.
#[derive(Clone, Copy)]
struct Rest {
    buffer: BusAddr,
    places: Places,
}

struct Slot {
    stage: Cell<Stage>,
    /// Counts its uses, for whoever follows journeys.
    generation: Cell<u8>,
    /// The number of its command.
    command: Cell<u32>,
    /// The tags behind the one that is watched; none: a report ends the command.
    rest: Cell<Option<Rest>>,
    /// How often the watchdog has seen this command in flight, and after how often it is too late.
    looks: Cell<u32>,
    patience: Cell<u32>,
    /// It took too long: its owner is told.
    late: Cell<bool>,
    end: Cell<Result<(), Code>>,
    owner: Cell<Option<Parked>>,
    buffer: Cell<Option<Buffer>>,
}

/// How a command ended, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As it should, or with a report.
    Done(Result<(), Code>),
    /// It takes too long. The slot, and the buffer in it, stay with the device.
    Late,
    Lost,
}

/// Why a report makes no sense. The number goes into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// There is no such slot.
    NoSuchSlot = 1,
    /// The slot has no command in flight, or another.
    NotInFlight = 2,
    /// It says that a read is done, which only tags can say.
    NotAReport = 3,
}

/// The slots of one queue.
pub(super) struct Slots {
    table: Box<[Slot]>,
    free: Pool<u16>,
    flying: RefCell<Vec<Flight>>,
}

impl Slots {
    /// As many free slots as commands may be in flight.
    pub fn new(depth: u16) -> Slots {
        assert!((1..=DEPTH_MAX).contains(&depth));
        let slot = |_| Slot {
            stage: Cell::new(Stage::Free),
            generation: Cell::new(0),
            command: Cell::new(0),
            rest: Cell::new(None),
            looks: Cell::new(0),
            patience: Cell::new(0),
            late: Cell::new(false),
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

    /// How many there are.
    pub fn depth(&self) -> u16 {
        self.table.len() as u16
    }

    /// How many nobody has.
    pub fn available(&self) -> usize {
        self.free.available()
    }

    /// Whether the device has any command.
    pub fn any_in_flight(&self) -> bool {
        self.free.available() < self.table.len() && self.table.iter().any(Slot::is_in_flight)
    }

    /// Waits for a turn, and takes a slot.
    pub async fn claim<'a>(&'a self, rt: &'a Rt) -> Claim<'a> {
        let index = self.free.take(rt).await;
        let slot = self.slot(index);
        assert_eq!(slot.stage.get(), Stage::Free, "the pool holds free slots");
        slot.stage.set(Stage::Claimed);
        slot.generation.set((slot.generation.get() + 1) % GENERATIONS);
        Claim { slots: self, rt, index }
    }

    /// Whether some command's tags have all vanished. What has vanished is not looked at again.
    #[inline]
    pub fn any_settled(&self, memory: &Memory) -> bool {
        self.flying.borrow_mut().iter_mut().any(|flight| self.settles(flight, memory))
    }

    #[inline]
    fn settles(&self, flight: &mut Flight, memory: &Memory) -> bool {
        loop {
            let word = memory.load_u32(flight.at).expect("judged when the buffer was given");
            if flight.tag.is_in(word) {
                return false;
            }
            let rest = &self.slot(flight.index).rest;
            let mut left = rest.get().expect("a read has them");
            let Some(next) = left.places.next() else { return true };
            flight.at = BusAddr(left.buffer.0 + u64::from(next));
            rest.set(Some(left));
        }
    }

    /// Ends the commands whose tags have all vanished; `tell` hears of each slot.
    pub fn settle(&self, rt: &Rt, memory: &Memory, mut tell: impl FnMut(u16)) {
        let mut at = 0;
        loop {
            // Who is told may act at once, and add to the list.
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

    /// A slot's number, and which use of it this is: as commands and reports carry it.
    fn named(&self, index: u16) -> u16 {
        u16::from(self.slot(index).generation.get()) << SLOT_BITS | index
    }

    /// Judges a report and delivers it.
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

    /// A fence of this number has been passed: nothing of the commands before it reaches host memory
    /// any more. Those that nobody waits for are free again; one that somebody still waits for and that
    /// never ended is lost.
    pub fn pass(&self, rt: &Rt, fence: u32) {
        let before = |command: u32| fence.wrapping_sub(command).wrapping_sub(1) < u32::MAX / 2;
        self.lose(rt, |slot| before(slot.command.get()));
    }

    /// The queue is disabled: all its commands are lost.
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

    /// The watchdog looks: tells owners whose commands take too long, and gives how many commands do,
    /// waited for or not.
    pub fn tick(&self, rt: &Rt) -> u32 {
        let mut late = 0;
        for slot in self.table.iter().filter(|slot| slot.is_in_flight()) {
            slot.looks.set(slot.looks.get() + 1);
            if slot.looks.get() > slot.patience.get() {
                late += 1;
                if !slot.late.replace(true) {
                    slot.wake(rt);
                }
            }
        }
        late
    }

    /// Back to the pool, without its buffer.
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

    fn wake(&self, rt: &Rt) {
        if let Some(owner) = self.owner.take() {
            rt.unpark(owner);
        }
    }
}

/// A slot that somebody has. Dropped while the device has the command, it leaves the slot, and the
/// buffer in it, to the command's end; else the slot is free at once.
pub(super) struct Claim<'a> {
    slots: &'a Slots,
    rt: &'a Rt,
    index: u16,
}

impl Claim<'_> {
    /// Its number in the table, and which use of it this is.
    pub fn name(&self) -> u16 {
        self.slots.named(self.index)
    }

    /// From here on the buffer is the slot's.
    pub fn keep(&self, buffer: Buffer) {
        assert!(self.slot().stage.get() == Stage::Claimed, "a buffer comes before its command");
        self.slot().buffer.set(Some(buffer));
    }

    /// The length of its buffer, bytes.
    pub fn buffer_bytes(&self) -> usize {
        let buffer = self.slot().buffer.take();
        let bytes = buffer.as_ref().map_or(0, Buffer::bytes);
        self.slot().buffer.set(buffer);
        bytes
    }

    /// The buffer comes back: the device has ended its command, or never got one.
    pub fn release(&self) -> Option<Buffer> {
        assert!(!self.slot().is_in_flight(), "the device may still write");
        self.slot().buffer.take()
    }

    /// The device is about to get this command, which is too late after so many looks of the watchdog.
    /// A read ends when its marks have vanished.
    pub fn launch(&self, command: u32, marks: Option<(BusAddr, Marks)>, patience: u32) {
        let slot = self.slot();
        assert!(!slot.is_in_flight(), "a slot has one command at a time");
        slot.command.set(command);
        slot.looks.set(0);
        slot.patience.set(patience);
        slot.late.set(false);
        slot.stage.set(Stage::Flying);
        let Some((buffer, Marks { tag, mut places, .. })) = marks else { return };
        let first = places.next().expect("a buffer has at least one tag");
        slot.rest.set(Some(Rest { buffer, places }));
        let at = BusAddr(buffer.0 + u64::from(first));
        self.slots.flying.borrow_mut().push(Flight { at, tag, index: self.index });
    }

    /// Waits until the command has ended, or takes too long.
    pub async fn end(&self) -> End {
        let slot = self.slot();
        poll_fn(|cx| match slot.stage.get() {
            Stage::Done => Poll::Ready(End::Done(slot.end.get())),
            Stage::Lost => Poll::Ready(End::Lost),
            _ if slot.late.get() => Poll::Ready(End::Late),
            _ => {
                slot.owner.set(Some(self.rt.park(cx)));
                Poll::Pending
            }
        })
        .await
    }

    /// Waits until the device can no longer write to the buffer of a command that is late.
    pub async fn end_of_quarantine(&self) -> End {
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
