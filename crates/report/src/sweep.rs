//! Results of sweeps: from a run to the result of a point, and metrics by name.

mod csv;
mod text;

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

use crate::model::{Kind, Run, SweepOperations, SweepPoint, SweepResult, SweepWait};
use crate::pool::Pool;

pub use csv::csv;
pub use text::{Shown, text};

/// Number of stages that a point names.
const WAITS: usize = 3;

/// The result of a point.
pub fn result_of(run: &Run) -> SweepResult {
    let software = run.flash.as_ref().and_then(|flash| flash.software.as_ref());
    SweepResult {
        errors: run.jobs.iter().map(|job| job.errors).sum(),
        operations: Kind::ALL.into_iter().filter_map(|kind| operations(run, kind)).collect(),
        write_amplification_per_mille: software
            .and_then(|software| software.write_amplification_per_mille),
        timed_events: run.timed_events.unwrap_or(0),
        digest: digest(run),
        warnings: run.warnings.clone(),
    }
}

fn operations(run: &Run, kind: Kind) -> Option<(Kind, SweepOperations)> {
    let pool = Pool::of(run, kind);
    let wait =
        |(stage, mean_ns, _): (&str, f64, f64)| SweepWait { stage: stage.to_owned(), mean_ns };
    let of = SweepOperations {
        count: pool.count,
        bytes: pool.bytes,
        iops: pool.iops(),
        bytes_per_second: pool.bytes_per_second(),
        mean_ns: pool.latency.mean_ns,
        p50_ns: pool.latency.at(0.5),
        p99_ns: pool.latency.at(0.99),
        p99_9_ns: pool.latency.at(0.999),
        max_ns: pool.latency.max_ns,
        waits: pool.largest(WAITS).into_iter().map(wait).collect(),
    };
    (pool.count > 0).then_some((kind, of))
}

/// Digest of the results of a run: of all but its plan, its work, its event log and the memory that it took.
fn digest(run: &Run) -> String {
    let mut value = serde_json::to_value(run).expect("a run has string keys only");
    if let Some(fields) = value.as_object_mut() {
        for input in ["plan", "work", "log"] {
            fields.remove(input);
        }
        // Memory of this program, not a result of the drive.
        if let Some(flash) = fields.get_mut("flash").and_then(serde_json::Value::as_object_mut) {
            flash.remove("memory_bytes");
        }
    }
    let hash = Sha256::digest(value.to_string().as_bytes());
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a text, in hexadecimal.
pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number of a point's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Iops,
    /// Bytes per second.
    Bandwidth,
    Mean,
    P50,
    P99,
    P999,
    Max,
}

impl Number {
    pub const ALL: [Number; 7] = [
        Number::Iops,
        Number::Bandwidth,
        Number::Mean,
        Number::P50,
        Number::P99,
        Number::P999,
        Number::Max,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Number::Iops => "iops",
            Number::Bandwidth => "bandwidth",
            Number::Mean => "mean",
            Number::P50 => "p50",
            Number::P99 => "p99",
            Number::P999 => "p99.9",
            Number::Max => "max",
        }
    }

    /// Whether it is a latency, in nanoseconds.
    pub const fn is_latency(self) -> bool {
        !matches!(self, Number::Iops | Number::Bandwidth)
    }

    /// Heading of a column of text, with the unit.
    const fn heading(self) -> &'static str {
        match self {
            Number::Iops => "IOPS",
            Number::Bandwidth => "MiB/s",
            Number::Mean => "mean us",
            Number::P50 => "p50 us",
            Number::P99 => "p99 us",
            Number::P999 => "p99.9 us",
            Number::Max => "max us",
        }
    }
}

/// A number of one kind of operations: `read.p99`. Without a kind: of the kind with most operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub kind: Option<Kind>,
    pub number: Number,
}

/// A name that is no metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "found {found:?}, expected iops, bandwidth, mean, p50, p99, p99.9 or max, of a kind if need be: \
     read.p99"
)]
pub struct UnknownMetric {
    pub found: String,
}

impl Metric {
    /// Parses a name: `read.p99`, `iops`.
    ///
    /// # Errors
    /// There is no such metric.
    pub fn named(name: &str) -> Result<Metric, UnknownMetric> {
        let kind = Kind::ALL.into_iter().find_map(|kind| {
            let rest = name.strip_prefix(kind.name())?.strip_prefix('.')?;
            Some((Some(kind), rest))
        });
        let (kind, rest) = kind.unwrap_or((None, name));
        let number = Number::ALL.into_iter().find(|number| number.name() == rest);
        let number = number.ok_or_else(|| UnknownMetric { found: name.to_owned() })?;
        Ok(Metric { kind, number })
    }

    /// The value: per second, bytes per second or nanoseconds. None: there were no such operations.
    pub fn of(self, result: &SweepResult) -> Option<f64> {
        let kind = self.kind.or_else(|| busiest(&result.operations))?;
        let of = result.operations.get(&kind)?;
        Some(match self.number {
            Number::Iops => of.iops,
            Number::Bandwidth => of.bytes_per_second,
            Number::Mean => of.mean_ns,
            Number::P50 => of.p50_ns as f64,
            Number::P99 => of.p99_ns as f64,
            Number::P999 => of.p99_9_ns as f64,
            Number::Max => of.max_ns as f64,
        })
    }

    fn of_point(self, point: &SweepPoint) -> Option<f64> {
        self.of(point.result.as_ref()?)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{}.{}", kind.name(), self.number.name()),
            None => write!(f, "{}", self.number.name()),
        }
    }
}

/// The kind of which there are most operations.
fn busiest(operations: &BTreeMap<Kind, SweepOperations>) -> Option<Kind> {
    let most = operations.iter().rev().max_by_key(|(_, of)| of.count);
    most.map(|(kind, _)| *kind)
}

/// The schema of the lines of a sweep's file: JSON Schema, draft 2020-12.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(crate::model::SweepLine).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_parse_with_and_without_kind() {
        for name in ["iops", "read.p99", "write.p99.9", "flush.max", "trim.mean", "bandwidth"] {
            assert_eq!(Metric::named(name).expect(name).to_string(), name);
        }
        for name in ["", "p98", "read", "read.", "reads.p99", ".p99"] {
            assert!(Metric::named(name).is_err(), "{name}");
        }
    }
}
