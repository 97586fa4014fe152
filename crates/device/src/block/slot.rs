//! Local memory: one slot per command taken, with a task that lives as long as the controller.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bus::DevicePort;
use media::Media;
use runtime::Rt;
use wire::block::descriptor::{Descriptor, PAGE_BYTES};

use super::Front;
use crate::scratch_guard::Scratch;
use crate::worker::{Worker, or_cut};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    /// The command is in execution.
    Working,
    /// The command has ended; the descriptor holds its status.
    Ended,
}

pub(super) struct Slot {
    pub worker: Worker,
    pub stage: Cell<Stage>,
    /// The command, copied from host memory exactly once.
    pub descriptor: Cell<Descriptor>,
    given: Cell<bool>,
    /// Prefetched: the host has not announced it yet.
    pub ahead: Cell<bool>,
    /// Ring index of the descriptor.
    place: Cell<u32>,
    /// The ring is being disabled: the command must not write to host memory any more.
    cut: Cell<bool>,
    /// Scratch buffer, reused from command to command.
    data: RefCell<Vec<u8>>,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            worker: Worker::default(),
            stage: Cell::new(Stage::Idle),
            descriptor: Cell::default(),
            given: Cell::new(false),
            ahead: Cell::new(false),
            place: Cell::new(0),
            cut: Cell::new(false),
            data: RefCell::default(),
        }
    }
}

impl Slot {
    /// Gives a command to the slot's task.
    pub fn give(&self, rt: &Rt, descriptor: Descriptor, place: u32, ahead: bool) {
        assert!(self.is_idle(), "a block has no more commands than there are slots");
        self.descriptor.set(descriptor);
        self.place.set(place);
        self.ahead.set(ahead);
        self.stage.set(Stage::Working);
        self.cut.set(false);
        self.given.set(true);
        self.worker.begin(rt);
    }

    pub fn is_idle(&self) -> bool {
        self.stage.get() == Stage::Idle
    }

    /// Cancels the command at its current await; discards one that has ended.
    pub fn cut(&self, rt: &Rt) {
        match self.stage.get() {
            Stage::Idle => {}
            Stage::Ended => self.stage.set(Stage::Idle),
            Stage::Working => {
                self.cut.set(true);
                self.worker.wake(rt);
            }
        }
    }

    fn command(&self) -> impl Future<Output = Descriptor> + '_ {
        poll_fn(|_| match self.given.take() {
            true => Poll::Ready(self.descriptor.get()),
            false => Poll::Pending,
        })
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// The slot of the descriptor with this count.
    pub(super) fn slot(&self, count: u32) -> &Slot {
        &self.slots[count as usize % self.slots.len()]
    }

    /// Task of a slot: executes one command after another.
    pub(super) async fn work(self: Rc<Self>, number: usize) {
        let slot = &self.slots[number];
        loop {
            let descriptor = slot.command().await;
            self.rt.attach_trace(0, slot.place.get() as u16);
            let is_cut = || slot.cut.get().then_some(());
            let ended = or_cut(is_cut, pin!(self.execute(number, descriptor))).await.ok();
            self.rt.detach_trace();
            match ended {
                Some(status) => {
                    let place = u64::from(slot.place.get());
                    self.rt.log("device", "ended", place, u64::from(status.bits()));
                    slot.descriptor.set(descriptor.answered(status));
                    slot.stage.set(Stage::Ended);
                    self.turned.notify(&self.rt);
                }
                None => {
                    slot.stage.set(Stage::Idle);
                    self.quiet.notify(&self.rt);
                }
            }
        }
    }

    /// The slot's scratch buffer: one page.
    pub(super) fn lend(&self, number: usize) -> Scratch<'_, u8> {
        let mut room = Scratch::from(&self.slots[number].data);
        room.resize(PAGE_BYTES as usize, 0);
        room
    }
}
