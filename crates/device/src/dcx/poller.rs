//! Fetching commands from the ring without a doorbell: timing, dispatch to slots, and sleep.

use std::cell::Cell;
use std::rc::Rc;

use bus::{DevicePort, DmaError, Looks};
use media::Media;
use runtime::{Either, race};
use wire::dcx::command::{self, Entry};
use zerocopy::FromBytes;

use super::pace::Next;
use super::queue::{Open, Queue};
use super::slot::Job;
use super::{Front, count};
use crate::ahead::{self, Moves};

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Task of a queue's poller: a fetch is always in flight, unless the pace delays it or the queue sleeps.
    pub(super) async fn poll(self: Rc<Self>, number: u16) {
        let queue = &self.queues[usize::from(number)];
        let mut room = vec![0; command::BYTES * self.options.fetch_max as usize];
        let mut slots = Vec::with_capacity(self.options.fetch_max as usize);
        let mut empty = 0;
        loop {
            let Some(open) = queue.open.get() else {
                empty = 0;
                let seen = queue.turned.version();
                if queue.open.get().is_none() {
                    queue.turned.changed(&self.rt, seen).await;
                }
                continue;
            };
            if slots.is_empty() {
                // A fetch takes no more entries than there are slots.
                let wanted = self.options.fetch_max.min(self.share());
                if self.idle.available() == 0 {
                    let turned = queue.turned.changed(&self.rt, queue.turned.version());
                    match race(turned, self.idle.take(&self.rt)).await {
                        Either::First(()) => continue,
                        Either::Second(slot) => slots.push(slot),
                    }
                }
                while slots.len() < wanted as usize
                    && let Some(slot) = self.idle.try_take()
                {
                    slots.push(slot);
                }
            }
            if !self.is_time(queue).await {
                continue;
            }
            let bytes = &mut room[..command::BYTES * slots.len()];
            let served = self.counters.at_once.get();
            match self.fetch(queue, open, bytes, &mut slots).await {
                Ok(0) => empty += 1,
                Ok(_) => empty = 0,
                Err(_) => self.fault(queue),
            }
            if self.counters.at_once.get() != served {
                // A host that keeps the ring filled must not keep the other tasks from their turns.
                self.rt.yield_now().await;
            }
            let idle = || empty >= self.options.sleep_after || empty > 0 && self.is_rung(queue);
            if open.may_sleep && queue.open.get().is_some() && idle() {
                empty = 0;
                let bytes = &mut room[..command::BYTES * slots.len()];
                self.sleep(queue, open, bytes, &mut slots).await;
            }
        }
    }

    /// Number of slots that one queue's poller may hold while it polls.
    fn share(&self) -> u32 {
        (u32::from(self.options.slots) / u32::from(self.options.queues)).max(1)
    }

    /// Returns true if the load is so low that the host rings the queue, rather than that it polls. Not
    /// while its commands are in flight: the next may come with their end.
    fn is_rung(&self, queue: &Queue) -> bool {
        let Some(gap_max) = self.options.poll_gap_max else { return false };
        queue.load.get().is_low(self.rt.now(), gap_max)
            && !self.slots.iter().any(|slot| slot.is_of(queue.number))
    }

    /// Waits until the next fetch must leave. Returns false if the queue's state changed first.
    async fn is_time(&self, queue: &Queue) -> bool {
        if queue.due.replace(false) {
            return true;
        }
        if !queue.pace.borrow().is_timed() {
            return true;
        }
        let turned = queue.turned.changed(&self.rt, queue.turned.version());
        let next = queue.pace.borrow().next(self.rt.now());
        let _poised = Raised::new(&queue.poised);
        match next {
            Next::Now => true,
            Next::At(at) => {
                matches!(race(turned, self.rt.sleep_until(at)).await, Either::Second(()))
            }
            Next::WithData => {
                turned.await;
                false
            }
        }
    }

    /// Fetches new entries and hands them to slots. Returns the number of commands.
    async fn fetch(
        &self,
        queue: &Queue,
        open: Open,
        bytes: &mut [u8],
        slots: &mut Vec<u16>,
    ) -> Result<u32, DmaError> {
        let first = queue.next.get();
        let mut entries = ((bytes.len() / command::BYTES) as u32).min(open.entries_from(first));
        let timed = queue.pace.borrow().is_timed();
        if timed {
            entries = entries.min(queue.pace.borrow().width());
        }
        let bytes = &mut bytes[..entries as usize * command::BYTES];
        let asked = timed.then(|| self.rt.now());
        if let Some(asked) = asked {
            queue.pace.borrow_mut().asked(asked);
        }
        let fetching = Raised::new(&queue.fetching);
        self.rt.log("device", "asks", u64::from(queue.number), u64::from(entries));
        let new = |number: u32, word: u32| word == first.wrapping_add(number);
        let switched = queue.switched.changed(&self.rt, queue.switched.version());
        let at = open.command_at(first);
        let fetched = self.port.fetch(at, bytes, command::BYTES, Looks::Many, new);
        queue.left.notify(&self.rt);
        let found = race(switched, fetched).await;
        drop(fetching);
        count(&self.counters.fetches);
        let Either::Second(found) = found else {
            // Disabled or faulted meanwhile: discard the result.
            self.quiet.notify(&self.rt);
            return Ok(0);
        };
        let found = found?;
        if let Some(asked) = asked {
            let mut pace = queue.pace.borrow_mut();
            pace.fetched(asked, self.rt.now(), found);
            pace.filled(entries, found);
        }
        if found == 0 {
            self.rt.log("device", "nothing new", u64::from(queue.number), 0);
            count(&self.counters.empty);
            return Ok(0);
        }
        if let Some(gap_max) = self.options.poll_gap_max {
            let mut load = queue.load.get();
            load.came(self.rt.now(), found, gap_max);
            queue.load.set(load);
        }
        queue.next.set(first.wrapping_add(found));
        let entries = bytes.chunks_exact(command::BYTES).take(found as usize);
        let entries = entries.map(|bytes| Entry::ref_from_bytes(bytes).expect("an entry's length"));
        let hints = self.media.is_immediate();
        let ask = |moves: Moves, part| moves.prefetch(part, &*self.media);
        ahead::each(entries, hints, moves_of, ask, |entry| self.begin(queue, slots, entry, hints));
        Ok(found)
    }

    /// Serves a command at once, or gives it to a slot.
    fn begin(&self, queue: &Queue, slots: &mut Vec<u16>, entry: &Entry, immediate: bool) {
        count(&self.counters.commands);
        let traces = self.options.traces_from + queue.number;
        self.rt.attach_trace(traces, entry.slot());
        let traced = self.rt.is_traced();
        if traced {
            self.rt.record(self.stages.pickup);
        }
        let (number, place) = (u64::from(queue.number), u64::from(entry.slot()));
        self.rt.log("device", "fetched", number, place);
        let served = immediate && self.at_once(queue, entry);
        if traced {
            self.rt.detach_trace();
        }
        if !served {
            let slot = slots.pop().expect("a slot for every entry");
            let job = Job { queue: queue.number, entry: *entry };
            self.slots[usize::from(slot)].give(&self.rt, job);
        }
    }

    /// Puts the queue to sleep after a long idle time: sets the notice, fetches once more, and waits for the
    /// doorbell. The host stores its command before it reads the notice, and both sides have a fence in
    /// between, so either this last fetch finds the command or the host finds the device asleep.
    async fn sleep(&self, queue: &Queue, open: Open, bytes: &mut [u8], slots: &mut Vec<u16>) {
        let seen = queue.turned.version();
        self.tell_asleep(queue, true);
        self.port.fence();
        let found = match self.fetch(queue, open, bytes, slots).await {
            Ok(found) => found,
            Err(_) => return self.fault(queue),
        };
        if found == 0 && queue.open.get().is_some() {
            count(&self.counters.sleeps);
            self.rt.log("device", "asleep", u64::from(queue.number), 1);
            // Release the slots to other queues meanwhile.
            slots.drain(..).for_each(|slot| self.idle.give(&self.rt, slot));
            queue.turned.changed(&self.rt, seen).await;
            self.rt.log("device", "asleep", u64::from(queue.number), 0);
        }
        self.tell_asleep(queue, false);
    }
}

/// Data of a read or a write that is about to begin, for a hint; the command itself validates them.
#[inline]
fn moves_of(entry: &Entry) -> Option<Moves> {
    let (lba, bytes, to_write) = entry.moves()?;
    Some(Moves { block: lba.0, bytes, to_write })
}

/// A flag that is set until dropped.
struct Raised<'a>(&'a Cell<bool>);

impl<'a> Raised<'a> {
    fn new(flag: &'a Cell<bool>) -> Raised<'a> {
        flag.set(true);
        Raised(flag)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
