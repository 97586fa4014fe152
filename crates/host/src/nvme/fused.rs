//! Fused Compare and Write (NVMe base 2.0, 3.4.2): the blocks are written if they hold the expected data,
//! with no other write in between.
//!
//! The two entries are adjacent in the queue and share one doorbell, so a pair needs two command slots before
//! it starts. Pairs acquire slots one at a time: the holder of one slot that waits for the second waits for
//! commands in flight, never for another holder.

use bus::{Buffer, HostPort};
use runtime::{Lock, Rt};
use wire::nvme::entry::{Sqe, SqeFlags};
use wire::nvme::identify::oncs;
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{CommandId, Lba};

use super::queue::{Failed, Queue, Verdict};
use super::share::Held;
use super::slots::{Claim, End};
use crate::{BlockDevice, IoError, Kind};

/// Values of FUSE for the two commands.
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// Turn to acquire two command slots; released on drop.
struct Turn<'a>(&'a Lock, &'a Rt);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

/// Both buffers, and the result of the comparison.
pub type Compared = ((Buffer, Buffer), Result<bool, IoError>);

impl<P: HostPort> Queue<P> {
    /// Writes `from` to the blocks from `lba` if they hold the data in `with`, with no other write in
    /// between; with `fua`, through any volatile cache. Returns false if they hold other data; then nothing
    /// was written. Both buffers are validated like that of a read, and come back.
    ///
    /// A pair is submitted once. After a reset or a time-out it may have been done or not; a retry could
    /// compare with its own write and report that nothing was written. So it ends with an error, and the
    /// caller must read the blocks.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the controller fuses no commands (FUSES) or fewer blocks (ACWU, or the
    /// namespace's NACWU), the queue has a depth of one, or the blocks are protected, as for
    /// [`compare`](Queue::compare). [`Kind::Refused`]: the buffers differ in length. [`Kind::Reset`],
    /// [`Kind::TimedOut`]: it is unknown whether the write was done.
    pub async fn compare_and_write(
        &self,
        lba: Lba,
        with: Buffer,
        from: Buffer,
        fua: bool,
    ) -> Compared {
        if let Err(error) = self.validate_pair(lba, &with, &from) {
            return ((with, from), Err(error));
        }
        let since = self.pair.rt().now();
        let (first, second, held) = self.two_slots().await;
        // The request trace uses the identifier of the second command.
        self.begin(&second, Some(since));
        let blocks = (with.bytes() / self.geometry().block_bytes as usize) as u32;
        let lists = &self.pair.lists;
        let (expected, wanted) =
            (lists.describe(first.index(), &with), lists.describe(second.index(), &from));
        if self.guards_itself() {
            self.make_tags(first.index(), lba, &with).await;
            self.make_tags(second.index(), lba, &from).await;
        }
        first.keep(with);
        second.keep(from);
        let compare = |cid| {
            let sqe = io::compare(cid, self.nsid(), lba, blocks, expected);
            fused(self.protected(sqe, lba, first.index()), FIRST)
        };
        let write = |cid| {
            let sqe = io::write(cid, self.nsid(), lba, blocks, fua, wanted);
            fused(self.protected(sqe, lba, second.index()), SECOND)
        };
        let done = self.run_pair((&first, &compare), (&second, &write), held).await;
        let done = done.map_err(|failed| failed.at(Some(lba)));
        ((first.take_back(), second.take_back()), done)
    }

    fn validate_pair(&self, lba: Lba, with: &Buffer, from: &Buffer) -> Result<(), IoError> {
        let most = self.abilities.fused_max;
        let refuse = |kind, why| Err(IoError::refused(kind, lba, why));
        if most == 0 {
            return refuse(Kind::Unsupported, "a controller that fuses Compare and Write (FUSES)");
        }
        self.abilities.need(oncs::COMPARE, lba, "a controller with Compare (ONCS)")?;
        if self.depth() < 2 {
            return refuse(Kind::Unsupported, "a queue of two commands or more");
        }
        self.brings_tags(lba)?;
        if with.bytes() != from.bytes() {
            return refuse(Kind::Refused, "as much to write as to compare with");
        }
        self.validate(lba, from)?;
        if self.validate(lba, with)? > most {
            return refuse(Kind::Unsupported, "no more blocks than are fused (ACWU, NACWU)");
        }
        Ok(())
    }

    /// Acquires two command slots, and the right to submit if cores share the queue.
    async fn two_slots(&self) -> (Claim<'_>, Claim<'_>, Option<Held<'_>>) {
        let (rt, slots) = (self.pair.rt(), &self.pair.slots);
        self.pair.gathers.acquire(rt).await;
        let _turn = Turn(&self.pair.gathers, rt);
        let (first, held) = self.slot().await;
        let (Some(share), Some(mut held)) = (&self.share, held) else {
            return (first, slots.claim(rt).await, None);
        };
        loop {
            let seen = slots.freed.version();
            match slots.try_claim(rt) {
                Some(second) => return (first, second, Some(held)),
                None => held = share.wait(held, slots.freed.changed(rt, seen)).await,
            }
        }
    }

    /// Runs both commands to their end.
    async fn run_pair(
        &self,
        (first, compare): (&Claim<'_>, &impl Fn(CommandId) -> Sqe),
        (second, write): (&Claim<'_>, &impl Fn(CommandId) -> Sqe),
        held: Option<Held<'_>>,
    ) -> Result<bool, Failed> {
        let port = self.port();
        if let Some(share) = &self.share {
            share.pay(port).await;
        }
        port.spend_times(self.costs.submit, 2).await;
        if !self.takes_commands() {
            self.ready().await.map_err(Failed::Found)?;
        }
        self.pair.submit_pair(compare(first.launch()), write(second.launch()));
        drop(held);
        let ends = (first.end().await, second.end().await);
        self.pair.rt().record(self.stages.completion);
        if let Some(context_switch) = self.costs.context_switch {
            port.spend(context_switch).await;
        }
        port.spend_times(self.costs.complete, 2).await;
        self.became((first, ends.0), (second, ends.1))
    }

    /// Result of a pair. The half that failed by itself holds the reason; the other was aborted with it.
    fn became(
        &self,
        (first, compared): (&Claim<'_>, End),
        (second, written): (&Claim<'_>, End),
    ) -> Result<bool, Failed> {
        let answer =
            |of: &Claim<'_>, end| (end == End::Completed).then(|| of.completion().status());
        let failed = |of: &Claim<'_>, end, status| match self.verdict(of, end, status) {
            Verdict::Ended(failed) => failed,
            Verdict::TryAgain(kind) => Failed::Found(kind),
            Verdict::Repeat => Failed::Found(Kind::Reset),
        };
        match (answer(first, compared), answer(second, written)) {
            (Some(of), Some(write)) if of.is_ok() && write.is_ok() => Ok(true),
            // A successful write implies a successful compare; a miscompare implies no write, whatever the
            // other status.
            (None, Some(write)) if write.is_ok() => Ok(true),
            (Some(of), write) if of.kind() == Status::COMPARE_FAILURE => match write {
                Some(write) if write.is_ok() => Err(Failed::Found(Kind::DeviceFailed)),
                _ => Ok(false),
            },
            (None, _) => Err(failed(first, compared, Status::SUCCESS)),
            (_, None) => Err(failed(second, written, Status::SUCCESS)),
            (Some(of), _) if !of.is_ok() && of.kind() != Status::ABORTED_FAILED_FUSED => {
                Err(failed(first, compared, of))
            }
            (_, Some(write)) if !write.is_ok() => Err(failed(second, written, write)),
            // Half of the pair was done: invalid for a controller.
            _ => Err(Failed::Found(Kind::DeviceFailed)),
        }
    }
}

fn fused(sqe: Sqe, fuse: u8) -> Sqe {
    Sqe { flags: SqeFlags::with_fuse(sqe.flags, fuse), ..sqe }
}
