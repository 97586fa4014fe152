//! Fused operations: a Compare and the following Write, executed both or not at all (NVMe base 2.0, 3.4.2).
//!
//! Both are executed in the slot of the second. Atomicity: every write claims its blocks. A fused command
//! that needs exclusive access to some blocks waits for earlier claims on these, and blocks later ones.

use std::cell::Cell;

use bus::DevicePort;
use media::{Extent, Media};
use wire::QueueId;
use wire::nvme::entry::{Cqe, Sqe, SqeFlags};
use wire::nvme::io::{self, Command};
use wire::nvme::status::Status;

use super::Controller;
use super::reservations::Touch;
use super::slot::{Cut, First, Fused, Job, Slot};

/// FUSE of a normal command; the next two constants are the first and the second of a pair.
pub(super) const ALONE: u8 = 0;
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// Maximum blocks of a fused pair (ACWU + 1).
const BLOCKS_MAX: u32 = 1;

/// Exclusive claims of fused commands.
#[derive(Default)]
pub(super) struct Alone {
    /// Number of commands with an exclusive claim: almost always zero.
    commands: Cell<u32>,
}

fn overlap(one: Extent, other: Extent) -> bool {
    one.block < other.block + u64::from(other.blocks)
        && other.block < one.block + u64::from(one.blocks)
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Handles a fetched entry that is fused, or follows the first of a pair: gives it to a slot together
    /// with the preceding firsts without a second, or adds it to these. Every entry uses at most one slot,
    /// and the last first leaves one for [`leave_firsts`](Self::leave_firsts).
    pub(super) fn fuse(&self, qid: QueueId, sqe: Sqe, firsts: &mut Vec<Sqe>, slots: &mut Vec<u16>) {
        if sqe.flags.fuse() == FIRST {
            firsts.push(sqe);
            return;
        }
        let slot = &self.slots[slots.pop().expect("a slot for every entry")];
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
        slot.give(&self.rt, qid, &sqe, fused, None);
    }

    /// End of a burst with firsts that have no second. Both halves of a pair are submitted by one doorbell
    /// write: if no entry follows the last one, its second is missing, otherwise it may come with the next
    /// burst.
    pub(super) fn leave_firsts(&self, qid: QueueId, firsts: &mut Vec<Sqe>, slots: &mut Vec<u16>) {
        let mut sqs = self.queues.sqs.borrow_mut();
        let Some(sq) = sqs[usize::from(qid.0)].as_mut() else { return };
        if self.port.load(sq.tail_doorbell) != sq.head {
            sq.first = firsts.pop().map(Box::new);
            self.queues.firsts.set(self.queues.firsts.get() + 1);
        }
        drop(sqs);
        let Some(sqe) = firsts.pop() else { return };
        let slot = &self.slots[slots.pop().expect("that of the last first")];
        slot.halves.borrow_mut().append(firsts);
        slot.give(&self.rt, qid, &sqe, Fused::Half, None);
    }

    /// The first left over from the previous burst of this queue.
    pub(super) fn first_before(&self, qid: QueueId) -> Option<Sqe> {
        let mut sqs = self.queues.sqs.borrow_mut();
        let first = sqs[usize::from(qid.0)].as_mut().and_then(|sq| sq.first.take());
        first.map(|first| {
            self.queues.firsts.set(self.queues.firsts.get() - 1);
            *first
        })
    }

    /// Completes the firsts without a second that precede a slot's command.
    pub(super) async fn tell_halves(&self, slot: &Slot, qid: QueueId) {
        loop {
            let Some(sqe) = slot.halves.borrow_mut().pop() else { return };
            let status = Status::ABORTED_MISSING_FUSED.with_dnr();
            self.tell(slot, &Job { qid, sqe, fused: Fused::Half, executed: None }, status).await;
        }
    }

    /// Completes the first command of the pair whose second is about to complete.
    pub(super) async fn tell_first(&self, slot: &Slot, job: &Job, first: First) {
        let first_job = Job { sqe: first.sqe, ..*job };
        self.tell(slot, &first_job, first.status).await;
    }

    /// Aborts the first of the pair in a slot; the second fails with it.
    pub(super) fn abort_first(&self, slot: &Slot) {
        if let Some(first) = slot.first.get() {
            slot.first.set(Some(First { status: Status::ABORT_REQUESTED, ..first }));
            slot.cut(&self.rt, Cut::With(Status::ABORTED_FAILED_FUSED));
        }
    }

    async fn tell(&self, slot: &Slot, job: &Job, status: Status) {
        let status = if status.is_ok() { status } else { self.note_error(job, status, 0) };
        let cqe = Cqe::new(job.sqe.id(), status);
        let _ = slot.or_cut(std::pin::pin!(self.complete(job.qid, cqe))).await;
    }

    /// Executes a fused pair. Returns the status of the second; that of the first is stored in its slot.
    pub(super) async fn fused(&self, number: u16, job: &Job) -> Status {
        if self.shared.place.is_some() {
            // Several threads: not offered (FUSES).
            return Status::INVALID_FIELD.with_dnr();
        }
        let slot = &self.slots[number];
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

    /// Returns the status of the Write if the Compare succeeded, else both statuses.
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

    /// Returns true if a command has exclusive access to blocks.
    #[inline]
    pub(super) fn has_claims(&self) -> bool {
        self.shared.members.alone.commands.get() > 0
    }

    /// Claims blocks for a write: waits until no command has exclusive access to them.
    #[inline]
    pub(super) async fn claim(&self, number: u16, at: Extent) {
        if self.has_claims() {
            self.until_others(number, |slot| !slot.alone.get().is_some_and(|of| overlap(of, at)))
                .await;
        }
        self.slots[number].writing.set(Some(at));
    }

    /// Claims blocks exclusively: waits until no other command writes to them, and blocks new writes until
    /// the command ends.
    async fn be_alone(&self, number: u16, at: Extent) {
        self.until_others(number, |slot| !slot.alone.get().is_some_and(|of| overlap(of, at))).await;
        self.slots[number].alone.set(Some(at));
        self.shared.members.alone.commands.set(self.shared.members.alone.commands.get() + 1);
        self.until_others(number, |slot| !slot.writing.get().is_some_and(|of| overlap(of, at)))
            .await;
    }

    /// Waits until `holds` is true for all slots but one, including those of other controllers. The condition
    /// can change only when a command ends.
    async fn until_others(&self, number: u16, holds: impl Fn(&Slot) -> bool) {
        loop {
            let version = self.slots.quiet.version();
            let own = &self.slots[number];
            if self.shared.members.every_slot(|slot| std::ptr::eq(slot, own) || holds(slot)) {
                return;
            }
            self.slots.quiet.changed(&self.rt, version).await;
        }
    }

    /// Releases the claims of a command that has ended.
    #[inline]
    pub(super) fn unclaim(&self, slot: &Slot) {
        slot.writing.set(None);
        if slot.alone.take().is_some() {
            self.shared.members.alone.commands.set(self.shared.members.alone.commands.get() - 1);
        }
    }
}
