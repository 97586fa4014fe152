//! Commands in flight: a slot each, whose task lives as long as the front end.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bus::DevicePort;
use media::Media;
use runtime::Rt;
use wire::dcx::command::Entry;

use super::Front;
use crate::faults::Effect;
use crate::scratch_guard::Scratch;
use crate::worker::{Worker, or_cut};

/// A command, copied out of host memory once.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub queue: u16,
    pub entry: Entry,
}

/// A place for one command in flight.
#[derive(Default)]
pub(super) struct Slot {
    pub worker: Worker,
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
    /// Hands a command to the slot's task.
    pub fn give(&self, rt: &Rt, job: Job) {
        self.busy.set(Some((job.queue, job.entry.number())));
        self.cut.set(false);
        self.job.set(Some(job));
        self.worker.begin(rt);
    }

    /// Whether it holds a command of this queue.
    pub fn is_of(&self, queue: u16) -> bool {
        self.busy.get().is_some_and(|(of, _)| of == queue)
    }

    /// Cuts the journey of a command of this queue where it waits.
    pub fn cut(&self, rt: &Rt, queue: u16) {
        if self.is_of(queue) {
            self.cut.set(true);
            self.worker.wake(rt);
        }
    }

    fn job(&self) -> impl Future<Output = Job> + '_ {
        poll_fn(|_| self.job.take().map_or(Poll::Pending, Poll::Ready))
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// The life of a slot: one command after another.
    pub(super) async fn work(self: Rc<Self>, number: u16) {
        let slot = &self.slots[usize::from(number)];
        loop {
            let job = slot.job().await;
            let traces = self.options.traces_from + job.queue;
            self.rt.attach_trace(traces, job.entry.slot());
            self.rt.record(self.stages.dispatch);
            let is_cut = || slot.cut.get().then_some(());
            let _ = or_cut(is_cut, pin!(self.execute(number, job))).await;
            self.rt.detach_trace();
            slot.busy.set(None);
            self.idle.give(&self.rt, number);
            self.quiet.notify(&self.rt);
        }
    }

    /// A slot's buffer, with room for so many bytes at least.
    pub(super) fn lend(&self, number: u16, bytes: u32) -> Scratch<'_, u8> {
        Scratch::with_room(&self.slots[usize::from(number)].data, bytes)
    }
}
