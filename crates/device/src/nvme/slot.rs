//! The table of commands in flight: slots, their tasks, and cancellation.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::{Index, Range};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use bus::{DevicePort, Segment};
use media::{Extent, Media};
use runtime::{Pool, Rt, Signal, Time};
use wire::nvme::dsm::Context;
use wire::nvme::entry::{Cqe, Sqe};
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::{CommandId, Nsid, QueueId};
use zerocopy::little_endian::U64;

use super::{ADMIN_SLOTS, Controller};
use crate::faults::{Effect, Order};
use crate::meter::Kind;
use crate::worker::{Worker, or_cut};

/// Role of a command in a fused pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fused {
    /// Not fused.
    #[default]
    Alone,
    /// Second of a pair; its slot holds the first.
    Second,
    /// One of a pair without its counterpart.
    Half,
}

/// The first command of the pair in a slot.
#[derive(Clone, Copy)]
pub(super) struct First {
    pub sqe: Sqe,
    /// Status for its completion, so far.
    pub status: Status,
}

/// A command, copied from host memory exactly once.
#[derive(Clone, Copy, Default)]
pub(super) struct Job {
    pub qid: QueueId,
    pub sqe: Sqe,
    pub fused: Fused,
    /// Status of a command that was executed before it came to the slot, and waits for its completion.
    pub executed: Option<Status>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Requested by the host: the command completes with this status.
    With(Status),
    /// The controller is being disabled: the command must not access host memory any more.
    Silently,
}

/// Slot for one command in flight.
#[derive(Default)]
pub(super) struct Slot {
    pub worker: Worker,
    job: Cell<Job>,
    /// Queue and identifier of the current command. `None` if idle.
    pub busy: Cell<Option<(QueueId, CommandId)>>,
    /// Execution is complete; only the completion is still to be posted.
    pub completing: Cell<bool>,
    cut: Cell<Option<Cut>>,
    /// Namespace of an I/O command, once found.
    pub io_namespace: Cell<Option<Nsid>>,
    /// Blocks that the command writes; blocks that it claims exclusively (next field).
    pub writing: Cell<Option<Extent>>,
    pub alone: Cell<Option<Extent>>,
    /// First of a fused pair with the current command as second; unpaired firsts that precede it (next
    /// field).
    pub first: Cell<Option<First>>,
    pub halves: RefCell<Vec<Sqe>>,
    /// Scratch buffers, reused from command to command.
    pub segments: RefCell<Vec<Segment>>,
    pub part: RefCell<Vec<Segment>>,
    pub list: RefCell<Vec<U64>>,
    pub descriptors: RefCell<Vec<Descriptor>>,
    /// Ranges of the command's data in bit buckets, ascending: almost always none.
    pub discarded: RefCell<Vec<Range<u32>>>,
    pub data: RefCell<Vec<u8>>,
    /// Metadata of the command's blocks.
    pub tuples: RefCell<Vec<u8>>,
    pub ranges: RefCell<Vec<Extent>>,
    /// Hints of these ranges.
    pub contexts: RefCell<Vec<Context>>,
    /// Places of the command's mapping units.
    pub places: RefCell<Vec<u32>>,
    /// Command Specific Information of the error log, if the command fails; otherwise zero.
    pub specific: Cell<u64>,
    /// Fault to inject after execution. Unused if fault injection is off.
    pub after: Cell<Effect>,
}

/// The admin queue, or an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueKind {
    Admin,
    Io,
}

impl QueueKind {
    pub fn of(qid: QueueId) -> QueueKind {
        if qid == QueueId::ADMIN { QueueKind::Admin } else { QueueKind::Io }
    }
}

/// The slots, by number: first those for admin commands.
pub(super) struct Slots {
    table: Rc<[Slot]>,
    idle: Pool<u16>,
    idle_admin: Pool<u16>,
    /// Notified when a slot of any controller of the subsystem becomes idle.
    pub quiet: Rc<Signal>,
}

impl Slots {
    pub fn new(table: Rc<[Slot]>, quiet: Rc<Signal>) -> Slots {
        let all = table.len() as u16;
        Slots {
            table,
            idle: Pool::new((ADMIN_SLOTS..all).rev()),
            idle_admin: Pool::new((0..ADMIN_SLOTS).rev()),
            quiet,
        }
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Slot> {
        self.table.iter()
    }

    /// Those that are free for commands of such a queue.
    pub fn idle(&self, kind: QueueKind) -> &Pool<u16> {
        match kind {
            QueueKind::Admin => &self.idle_admin,
            QueueKind::Io => &self.idle,
        }
    }
}

impl Index<u16> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, number: u16) -> &Slot {
        &self.table[usize::from(number)]
    }
}

impl Slot {
    /// Gives a command to the slot's task.
    #[inline]
    pub fn give(&self, rt: &Rt, qid: QueueId, sqe: &Sqe, fused: Fused, executed: Option<Status>) {
        self.busy.set(Some((qid, sqe.id())));
        self.cut.set(None);
        self.job.set(Job { qid, sqe: *sqe, fused, executed });
        self.worker.begin(rt);
    }

    /// Cancels the command in this slot. The first reason takes precedence, except over a reset.
    pub fn cut(&self, rt: &Rt, why: Cut) {
        if self.busy.get().is_some() && (self.cut.get().is_none() || why == Cut::Silently) {
            self.cut.set(Some(why));
            self.worker.wake(rt);
        }
    }

    /// Returns when the slot has a command.
    #[inline]
    fn given(&self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|_| match self.busy.get() {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        })
    }

    /// Runs a future until it ends or the command is cancelled.
    #[inline]
    pub fn or_cut<T>(
        &self,
        trace: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<T, Cut>> {
        or_cut(|| self.cut.get(), trace)
    }

    /// Returns true if this is the first command of the pair in the slot.
    pub fn is_paired_with(&self, cid: CommandId) -> bool {
        self.first.get().is_some_and(|first| first.sqe.id() == cid)
    }

    /// From here on only a reset cancels the command: it completes.
    fn only_silently(&self) {
        if self.cut.get() != Some(Cut::Silently) {
            self.cut.set(None);
        }
    }
}

pub(super) enum Outcome {
    /// Completes with this status and dword 0.
    Done(Status, u32),
    /// No completion now: the command stays outstanding, or was lost by an injected fault.
    Held,
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Task of a slot: executes one command after another.
    pub(super) async fn work(self: Rc<Self>, number: u16) {
        let slot = &self.slots[number];
        loop {
            slot.given().await;
            let job = slot.job.get();
            self.rt.attach_trace(job.qid.0, job.sqe.cid.get());
            self.rt.record(self.stages.dispatch);
            let since = self.faults.meter.begins(&self.rt, 0, number);
            if !slot.halves.borrow().is_empty() {
                slot.completing.set(true);
                Box::pin(self.tell_halves(slot, job.qid)).await;
                slot.completing.set(false);
                if self.is_shut_down() {
                    slot.cut(&self.rt, Cut::With(Status::ABORTED_POWER_LOSS));
                }
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
                self.slots.quiet.notify(&self.rt);
                if let Some(first) = slot.first.take() {
                    Box::pin(self.tell_first(slot, &job, first)).await;
                }
                let cqe = Cqe::new(CommandId(job.sqe.cid.get()), status).with_result(result);
                let _ = slot.or_cut(pin!(self.complete(job.qid, cqe))).await;
                if self.faults.meter.is_watched() {
                    self.meter(&job, since, status);
                }
            }
            self.rt.detach_trace();
            slot.busy.set(None);
            slot.io_namespace.set(None);
            slot.completing.set(false);
            slot.first.set(None);
            slot.cut.set(None);
            self.unclaim(slot);
            self.give_slot(QueueKind::of(job.qid), number);
            self.slots.quiet.notify(&self.rt);
        }
    }

    #[cold]
    fn meter(&self, job: &Job, since: Time, status: Status) {
        if job.qid == QueueId::ADMIN {
            return;
        }
        let order = Order::nvme(job.qid.0, &job.sqe);
        let blocks = order.lbas.map_or(0, |(_, blocks)| blocks);
        let bytes = u64::from(blocks) * u64::from(self.block_bytes);
        let kind = Kind::of(job.sqe.opcode);
        self.faults.meter.ends(&self.rt, since, kind, bytes, status.is_ok());
    }

    async fn execute(&self, number: u16, job: &Job) -> Outcome {
        if self.features.power.gate.get() && job.qid != QueueId::ADMIN && self.is_held_by_power() {
            Box::pin(self.awake()).await;
        }
        self.port.spend(self.stages.parse).await;
        let injected =
            if self.faults.is_on() { Box::pin(self.injected(number, job)).await } else { None };
        let outcome = match (injected, QueueKind::of(job.qid)) {
            (Some(outcome), _) => outcome,
            (None, _) if let Some(status) = job.executed => Outcome::Done(status, 0),
            // Boxed, so that it does not enlarge the future of every read.
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
                let specific = self.slots[number].specific.take();
                Outcome::Done(self.note_error(job, status, specific), result)
            }
            outcome => outcome,
        }
    }
}
