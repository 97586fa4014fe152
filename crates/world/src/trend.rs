//! Whether the write rate of a flash drive still falls: samples of the counters of its FTL over the measured
//! window, and a test of trend.

use ftl::Counters;
use runtime::Span;

/// Length of the first intervals.
const INTERVAL: Span = Span::ms(1);
/// With that many samples, every other one is dropped, and intervals are twice as long from then on.
pub const SAMPLES_MAX: usize = 65;
/// Fewer intervals show no trend.
const INTERVALS_LEAST: usize = 8;
/// Normal quantile of a falling trend: one in a thousand steady runs would seem to fall.
const QUANTILE: f64 = -3.09;
/// Percent by which the second half differs from the first before it matters.
const PERCENT: u64 = 5;

#[derive(Clone, Debug)]
pub struct Samples {
    interval: Span,
    counters: Vec<Counters>,
}

/// Units programmed for the host per second, in the first half of the window and in the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Falling {
    pub first: u64,
    pub second: u64,
}

impl Samples {
    pub fn new(first: Counters) -> Samples {
        Samples { interval: INTERVAL, counters: vec![first] }
    }

    /// Time until the next sample.
    pub fn interval(&self) -> Span {
        self.interval
    }

    pub fn push(&mut self, counters: Counters) {
        self.counters.push(counters);
        if self.counters.len() == SAMPLES_MAX {
            self.counters = self.counters.iter().step_by(2).copied().collect();
            self.interval = self.interval * 2;
        }
    }

    pub fn intervals(&self) -> Vec<Counters> {
        self.counters.windows(2).map(|pair| pair[1].since(&pair[0])).collect()
    }

    /// The rate falls if the test of Mann and Kendall (H. B. Mann, "Nonparametric Tests Against Trend",
    /// Econometrica 1945) finds a trend, and the second half is slower by more than 5 %. A load that becomes
    /// less is no such fall: the collector's work for each unit must have become more.
    pub fn falling(&self) -> Option<Falling> {
        let intervals = self.intervals();
        if intervals.len() < INTERVALS_LEAST {
            return None;
        }
        let rates = intervals.iter().map(|one| one.programmed_units);
        if mann_kendall(&rates.collect::<Vec<_>>()) > QUANTILE {
            return None;
        }
        let half = intervals.len() / 2;
        let sum = |all: &[Counters]| all.iter().fold(Counters::default(), |sum, one| sum.and(*one));
        let (first, second) = (sum(&intervals[..half]), sum(&intervals[intervals.len() - half..]));
        let is_slower = second.programmed_units * 100 < first.programmed_units * (100 - PERCENT);
        let amplification = |of: &Counters| of.write_amplification_per_mille().unwrap_or(0);
        let is_dearer = amplification(&second) * 100 > amplification(&first) * (100 + PERCENT);
        let time = self.interval * half as u64;
        let rate = |of: &Counters| (of.programmed_units as f64 / time.as_s_f64()) as u64;
        (is_slower && is_dearer).then(|| Falling { first: rate(&first), second: rate(&second) })
    }
}

/// The statistic of Mann and Kendall, normalised: below zero if values fall.
fn mann_kendall(values: &[u64]) -> f64 {
    let pairs = (0..values.len()).flat_map(|at| values[at + 1..].iter().map(move |v| (at, v)));
    let signs = pairs.map(|(at, later)| later.cmp(&values[at]) as i64);
    let (s, n) = (signs.sum::<i64>(), values.len() as f64);
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    (s - s.signum()) as f64 / deviation
}
