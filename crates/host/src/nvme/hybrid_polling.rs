//! Hybrid polling: when to poll for completions, and when to sleep.
//!
//! ```text
//!   a command's age    0 ........ mean / 2 ........ 4 means, at least 100 us ........
//!   completion poller  |  sleep   |      polls all the time      | sleeps of age / 16 |
//! ```
//!
//! The mean is a moving average over commands of the same direction and size. Of all commands in flight the
//! most urgent one decides, because one poll serves all. With nothing in flight there is no polling. Half the
//! mean is Linux's choice (block/blk-mq.c, its hybrid polling). The sleeps for overdue commands are ours: a
//! command that the device holds indefinitely, as an Asynchronous Event Request, keeps no core awake.
//!
//! Commands in flight are in lists by direction and size, in order of submission, so only the first of each
//! list is examined.

use alloc::boxed::Box;
use core::cell::Cell;

use runtime::{Signal, Span, Time};
use wire::QueueId;
use wire::nvme::opcode::io as opcode;

/// Size classes: powers of two of blocks; the last holds everything longer.
const SIZES: usize = 12;
/// Class of all commands but reads and writes. It has no mean: the latency of a flush is not predictable.
const OTHER: usize = 2 * SIZES;
/// List of commands that have exceeded their class's patience.
const LATE: usize = OTHER + 1;
/// Marks the end of a list.
const NONE: u16 = u16::MAX;
/// A command in no list.
const GROUNDED: u8 = u8::MAX;

/// Commands expected within this time are polled for without sleeping: about the delay by which a sleep ends
/// late.
const PATIENCE_MIN: Span = Span::us(100);
/// Age, in means, until which a command is polled for.
const PATIENCE_MEANS: u64 = 4;
/// Divisor of an overdue command's age that gives the next sleep, and so the most latency that it adds.
const SLEEPS_IN_AGE: u64 = 16;
/// Longest sleep for an overdue command.
const SLEEP_MAX: Span = Span::ms(1);
/// Weight of one command in its class's mean.
const WEIGHT: i64 = 8;

/// Next action of a completion poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// No command is in flight.
    Idle,
    /// Nothing is expected before this time.
    After(Time),
    /// A completion is expected now: poll until this time, then call `next` again.
    Now(Time),
}

struct Flight {
    since: Cell<Time>,
    class: Cell<u8>,
    list: Cell<u8>,
    before: Cell<u16>,
    behind: Cell<u16>,
}

/// First and last command of a list, in submission order.
struct List {
    first: Cell<u16>,
    last: Cell<u16>,
}

/// Commands in flight of one queue, and the mean latency of each class.
pub(super) struct HybridPolling {
    /// One entry per command slot, indexed by slot.
    flights: Box<[Flight]>,
    lists: [List; LATE + 1],
    means: [Cell<Span>; OTHER],
    /// Bitmap of the lists that are not empty.
    held: Cell<u32>,
    /// Time at which the sleeping poller wakes; zero if it is awake.
    asleep_until: Cell<Time>,
    /// Notified when the poller must wake earlier.
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

    /// Records the submission of a slot's command. Returns true if the poller sleeps and must be woken.
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

    /// Records the end of a slot's command and updates the mean of its class.
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

    /// Removes all commands.
    pub fn clear(&self) {
        self.flights.iter().for_each(|flight| flight.list.set(GROUNDED));
        self.lists.iter().for_each(List::clear);
        self.held.set(0);
    }

    /// Returns the next action. A poller that sleeps is woken if a completion is expected earlier.
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

    /// Mean of a class; zero if unknown.
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

/// Class of a command. Reads and writes are classified by their number of blocks, which the low half of Dword
/// 12 holds zero-based (NVM command set 1.0, 3.2.4 and 3.2.6).
pub(super) fn class(queue: QueueId, code: u8, dword12: u32) -> usize {
    let blocks = (dword12 & 0xffff) + 1;
    let size = (blocks.ilog2() as usize).min(SIZES - 1);
    match code {
        opcode::READ | opcode::READ_PLACED if queue != QueueId::ADMIN => size,
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

    /// A queue whose mean for reads of one block is `mean_us`.
    fn knowing(mean_us: u64) -> HybridPolling {
        let hybrid_polling = HybridPolling::new(8);
        hybrid_polling.begin(0, 0, at(0));
        hybrid_polling.end(0, at(mean_us));
        hybrid_polling
    }

    #[test]
    fn hybrid_poll_sleeps_half_mean_then_polls_then_backs_off() {
        let hybrid_polling = knowing(80);
        assert_eq!(hybrid_polling.next(at(100)), Look::Idle);
        assert!(hybrid_polling.begin(3, 0, at(1000)), "a poller without a deadline is woken");
        assert_eq!(hybrid_polling.next(at(1000)), Look::After(at(1040)));
        assert_eq!(hybrid_polling.next(at(1040)), Look::Now(at(1320)));
        assert_eq!(hybrid_polling.next(at(1320)), Look::After(at(1340)));
        assert_eq!(hybrid_polling.next(at(2600)), Look::After(at(2700)));
        assert_eq!(hybrid_polling.next(at(1_001_000)), Look::After(at(1_002_000)));
        hybrid_polling.end(3, at(1_001_500));
        assert_eq!(hybrid_polling.next(at(1_001_500)), Look::Idle);
    }

    #[test]
    fn mean_latency_tracks_increase_and_decrease() {
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
        // Completions after a sleep are never seen before half the mean; the mean decreases all the same.
        for round in 300..400 {
            hybrid_polling.begin(1, 0, at(1000 * round));
            let slept = hybrid_polling.mean(0) / 2;
            hybrid_polling.end(1, at(1000 * round) + slept.max(Span::us(10)));
        }
        assert!(hybrid_polling.mean(0) <= Span::us(11), "{}", hybrid_polling.mean(0));
    }

    #[test]
    fn earliest_expected_completion_wakes_poller() {
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
    fn hung_command_does_not_hide_later_ones() {
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
