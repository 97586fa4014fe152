//! Fused operations: a Compare and the Write behind it, of which either both happen or neither (NVMe base
//! 2.0, 3.4.2).
//!
//! The two are carried out in the slot of the second. What the first compares and the second writes is not
//! written by others in between: who writes says where, and who is to be alone in some blocks waits for
//! those that write there and keeps out those that come later.

use std::cell::Cell;

use bus::DevicePort;
use media::{Extent, Media};
use wire::nvme::entry::{Cqe, Sqe, SqeFlags};
use wire::nvme::io::{self, Command};
use wire::nvme::status::Status;
use wire::{CommandId, QueueId};

use super::Controller;
use super::reservations::Touch;
use super::slot::{Cut, Job, Slot};

/// FUSE of a command that stands alone, of the first of two, and of the second.
pub(super) const ALONE: u8 = 0;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// The most blocks of a pair (ACWU + 1).
const BLOCKS_MAX: u32 = 1;

/// What a command is to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fused {
    #[default]
    Alone,
    /// The second of a pair, whose first its slot has.
    Second,
    /// One of a pair whose other half is not there.
    Half,
}

/// The first command of the pair in a slot.
#[derive(Clone, Copy)]
pub(super) struct First {
    pub sqe: Sqe,
    status: Status,
}

/// Where one command alone may write.
#[derive(Default)]
pub(super) struct Alone {
    /// How many commands are alone somewhere: nearly always none.
    commands: Cell<u32>,
}

fn overlap(one: Extent, other: Extent) -> bool {
    one.block < other.block + u64::from(other.blocks)
        && other.block < one.block + u64::from(one.blocks)
}

impl Slot {
    /// Whether the first command of the pair in it is this.
    pub fn is_paired_with(&self, cid: CommandId) -> bool {
        self.first.get().is_some_and(|first| first.sqe.id() == cid)
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// A fetched entry that is fused, or stands behind the first of a pair: gives it to a slot, together
    /// with the firsts before it that have no second, or keeps it among them. Every entry takes a slot at
    /// most, and the last first, which [`leave_firsts`](Self::leave_firsts) sees to, has left one.
    pub(super) fn fuse(&self, qid: QueueId, sqe: Sqe, firsts: &mut Vec<Sqe>, slots: &mut Vec<u16>) {
        if sqe.flags.fuse() == FIRST {
            firsts.push(sqe);
            return;
        }
        let slot = &self.slots[usize::from(slots.pop().expect("a slot for every entry"))];
        let fused = match (sqe.flags.fuse(), firsts.pop()) {
            (SECOND, Some(sqe)) => {
                slot.first.set(Some(First { sqe, status: Status::ABORTED_FAILED_FUSED }));
                Fused::Second
            }
            (fuse, first) => {
                firsts.extend(first);
                if fuse == SECOND { Fused::Half } else { Fused::Alone }
            }
        };
        slot.halves.borrow_mut().append(firsts);
        slot.give(&self.rt, qid, &sqe, fused);
    }

    /// A burst is over, and some firsts have no second. Both halves of a pair are told of by one doorbell: if
    /// nothing waits behind the last of them its second is missing, else it may come with the next burst.
    pub(super) fn leave_firsts(&self, qid: QueueId, firsts: &mut Vec<Sqe>, slots: &mut Vec<u16>) {
        let mut sqs = self.sqs.borrow_mut();
        let Some(sq) = sqs[usize::from(qid.0)].as_mut() else { return };
        if self.port.load(sq.tail_doorbell) != sq.head {
            sq.first = firsts.pop().map(Box::new);
            self.firsts.set(self.firsts.get() + 1);
        }
        drop(sqs);
        let Some(sqe) = firsts.pop() else { return };
        let slot = &self.slots[usize::from(slots.pop().expect("that of the last first"))];
        slot.halves.borrow_mut().append(firsts);
        slot.give(&self.rt, qid, &sqe, Fused::Half);
    }

    /// The first that the last burst of this queue ended with.
    pub(super) fn first_before(&self, qid: QueueId) -> Option<Sqe> {
        let mut sqs = self.sqs.borrow_mut();
        let first = sqs[usize::from(qid.0)].as_mut().and_then(|sq| sq.first.take());
        first.map(|first| {
            self.firsts.set(self.firsts.get() - 1);
            *first
        })
    }

    /// Tells of the firsts without a second before a slot's command.
    pub(super) async fn tell_halves(&self, slot: &Slot, qid: QueueId) {
        loop {
            let Some(sqe) = slot.halves.borrow_mut().pop() else { return };
            let status = Status::ABORTED_MISSING_FUSED.with_dnr();
            self.tell(slot, &Job { qid, sqe, fused: Fused::Half }, status).await;
        }
    }

    /// Tells of the first command of the pair whose second is about to complete like this.
    pub(super) async fn tell_first(&self, slot: &Slot, job: &Job, first: First) {
        let first_job = Job { sqe: first.sqe, ..*job };
        self.tell(slot, &first_job, first.status).await;
    }

    /// The first of the pair in a slot is to be aborted: the second goes with it.
    pub(super) fn abort_first(&self, slot: &Slot) {
        if let Some(first) = slot.first.get() {
            slot.first.set(Some(First { status: Status::ABORT_REQUESTED, ..first }));
            slot.cut(&self.rt, Cut::With(Status::ABORTED_FAILED_FUSED));
        }
    }

    async fn tell(&self, slot: &Slot, job: &Job, status: Status) {
        let status = if status.is_ok() { status } else { self.note_error(job, status) };
        let cqe = Cqe::new(job.sqe.id(), status);
        let _ = slot.or_cut(std::pin::pin!(self.complete(job.qid, cqe))).await;
    }

    /// A command of a pair: how the second ends; how the first does is noted in its slot.
    pub(super) async fn fused(&self, number: u16, job: &Job) -> Status {
        let slot = &self.slots[usize::from(number)];
        let Some(first) = slot.first.get() else {
            return Status::ABORTED_MISSING_FUSED.with_dnr();
        };
        let ends = |status| slot.first.set(Some(First { status, ..first }));
        match self.compare_and_write(number, &first.sqe, &job.sqe).await {
            Ok(written) => {
                ends(Status::SUCCESS);
                written
            }
            Err((compared, written)) => {
                ends(compared);
                written
            }
        }
    }

    /// How the write ends, if the compare went well; else how both end.
    async fn compare_and_write(
        &self,
        number: u16,
        first: &Sqe,
        second: &Sqe,
    ) -> Result<Status, (Status, Status)> {
        let alone =
            |sqe: &Sqe| Sqe { flags: SqeFlags::from_bits(sqe.flags.into_bits() & !3), ..*sqe };
        let failed = Status::ABORTED_FAILED_FUSED;
        let invalid = Status::INVALID_FIELD.with_dnr();
        let first = io::parse(&alone(first)).map_err(|status| (status.with_dnr(), failed))?;
        let second = io::parse(&alone(second)).map_err(|status| (failed, status.with_dnr()))?;
        let (Command::Compare(compare), Command::Write(write)) = (first.command, second.command)
        else {
            return Err((invalid, invalid));
        };
        let same =
            (first.nsid, compare.lba, compare.blocks) == (second.nsid, write.lba, write.blocks);
        if !same {
            return Err((invalid, invalid));
        }
        let enter = |touch| self.enter(number, first.nsid, || touch);
        let ns = enter(Touch::Reads).map_err(|status| (status, failed))?;
        enter(Touch::Writes).map_err(|status| (failed, status))?;
        if compare.blocks > BLOCKS_MAX {
            return Err((Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_dnr(), failed));
        }
        let extent = ns.extent(compare.lba.0, compare.blocks).map_err(|status| (status, failed))?;
        self.be_alone(number, extent).await;
        let compared = self.compare(number, ns, &compare, &first.data).await;
        compared.map_err(|status| (status, failed))?;
        let written = self.write(number, ns, &write, &second.data).await;
        Ok(written.err().unwrap_or(Status::SUCCESS))
    }

    /// A command is going to write here: returns when nobody is to be alone in these blocks.
    #[inline]
    pub(super) async fn claim(&self, number: u16, at: Extent) {
        if self.members.alone.commands.get() > 0 {
            self.until_others(number, |slot| !slot.alone.get().is_some_and(|of| overlap(of, at)))
                .await;
        }
        self.slots[usize::from(number)].writing.set(Some(at));
    }

    /// Returns when nobody else writes in these blocks, and nobody is going to until the command has ended.
    async fn be_alone(&self, number: u16, at: Extent) {
        self.until_others(number, |slot| !slot.alone.get().is_some_and(|of| overlap(of, at))).await;
        self.slots[usize::from(number)].alone.set(Some(at));
        self.members.alone.commands.set(self.members.alone.commands.get() + 1);
        self.until_others(number, |slot| !slot.writing.get().is_some_and(|of| overlap(of, at)))
            .await;
    }

    /// Waits until this can be said of all slots but one, those of other controllers too. What can change
    /// it is that a command ends.
    async fn until_others(&self, number: u16, holds: impl Fn(&Slot) -> bool) {
        loop {
            let version = self.quiet.version();
            let own = &self.slots[usize::from(number)];
            if self.members.every_slot(|slot| std::ptr::eq(slot, own) || holds(slot)) {
                return;
            }
            self.quiet.changed(&self.rt, version).await;
        }
    }

    /// A command has ended: others may write where it did.
    #[inline]
    pub(super) fn unclaim(&self, slot: &Slot) {
        slot.writing.set(None);
        if slot.alone.take().is_some() {
            self.members.alone.commands.set(self.members.alone.commands.get() - 1);
        }
    }
}
