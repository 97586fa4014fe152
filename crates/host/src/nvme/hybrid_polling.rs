//! Hybrid polling: when to look for completions, and when to sleep instead.
//!
//! ```text
//!   a command's age    0 ........ mean / 2 ........ 4 means, at least 100 us ........
//!   what the pump does |   naps   |      looks all the time      | naps of age / 16   |
//! ```
//!
//! The mean is that of commands of the same direction and size, and follows them. Of all commands in flight
//! the one that asks for most decides: who looks, looks for all. With nothing in flight there is nothing to
//! look for. The half is Linux's choice (block/blk-mq.c, its hybrid polling); the naps of what takes far too
//! long are ours, so that a command that is held for ever, as one that asks for events, keeps no core awake.

use alloc::boxed::Box;
use core::cell::Cell;

use runtime::{Signal, Span, Time};
use wire::QueueId;
use wire::nvme::opcode::io as opcode;

/// Sizes that are told apart: powers of two of blocks, and all that is longer.
const SIZES: usize = 12;
/// Reads, then writes, then all else, of which no mean is kept: a flush takes what it takes.
const OTHER: usize = 2 * SIZES;
/// The list of what takes far longer than its like.
const LATE: usize = OTHER + 1;
const NONE: u16 = u16::MAX;
/// A command that is in no list.
const GROUNDED: u8 = u8::MAX;

/// What is expected within this is looked for all the time: about what a sleep ends late by.
const PATIENCE_MIN: Span = Span::us(100);
/// It is looked for until it is this many means old.
const PATIENCE_MEANS: u64 = 4;
/// Naps of what is older are this part of its age, and so is what they add to it;
const SLEEPS_IN_AGE: u64 = 16;
/// they are never longer than this.
const SLEEP_MAX: Span = Span::ms(1);
/// The weight of one command in the mean of its like.
const WEIGHT: i64 = 8;

/// What a queue's pump does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Idle,
    /// Nothing is expected before this moment.
    After(Time),
    /// Something is expected now; if it has not come by this moment, it is to be asked again.
    Now(Time),
}

struct Flight {
    since: Cell<Time>,
    class: Cell<u8>,
    list: Cell<u8>,
    before: Cell<u16>,
    behind: Cell<u16>,
}

/// The first and the last of a list in the order of submission.
struct List {
    first: Cell<u16>,
    last: Cell<u16>,
}

/// What one queue has in flight, and how long its like has taken.
pub(super) struct HybridPolling {
    flights: Box<[Flight]>,
    lists: [List; LATE + 1],
    means: [Cell<Span>; OTHER],
    /// Lists that hold something, a bit each.
    held: Cell<u32>,
    /// When the pump, which sleeps, wants to look; zero: it is awake.
    asleep_until: Cell<Time>,
    /// It is to look earlier than it wanted to.
    pub woken: Signal,
}

impl HybridPolling {
    pub fn new(depth: u16) -> HybridPolling {
        let flight = |_| Flight {
            since: Cell::new(Time::ZERO),
            class: Cell::new(0),
            list: Cell::new(GROUNDED),
            before: Cell::new(NONE),
            behind: Cell::new(NONE),
        };
        HybridPolling {
            flights: (0..depth).map(flight).collect(),
            lists: core::array::from_fn(|_| List::empty()),
            means: [const { Cell::new(Span::ZERO) }; OTHER],
            held: Cell::new(0),
            asleep_until: Cell::new(Time::ZERO),
            woken: Signal::default(),
        }
    }

    /// The device gets the command of this slot. True: the pump sleeps, and is to be woken.
    #[inline]
    pub fn begin(&self, slot: u16, class: usize, now: Time) -> bool {
        let flight = &self.flights[usize::from(slot)];
        flight.since.set(now);
        flight.class.set(class as u8);
        self.append(class, slot);
        let wakes = now + self.mean(class) / 2 < self.asleep_until.get();
        if wakes {
            self.asleep_until.set(Time::ZERO);
        }
        wakes
    }

    /// The command of this slot has ended: its like take so long.
    #[inline]
    pub fn end(&self, slot: u16, now: Time) {
        let flight = &self.flights[usize::from(slot)];
        if flight.list.get() == GROUNDED {
            return;
        }
        self.remove(slot);
        if let Some(mean) = self.means.get(usize::from(flight.class.get())) {
            let (old, took) = (mean.get().0 as i64, now.since(flight.since.get()).0 as i64);
            let new = if old == 0 { took } else { old + (took - old) / WEIGHT };
            mean.set(Span(new.max(1) as u64));
        }
    }

    /// Nothing is in flight any more.
    pub fn clear(&self) {
        self.flights.iter().for_each(|flight| flight.list.set(GROUNDED));
        self.lists.iter().for_each(List::clear);
        self.held.set(0);
    }

    /// What to do now. Who sleeps says so, to be woken if something is expected earlier.
    pub fn next(&self, now: Time) -> Look {
        let (mut expected, mut until) = (Time::NEVER, Time::NEVER);
        for list in (0..LATE).filter(|list| self.held.get() & 1 << list != 0) {
            while let Some(oldest) = self.lists[list].first() {
                let since = self.flights[usize::from(oldest)].since.get();
                let (from, end) = (since + self.mean(list) / 2, since + self.patience(list));
                if end <= now {
                    self.remove(oldest);
                    self.append(LATE, oldest);
                    continue;
                }
                match from <= now {
                    true => until = until.min(end),
                    false => expected = expected.min(from),
                }
                break;
            }
        }
        if let Some(youngest) = self.lists[LATE].last() {
            let age = now.since(self.flights[usize::from(youngest)].since.get());
            expected = expected.min(now + (age / SLEEPS_IN_AGE).min(SLEEP_MAX));
        }
        let look = match (until, self.held.get()) {
            (Time::NEVER, 0) => Look::Idle,
            (Time::NEVER, _) => Look::After(expected),
            (until, _) => Look::Now(until),
        };
        self.asleep_until.set(match look {
            Look::Idle => Time::NEVER,
            Look::After(at) => at,
            Look::Now(_) => Time::ZERO,
        });
        look
    }

    /// Zero where it is not known.
    fn mean(&self, class: usize) -> Span {
        self.means.get(class).map_or(Span::ZERO, Cell::get)
    }

    fn patience(&self, class: usize) -> Span {
        (self.mean(class) * PATIENCE_MEANS).max(PATIENCE_MIN)
    }

    fn append(&self, list: usize, slot: u16) {
        let (flight, ends) = (&self.flights[usize::from(slot)], &self.lists[list]);
        let last = ends.last.replace(slot);
        match last {
            NONE => ends.first.set(slot),
            last => self.flights[usize::from(last)].behind.set(slot),
        }
        flight.before.set(last);
        flight.behind.set(NONE);
        flight.list.set(list as u8);
        self.held.set(self.held.get() | 1 << list);
    }

    fn remove(&self, slot: u16) {
        let flight = &self.flights[usize::from(slot)];
        let list = usize::from(flight.list.replace(GROUNDED));
        let (ends, before, behind) = (&self.lists[list], flight.before.get(), flight.behind.get());
        match before {
            NONE => ends.first.set(behind),
            before => self.flights[usize::from(before)].behind.set(behind),
        }
        match behind {
            NONE => ends.last.set(before),
            behind => self.flights[usize::from(behind)].before.set(before),
        }
        if ends.first().is_none() {
            self.held.set(self.held.get() & !(1 << list));
        }
    }
}

impl List {
    fn empty() -> List {
        List { first: Cell::new(NONE), last: Cell::new(NONE) }
    }

    fn clear(&self) {
        self.first.set(NONE);
        self.last.set(NONE);
    }

    fn first(&self) -> Option<u16> {
        Some(self.first.get()).filter(|slot| *slot != NONE)
    }

    fn last(&self) -> Option<u16> {
        Some(self.last.get()).filter(|slot| *slot != NONE)
    }
}

/// Whose mean is a command's: reads and writes by the number of their blocks, which the low half of Dword 12
/// gives less one (NVM command set 1.0, 3.2.4 and 3.2.6).
pub(super) fn class(queue: QueueId, code: u8, dword12: u32) -> usize {
    let blocks = (dword12 & 0xffff) + 1;
    let size = (blocks.ilog2() as usize).min(SIZES - 1);
    match code {
        opcode::READ if queue != QueueId::ADMIN => size,
        opcode::WRITE if queue != QueueId::ADMIN => SIZES + size,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::ZERO + Span::us(us)
    }

    /// A queue that has learnt that reads of one block take so long.
    fn knowing(mean_us: u64) -> HybridPolling {
        let hybrid_polling = HybridPolling::new(8);
        hybrid_polling.begin(0, 0, at(0));
        hybrid_polling.end(0, at(mean_us));
        hybrid_polling
    }

    #[test]
    fn half_the_mean_is_slept_then_it_looks_then_hybrid_polling_grow_with_age() {
        let hybrid_polling = knowing(80);
        assert_eq!(hybrid_polling.next(at(100)), Look::Idle);
        assert!(hybrid_polling.begin(3, 0, at(1000)), "who sleeps for ever is woken");
        assert_eq!(hybrid_polling.next(at(1000)), Look::After(at(1040)));
        assert_eq!(hybrid_polling.next(at(1040)), Look::Now(at(1320)));
        assert_eq!(hybrid_polling.next(at(1320)), Look::After(at(1340)));
        assert_eq!(hybrid_polling.next(at(2600)), Look::After(at(2700)));
        assert_eq!(hybrid_polling.next(at(1_001_000)), Look::After(at(1_002_000)));
        hybrid_polling.end(3, at(1_001_500));
        assert_eq!(hybrid_polling.next(at(1_001_500)), Look::Idle);
    }

    #[test]
    fn the_mean_follows_both_ways() {
        let hybrid_polling = knowing(80);
        for round in 1..=200 {
            hybrid_polling.begin(1, 0, at(1000 * round));
            hybrid_polling.end(1, at(1000 * round + 800));
        }
        assert!(
            (Span::us(790)..=Span::us(800)).contains(&hybrid_polling.mean(0)),
            "{}",
            hybrid_polling.mean(0)
        );
        // Slept through: it is never seen earlier than half the mean, and the mean comes down all the same.
        for round in 300..400 {
            hybrid_polling.begin(1, 0, at(1000 * round));
            let slept = hybrid_polling.mean(0) / 2;
            hybrid_polling.end(1, at(1000 * round) + slept.max(Span::us(10)));
        }
        assert!(hybrid_polling.mean(0) <= Span::us(11), "{}", hybrid_polling.mean(0));
    }

    #[test]
    fn who_is_expected_first_decides_and_wakes_who_sleeps_longer() {
        let hybrid_polling = knowing(80);
        hybrid_polling.begin(0, SIZES, at(0));
        hybrid_polling.end(0, at(1000));
        assert!(!hybrid_polling.begin(1, SIZES, at(2000)));
        assert_eq!(hybrid_polling.next(at(2000)), Look::After(at(2500)));
        assert!(
            hybrid_polling.begin(2, 0, at(2100)),
            "its half of 80 us ends before the other's half of 1 ms"
        );
        assert_eq!(hybrid_polling.next(at(2100)), Look::After(at(2140)));
        assert!(!hybrid_polling.begin(3, SIZES, at(2110)));
        hybrid_polling.end(2, at(2180));
        assert_eq!(hybrid_polling.next(at(2180)), Look::After(at(2500)));
    }

    #[test]
    fn one_that_is_held_for_ever_does_not_hide_those_behind_it() {
        let hybrid_polling = knowing(80);
        hybrid_polling.begin(1, 0, at(0));
        hybrid_polling.begin(2, OTHER, at(0));
        assert_eq!(hybrid_polling.next(at(50)), Look::Now(at(100)));
        assert!(matches!(hybrid_polling.next(at(32_000)), Look::After(next) if next == at(33_000)));
        hybrid_polling.begin(3, 0, at(32_500));
        assert_eq!(hybrid_polling.next(at(32_500)), Look::After(at(32_540)));
        assert_eq!(hybrid_polling.next(at(32_540)), Look::Now(at(32_820)));
        hybrid_polling.end(3, at(32_580));
        hybrid_polling.clear();
        assert_eq!(hybrid_polling.next(at(33_000)), Look::Idle);
        hybrid_polling.end(1, at(33_000));
    }
}
