//! Results of a sweep: a file of JSON lines, first a [`SweepHeader`], then a [`SweepPoint`] for each point.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Document, Kind, Program, Warning};

/// Value of [`SweepHeader::schema`].
pub const SWEEP_SCHEMA: &str = "doorbell-sweep";
/// Version of the lines that this program writes and reads.
pub const SWEEP_SCHEMA_VERSION: u32 = 1;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum SweepLine {
    Header(Box<SweepHeader>),
    Point(Box<SweepPoint>),
}

/// The first line: what is swept. Equal headers are of equal sweeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepHeader {
    /// `doorbell-sweep`.
    pub schema: String,
    /// 1.
    pub schema_version: u32,
    pub program: Program,
    /// Sentence of the sweep file, or empty.
    pub about: String,
    /// `grid`, `list`, `random` or `latin-hypercube`.
    pub method: String,
    /// Seed of the drawn points; absent: no point was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw_seed: Option<u64>,
    pub points: u64,
    /// In the order of the sweep file. In a grid the last one changes fastest.
    pub axes: Vec<SweepAxis>,
    /// Settings of all points, as for `--set` and `--job`: `set link.lanes`, `job iodepth`.
    pub fixed: BTreeMap<String, String>,
    /// SHA-256 of each input: the merged text of a plan, the resolved text of a job file, a recording.
    pub inputs: BTreeMap<String, String>,
    /// Each point has its document.
    pub full: bool,
}

/// An axis and its values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepAxis {
    /// Its name in [`SweepPoint::at`].
    pub name: String,
    /// Its settings: `set link.lanes`, `job iodepth`, `interface`, `plan`, `file`, `seed` or `cases`.
    pub of: Vec<String>,
    /// Unit of its numbers: `ps`, `B`, `B/s`, or empty.
    pub unit: String,
    /// As in the file or drawn. In random and Latin hypercube sweeps a range has a value for each point.
    pub values: Vec<String>,
    /// The values as numbers, if all are numbers or quantities of one unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<f64>,
}

/// A point: a simulated run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepPoint {
    /// From 0, in the order of the sweep.
    pub point: u64,
    pub at: BTreeMap<String, String>,
    /// The same as a number in the axis' unit, of axes with numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub number: BTreeMap<String, f64>,
    pub plan: String,
    pub interface: String,
    pub file: String,
    pub seed: u64,
    /// Why the run did not start or did not end; then there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The interface does not support the plan, and the sweep leaves such points out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<SweepResult>,
    /// The whole document of the run, with `--full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Box<Document>>,
}

/// Result of a point, all jobs together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepResult {
    /// Failed operations, verification errors and other failures.
    pub errors: u64,
    /// By kind; only kinds with operations.
    pub operations: BTreeMap<Kind, SweepOperations>,
    /// Units programmed for 1000 written by the host; absent without flash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_amplification_per_mille: Option<u64>,
    pub timed_events: u64,
    /// First half of the SHA-256 of all results of the run: equal runs have equal digests.
    pub digest: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepOperations {
    pub count: u64,
    pub bytes: u64,
    /// `count` over the time of the jobs, per second.
    pub iops: f64,
    pub bytes_per_second: f64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p99_9_ns: u64,
    pub max_ns: u64,
    /// The largest stages of the mean.
    pub waits: Vec<SweepWait>,
}

/// A stage of the mean latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepWait {
    pub stage: String,
    pub mean_ns: f64,
}
