//! Reads and writes with a deadline.
//!
//! At the deadline the command is given up: it is not retried, and an Abort is sent. The future stays pending
//! until the device can no longer access the buffer: until the command has ended, in any way, or a reset has
//! ended it. So a late call may still succeed, if its completion arrives before the abort.
//!
//! The supervisor sends the Abort, and has no more Aborts in flight than the controller accepts. An Abort may
//! overtake its command on the way to the device, and then has no effect: it is sent again after 1, 2, 4...
//! checks. A deadline does not delay the checks of the watchdog.

use core::pin::pin;

use bus::{Buffer, HostPort};
use runtime::{Either, Time, race};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io;
use wire::{CommandId, Lba};

use super::queue::{Failed, Queue};
use super::share::Held;
use super::slots::Claim;
use crate::{IoError, Kind};

impl<P: HostPort> Queue<P> {
    /// As [`read`](Queue::read), with a deadline, which also ends a wait for a command slot or for a reset.
    ///
    /// # Errors
    /// [`Kind::TimedOut`]: the deadline has passed without a success.
    pub async fn read_before(
        &self,
        lba: Lba,
        into: Buffer,
        deadline: Time,
    ) -> (Buffer, Result<(), IoError>) {
        self.before(lba, into, deadline, false, |cid, blocks, data| {
            io::read(cid, self.nsid(), lba, blocks, false, data)
        })
        .await
    }

    /// As [`write`](Queue::write), with a deadline as in [`read_before`](Queue::read_before). After a
    /// time-out the data may have been written in whole, in part or not at all.
    ///
    /// # Errors
    /// As [`read_before`](Queue::read_before).
    pub async fn write_before(
        &self,
        lba: Lba,
        from: Buffer,
        fua: bool,
        deadline: Time,
    ) -> (Buffer, Result<(), IoError>) {
        self.before(lba, from, deadline, true, |cid, blocks, data| {
            io::write(cid, self.nsid(), lba, blocks, fua, data)
        })
        .await
    }

    async fn before(
        &self,
        lba: Lba,
        buffer: Buffer,
        deadline: Time,
        writes: bool,
        build: impl Fn(CommandId, u32, DataPointer) -> Sqe,
    ) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.validate(lba, &buffer) {
            Ok(blocks) => blocks,
            Err(error) => return (buffer, Err(error)),
        };
        let rt = self.pair.rt();
        let late = || IoError::of(Kind::TimedOut, Some(lba));
        if rt.now() >= deadline {
            return (buffer, Err(late()));
        }
        let (slot, held) = match race(self.slot(), rt.sleep_until(deadline)).await {
            Either::First(turn) => turn,
            Either::Second(()) => return (buffer, Err(late())),
        };
        let data = self.pair.lists.describe(slot.index(), &buffer);
        if writes && self.guards_itself() {
            self.make_tags(slot.index(), lba, &buffer).await;
        }
        slot.keep(buffer);
        let build = |cid| self.protected(build(cid, blocks, data), lba, slot.index());
        let result = self.run_before(&slot, held, deadline, build).await;
        let (buffer, mut result) =
            (slot.take_back(), result.map_err(|failed| failed.at(Some(lba))));
        if !writes && result.is_ok() && self.guards_itself() {
            result = self.check_tags(slot.index(), lba, &buffer).await;
        }
        (buffer, result)
    }

    async fn run_before(
        &self,
        slot: &Claim<'_>,
        held: Option<Held<'_>>,
        deadline: Time,
        build: impl Fn(CommandId) -> Sqe,
    ) -> Result<(), Failed> {
        let rt = self.pair.rt();
        let mut running = pin!(self.run(slot, held, &build));
        if let Either::First(result) = race(running.as_mut(), rt.sleep_until(deadline)).await {
            return result;
        }
        match slot.give_up() {
            // The device has not received the command, or has finished with it.
            None => Err(Failed::Found(Kind::TimedOut)),
            Some(cid) => {
                self.pair.count(|counters| counters.timeouts += 1);
                rt.log("host", "deadline", u64::from(self.qid().0), u64::from(cid.0));
                self.ask_for_an_end();
                running.await
            }
        }
    }
}
