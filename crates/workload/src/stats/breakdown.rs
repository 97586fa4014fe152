//! Latency breakdowns: named stages that should add up to the latency.
//!
//! Sums are kept for every 64th of an octave of the total latency, so that the operations at any quantile
//! can be broken down afterwards without storing single operations. The difference between the latency and
//! the sum of the stages is unexplained; it is negative if stages overlap.

use runtime::Span;

use crate::limits::STAGES_MAX;

/// Buckets of an octave, as a power of two: a bucket is at most 1.6 % wide.
const SPLIT_LOG2: u32 = 6;
const SPLIT: usize = 1 << SPLIT_LOG2;
/// Latencies below 2^12 ps (4 ns) share the first bucket.
const SHORTEST_LOG2: u32 = 12;
/// Latencies from 2^46 ps (70 s) share the last bucket.
const LONGEST_LOG2: u32 = 46;
const BUCKETS: usize = (LONGEST_LOG2 - SHORTEST_LOG2) as usize * SPLIT + 2;

#[derive(Clone, Debug)]
pub struct Breakdown {
    names: Vec<&'static str>,
    /// [`BUCKETS`] counts, or none before the first operation.
    counts: Vec<u64>,
    /// Picoseconds of each bucket: its total, then its stages. Zeroed pages of it that no operation has
    /// reached take no memory.
    sums_ps: Vec<u128>,
}

/// The mean breakdown of some operations, in picoseconds each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    pub count: u64,
    pub total_ps: f64,
    /// The mean of each stage, in the order of the names.
    pub stages_ps: Vec<f64>,
    /// Latency not covered by a stage; negative if stages overlap.
    pub unexplained_ps: f64,
}

/// The operations around a percentile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Around {
    /// Shortest latency of the bucket.
    pub from: Span,
    pub to: Span,
    pub shares: Shares,
}

impl Breakdown {
    /// Stages with these names; [`Breakdown::record`] refers to them by index.
    ///
    /// # Panics
    /// If there are more than [`STAGES_MAX`].
    pub fn new(names: &[&'static str]) -> Breakdown {
        assert!(names.len() <= STAGES_MAX, "{} stages, of {STAGES_MAX}", names.len());
        Breakdown { names: names.to_vec(), counts: Vec::new(), sums_ps: Vec::new() }
    }

    fn make_room(&mut self) {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
            self.sums_ps = vec![0; BUCKETS * self.width()];
        }
    }

    fn width(&self) -> usize {
        1 + self.names.len()
    }

    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Records an operation that took `total_ps`, with the index and the picoseconds of each stage. Only the
    /// first call allocates.
    ///
    /// # Panics
    /// If the index of a stage is out of range.
    pub fn record(&mut self, total_ps: u64, stages_ps: impl IntoIterator<Item = (usize, u64)>) {
        self.make_room();
        let (bucket, width) = (bucket_of(total_ps), self.width());
        self.counts[bucket] += 1;
        let sums = &mut self.sums_ps[bucket * width..][..width];
        sums[0] += u128::from(total_ps);
        for (stage, ps) in stages_ps {
            sums[1 + stage] += u128::from(ps);
        }
    }

    /// Adds the operations of `other`.
    ///
    /// # Panics
    /// If the stages differ.
    pub fn merge(&mut self, other: &Breakdown) {
        assert_eq!(self.names, other.names, "only breakdowns of the same stages add up");
        if other.counts.is_empty() {
            return;
        }
        self.make_room();
        let width = self.width();
        for bucket in (0..BUCKETS).filter(|&bucket| other.counts[bucket] > 0) {
            self.counts[bucket] += other.counts[bucket];
            let theirs = &other.sums_ps[bucket * width..][..width];
            self.sums_ps[bucket * width..]
                .iter_mut()
                .zip(theirs)
                .for_each(|(mine, sum)| *mine += sum);
        }
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn mean(&self) -> Shares {
        let mut sums = vec![0; self.width()];
        for bucket in (0..self.counts.len()).filter(|&bucket| self.counts[bucket] > 0) {
            sums.iter_mut().zip(self.sums(bucket)).for_each(|(all, sum)| *all += sum);
        }
        shares(self.count(), &sums)
    }

    /// The operations at a quantile, in thousandths of a percent: those of its bucket, at most 1.6 % wide.
    /// `None` if there are no operations.
    pub fn around(&self, thousandths: u32) -> Option<Around> {
        let rank = (u128::from(self.count()) * u128::from(thousandths)).div_ceil(100_000).max(1);
        let mut passed = 0_u128;
        let bucket = self.counts.iter().position(|&count| {
            passed += u128::from(count);
            passed >= rank
        })?;
        let (from, to) = (Span(lowest_of(bucket)), Span(highest_of(bucket)));
        Some(Around { from, to, shares: shares(self.counts[bucket], self.sums(bucket)) })
    }

    fn sums(&self, bucket: usize) -> &[u128] {
        let width = self.width();
        &self.sums_ps[bucket * width..][..width]
    }
}

/// The means of `count` operations with these sums: the total, then the stages.
fn shares(count: u64, sums: &[u128]) -> Shares {
    let mean = |sum: u128| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
    let (total, stages) = (sums[0], &sums[1..]);
    let explained: u128 = stages.iter().sum();
    let unexplained_ps =
        if explained <= total { mean(total - explained) } else { -mean(explained - total) };
    let stages_ps = stages.iter().map(|&sum| mean(sum)).collect();
    Shares { count, total_ps: mean(total), stages_ps, unexplained_ps }
}

/// The highest bit selects the octave, the bits below it the bucket in it.
fn bucket_of(ps: u64) -> usize {
    match ps.checked_ilog2() {
        None | Some(..SHORTEST_LOG2) => 0,
        Some(LONGEST_LOG2..) => BUCKETS - 1,
        Some(octave) => {
            let part = (ps >> (octave - SPLIT_LOG2)) as usize % SPLIT;
            1 + (octave - SHORTEST_LOG2) as usize * SPLIT + part
        }
    }
}

fn lowest_of(bucket: usize) -> u64 {
    let Some(bucket) = bucket.checked_sub(1) else { return 0 };
    let octave = SHORTEST_LOG2 as usize + bucket / SPLIT;
    ((SPLIT + bucket % SPLIT) as u64) << (octave - SPLIT_LOG2 as usize)
}

fn highest_of(bucket: usize) -> u64 {
    if bucket + 1 == BUCKETS { u64::MAX } else { lowest_of(bucket + 1) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn breakdown_mean_adds_up_with_unexplained_rest() {
        let mut breakdown = Breakdown::new(&["link", "media"]);
        breakdown.record(100, [(0, 10), (1, 80)]);
        breakdown.record(300, [(0, 30), (1, 240)]);
        let mean = breakdown.mean();
        assert_eq!((mean.count, mean.total_ps), (2, 200.0));
        assert_eq!(mean.stages_ps, [20.0, 160.0]);
        assert_eq!(mean.unexplained_ps, 20.0);
        breakdown.record(100, [(0, 100), (1, 240)]);
        assert_eq!(breakdown.mean().unexplained_ps, -200.0 / 3.0, "stages overlap");
    }

    #[test]
    fn breakdown_around_p999_shows_tail_only() {
        let mut breakdown = Breakdown::new(&["media", "queue"]);
        for _ in 0..990 {
            breakdown.record(50_000_000, [(0, 49_000_000)]);
        }
        for _ in 0..10 {
            breakdown.record(900_000_000, [(0, 49_000_000), (1, 850_000_000)]);
        }
        let median = breakdown.around(50_000).unwrap();
        assert!(median.from <= Span::us(50) && Span::us(50) <= median.to);
        assert_eq!((median.shares.count, median.shares.stages_ps[1]), (990, 0.0));
        let tail = breakdown.around(99_900).unwrap();
        assert_eq!((tail.shares.count, tail.shares.stages_ps[1]), (10, 850_000_000.0));
        assert_eq!(breakdown.around(99_000).unwrap(), median, "the 990th of 1,000");
        assert_eq!(Breakdown::new(&[]).around(50_000), None);
    }

    #[test]
    fn merged_breakdown_equals_joint_recording() {
        let (mut one, mut other) = (Breakdown::new(&["a"]), Breakdown::new(&["a"]));
        let mut both = Breakdown::new(&["a"]);
        for (at, part) in [&mut one, &mut other].into_iter().enumerate() {
            part.record(1000 << at, [(0, 10)]);
            both.record(1000 << at, [(0, 10)]);
        }
        one.merge(&other);
        assert_eq!(one.mean(), both.mean());
        assert_eq!(one.around(100_000), both.around(100_000));
    }

    proptest! {
        #[test]
        fn latency_is_within_bounds_of_its_bucket(ps: u64, shift in 0_u32..64) {
            let ps = ps >> shift;
            let bucket = bucket_of(ps);
            let (from, to) = (lowest_of(bucket), highest_of(bucket));
            prop_assert!(from <= ps && ps <= to, "{ps} in {bucket}");
            let one_of_many = (1 << SHORTEST_LOG2..1 << LONGEST_LOG2).contains(&ps);
            prop_assert!(!one_of_many || (to - from) * SPLIT as u64 <= ps, "{ps}: {from} to {to}");
        }
    }
}
