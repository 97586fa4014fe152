//! A run: one job file or recording, through one interface, in one world.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Histogram, Job, Kind, Setting, Warning, Window};

/// A run with everything that is needed to repeat it, if it is simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub world: World,
    pub device: Device,
    /// Name of the host interface, as in `nvme`.
    pub interface: String,
    pub plan: Plan,
    pub work: Work,
    pub resets: Resets,
    /// Threads of the host: 1 simulated, where the plan's cores are modelled.
    pub threads: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// In the order of the job file; clones of a job are merged.
    pub jobs: Vec<Job>,
    /// Simulated only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Simulated only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Cores>,
    /// Live: CPU time of the host's thread from the first command to the last, if the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_thread_ps: Option<u64>,
    /// If the medium is flash and the device is in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash: Option<Flash>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// If the plan has power states and the device is in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
    /// Absent if none was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<TimeSeries>,
    /// Sampled requests, in the order in which they began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Request>,
    /// If the work is a recording of a live run: that run, beside this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// Simulated: number of timed events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_events: Option<u64>,
    /// Simulated: the event log, in short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<EventLog>,
}

/// Energy of the controller, from the start of the device to the end of the run: each state at its maximum
/// power, a transition at that of its two states that has more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    pub microjoules: u64,
    pub states: Vec<PowerState>,
}

/// Use of a power state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerState {
    pub milliwatts: u32,
    pub time_ps: u64,
    /// Number of times that it was entered; the initial state counts once.
    pub entries: u64,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// Virtual time over a model of the link.
    Simulated,
    /// Real memory and threads, wall-clock time.
    Live,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// Modelled together with the host, in virtual time.
    Modelled,
    /// A thread of this process.
    Thread,
    /// Another process, over shared memory.
    SharedMemory,
    /// Another process, a PCI function over vfio-user.
    VfioUser,
    /// A PCI function of this machine, through VFIO.
    Vfio,
}

/// A plan, resolved: `text` with `sets` parses to the same plan, without any other file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    pub about: String,
    /// Its file, as errors name it.
    pub origin: String,
    pub seed: u64,
    /// TOML, with its bases merged in, before the settings.
    pub text: String,
    /// Settings over the text, in the order in which they apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<Setting>,
    /// Every value that has a source, the settings applied.
    pub sources: Vec<Sourced>,
}

/// A value of a plan and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sourced {
    /// As in `medium.timing.first_byte`.
    pub key: String,
    /// As written: "110 ns".
    pub value: String,
    pub source: String,
    /// The value was not measured.
    pub assumed: bool,
}

/// The work of a run, resolved: `text` parses to the same jobs without any other file, except `recordings`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// The job file or recording, as typed.
    pub file: String,
    /// The job file with its includes, variables and settings.
    pub text: String,
    /// Settings of the sections `[global]`, which are in the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub globals: Vec<Setting>,
    /// Settings of the command line, which are in the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Setting>,
    /// Variables of the environment that the job file uses; their values are in the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Setting>,
    /// Recordings that the jobs replay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recordings: Vec<Recording>,
    /// Placement of recordings in the address range of the device.
    pub mapping: Mapping,
    /// Remarks on the file, such as keys without effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A recorded workload, by its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Relative to the directory of the command.
    pub path: String,
    pub bytes: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// One device or file after the other.
    Concatenate,
    /// The same, modulo the capacity.
    Modulo,
}

/// Controller resets during the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resets {
    pub requested: u32,
    pub completed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Virtual time of the whole run, bring-up included.
    pub of_ps: u64,
    /// Towards the host: completions, data of reads, interrupts.
    pub up: Direction,
    /// Towards the device: doorbells, data of writes, completions of the device's reads.
    pub down: Direction,
}

/// One direction of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    /// Time during which it carried transaction layer packets (TLPs).
    pub busy_ps: u64,
    pub tlps: u64,
    /// The packets by kind; only kinds that occurred. Those of TLPs add up to `tlps`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packets: Vec<Packets>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Packets {
    /// `memory write`, `memory read request`, `completion with data`; `DLLP`: acknowledgements and flow
    /// control for the other direction, sent between TLPs.
    pub kind: String,
    pub count: u64,
    /// On the wire, headers and framing included.
    pub bytes: u64,
    /// Of these, the payload, in whole dwords.
    #[serde(default)]
    pub payload_bytes: u64,
}

/// Use of the host's cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Virtual time of the whole run, bring-up included.
    pub of_ps: u64,
    pub each: Vec<Core>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Time spent on work, not on polls without result.
    pub busy_ps: u64,
    /// Polls that found no completion.
    pub polling_ps: u64,
}

/// Injections of a fault of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub name: String,
    pub injected: u64,
}

/// Flash chips, and the flash software on the device or the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flash {
    /// State at the beginning: `fresh`, `filled`, `steady`, or `file`.
    pub start: String,
    /// Pages sensed.
    pub senses: u64,
    /// Pages sensed again after a read error.
    pub retries: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Reads, programs and erases that failed.
    pub failures: u64,
    /// Memory of this program for the chips and the flash software; 0 if runs of a sweep share it.
    pub memory_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software: Option<FlashSoftware>,
}

/// The flash software. Units are of its mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlashSoftware {
    /// Units that were programmed for each 1000 that the host wrote; absent if it wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_amplification_per_mille: Option<u64>,
    /// Share of the programmed units that the collector wrote; absent if none was programmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collector_share_per_mille: Option<u64>,
    /// Units that the host wrote.
    pub host_units: u64,
    /// Of them, units that were placed by a hint.
    #[serde(default)]
    pub hinted_units: u64,
    /// Units that were programmed for the host.
    pub programmed_units: u64,
    /// Units that the collector copied.
    pub copied_units: u64,
    /// Units of the flash software's own data.
    pub meta_units: u64,
    pub padding_units: u64,
    /// Segments of the map that were written, counted in `meta_units` as well.
    pub map_units: u64,
    /// Segments of the map that were read.
    pub map_reads: u64,
    /// Units that hold data.
    pub mapped_units: u64,
    /// Units of good blocks.
    pub good_units: u64,
    /// Units that can be written before anything is collected.
    pub left_units: u64,
    pub erased: u64,
    pub collected: u64,
    /// Blocks retired.
    pub retired: u64,
    /// Erases of the superblock that has fewest.
    pub erases_least: u64,
    /// Erases of the superblock that has most.
    pub erases_most: u64,
    /// Bytes that the host can address.
    pub capacity_bytes: u64,
}

/// Rates, latencies and resources over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeSeries {
    pub interval_ps: u64,
    /// Complete intervals only.
    pub points: Vec<Point>,
}

/// One interval of a time series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// End of the interval, from the start of the first jobs.
    pub at_ps: u64,
    pub read: Window,
    pub write: Window,
    /// Mapping units that the host wrote; absent without flash software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_units: Option<u64>,
    /// Mapping units that were programmed; absent without flash software.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programmed_units: Option<u64>,
    /// Host memory in use at the end of the interval.
    pub host_memory_bytes: u64,
    /// Use of all host cores; absent where it is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cores_per_mille: Option<u64>,
}

/// A sampled request: one command, with its spans in order, each beginning where the one before ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Queue of the request, counted over all devices.
    pub queue: u32,
    /// Identifier of the request in its queue.
    pub request: u32,
    pub kind: Kind,
    /// From the beginning of the world, or of the measurement if live.
    pub begun_ps: u64,
    /// First byte of the operation on the device, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_bytes: Option<u64>,
    /// Length of the operation, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub spans: Vec<StageSpan>,
}

/// One stage of a sampled request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageSpan {
    pub stage: String,
    /// The part of the machine: `host`, `link up`, `link down`, `device`, `medium`, or one of several,
    /// as in `die 3`.
    pub lane: String,
    /// On the clock of `begun_ps`.
    pub from_ps: u64,
    pub to_ps: u64,
}

/// A live run that was recorded, and is now replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    pub run: String,
    /// Register writes that were recorded.
    pub register_writes: u64,
    /// Register writes of this run.
    pub replayed_register_writes: u64,
    pub latencies: BTreeMap<Kind, Histogram>,
    /// As recorded: means of the operations that were traced.
    pub stages: Vec<RecordedStage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedStage {
    pub kind: Kind,
    pub stage: String,
    pub count: u64,
    pub mean_ps: u64,
}

/// The event log of a simulated run, in short. Equal runs have equal logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventLog {
    pub lines: u64,
    /// 16 hexadecimal digits, as `replay` prints them.
    pub digest: String,
}
