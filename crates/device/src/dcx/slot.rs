//! Commands in flight: one slot each, with a task that lives as long as the controller.

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

/// A command, copied from host memory exactly once.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub queue: u16,
    pub entry: Entry,
}

/// Slot for one command in flight.
#[derive(Default)]
pub(super) struct Slot {
    pub worker: Worker,
    job: Cell<Option<Job>>,
    /// Queue and number of the current command. `None` if idle.
    pub busy: Cell<Option<(u16, u32)>>,
    /// The queue is being disabled: the command must not write to host memory any more.
    cut: Cell<bool>,
    /// Scratch buffer, reused from command to command.
    data: RefCell<Vec<u8>>,
    /// Fault to inject after execution. Unused if fault injection is off.
    pub after: Cell<Effect>,
}

impl Slot {
    /// Gives a command to the slot's task.
    pub fn give(&self, rt: &Rt, job: Job) {
        self.busy.set(Some((job.queue, job.entry.number())));
        self.cut.set(false);
        self.job.set(Some(job));
        self.worker.begin(rt);
    }

    /// Returns true if the slot holds a command of this queue.
    pub fn is_of(&self, queue: u16) -> bool {
        self.busy.get().is_some_and(|(of, _)| of == queue)
    }

    /// Cancels a command of this queue at its current await.
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
    /// Task of a slot: executes one command after another.
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

    /// The slot's scratch buffer, with at least `bytes` bytes.
    pub(super) fn lend(&self, number: u16, bytes: u32) -> Scratch<'_, u8> {
        Scratch::with_room(&self.slots[usize::from(number)].data, bytes)
    }
}
