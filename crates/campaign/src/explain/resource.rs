//! Resources that can bound a rate, and the stages of a latency breakdown that belong to each.

use serde::Serialize;

/// A part of the machine, or of the job, that is relaxed alone to learn whether it bounds the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Arrivals of an open loop: a job with a rate, or a recording at its own times.
    Arrivals,
    /// Think time between the operations of a job.
    ThinkTime,
    /// Operations that a job keeps in flight.
    QueueDepth,
    /// Commands that the host's queues hold.
    HostQueue,
    /// Commands that the device has in progress.
    CommandSlots,
    /// Software on the host's cores.
    HostCore,
    /// Bytes per second of the link.
    LinkRate,
    /// Time of flight and of reads across the link, whatever their length.
    LinkLatency,
    /// Fetches of commands by the device.
    CommandFetch,
    /// Work of the device for each command.
    Controller,
    Medium,
    /// Garbage collection of the flash.
    Collector,
}

use Resource::{
    Arrivals, Collector, CommandFetch, CommandSlots, Controller, HostCore, HostQueue, LinkLatency,
    LinkRate, Medium, QueueDepth, ThinkTime,
};

/// Resource of each stage. A wait belongs to the resource that ends it.
const STAGES: &[(Resource, &[&str])] = &[
    (Arrivals, &["queueing delay"]),
    (
        HostQueue,
        &["slot wait", "operation wait", "block wait", "tag retry", "completion queue full"],
    ),
    (CommandSlots, &["dispatch", "tag wait", "mailbox wait"]),
    (
        HostCore,
        &[
            "benchmark",
            "system call",
            "call entry",
            "file layer",
            "block layer",
            "block driver",
            "cache sync",
            "call exit",
            "core wait",
            "guard",
            "submit",
            "copy",
            "lock",
            "lock wait",
            "lock transfer",
            "mark",
            "announce",
            "request",
            "request wait",
            "post request",
            "control",
            "turn wait",
            "count down",
            "function",
            "respond",
            "take response",
            "map",
            "collect",
            "hand over",
            "choose",
            "translate",
            "poll",
            "interrupt",
            "context switch",
            "complete",
            "order wait",
            "stripe wait",
            "journal wait",
            "parity",
        ],
    ),
    (LinkRate, &["link wait", "data transfer", "host read"]),
    (
        LinkLatency,
        &[
            "doorbell",
            "fetch",
            "pickup",
            "prp list",
            "map fetch",
            "place list",
            "sgl segment",
            "completion",
            "arrival",
            "ring",
        ],
    ),
    (
        Controller,
        &[
            "power state",
            "device processor wait",
            "parse",
            "fault",
            "post completion",
            "take block",
            "engine wait",
            "dma start",
            "block rest",
            "give back",
            "return",
            "hardware",
            "answer",
            "fetch request",
        ],
    ),
    (
        Medium,
        &[
            "mount",
            "flash software wait",
            "flash software",
            "buffer wait",
            "room wait",
            "flush",
            "map read",
            "die wait",
            "die",
            "channel wait",
            "channel",
            "decode",
            "media wait",
            "media",
        ],
    ),
    (Collector, &["collector at buffer", "collector at flush", "collector at die"]),
];

impl Resource {
    /// All resources, in the order of a request's path.
    pub const ALL: [Resource; 12] = [
        Arrivals,
        ThinkTime,
        QueueDepth,
        HostQueue,
        CommandSlots,
        HostCore,
        LinkRate,
        LinkLatency,
        CommandFetch,
        Controller,
        Medium,
        Collector,
    ];

    /// Its name in a sentence, after "the".
    pub fn title(self) -> &'static str {
        match self {
            Arrivals => "job's arrival rate",
            ThinkTime => "job's think time",
            QueueDepth => "job's queue depth",
            HostQueue => "host's queue slots",
            CommandSlots => "device's command slots",
            HostCore => "host core",
            LinkRate => "link rate",
            LinkLatency => "link latency",
            CommandFetch => "command fetch",
            Controller => "controller",
            Medium => "medium",
            Collector => "garbage collector",
        }
    }

    /// The resource that a stage of a breakdown belongs to. None: a stage of an interface from outside.
    pub fn of_stage(stage: &str) -> Option<Resource> {
        STAGES.iter().find(|(_, stages)| stages.contains(&stage)).map(|(resource, _)| *resource)
    }

    /// Whether it limits the commands in flight.
    pub fn limits_in_flight(self) -> bool {
        matches!(self, QueueDepth | HostQueue | CommandSlots)
    }

    /// Whether it is of the load and not a part of the machine: no stage of a latency is spent in it.
    pub fn is_of_load(self) -> bool {
        matches!(self, Arrivals | ThinkTime | QueueDepth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_of_every_interface_belongs_to_a_resource() {
        for row in world::interfaces::all() {
            let array = row.array().map_or(&[][..], |array| array.stages);
            for stage in row.stages.iter().chain(array).filter(|stage| !stage.is_empty()) {
                assert!(Resource::of_stage(stage).is_some(), "{}: {stage:?}", row.name);
            }
        }
    }

    #[test]
    fn a_stage_belongs_to_one_resource() {
        let all: Vec<_> = STAGES.iter().flat_map(|(_, stages)| *stages).collect();
        for stage in &all {
            assert_eq!(all.iter().filter(|other| other == &stage).count(), 1, "{stage:?}");
        }
    }
}
