//! Findings of commands other than runs: plans, conformance, benchmarks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Plan, World};

/// A plan that was checked or listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanFound {
    /// Built-in name or path, as typed.
    pub typed: String,
    /// Absent if it has errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// Figures that follow from it, as `check` prints them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
    /// One line for each error, with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conformance {
    pub controller: String,
    pub cases: Vec<Case>,
    /// Cases that were left out because they would harm data.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub of: String,
    /// Number of the section, as in 5.17.
    pub section: String,
    pub name: String,
    pub about: String,
    pub verdict: CaseVerdict,
    /// The value found and the one expected, or the lacking feature; empty if it passed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub found: String,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CaseVerdict {
    Passed,
    Failed,
    /// The controller lacks an optional feature.
    Lacking,
    /// It was not run: the controller no longer answers.
    NotRun,
}

/// `diskhog` in one world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hog {
    pub world: World,
    pub plan: Plan,
    pub threads: u32,
    /// Bytes of a request.
    pub request_bytes: u64,
    pub write: bool,
    pub random: bool,
    /// Requests that a thread submits before it waits.
    pub batch: u32,
    pub interval_ps: u64,
    /// Live: what was measured before the runs.
    pub lock_costs: Option<HogLockCosts>,
    pub policies: Vec<HogPolicy>,
}

/// Costs of locks and caches of the machine that a live `diskhog` ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HogLockCosts {
    /// Taking and giving back a free lock whose cache line is at hand.
    pub lock_ps: u64,
    /// The way of a cache line to another core.
    pub transfer_ps: u64,
}

/// Throughput under one queue policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HogPolicy {
    pub policy: String,
    /// Order in which waiting cores get the lock of a shared queue: `unfair` or `fair`.
    pub lock: String,
    /// Number of runs; sums and samples are those of the run with the median throughput.
    pub runs: u32,
    /// Live: the thread of each core in the operating system.
    pub thread_ids: Vec<u64>,
    /// Live: bytes read and compared with what had been written, in all runs.
    pub verified_bytes: u64,
    /// Live: the core that the model favoured with the measured costs; none: no core.
    pub predicted_core: Option<u32>,
    /// Live: the core whose median share is at least 1.1 of an even one; none: no core.
    pub favoured_core: Option<u32>,
    pub queues: u32,
    /// Number of commands that a queue holds at most.
    pub depth: u32,
    /// Commands in flight at most.
    pub outstanding: u64,
    pub measured_ps: u64,
    pub bytes_per_second: f64,
    pub requests_per_second: f64,
    /// Throughput of the slowest core over an even share, and of the fastest.
    pub least_share: f64,
    pub most_share: f64,
    /// Number of times that a core found the lock of a queue taken.
    pub lock_waits: u64,
    pub cores: Vec<HogCore>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HogCore {
    pub bytes: u64,
    pub requests: u64,
    /// Throughput over an even share: lowest, median and highest of all runs.
    pub least_share: f64,
    pub median_share: f64,
    pub most_share: f64,
    /// Bytes of each interval.
    pub series_bytes: Vec<u64>,
}

/// Live reads and writes beside the core-to-core round trip and the time of a copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    pub round_trip_p50_ps: u64,
    pub round_trip_p99_ps: u64,
    pub drivers: Vec<DriverCost>,
    pub rows: Vec<BenchRow>,
}

/// Time of the driver for a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DriverCost {
    pub interface: String,
    pub bytes: u64,
    /// Number of commands in flight at a time.
    pub at_once: u32,
    pub submit_ps: u64,
    pub complete_ps: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRow {
    /// `filled`: all of the drive, every block written before; `hot`: 1 MiB, within a core's cache.
    pub range: String,
    pub range_bytes: u64,
    /// `read` or `write`.
    pub kind: String,
    pub bytes: u64,
    pub depth: u32,
    /// Interface, or `vfu` for nvme over vfio-user.
    pub way: String,
    pub count: u64,
    pub measured_ps: u64,
    pub iops: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// The core-to-core round trip, measured just before.
    pub round_trip_ps: u64,
    /// Time of a copy of this size between random places of a filled memory of this range and 32 buffers, on
    /// one core, measured just before.
    pub copy_ps: u64,
    /// With one in flight: time of such a copy that has no other beside it, median.
    pub lone_copy_ps: Option<u64>,
    /// Rate, as a part of that of such copies alone.
    pub of_copy: f64,
}

/// A plan for this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Measured without a live command for storage.
    pub measured: Vec<NamedSpan>,
    pub costs: Vec<NamedSpan>,
    pub plan: Plan,
    pub rows: Vec<CalibrationRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedSpan {
    pub name: String,
    pub ps: u64,
}

/// Reads predicted by the plan, and measured live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalibrationRow {
    pub bytes: u64,
    pub depth: u32,
    pub predicted_p50_ps: u64,
    pub measured_p50_ps: u64,
    /// The difference is above a quarter.
    pub far: bool,
}
