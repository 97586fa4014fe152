//! Latency breakdowns: named stages that should add up to the latency.
//!
//! Sums are kept for every quarter of an octave of the total latency, so that the operations around
//! any percentile can be broken down afterwards without storing single operations. The difference
//! between the latency and the sum of the stages is unexplained; it is negative if stages overlap.

use runtime::Span;

use crate::limits::STAGES_MAX;

/// Quarters of an octave in 64 bits.
const BUCKETS: usize = 4 * 64;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    count: u64,
    total_ps: u128,
    stages_ps: [u128; STAGES_MAX],
}

const EMPTY: Bucket = Bucket { count: 0, total_ps: 0, stages_ps: [0; STAGES_MAX] };

#[derive(Clone, Debug)]
pub struct Breakdown {
    names: Vec<&'static str>,
    /// [`BUCKETS`] buckets, or none before the first operation.
    buckets: Vec<Bucket>,
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
        Breakdown { names: names.to_vec(), buckets: Vec::new() }
    }

    fn make_room(&mut self) {
        if self.buckets.is_empty() {
            self.buckets = vec![EMPTY; BUCKETS];
        }
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
        let bucket = &mut self.buckets[bucket_of(total_ps)];
        bucket.count += 1;
        bucket.total_ps += u128::from(total_ps);
        let sums = &mut bucket.stages_ps[..self.names.len()];
        for (stage, ps) in stages_ps {
            sums[stage] += u128::from(ps);
        }
    }

    /// Adds the operations of `other`.
    ///
    /// # Panics
    /// If the stages differ.
    pub fn merge(&mut self, other: &Breakdown) {
        assert_eq!(self.names, other.names, "only breakdowns of the same stages add up");
        if !other.buckets.is_empty() {
            self.make_room();
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            add(mine, theirs);
        }
    }

    pub fn mean(&self) -> Shares {
        let mut all = EMPTY;
        self.buckets.iter().for_each(|bucket| add(&mut all, bucket));
        self.shares(&all)
    }

    /// The operations within a quarter of an octave around a percentile, in thousandths of a
    /// percent. `None` if there are no operations.
    pub fn around(&self, thousandths: u32) -> Option<Around> {
        let count: u64 = self.buckets.iter().map(|bucket| bucket.count).sum();
        let rank = (u128::from(count) * u128::from(thousandths)).div_ceil(100_000).max(1);
        let mut passed = 0_u128;
        for (at, bucket) in self.buckets.iter().enumerate() {
            passed += u128::from(bucket.count);
            if passed >= rank {
                let (from, to) = (Span(lowest_of(at)), Span(highest_of(at)));
                return Some(Around { from, to, shares: self.shares(bucket) });
            }
        }
        None
    }

    fn shares(&self, bucket: &Bucket) -> Shares {
        let mean =
            |sum: u128| if bucket.count == 0 { 0.0 } else { sum as f64 / bucket.count as f64 };
        let stages = &bucket.stages_ps[..self.names.len()];
        let explained: u128 = stages.iter().sum();
        let unexplained_ps = if explained <= bucket.total_ps {
            mean(bucket.total_ps - explained)
        } else {
            -mean(explained - bucket.total_ps)
        };
        Shares {
            count: bucket.count,
            total_ps: mean(bucket.total_ps),
            stages_ps: stages.iter().map(|&sum| mean(sum)).collect(),
            unexplained_ps,
        }
    }
}

fn add(mine: &mut Bucket, theirs: &Bucket) {
    mine.count += theirs.count;
    mine.total_ps += theirs.total_ps;
    for (mine, theirs) in mine.stages_ps.iter_mut().zip(theirs.stages_ps) {
        *mine += theirs;
    }
}

/// The highest bit selects the octave, the two bits below it the quarter.
fn bucket_of(ps: u64) -> usize {
    if ps < 4 {
        return ps as usize;
    }
    let octave = ps.ilog2();
    (octave * 4) as usize + ((ps >> (octave - 2)) & 3) as usize
}

fn lowest_of(bucket: usize) -> u64 {
    match bucket {
        0..4 => bucket as u64,
        // Unused: no number has its highest bit at 1 and two bits below it.
        4..8 => 4,
        _ => (4 | (bucket as u64 % 4)) << (bucket / 4 - 2),
    }
}

fn highest_of(bucket: usize) -> u64 {
    if bucket + 1 == BUCKETS { u64::MAX } else { lowest_of((bucket + 1).max(1)).max(1) - 1 }
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
            prop_assert!(lowest_of(bucket) <= ps && ps <= highest_of(bucket), "{ps} in {bucket}");
            // Neighbours differ by a quarter at most, above the smallest.
            prop_assert!(ps < 8 || highest_of(bucket) - lowest_of(bucket) <= ps / 4);
        }
    }
}
