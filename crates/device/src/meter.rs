//! Counts and latencies of the commands of a watched device.
//!
//! Unwatched it costs two predictable branches for each command. Watched, the clock is read at the beginning
//! and at the end of a command; nothing is allocated after [`Meter::watch`].

use std::cell::{Cell, RefCell};

use runtime::{Rt, Span, Time};
use wire::nvme::opcode::io;

use crate::energy::PowerUse;

/// Kinds of commands that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// All other commands of I/O queues.
    Other,
}

impl Kind {
    /// All kinds, in the order of [`Snapshot::kinds`].
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Other];

    /// Name in results.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Other => "other",
        }
    }

    /// The kind of an NVMe opcode.
    pub const fn of(opcode: u8) -> Kind {
        match opcode {
            io::READ | io::READ_PLACED => Kind::Read,
            io::WRITE => Kind::Write,
            io::FLUSH => Kind::Flush,
            _ => Kind::Other,
        }
    }
}

/// Seconds that percentiles and rates cover: complete ones, before the current one.
pub const SECONDS: u64 = 5;
/// Seconds held: the current one, and those before it.
const HELD: u64 = SECONDS + 1;
/// Latencies in nanoseconds, in 2^3 buckets for each power of two: a relative error of at most an eighth.
const FINE_LOG2: u32 = 3;
/// Buckets up to 2^40 ns, about 18 minutes.
const BUCKETS: usize = (40 - FINE_LOG2 as usize + 1) << FINE_LOG2;

/// The bucket of a latency.
fn bucket(ns: u64) -> usize {
    let fine = 1 << FINE_LOG2;
    if ns < fine {
        return ns as usize;
    }
    let shift = ns.ilog2() - FINE_LOG2;
    let place = (shift as usize + 1) << FINE_LOG2 | (ns >> shift) as usize & (fine as usize - 1);
    place.min(BUCKETS - 1)
}

/// The largest latency of a bucket, in nanoseconds.
pub fn highest_ns(bucket: usize) -> u64 {
    let fine = 1 << FINE_LOG2;
    if bucket < fine {
        return bucket as u64;
    }
    let shift = (bucket >> FINE_LOG2) as u32 - 1;
    (((fine | bucket & (fine - 1)) as u64 + 1) << shift) - 1
}

/// Commands of one second.
#[derive(Clone)]
struct Second {
    number: u64,
    commands: u64,
    bytes: u64,
    buckets: Box<[u32; BUCKETS]>,
}

#[derive(Clone)]
struct Counted {
    totals: Totals,
    seconds: Vec<Second>,
}

/// Counts since the start of the watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Completed commands.
    pub commands: u64,
    /// Bytes of the blocks that their entries name.
    pub bytes: u64,
    /// Commands that completed with an error.
    pub errors: u64,
    /// Sum of their latencies, nanoseconds.
    pub latency_ns: u64,
}

impl Totals {
    /// The sum of both.
    pub fn and(self, other: Totals) -> Totals {
        Totals {
            commands: self.commands + other.commands,
            bytes: self.bytes + other.bytes,
            errors: self.errors + other.errors,
            latency_ns: self.latency_ns.saturating_add(other.latency_ns),
        }
    }
}

/// Counts of one kind of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Since the start of the watch.
    pub totals: Totals,
    /// Commands of the last [`SECONDS`] complete seconds.
    pub commands: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies: the number in each bucket ([`highest_ns`]).
    pub buckets: Vec<u64>,
}

impl Counts {
    /// The latency that `permille` thousandths of the last seconds' commands did not exceed, nanoseconds.
    /// `None` without commands.
    pub fn percentile_ns(&self, permille: u64) -> Option<u64> {
        let all: u64 = self.buckets.iter().sum();
        let rank = (all * permille).div_ceil(1000).max(1);
        let mut so_far = 0;
        let reached = self.buckets.iter().position(|count| {
            so_far += count;
            so_far >= rank
        });
        reached.map(highest_ns)
    }
}

/// Counts of a meter at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// One for each of [`Kind::ALL`].
    pub kinds: [Counts; 4],
}

/// Counts of a device's commands.
#[derive(Default)]
pub struct Meter {
    /// Time in each power state.
    pub power: PowerUse,
    watched: Cell<bool>,
    counted: RefCell<Vec<Counted>>,
}

impl Meter {
    /// Counts from now on.
    pub fn watch(&self) {
        let second =
            || Second { number: 0, commands: 0, bytes: 0, buckets: Box::new([0; BUCKETS]) };
        let counted = || Counted {
            totals: Totals::default(),
            seconds: (0..HELD).map(|_| second()).collect(),
        };
        *self.counted.borrow_mut() = Kind::ALL.iter().map(|_| counted()).collect();
        self.watched.set(true);
    }

    /// Returns true after [`watch`](Meter::watch).
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.get()
    }

    /// A command begins. Its [`ends`](Meter::ends) takes the result.
    #[inline]
    pub(crate) fn begins(&self, rt: &Rt) -> Time {
        if self.watched.get() { rt.now() } else { Time::ZERO }
    }

    /// A command has completed that began at `since`.
    #[inline]
    pub(crate) fn ends(&self, rt: &Rt, since: Time, kind: Kind, bytes: u64, is_ok: bool) {
        if self.watched.get() {
            self.count(rt.now(), since, kind, bytes, is_ok);
        }
    }

    fn count(&self, now: Time, since: Time, kind: Kind, bytes: u64, is_ok: bool) {
        let ns = now.since(since).as_ns();
        let mut counted = self.counted.borrow_mut();
        let counted = &mut counted[kind as usize];
        counted.totals = counted.totals.and(Totals {
            commands: 1,
            bytes,
            errors: u64::from(!is_ok),
            latency_ns: ns,
        });
        let number = now.0 / Span::s(1).0;
        let second = &mut counted.seconds[(number % HELD) as usize];
        if second.number != number {
            (second.number, second.commands, second.bytes) = (number, 0, 0);
            second.buckets.fill(0);
        }
        second.commands += 1;
        second.bytes += bytes;
        second.buckets[bucket(ns)] += 1;
    }

    /// The counts so far, with the complete seconds before `now`.
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let counted = self.counted.borrow();
        let current = now.0 / Span::s(1).0;
        let mut snapshot = Snapshot::default();
        for (counted, counts) in counted.iter().zip(&mut snapshot.kinds) {
            counts.totals = counted.totals;
            counts.buckets = vec![0; BUCKETS];
            let is_complete =
                |second: &&Second| second.number < current && second.number + SECONDS >= current;
            for second in counted.seconds.iter().filter(is_complete) {
                counts.commands += second.commands;
                counts.bytes += second.bytes;
                let each = counts.buckets.iter_mut().zip(second.buckets.iter());
                each.for_each(|(sum, count)| *sum += u64::from(*count));
            }
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_holds_its_latencies_within_an_eighth() {
        let mut before = None;
        for bucket_number in 0..BUCKETS - 1 {
            let highest = highest_ns(bucket_number);
            assert_eq!(bucket(highest), bucket_number, "{highest} ns");
            assert_eq!(bucket(highest + 1), bucket_number + 1, "{highest} ns and one more");
            let lowest = before.map_or(0, |before: u64| before + 1);
            assert!((highest - lowest) * 8 <= lowest.max(8), "{lowest} to {highest} ns");
            before = Some(highest);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn snapshot_has_totals_and_complete_seconds_only() {
        let meter = Meter::default();
        meter.watch();
        let at = |second: u64| Time(Span::s(second).0);
        for second in 0..20 {
            let since = at(second);
            meter.count(since + Span::us(second), since, Kind::Read, 512, second != 3);
        }
        let snapshot = meter.snapshot(at(20));
        let [read, write, ..] = &snapshot.kinds;
        assert_eq!(write.totals, Totals::default());
        assert_eq!(
            (read.totals.commands, read.totals.bytes, read.totals.errors),
            (20, 20 * 512, 1)
        );
        assert_eq!((read.commands, read.bytes), (SECONDS, SECONDS * 512), "15 to 19");
        let within = |ns: Option<u64>, expected: u64| {
            let ns = ns.expect("commands");
            assert!(
                (expected..=expected + expected / 8).contains(&ns),
                "{ns}, expected {expected}"
            );
        };
        within(read.percentile_ns(500), 17_000);
        within(read.percentile_ns(999), 19_000);
        assert_eq!(write.percentile_ns(500), None);
        let late = meter.snapshot(at(100));
        assert_eq!((late.kinds[0].commands, late.kinds[0].totals.commands), (0, 20));
    }
}
