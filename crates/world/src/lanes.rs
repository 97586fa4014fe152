//! Lanes of a timeline: the part of the machine in which each stage passes.

use std::fmt;

use workload::pattern::OpKind;

/// A part of the machine, drawn as one lane of a timing diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Software on the host, and waits for its cores and slots.
    Host,
    /// The link towards the device: doorbells, entries and data that the device fetches.
    LinkDown,
    /// The link towards the host: data and completions.
    LinkUp,
    /// The controller, its processors and its flash software.
    Device,
    /// Banks or dies, and the channels to them.
    Medium,
}

impl Lane {
    /// All lanes, in the order of a diagram.
    pub const ALL: [Lane; 5] =
        [Lane::Host, Lane::LinkDown, Lane::LinkUp, Lane::Device, Lane::Medium];
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lane::Host => "host",
            Lane::LinkDown => "link down",
            Lane::LinkUp => "link up",
            Lane::Device => "device",
            Lane::Medium => "medium",
        })
    }
}

/// The lane of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageLane {
    /// The same for each operation.
    In(Lane),
    /// That of the data: the link towards the host for a read, else towards the device.
    OfData,
}

impl StageLane {
    /// The lane for an operation of this kind.
    pub fn of(self, kind: OpKind) -> Lane {
        match (self, kind) {
            (StageLane::In(lane), _) => lane,
            (StageLane::OfData, OpKind::Read) => Lane::LinkUp,
            (StageLane::OfData, _) => Lane::LinkDown,
        }
    }
}

/// The lanes of some stages.
pub type Lanes = &'static [(StageLane, &'static [&'static str])];

/// Lanes of the stages that the interfaces of this crate have. A wait is in the lane of the part that is
/// waited for. An interface adds the lanes of further stages in its row.
const SHARED: Lanes = &[
    (
        StageLane::In(Lane::Host),
        &[
            "queueing delay",
            "benchmark",
            "system call",
            "call entry",
            "file layer",
            "block layer",
            "block driver",
            "copy",
            "cache sync",
            "call exit",
            "lock wait",
            "lock",
            "lock transfer",
            "request wait",
            "request",
            "control",
            "turn wait",
            "function",
            "count down",
            "respond",
            "take response",
            "post request",
            "hardware",
            "operation wait",
            "map",
            "room wait",
            "collect",
            "hand over",
            "choose",
            "translate",
            "slot wait",
            "core wait",
            "tag retry",
            "mark",
            "guard",
            "submit",
            "block wait",
            "announce",
            "stripe wait",
            "journal wait",
            "parity",
            "poll",
            "interrupt",
            "order wait",
            "context switch",
            "complete",
        ],
    ),
    (
        StageLane::In(Lane::LinkDown),
        &[
            "doorbell",
            "pickup",
            "fetch",
            "map fetch",
            "prp list",
            "place list",
            "sgl segment",
            "host read",
        ],
    ),
    (StageLane::OfData, &["link wait", "data transfer"]),
    (StageLane::In(Lane::LinkUp), &["completion", "arrival"]),
    (
        StageLane::In(Lane::Device),
        &[
            "dispatch",
            "power state",
            "device processor wait",
            "take block",
            "parse",
            "fault",
            "tag wait",
            "engine wait",
            "dma start",
            "flash software wait",
            "flash software",
            "buffer wait",
            "collector at buffer",
            "flush",
            "collector at flush",
            "completion queue full",
            "post completion",
            "block rest",
            "return",
            "give back",
        ],
    ),
    (
        StageLane::In(Lane::Medium),
        &[
            "mount",
            "map read",
            "die wait",
            "collector at die",
            "die",
            "channel wait",
            "channel",
            "decode",
            "media wait",
            "media",
        ],
    ),
];

/// The lane of a stage, from an interface's own list or the shared one.
pub const fn lane_of(own: Lanes, stage: &str) -> Option<StageLane> {
    match lane_in(own, stage) {
        Some(lane) => Some(lane),
        None => lane_in(SHARED, stage),
    }
}

const fn lane_in(lanes: Lanes, stage: &str) -> Option<StageLane> {
    let mut at = 0;
    while at < lanes.len() {
        if runtime::is_listed(lanes[at].1, stage) {
            return Some(lanes[at].0);
        }
        at += 1;
    }
    None
}

/// Fails, at compile time in a constant, if a stage has no lane.
pub const fn check(own: Lanes, stages: &[&str]) {
    let mut at = 0;
    while at < stages.len() {
        assert!(lane_of(own, stages[at]).is_some(), "a stage is in no lane (Interface::LANES)");
        at += 1;
    }
}
