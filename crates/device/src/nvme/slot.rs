//! The table of commands in flight: a slot, its task, and how its journey is cut short.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use bus::{DevicePort, Segment};
use media::{Extent, Media};
use runtime::Rt;
use wire::nvme::entry::{Cqe, Sqe};
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::{CommandId, Nsid, QueueId};
use zerocopy::little_endian::U64;

use super::fused::{First, Fused};
use super::{Controller, QueueKind};
use crate::faults::Effect;
use crate::worker::{Worker, or_cut};

/// A command, copied out of host memory once.
#[derive(Clone, Copy, Default)]
pub(super) struct Job {
    pub qid: QueueId,
    pub sqe: Sqe,
    pub fused: Fused,
}

/// Why a journey was cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The host asked: the command completes with this status.
    With(Status),
    /// The controller is disabled: nothing of the command reaches the host any more.
    Silently,
}

/// A place for one command in flight.
#[derive(Default)]
pub(super) struct Slot {
    pub worker: Worker,
    job: Cell<Job>,
    /// The queue and identifier of the command that occupies it.
    pub busy: Cell<Option<(QueueId, CommandId)>>,
    /// Its work is over: only its completion is still to be posted.
    pub completing: Cell<bool>,
    cut: Cell<Option<Cut>>,
    /// The namespace that its command is about, while it is an I/O command that found one.
    pub io_namespace: Cell<Option<Nsid>>,
    /// Where its command writes, and where it is to be the only one that does.
    pub writing: Cell<Option<Extent>>,
    pub alone: Cell<Option<Extent>>,
    /// The first of the pair whose second is its command, and firsts before that which have no second.
    pub first: Cell<Option<First>>,
    pub halves: RefCell<Vec<Sqe>>,
    /// Room that is kept from command to command.
    pub segments: RefCell<Vec<Segment>>,
    pub part: RefCell<Vec<Segment>>,
    pub list: RefCell<Vec<U64>>,
    pub descriptors: RefCell<Vec<Descriptor>>,
    /// Bytes of the command's data that go into bit buckets, ascending: nearly always none.
    pub discarded: RefCell<Vec<Range<u32>>>,
    pub data: RefCell<Vec<u8>>,
    /// Metadata of its blocks.
    pub tuples: RefCell<Vec<u8>>,
    pub ranges: RefCell<Vec<Extent>>,
    /// What strikes the command when it has been carried out. Not looked at where there are no faults.
    pub after: Cell<Effect>,
}

impl Slot {
    /// Hands a command to the slot's task.
    #[inline]
    pub fn give(&self, rt: &Rt, qid: QueueId, sqe: &Sqe, fused: Fused) {
        self.busy.set(Some((qid, sqe.id())));
        self.cut.set(None);
        self.job.set(Job { qid, sqe: *sqe, fused });
        self.worker.begin(rt);
    }

    /// Cuts the journey of the command in this slot; the first reason counts, but for a reset.
    pub fn cut(&self, rt: &Rt, why: Cut) {
        if self.busy.get().is_some() && (self.cut.get().is_none() || why == Cut::Silently) {
            self.cut.set(Some(why));
            self.worker.wake(rt);
        }
    }

    /// Returns when it was given a command.
    #[inline]
    fn given(&self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|_| match self.busy.get() {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        })
    }

    /// Runs a journey until it ends or is cut.
    #[inline]
    pub fn or_cut<T>(
        &self,
        trace: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<T, Cut>> {
        or_cut(|| self.cut.get(), trace)
    }

    /// From here on only a reset cuts the journey: the command completes.
    fn only_silently(&self) {
        if self.cut.get() != Some(Cut::Silently) {
            self.cut.set(None);
        }
    }
}

/// How a command ends, if it does.
pub(super) enum Outcome {
    /// With an entry in its completion queue.
    Done(Status, u32),
    /// It is held, and completes when there is something to say.
    Held,
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// The life of a slot: one command after another.
    pub(super) async fn work(self: Rc<Self>, number: u16) {
        let slot = &self.slots[usize::from(number)];
        loop {
            slot.given().await;
            let job = slot.job.get();
            self.rt.attach_trace(job.qid.0, job.sqe.cid.get());
            self.rt.record(self.stages.dispatch);
            if !slot.halves.borrow().is_empty() {
                slot.completing.set(true);
                Box::pin(self.tell_halves(slot, job.qid)).await;
                slot.completing.set(false);
            }
            let outcome = match slot.or_cut(pin!(self.execute(number, &job))).await {
                Ok(outcome) => Some(outcome),
                Err(Cut::With(status)) => Some(Outcome::Done(status, 0)),
                Err(Cut::Silently) => None,
            };
            if let Some(Outcome::Done(status, result)) = outcome {
                if self.faults.is_on() {
                    let _ =
                        slot.or_cut(Box::pin(self.before_completion(number, &job)).as_mut()).await;
                }
                slot.only_silently();
                slot.completing.set(true);
                self.quiet.notify(&self.rt);
                if let Some(first) = slot.first.take() {
                    Box::pin(self.tell_first(slot, &job, first)).await;
                }
                let cqe = Cqe::new(CommandId(job.sqe.cid.get()), status).with_result(result);
                let _ = slot.or_cut(pin!(self.complete(job.qid, cqe))).await;
            }
            self.rt.detach_trace();
            slot.busy.set(None);
            slot.io_namespace.set(None);
            slot.completing.set(false);
            slot.first.set(None);
            slot.cut.set(None);
            self.unclaim(slot);
            self.give_slot(QueueKind::of(job.qid), number);
            self.quiet.notify(&self.rt);
        }
    }

    async fn execute(&self, number: u16, job: &Job) -> Outcome {
        if self.power.gate.get() && job.qid != QueueId::ADMIN && self.is_held_by_power() {
            Box::pin(self.awake()).await;
        }
        self.port.spend(self.costs.parse).await;
        let injected =
            if self.faults.is_on() { Box::pin(self.injected(number, job)).await } else { None };
        let outcome = match (injected, QueueKind::of(job.qid)) {
            (Some(outcome), _) => outcome,
            // Boxed, so that it does not make room for itself in the future of every read.
            (None, QueueKind::Admin) => Box::pin(self.admin(number, &job.sqe)).await,
            (None, QueueKind::Io) if job.fused != Fused::Alone => {
                Outcome::Done(Box::pin(self.fused(number, job)).await, 0)
            }
            (None, QueueKind::Io) => {
                let (status, result) = self.io(number, &job.sqe).await;
                Outcome::Done(status, result)
            }
        };
        match outcome {
            Outcome::Done(status, result) if !status.is_ok() => {
                Outcome::Done(self.note_error(job, status), result)
            }
            outcome => outcome,
        }
    }
}
