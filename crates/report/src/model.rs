//! The model of a result: one [`Document`] for each call of a command.
//!
//! Names of fields end in their unit: `_ps` picoseconds, `_ns` nanoseconds, `_ms` milliseconds, `_bytes`.
//! Counts and times of runs are integers, and rates are derived from them by [`per_second`]. Fields that do
//! not apply are absent from JSON.
//!
//! A field may be added within a [`SCHEMA_VERSION`]. A change of the meaning, the unit or the presence of an
//! existing field is a new version.

mod findings;
mod job;
pub mod paper;
mod run;
pub mod sweep;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use findings::{
    Bench, BenchRow, Calibration, CalibrationRow, Case, CaseVerdict, Conformance, DriverCost, Hog,
    HogCore, HogLockCosts, HogPolicy, NamedSpan, PlanFound,
};
pub use job::{
    Around, Bin, Breakdown, Histogram, Job, Kind, Level, Operations, Percentile, Shares, Window,
    Windows,
};
pub use paper::Paper;
pub use run::{
    Core, Cores, Device, Direction, Energy, EventLog, Fault, Flash, FlashSoftware, Link, Mapping,
    Packets, Plan, Point, PowerState, Recorded, RecordedStage, Recording, Request, Resets, Run,
    Sourced, StageSpan, TimeSeries, Work, World,
};
pub use sweep::{
    SweepAxis, SweepHeader, SweepLine, SweepOperations, SweepPoint, SweepResult, SweepWait,
};

/// Name of the schema: the value of [`Document::schema`].
pub const SCHEMA: &str = "doorbell-result";
/// Version of the schema that this program writes and reads.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything that one call of a command found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// `doorbell-result`.
    pub schema: String,
    /// 1.
    pub schema_version: u32,
    pub program: Program,
    pub command: Command,
    /// The machine that it ran on. Absent if all of it is simulated, which gives the same on any machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Milliseconds from 1970-01-01 00:00 UTC to the end of the command; 0 if all of it is simulated.
    pub unix_ms: u64,
    /// Remarks on the whole; those on a run are with the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Of `run`, `replay` and `compare`: a run for each file, interface and world, in the order in which
    /// they ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// Of `check` and `plans`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<PlanFound>,
    /// Of `papers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub papers: Vec<Paper>,
    /// Of `conformance`: one for each controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conformance: Vec<Conformance>,
    /// Of `diskhog`: one for each world.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diskhog: Vec<Hog>,
    /// Of `bench`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Bench>,
    /// Of `calibrate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// The program that wrote a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    /// As in "0.1.0".
    pub version: String,
}

/// The call that a document answers. `replay` of a document keeps the call that is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// As in `run`.
    pub name: String,
    /// The arguments after the name, as typed.
    pub arguments: Vec<String>,
}

/// The machine of live runs and measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Kernel, its release and the instruction set: "Linux 6.1.0 x86_64".
    pub system: String,
    /// Model of the processor, as the system names it; empty if unknown.
    pub processor: String,
    /// Processors that this program may use.
    pub cores: u32,
    /// Memory of the machine; 0 if unknown.
    pub memory_bytes: u64,
}

/// A remark that changes how a result must be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warning {
    pub kind: WarningKind,
    /// One sentence, without a full stop.
    pub text: String,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WarningKind {
    /// Operations failed, or a verification did.
    Errors,
    /// A live run did not have its processor cores for itself.
    DisturbedCores,
    /// The flash drive had not been written before: its times are those of an empty drive.
    FreshFlash,
    /// The collector of the flash drive had nothing to do while blocks were written.
    NothingCollected,
    /// The write rate of the flash drive still fell.
    FallingRate,
    /// Reads of blocks that nothing had written: their contents were not verified.
    UnwrittenReads,
    /// The latency breakdown is of some of the commands, whose mean differs from that of all.
    SampledBreakdown,
    /// The run depends on a file that is not in the document, such as the state of a drive.
    OutsideState,
    /// Part of the request had no effect.
    WithoutEffect,
    /// An interface that the plan lacks was left out.
    LeftOut,
    /// A remark of none of the other kinds.
    Other,
}

/// A key and its value: of a plan, a job file or the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    pub key: String,
    pub value: String,
}

/// The rate of `count` in `over_ps` picoseconds, per second; 0 over no time.
pub fn per_second(count: u64, over_ps: u64) -> f64 {
    const SECOND_PS: f64 = 1e12;
    if over_ps == 0 { 0.0 } else { count as f64 * SECOND_PS / over_ps as f64 }
}
