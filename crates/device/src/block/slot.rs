//! Local memory: a slot for each command that was taken, whose task lives as long as the front end.

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
    /// Its command is worked on.
    Working,
    /// Its command has ended, and the descriptor says how.
    Ended,
}

/// A place for one command.
pub(super) struct Slot {
    pub worker: Worker,
    pub stage: Cell<Stage>,
    /// The command, copied out of host memory once.
    pub descriptor: Cell<Descriptor>,
    given: Cell<bool>,
    /// The host has not announced it yet.
    pub ahead: Cell<bool>,
    /// The place of its descriptor in the ring.
    place: Cell<u32>,
    /// The ring is being disabled: nothing of the command reaches the host any more.
    cut: Cell<bool>,
    /// Room that is kept from command to command.
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
    /// Hands a command to the slot's task.
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

    /// Cuts the journey of its command where it waits; what has ended is forgotten.
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
    /// The slot of the descriptor of this count.
    pub(super) fn slot(&self, count: u32) -> &Slot {
        &self.slots[count as usize % self.slots.len()]
    }

    /// The life of a slot: one command after another.
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

    /// A slot's buffer: a page.
    pub(super) fn lend(&self, number: usize) -> Scratch<'_, u8> {
        let mut room = Scratch::from(&self.slots[number].data);
        room.resize(PAGE_BYTES as usize, 0);
        room
    }
}
