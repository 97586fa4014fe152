//! A job of a run: its operations, their latencies, and the stages of these.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Setting, per_second};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub name: String,
    /// Reporting group, from 0.
    pub group: u32,
    /// It began when all jobs before it had ended.
    pub after_previous: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub options: Vec<Setting>,
    /// Failed operations, verification errors and other failures.
    pub errors: u64,
    /// The first messages of errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    /// From the first measured operation to the end of the last, without ramp and start delay: rates are over
    /// this time.
    pub measured_ps: u64,
    /// The same, with ramp and start delay.
    pub elapsed_ps: u64,
    pub blocks_verified: u64,
    /// By kind; only kinds with operations or errors.
    pub operations: BTreeMap<Kind, Operations>,
    /// Submissions by operations in flight, themselves included, in fio's levels.
    pub depth: Vec<Level>,
    /// Submissions by operations submitted together, in fio's levels.
    pub submitted: Vec<Level>,
    /// Completions by operations completed together, in fio's levels.
    pub completed: Vec<Level>,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Read,
    Write,
    Flush,
    Trim,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Trim => "trim",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Operations {
    /// Operations that completed without an error.
    pub count: u64,
    pub bytes: u64,
    /// Operations that failed, which nothing else here counts.
    pub errors: u64,
    /// `count` over the job's `measured_ps`, per second.
    pub iops: f64,
    /// `bytes` over the job's `measured_ps`, per second.
    pub bytes_per_second: f64,
    /// From the due time, or from submission if there is none, to the completion.
    pub latency: Histogram,
    /// From the same start to the submission to the device, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<Histogram>,
    /// From the submission to the device to the completion, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Histogram>,
    /// Absent if no operation was traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown>,
    pub windows: Windows,
}

impl Operations {
    /// Operations per second over this time.
    pub fn rate(&self, measured_ps: u64) -> f64 {
        per_second(self.count, measured_ps)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    pub count: u64,
    /// 0 without samples, as are the others.
    pub min_ns: u64,
    pub max_ns: u64,
    pub mean_ns: f64,
    /// Standard deviation of the sample, not of a population.
    pub stddev_ns: f64,
    /// At fio's default list of 17 quantiles.
    pub percentiles: Vec<Percentile>,
    /// The bins that are not empty, in order. Their width is at most a thousandth of the latency.
    pub bins: Vec<Bin>,
}

/// A value at a quantile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Percentile {
    /// From 0 to 1: 0.99 for p99.
    pub quantile: f64,
    /// This share of the operations took at most this long, to a thousandth.
    pub ns: u64,
}

/// A bin of a histogram: its upper bound in nanoseconds, and the number of latencies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bin(pub u64, pub u64);

impl Histogram {
    /// The value at a quantile from 0 to 1, from the bins; 0 without samples.
    pub fn at(&self, quantile: f64) -> u64 {
        let rank = ((quantile * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut passed = 0;
        let bin = self.bins.iter().find(|bin| {
            passed += bin.1;
            passed >= rank
        });
        bin.map_or(0, |bin| bin.0)
    }

    /// Points of the cumulative distribution: latency in nanoseconds, and the share of operations that took
    /// at most this long.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, f64)> {
        let all = self.count.max(1) as f64;
        self.bins.iter().scan(0, move |passed, bin| {
            *passed += bin.1;
            Some((bin.0, *passed as f64 / all))
        })
    }
}

/// The latency by stage, of the operations that were traced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Breakdown {
    pub traced: u64,
    /// One command in this number was to be traced.
    pub sampled_one_in: u32,
    /// Names of the stages, outermost first.
    pub stages: Vec<String>,
    pub mean: Shares,
    /// At quantiles: p50, p99 and p99.9.
    pub at: Vec<Around>,
}

/// A mean latency by stage. Stages and the unexplained rest add up to the total.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    pub total_ns: f64,
    /// In the order of the names.
    pub stages_ns: Vec<f64>,
    /// Time that no stage names; negative if stages overlap.
    pub unexplained_ns: f64,
}

/// The traced operations around a quantile of their latency: those of one bucket, at most 1.6 % wide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Around {
    /// From 0 to 1: 0.99 for p99.
    pub quantile: f64,
    /// Bounds of the bucket, picoseconds.
    pub from_ps: u64,
    pub to_ps: u64,
    pub count: u64,
    pub shares: Shares,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    pub width_ps: u64,
    /// From the beginning of the measurement up to the last window with a completion, which may be cut
    /// short by the end of the measurement.
    pub windows: Vec<Window>,
}

/// Operations that completed in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub count: u64,
    pub bytes: u64,
    /// Sum of the latencies of `count` operations.
    pub latency_sum_ps: u64,
    pub latency_max_ps: u64,
}

/// A level of fio's histograms of depths and batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// As in "4"; the last is ">=64".
    pub level: String,
    pub percent: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_the_bin_that_reaches_its_rank() {
        let bins = vec![Bin(10, 98), Bin(20, 1), Bin(90, 1)];
        let histogram = Histogram { count: 100, bins, ..Histogram::default() };
        let at = [0.0, 0.5, 0.98, 0.99, 0.999, 1.0].map(|quantile| histogram.at(quantile));
        assert_eq!(at, [10, 10, 10, 20, 90, 90]);
        assert_eq!(Histogram::default().at(0.5), 0);
        let points: Vec<_> = histogram.cumulative().collect();
        assert_eq!(points, [(10, 0.98), (20, 0.99), (90, 1.0)]);
    }
}
