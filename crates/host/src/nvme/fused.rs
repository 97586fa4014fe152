//! A comparison and the write behind it, as one (NVMe base 2.0, 3.4.2): the block is written if it holds what
//! was expected, and nobody else writes in between.
//!
//! The two lie side by side in the queue and are told of by one doorbell, so that a pair has two command
//! slots before it forms either. Those that gather two take turns: whoever has one and waits for another
//! waits for commands in flight, never for somebody who waits as well.

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

/// FUSE, of the first of two commands and of the second.
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// The turn of who gathers two command slots, given back when it is dropped.
struct Turn<'a>(&'a Lock, &'a Rt);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

/// Both buffers, and what became of the pair.
pub type Compared = ((Buffer, Buffer), Result<bool, IoError>);

impl<P: HostPort> Queue<P> {
    /// Writes `from` to the blocks from `lba` on if they hold what is in `with`, with no write of anybody
    /// else in between; with `fua`, through any volatile cache. False: they hold something else, and nothing
    /// was written. Both buffers are judged as that of a read is, and come back.
    ///
    /// A pair is sent once. One that a reset or a time-out came between may have been done or not, and done
    /// again it would find its own write there and say that nothing was written: so it ends with an error,
    /// and what the blocks hold is to be read.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: a controller that fuses no commands (FUSES), more blocks than it fuses (ACWU,
    /// or the namespace's NACWU), a queue of one command, or protected blocks, as for
    /// [`compare`](Queue::compare). [`Kind::Refused`]: buffers of different lengths. [`Kind::Reset`],
    /// [`Kind::TimedOut`]: nobody knows whether it was done.
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
        // The controller works on both under the number of the second.
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

    /// Two command slots, and the right to submit where cores share the queue.
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

    /// Both commands, from their entries to what they come to.
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

    /// What became of a pair. The half that failed by itself says why; the other was aborted with it.
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
            // What is written was compared; what differs is not written, whatever became of the other half.
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
            // Half of it is done, which no controller may say.
            _ => Err(Failed::Found(Kind::DeviceFailed)),
        }
    }
}

fn fused(sqe: Sqe, fuse: u8) -> Sqe {
    Sqe { flags: SqeFlags::with_fuse(sqe.flags, fuse), ..sqe }
}
