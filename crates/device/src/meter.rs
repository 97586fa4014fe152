//! Counts, latencies and latency breakdown of the commands of a watched device.
//!
//! Of one command in [`SAMPLE`] the stages are recorded, in a table of request traces of the device's own
//! ([`traces`]): the slot of a command names its row, so that identifiers that a host chooses cannot mix two.
//!
//! Unwatched it costs two predictable branches for each command. Watched, the clock is read at the beginning
//! and at the end of a command; nothing is allocated after [`Meter::watch`].

use std::cell::{Cell, RefCell};

use runtime::{Finished, Rt, STAGES_MAX, Span, Time, Traces};
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

/// One command in this number is traced.
pub const SAMPLE: u32 = 1 << SAMPLE_LOG2;
const SAMPLE_LOG2: u32 = 4;
/// Slots with a row in the table of traces, of each of the controllers of an interface: NVMe's and another.
const SLOTS: u32 = 1 << SLOTS_LOG2;
const SLOTS_LOG2: u32 = 10;
const CONTROLLERS: u16 = 2;

/// The table of request traces of a watched device, with the stages of its interface. The world's own queue
/// numbers begin behind it: see [`Rt::queues_from`].
pub fn traces(stages: &'static [&'static str]) -> Traces {
    Traces::new(CONTROLLERS.into(), SLOTS, SLOTS_LOG2, SAMPLE_LOG2, stages)
}

/// The handle of an executor for a device and its driver, beside the table of [`traces`].
pub fn beside_traces(rt: &Rt) -> Rt {
    rt.queues_from(CONTROLLERS)
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
    latency_ns: u64,
    buckets: Box<[u32; BUCKETS]>,
    traced: u64,
    /// Of the traced commands: their latencies, and the part of each stage, picoseconds.
    traced_ps: u64,
    stages_ps: Box<[u64; STAGES_MAX]>,
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
    /// The sum of their latencies, nanoseconds. Divided by the time, the mean number in the device.
    pub latency_ns: u64,
    /// Their latencies: the number in each bucket ([`highest_ns`]).
    pub buckets: Vec<u64>,
    /// Commands of these seconds that were traced, and the sum of their latencies, picoseconds.
    pub traced: u64,
    /// As above.
    pub traced_ps: u64,
    /// Of them the stages that have a part: name, and sum in picoseconds. The rest of the sum of
    /// latencies is time that no stage names.
    pub stages_ps: Vec<(&'static str, u64)>,
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

    fn add(&mut self, other: &Counts) {
        self.totals = self.totals.and(other.totals);
        self.commands += other.commands;
        self.bytes += other.bytes;
        self.latency_ns += other.latency_ns;
        // A meter that has not posted yet has no buckets.
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        let buckets = self.buckets.iter_mut().zip(&other.buckets);
        buckets.for_each(|(sum, count)| *sum += count);
        self.traced += other.traced;
        self.traced_ps += other.traced_ps;
        for (name, ps) in &other.stages_ps {
            match self.stages_ps.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += ps,
                None => self.stages_ps.push((name, *ps)),
            }
        }
    }
}

/// Counts of a meter at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// One for each of [`Kind::ALL`].
    pub kinds: [Counts; 4],
}

impl Snapshot {
    /// Adds the counts of another meter at about this time, as of another thread of the device.
    pub fn add(&mut self, other: &Snapshot) {
        for (counts, other) in self.kinds.iter_mut().zip(&other.kinds) {
            counts.add(other);
        }
    }
}

/// Counts of a device's commands.
#[derive(Default)]
pub struct Meter {
    /// Time in each power state.
    pub power: PowerUse,
    watched: Cell<bool>,
    /// The handle of the table of traces, and the number of commands.
    traces: RefCell<Option<Rt>>,
    begun: Cell<u16>,
    counted: RefCell<Vec<Counted>>,
}

impl Meter {
    /// Counts from now on; with stages, if the world has the table of [`traces`].
    pub fn watch(&self, rt: &Rt) {
        let second = || Second {
            number: 0,
            commands: 0,
            bytes: 0,
            latency_ns: 0,
            buckets: Box::new([0; BUCKETS]),
            traced: 0,
            traced_ps: 0,
            stages_ps: Box::new([0; STAGES_MAX]),
        };
        *self.traces.borrow_mut() = rt.has_traces().then(|| rt.queues_from(0));
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

    /// A command begins, in this slot of a controller. Its [`ends`](Meter::ends) takes the result.
    #[inline]
    pub(crate) fn begins(&self, rt: &Rt, controller: u16, slot: u16) -> Time {
        if self.watched.get() {
            self.begins_watched(rt.now(), controller, slot)
        } else {
            Time::ZERO
        }
    }

    #[cold]
    fn begins_watched(&self, now: Time, controller: u16, slot: u16) -> Time {
        if let Some(rt) = &*self.traces.borrow()
            && u32::from(slot) < SLOTS
        {
            // The bits above those of the slot select the sample.
            let begun = self.begun.replace(self.begun.get().wrapping_add(1));
            rt.begin_trace(controller, slot | begun << SLOTS_LOG2, now);
        }
        now
    }

    /// A command has completed that began at `since`.
    #[inline]
    pub(crate) fn ends(&self, rt: &Rt, since: Time, kind: Kind, bytes: u64, is_ok: bool) {
        if self.watched.get() {
            let traced = self.traces.borrow().as_ref().and_then(Rt::finish_trace);
            self.count(rt.now(), since, kind, bytes, is_ok, traced);
        }
    }

    fn count(
        &self,
        now: Time,
        since: Time,
        kind: Kind,
        bytes: u64,
        is_ok: bool,
        traced: Option<Finished>,
    ) {
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
            second.latency_ns = 0;
            second.buckets.fill(0);
            (second.traced, second.traced_ps) = (0, 0);
            second.stages_ps.fill(0);
        }
        if let Some(Finished { total, stages }) = traced {
            second.traced += 1;
            second.traced_ps += total.0;
            let each = second.stages_ps.iter_mut().zip(stages);
            each.for_each(|(sum, ps)| *sum += ps);
        }
        second.commands += 1;
        second.bytes += bytes;
        second.latency_ns += ns;
        second.buckets[bucket(ns)] += 1;
    }

    /// The counts so far, with the complete seconds before `now`.
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let counted = self.counted.borrow();
        let current = now.0 / Span::s(1).0;
        let mut snapshot = Snapshot::default();
        let names = self.traces.borrow().as_ref().map_or(&[][..], Rt::stage_names);
        for (counted, counts) in counted.iter().zip(&mut snapshot.kinds) {
            counts.totals = counted.totals;
            counts.buckets = vec![0; BUCKETS];
            let mut stages_ps = [0; STAGES_MAX];
            let is_complete =
                |second: &&Second| second.number < current && second.number + SECONDS >= current;
            for second in counted.seconds.iter().filter(is_complete) {
                counts.commands += second.commands;
                counts.bytes += second.bytes;
                counts.latency_ns += second.latency_ns;
                let each = counts.buckets.iter_mut().zip(second.buckets.iter());
                each.for_each(|(sum, count)| *sum += u64::from(*count));
                counts.traced += second.traced;
                counts.traced_ps += second.traced_ps;
                let each = stages_ps.iter_mut().zip(second.stages_ps.iter());
                each.for_each(|(sum, ps)| *sum += ps);
            }
            let named = names.iter().copied().zip(stages_ps);
            counts.stages_ps = named.filter(|(_, ps)| *ps > 0).collect();
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::{Log, stage};

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
        meter.watch(&Rt::simulated(None, Log::Off));
        let at = |second: u64| Time(Span::s(second).0);
        for second in 0..20 {
            let since = at(second);
            meter.count(since + Span::us(second), since, Kind::Read, 512, second != 3, None);
        }
        let snapshot = meter.snapshot(at(20));
        let [read, write, ..] = &snapshot.kinds;
        assert_eq!(write.totals, Totals::default());
        assert_eq!(
            (read.totals.commands, read.totals.bytes, read.totals.errors),
            (20, 20 * 512, 1)
        );
        assert_eq!((read.commands, read.bytes), (SECONDS, SECONDS * 512), "15 to 19");
        assert_eq!(read.latency_ns, (15 + 16 + 17 + 18 + 19) * 1000);
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

    #[test]
    fn counts_of_two_threads_are_those_of_one() {
        let meters: [Meter; 3] = Default::default();
        meters.iter().for_each(|meter| meter.watch(&Rt::simulated(None, Log::Off)));
        for number in 0..100_u64 {
            let since = Time(Span::ms(30 * number).0);
            let kind = Kind::ALL[number as usize % 3];
            let one = &meters[number as usize % 2];
            let mut stages = [0; STAGES_MAX];
            stages[number as usize % 2] = number;
            for meter in [one, &meters[2]] {
                let traced = Some(Finished { total: Span::us(number), stages });
                meter.count(since + Span::us(number), since, kind, 512, number > 7, traced);
            }
        }
        let [mut sum, one, both] = [&Meter::default(), &meters[0], &meters[2]]
            .map(|meter| meter.snapshot(Time(Span::s(3).0)));
        sum.add(&one);
        sum.add(&meters[1].snapshot(Time(Span::s(3).0)));
        assert_eq!(sum.kinds[0].totals.commands, 34);
        assert_eq!(sum, both);
    }

    #[test]
    fn one_command_in_sixteen_has_stages_that_add_up() {
        const STAGES: &[&str] = &["first", "second"];
        let rt = beside_traces(&Rt::simulated(Some(traces(STAGES)), Log::Off));
        let (first, second) = (stage!(rt, STAGES, "first"), stage!(rt, STAGES, "second"));
        let meter = Meter::default();
        meter.watch(&rt);
        rt.block_on(async {
            for number in 0..320_u16 {
                // Traces of the world itself have no row here.
                rt.attach_trace(0, number);
                rt.record(first);
                assert!(!rt.is_traced());
                let since = meter.begins(&rt, number % 2, number % 7);
                rt.sleep(Span::us(1)).await;
                rt.record(first);
                rt.sleep(Span::us(2)).await;
                rt.record(second);
                rt.sleep(Span::us(3)).await;
                meter.ends(&rt, since, Kind::Write, 512, true);
            }
        });
        let snapshot = meter.snapshot(Time(Span::s(2).0));
        let write = &snapshot.kinds[Kind::Write as usize];
        let traced = write.traced;
        assert!((15..=25).contains(&traced), "{traced} of {}", write.commands);
        assert_eq!(write.traced_ps, traced * Span::us(6).0);
        let expected = [("first", traced * Span::us(1).0), ("second", traced * Span::us(2).0)];
        assert_eq!(write.stages_ps, expected);
        assert!(meter.snapshot(Time(Span::s(20).0)).kinds[1].stages_ps.is_empty());
    }
}
