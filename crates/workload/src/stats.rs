//! Statistics: latencies, rates and latency breakdowns.
//!
//! Recording is cheap. It allocates a histogram at the first operation of a kind, because a job may have
//! thousands of clones, most of them with one kind of operation, and at times space for another half second
//! of the rate series. Counts and sums are integers, so that merging is exact and independent of the order;
//! floats are used only for printing.

mod breakdown;
mod depth;
mod windows;

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use runtime::Span;

use crate::pattern::OpKind;

pub use breakdown::{Around, Breakdown, Shares};
pub use depth::{BATCH_LEVELS, Batches, DEPTH_LEVELS, Depths};
pub use windows::{Counts, Series, Windows};

/// The percentiles of a report, in thousandths of a percent: fio's default list.
pub const PERCENTILES: [u32; 17] = [
    1_000, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 80_000, 90_000, 95_000,
    99_000, 99_500, 99_900, 99_950, 99_990,
];

/// The longest latency in the histogram: about 18 minutes. Longer ones count as this in the
/// percentiles; minimum, maximum and mean remain exact.
const LATENCY_NS_MAX: u64 = 1 << 40;
/// Percentiles have a relative error of at most a thousandth.
const SIGNIFICANT_DIGITS: u8 = 3;

#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Option<Histogram<u64>>,
    count: u64,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
    squares_ns: u128,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that make sense")
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            histogram: None,
            count: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            sum_ns: 0,
            squares_ns: 0,
        }
    }
}

impl Latencies {
    #[inline]
    pub fn record(&mut self, latency: Span) {
        let ns = latency.as_ns();
        self.histogram.get_or_insert_with(histogram).saturating_record(ns);
        self.count += 1;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += u128::from(ns);
        self.squares_ns += u128::from(ns) * u128::from(ns);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest, in nanoseconds; 0 without samples.
    pub fn min_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min_ns }
    }

    /// The longest, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean, in nanoseconds, for printing.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 }
    }

    /// The standard deviation of the sample, in nanoseconds, for printing.
    pub fn stddev_ns(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        // n * sum of squares - (sum)^2 in integers if they fit: the difference of nearly equal floats
        // would be noise.
        let n = u128::from(self.count);
        let spread = match (n.checked_mul(self.squares_ns), self.sum_ns.checked_pow(2)) {
            (Some(squares), Some(square)) => squares.saturating_sub(square) as f64,
            _ => {
                let sum = self.sum_ns as f64;
                (n as f64 * self.squares_ns as f64 - sum * sum).max(0.0)
            }
        };
        (spread / (n as f64 * (n - 1) as f64)).sqrt()
    }

    /// The percentile in nanoseconds; `thousandths` is in thousandths of a percent. The relative
    /// error is at most a thousandth; the result is never above the maximum.
    pub fn percentile_ns(&self, thousandths: u32) -> u64 {
        let quantile = f64::from(thousandths) / 100_000.0;
        self.histogram.as_ref().map_or(0, |all| all.value_at_quantile(quantile)).min(self.max_ns)
    }

    /// The non-empty steps of the histogram: latency in nanoseconds and count.
    pub fn distribution(&self) -> impl Iterator<Item = (u64, u64)> {
        self.histogram.iter().flat_map(Histogram::iter_recorded).map(|step| {
            (step.value_iterated_to().min(self.max_ns), step.count_since_last_iteration())
        })
    }

    /// Adds the samples of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        if let Some(theirs) = &other.histogram {
            let mine = self.histogram.get_or_insert_with(histogram);
            mine.add(theirs).expect("both have the same bounds");
        }
        self.count += other.count;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
        self.squares_ns += other.squares_ns;
    }
}

/// Statistics of one kind of operation of a job.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// From the due time, or from submission if there is none, to the completion.
    pub total: Latencies,
    /// From the same start to the submission to the device, if recorded.
    pub submission: Latencies,
    /// From the submission to the device to the completion, for the same operations.
    pub completion: Latencies,
    /// Bytes moved.
    pub bytes: u64,
    /// Failed operations, which no latency includes.
    pub errors: u64,
    /// Operations and bytes of each half second.
    pub windows: Windows,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// Records an operation that took `total` and completed `at` after the measurement's beginning.
    #[inline]
    pub fn record(&mut self, at: Span, total: Span, bytes: u32) {
        self.total.record(total);
        self.bytes += u64::from(bytes);
        self.windows.count(at, bytes, total);
    }

    /// As [`Recorder::record`], with the part before the submission to the device.
    pub fn record_split(&mut self, at: Span, submission: Span, total: Span, bytes: u32) {
        self.record(at, total, bytes);
        self.submission.record(submission);
        self.completion.record(total.saturating_sub(submission));
    }

    pub fn record_error(&mut self) {
        self.errors += 1;
    }

    /// Operations per second over this span, for printing; 0 for an empty span.
    pub fn iops(&self, over: Span) -> f64 {
        per_second(self.total.count(), over)
    }

    /// Bytes per second over this span, for printing; 0 for an empty span.
    pub fn bytes_per_second(&self, over: Span) -> f64 {
        per_second(self.bytes, over)
    }

    /// Adds the statistics of `other`, recorded over the same time.
    pub fn merge(&mut self, other: &Recorder) {
        self.total.merge(&other.total);
        self.submission.merge(&other.submission);
        self.completion.merge(&other.completion);
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.windows.merge(&other.windows);
    }
}

/// Statistics of a job, or of one of its clones.
#[derive(Clone, Debug, Default)]
pub struct JobStats {
    pub read: Recorder,
    pub write: Recorder,
    pub flush: Recorder,
    pub trim: Recorder,
    /// Histogram of operations in flight at submission.
    pub depths: Depths,
    /// Histogram of operations per submission batch.
    pub submitted: Batches,
    /// Histogram of operations per completion batch.
    pub completed: Batches,
    /// Latency breakdown of each kind, if operations were traced.
    pub breakdowns: BTreeMap<OpKind, Breakdown>,
}

impl JobStats {
    pub fn of(&self, kind: OpKind) -> &Recorder {
        match kind {
            OpKind::Read => &self.read,
            OpKind::Write => &self.write,
            OpKind::Flush => &self.flush,
            OpKind::Trim => &self.trim,
        }
    }

    /// As [`JobStats::of`], mutable.
    pub fn of_mut(&mut self, kind: OpKind) -> &mut Recorder {
        match kind {
            OpKind::Read => &mut self.read,
            OpKind::Write => &mut self.write,
            OpKind::Flush => &mut self.flush,
            OpKind::Trim => &mut self.trim,
        }
    }

    /// Number of failed operations of all kinds.
    pub fn errors(&self) -> u64 {
        OpKind::ALL.iter().map(|kind| self.of(*kind).errors).sum()
    }

    /// Adds the statistics of `other`, recorded over the same time.
    pub fn merge(&mut self, other: &JobStats) {
        for kind in OpKind::ALL {
            self.of_mut(kind).merge(other.of(kind));
        }
        self.depths.merge(&other.depths);
        self.submitted.merge(&other.submitted);
        self.completed.merge(&other.completed);
        for (kind, breakdown) in &other.breakdowns {
            match self.breakdowns.get_mut(kind) {
                Some(mine) => mine.merge(breakdown),
                None => drop(self.breakdowns.insert(*kind, breakdown.clone())),
            }
        }
    }
}

fn per_second(count: u64, over: Span) -> f64 {
    if over == Span::ZERO { 0.0 } else { count as f64 / over.as_s_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(all: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        all.iter().for_each(|&ns| latencies.record(Span::ns(ns)));
        latencies
    }

    #[test]
    fn latency_stats_of_known_sample() {
        let all = of(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!((all.count(), all.min_ns(), all.max_ns()), (8, 2, 9));
        assert_eq!(all.mean_ns(), 5.0);
        assert!((all.stddev_ns() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(all.percentile_ns(50_000), 4);
        assert_eq!(all.percentile_ns(99_990), 9);
    }

    #[test]
    fn latency_stats_without_samples_are_zero() {
        let none = Latencies::default();
        assert_eq!((none.min_ns(), none.max_ns(), none.percentile_ns(50_000)), (0, 0, 0));
        assert_eq!((none.mean_ns(), none.stddev_ns()), (0.0, 0.0));
        assert_eq!(Recorder::new().iops(Span::ZERO), 0.0);
    }

    #[test]
    fn stddev_of_equal_latencies_is_zero() {
        let mut all = Latencies::default();
        (0..1000).for_each(|_| all.record(Span::s(100_000)));
        assert_eq!(all.stddev_ns(), 0.0);
        assert_eq!(all.max_ns(), 100_000_000_000_000, "exact though past the histogram");
    }

    #[test]
    fn submission_and_completion_latency_add_up_to_total() {
        let mut recorder = Recorder::new();
        recorder.record_split(Span::us(20), Span::us(1), Span::us(12), 4096);
        assert_eq!(recorder.completion.max_ns(), 11_000);
        assert_eq!((recorder.bytes, recorder.iops(Span::ms(1))), (4096, 1000.0));
    }

    #[test]
    fn merged_job_stats_add_up_clones() {
        let stats = || {
            let mut stats = JobStats::default();
            let mut breakdown = Breakdown::new(&["media"]);
            for k in 0..1_000 {
                stats.read.record(Span::ms(k), Span::us(50), 4096);
                breakdown.record(Span::us(50).0, [(0, Span::us(49).0)]);
            }
            stats.breakdowns.insert(OpKind::Read, breakdown);
            stats.write.record_error();
            stats
        };
        let mut both = stats();
        both.merge(&stats());
        assert_eq!(both.read.total.count(), 2_000);
        assert_eq!(both.breakdowns[&OpKind::Read].mean().count, 2_000);
        assert_eq!(both.read.iops(Span::s(1)), 2_000.0);
        assert_eq!(both.read.windows.iops(Span::s(1)).min, 2_000);
        assert_eq!(both.errors(), 2);
        let alone = stats();
        let mut none = JobStats::default();
        none.merge(&alone);
        assert_eq!(none.breakdowns[&OpKind::Read].mean(), alone.breakdowns[&OpKind::Read].mean());
    }

    proptest! {
        #[test]
        fn percentile_error_at_most_a_thousandth(
            mut all in prop::collection::vec(1_u64..1 << 39, 1..300),
            thousandths in 1_u32..=100_000,
        ) {
            let latencies = of(&all);
            all.sort_unstable();
            let rank = (all.len() as u64 * u64::from(thousandths)).div_ceil(100_000).max(1);
            let want = all[rank as usize - 1];
            let got = latencies.percentile_ns(thousandths);
            prop_assert!(got.abs_diff(want) <= want / 1000 + 1, "{got} for {want}");
        }

        #[test]
        fn merged_latencies_equal_whole_sample(
            one in prop::collection::vec(0_u64..1 << 36, 0..50),
            other in prop::collection::vec(0_u64..1 << 36, 0..50),
        ) {
            let mut merged = of(&one);
            merged.merge(&of(&other));
            let whole = of(&[one, other].concat());
            prop_assert_eq!(merged.stddev_ns().to_bits(), whole.stddev_ns().to_bits());
            prop_assert_eq!(merged.min_ns(), whole.min_ns());
            prop_assert!(merged.distribution().eq(whole.distribution()));
        }
    }
}
