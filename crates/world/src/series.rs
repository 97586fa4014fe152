//! Time series: throughput, latency and host resources of a run, by interval.
//!
//! Completed operations are counted into windows ([`workload::stats::Windows`]). FTL counters, host memory
//! and cores are sampled at the end of each window. The instrument follows Myoungsoo Jung and Mahmut
//! Kandemir, "Challenges in Getting Flash Drives Closer to CPU", section 3, with an Iometer that records all
//! of these over time.

use std::cell::{Cell, RefCell};
use std::fmt;

use ftl::Counters;
use runtime::{Rt, Span, Time};
use serde_json::{Value, json};
use workload::pattern::OpKind;
use workload::stats::{Counts, Windows};

#[derive(Clone, Debug, Default)]
pub struct TimeSeries {
    /// The length of an interval.
    pub interval: Span,
    /// The intervals in order; only complete ones.
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// End of the interval, from the start of the first jobs.
    pub at: Span,
    /// Reads that completed in the interval.
    pub reads: Counts,
    /// Writes that completed in the interval.
    pub writes: Counts,
    /// Mapping units that the host wrote, and units that the FTL programmed; none without an FTL.
    pub units: Option<(u64, u64)>,
    /// Host memory in use at the end of the interval, bytes: allocated memory that the device can access
    /// (queues, callers' buffers), and memory of an FTL on the host (map, tables, write buffer and pages).
    pub memory_bytes: u64,
    /// Utilisation of all cores, in thousandths. Live: CPU time of the host's thread, polling included. None
    /// where the host shares its thread with the device, or has several.
    pub cores_per_mille: Option<u64>,
}

impl Point {
    /// Write amplification in thousandths. None: the host wrote no units.
    pub fn amplification_per_mille(&self) -> Option<u64> {
        let (host, programmed) = self.units?;
        (programmed * 1000).checked_div(host)
    }

    pub fn both(&self) -> Counts {
        Counts {
            ops: self.reads.ops + self.writes.ops,
            bytes: self.reads.bytes + self.writes.bytes,
            took: self.reads.took + self.writes.took,
            longest: self.reads.longest.max(self.writes.longest),
        }
    }
}

/// Sample at the end of an interval.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Counters of the FTL, on the device or on the host.
    pub software: Option<Counters>,
    /// Host memory, bytes.
    pub memory_bytes: u64,
    /// Cumulative busy time of each core.
    pub cores: Option<Vec<Span>>,
}

pub struct Recorder {
    interval: Span,
    begun: Cell<Option<Time>>,
    reads: RefCell<Windows>,
    writes: RefCell<Windows>,
    /// Samples and their times: live, one may be late.
    samples: RefCell<Vec<(Time, Sample)>>,
}

impl Recorder {
    /// A recorder with this interval.
    pub fn new(interval: Span) -> Recorder {
        Recorder {
            interval,
            begun: Cell::new(None),
            reads: RefCell::new(Windows::of(interval)),
            writes: RefCell::new(Windows::of(interval)),
            samples: RefCell::default(),
        }
    }

    /// Counts a completed read or write.
    pub fn note(&self, kind: OpKind, now: Time, bytes: u32, took: Span) {
        let Some(begun) = self.begun.get() else { return };
        let windows = match kind {
            OpKind::Read => &self.reads,
            OpKind::Write => &self.writes,
            OpKind::Flush | OpKind::Trim => return,
        };
        windows.borrow_mut().count(now.since(begun), bytes, took);
    }

    /// Takes a sample at the start and at the end of each interval; never returns.
    pub async fn watch(&self, rt: &Rt, sample: impl Fn() -> Sample) {
        let begun = rt.now();
        self.begun.set(Some(begun));
        self.samples.borrow_mut().push((begun, sample()));
        for next in 1.. {
            rt.sleep_until(begun + self.interval * next).await;
            self.samples.borrow_mut().push((rt.now(), sample()));
        }
    }

    /// The recorded series: complete intervals only.
    pub fn series(&self) -> TimeSeries {
        let (reads, writes) = (self.reads.borrow(), self.writes.borrow());
        let of = |windows: &Windows, at: usize| windows.counts().get(at).copied();
        let samples = self.samples.borrow();
        let pairs = samples.windows(2).map(|pair| (&pair[0], &pair[1]));
        let points = pairs.zip(0..).map(|((from, to), at)| Point {
            at: self.interval * (at as u64 + 1),
            reads: of(&reads, at).unwrap_or_default(),
            writes: of(&writes, at).unwrap_or_default(),
            units: from.1.software.zip(to.1.software).map(|(before, after)| {
                let programmed = |of: &Counters| {
                    of.programmed_units + of.copied_units + of.meta_units + of.padding_units
                };
                (after.host_units - before.host_units, programmed(&after) - programmed(&before))
            }),
            memory_bytes: to.1.memory_bytes,
            cores_per_mille: busy(&from.1, &to.1, to.0.since(from.0)),
        });
        TimeSeries { interval: self.interval, points: points.collect() }
    }
}

/// Utilisation of all cores between two samples, in thousandths.
fn busy(before: &Sample, after: &Sample, interval: Span) -> Option<u64> {
    let sum = |sample: &Sample| {
        sample.cores.as_ref().map(|cores| cores.iter().map(|one| one.0).sum::<u64>())
    };
    let all = interval.0 * after.cores.as_ref()?.len() as u64;
    // A core counts as busy as soon as work is assigned, so the last item may extend past the end.
    Some(((sum(after)? - sum(before)?) * 1000 / all.max(1)).min(1000))
}

impl TimeSeries {
    /// As JSON, with times in nanoseconds.
    pub fn to_json(&self) -> Value {
        let kind = |of: &Counts| {
            json!({
                "ops": of.ops,
                "bytes": of.bytes,
                "mean_ns": (of.took / of.ops.max(1)).as_ns(),
                "max_ns": of.longest.as_ns(),
            })
        };
        let points = self.points.iter().map(|point| {
            json!({
                "at_ns": point.at.as_ns(),
                "read": kind(&point.reads),
                "write": kind(&point.writes),
                "host_units": point.units.map(|(host, _)| host),
                "programmed_units": point.units.map(|(_, programmed)| programmed),
                "host_memory_bytes": point.memory_bytes,
                "host_cores_per_mille": point.cores_per_mille,
            })
        });
        json!({ "interval_ns": self.interval.as_ns(), "points": points.collect::<Vec<_>>() })
    }
}

/// A table with a line per interval; unknown values are dashes.
impl fmt::Display for TimeSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>10} {:>9} {:>10} {:>10} {:>9} {:>10} {:>10} {:>7} {:>9} {:>6}",
            "ms",
            "read/s",
            "mean us",
            "max us",
            "write/s",
            "mean us",
            "max us",
            "w.amp.",
            "host KiB",
            "cpu %"
        )?;
        let number = |value: Option<f64>, digits| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        for point in &self.points {
            write!(f, "{:>10}", number(Some(point.at.as_us_f64() / 1e3), 3))?;
            for of in [&point.reads, &point.writes] {
                let some = (of.ops > 0).then_some(());
                let rate = of.ops as f64 / self.interval.as_s_f64();
                let mean = some.map(|()| of.took.as_us_f64() / of.ops as f64);
                let longest = some.map(|()| of.longest.as_us_f64());
                let cells = (number(Some(rate), 0), number(mean, 2), number(longest, 2));
                write!(f, " {:>9} {:>10} {:>10}", cells.0, cells.1, cells.2)?;
            }
            let thousandths = |value: Option<u64>| value.map(|value| value as f64 / 1e3);
            let amplification = number(thousandths(point.amplification_per_mille()), 3);
            let cores = number(point.cores_per_mille.map(|value| value as f64 / 10.0), 1);
            writeln!(f, " {amplification:>7} {:>9} {cores:>6}", point.memory_bytes / 1024)?;
        }
        Ok(())
    }
}
