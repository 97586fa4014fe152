//! Commands in flight: a slot each, whose task lives as long as the front end.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use bus::DevicePort;
use media::Media;
use runtime::{Rt, TaskId};
use wire::dcx::command::Entry;

use super::Front;
use crate::faults::Effect;
use crate::lent::Lent;

/// A command, copied out of host memory once.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub queue: u16,
    pub entry: Entry,
}

/// A place for one command in flight.
#[derive(Default)]
pub(super) struct Slot {
    task: Cell<Option<TaskId>>,
    job: Cell<Option<Job>>,
    /// The queue and number of the command that it holds, until it is idle again.
    pub busy: Cell<Option<(u16, u32)>>,
    /// Its queue is being disabled: nothing of the command reaches the host any more.
    cut: Cell<bool>,
    /// Room that is kept from command to command.
    data: RefCell<Vec<u8>>,
    /// What strikes the command when it has been carried out. Not looked at where there are no faults.
    pub after: Cell<Effect>,
}

impl Slot {
    pub fn bind(&self, task: TaskId) {
        self.task.set(Some(task));
    }

    /// Hands a command to the slot's task.
    pub fn give(&self, rt: &Rt, job: Job) {
        self.busy.set(Some((job.queue, job.entry.number())));
        self.cut.set(false);
        self.job.set(Some(job));
        if let Some(task) = self.task.get() {
            rt.hand_over_to(task);
        }
    }

    fn wake(&self, rt: &Rt) {
        if let Some(task) = self.task.get() {
            rt.wake(task);
        }
    }

    /// Whether it holds a command of this queue.
    pub fn is_of(&self, queue: u16) -> bool {
        self.busy.get().is_some_and(|(of, _)| of == queue)
    }

    /// Cuts the journey of a command of this queue where it waits.
    pub fn cut(&self, rt: &Rt, queue: u16) {
        if self.is_of(queue) {
            self.cut.set(true);
            self.wake(rt);
        }
    }

    fn job(&self) -> impl Future<Output = Job> + '_ {
        poll_fn(|_| self.job.take().map_or(Poll::Pending, Poll::Ready))
    }

    /// Runs a journey until it ends or is cut. It lies with the caller: it is not moved for every command.
    #[inline]
    async fn or_cut(&self, mut journey: Pin<&mut impl Future<Output = ()>>) {
        poll_fn(|cx| match self.cut.get() {
            true => Poll::Ready(()),
            false => journey.as_mut().poll(cx),
        })
        .await;
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// The life of a slot: one command after another.
    pub(super) async fn work(self: Rc<Self>, number: u16) {
        let slot = &self.slots[usize::from(number)];
        loop {
            let job = slot.job().await;
            let journeys = self.options.journeys_from + job.queue;
            self.rt.join_journey(journeys, job.entry.slot());
            self.rt.mark(self.stages.dispatch);
            slot.or_cut(pin!(self.execute(number, job))).await;
            self.rt.part_from_journey();
            slot.busy.set(None);
            self.idle.give(&self.rt, number);
            self.quiet.notify(&self.rt);
        }
    }

    /// A slot's buffer, with room for so many bytes at least.
    pub(super) fn lend(&self, number: u16, bytes: usize) -> Lent<'_, u8> {
        let mut room = Lent::from(&self.slots[usize::from(number)].data);
        let length = room.len().max(bytes);
        room.resize(length, 0);
        room
    }
}
