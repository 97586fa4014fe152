//! Ways of a request to the FastPath paper's drive: through Linux, by a driver in user space that polls, and
//! through the engine; on the paper's board and on an x86 host.

use std::path::Path;

use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::ExhibitError;
use super::changes::{Change, of};
use super::check::Mutation;
use super::measure::Machine;
use super::setup::Setup;
use report::model::paper::{Exhibit, Table};
use world::interfaces::{FASTPATH, NVME, Row};
use world::work::Work;
use world::{self, Options};

pub(super) const BOARD: &str = "fastpath";
pub(super) const LINUX: &str = "fastpath-linux";
pub(super) const X86: &str = "fastpath-x86";

/// Queue depth for asynchronous requests: the paper does not give one.
pub(super) const DEEP: u32 = 32;
/// Stages of a request, by the part of the machine.
pub(super) const DEVICE: &[&str] = &["media", "media wait", "parse", "post completion"];
/// Those of the link, of the root complex and of host memory.
pub(super) const ROOT: &[&str] =
    &["doorbell", "fetch", "host read", "link wait", "data transfer", "completion", "poll"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Kernel,
    /// A driver in user space, with a queue pair of its own, that polls.
    Polled,
    Engine,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Core {
    A9,
    X86,
}

/// Work of a call through the kernel.
const KERNEL_COSTS: [&str; 8] = [
    "host.path.costs.\"call entry\"",
    "host.path.costs.\"file layer\"",
    "host.path.costs.\"block layer\"",
    "host.path.costs.\"cache sync\"",
    "host.path.costs.copy",
    "host.path.costs.\"call exit\"",
    "host.costs.\"block driver\"",
    "host.costs.\"context switch\"",
];

macro_rules! free {
    ($plan:expr) => {
        [
            of($plan, KERNEL_COSTS[0], "\"0 ns\""),
            of($plan, KERNEL_COSTS[1], "\"0 ns\""),
            of($plan, KERNEL_COSTS[2], "\"0 ns\""),
            of($plan, KERNEL_COSTS[3], "\"0 ns\""),
            of($plan, KERNEL_COSTS[4], "\"0 ns\""),
            of($plan, KERNEL_COSTS[5], "\"0 ns\""),
            of($plan, KERNEL_COSTS[6], "\"0 ns\""),
            of($plan, KERNEL_COSTS[7], "\"0 ns\""),
            of($plan, "host.completion", "polled"),
        ]
    };
}

const FREE_SETTINGS: &[Change] = &free!(LINUX);
const FREE_X86_SETTINGS: &[Change] = &free!(X86);

/// Mutation: what the engine saves is nothing.
pub(super) const FREE: Mutation = Mutation {
    change: "a kernel whose work costs nothing, and that polls",
    settings: FREE_SETTINGS,
};

pub(super) const FREE_X86: Mutation = Mutation {
    change: "a kernel whose work costs nothing, and that polls",
    settings: FREE_X86_SETTINGS,
};

/// A machine, and the interface by which its drive is reached.
#[derive(Clone)]
pub(super) struct Route {
    pub machine: Machine,
    pub row: &'static Row,
}

/// This way, with the cost of creating a request (`host.costs.benchmark`).
pub(super) fn route(setup: &Setup, core: Core, way: Way) -> Route {
    let plan = match (core, way) {
        (Core::A9, Way::Kernel) => LINUX,
        (Core::A9, _) => BOARD,
        (Core::X86, _) => X86,
    };
    let mut machine = setup.machine(plan);
    if core == Core::X86 && way != Way::Kernel {
        for cost in KERNEL_COSTS {
            machine = machine.with(cost, "\"0 ns\"");
        }
        machine = machine.with("host.completion", "polled");
    }
    Route { machine, row: if way == Way::Engine { FASTPATH } else { NVME } }
}

impl Route {
    /// The same where requests are there already: the paper's latencies leave out what creates them.
    pub fn given_requests(&self) -> Route {
        self.with("host.costs.benchmark", "\"0 ns\"")
    }

    pub fn with(&self, key: &str, value: &str) -> Route {
        Route { machine: self.machine.with(key, value), row: self.row }
    }
}

/// Results of requests of one kind.
#[derive(Clone)]
pub(super) struct Done {
    pub us: f64,
    pub parts: Vec<(&'static str, f64)>,
    /// Throughput in 10^6 bytes per second.
    pub megabytes: f64,
    pub iops: f64,
}

impl Done {
    pub fn of(&self, stages: &[&str]) -> f64 {
        self.parts.iter().filter(|(stage, _)| stages.contains(stage)).map(|(_, us)| us).sum()
    }
}

/// Runs requests of `bytes` bytes at queue depth `depth`.
pub(super) fn run(route: &Route, rw: &str, bytes: u32, depth: u32) -> Result<Done, ExhibitError> {
    let count = 20 * depth + 100;
    let job = format!(
        "[j]\nrw={rw}\nbs={bytes}\niodepth={depth}\nsize=64m\nio_size=1t\nnorandommap=1\n\
         number_ios={count}\n"
    );
    let row = route.row;
    let run = format!("{} {job}", row.name);
    route.machine.once(run, |machine| run_once(machine, row, rw, bytes, &job))
}

fn run_once(
    machine: &Machine,
    row: &'static Row,
    rw: &str,
    bytes: u32,
    job: &str,
) -> Result<Done, ExhibitError> {
    let work = Work::parse(Path::new("papers"), job, Mapping::default())?;
    let mut run_result = world::simulate(row, &machine.open()?, &work, Options::default())?;
    let job_result = run_result.jobs.remove(0).1;
    if job_result.errors() > 0 {
        return Err(ExhibitError::Job(job_result.messages));
    }
    let kind = if rw.ends_with("write") { OpKind::Write } else { OpKind::Read };
    let (mean, stats) = (job_result.stats.breakdowns[&kind].mean(), job_result.stats.of(kind));
    let iops = stats.iops(job_result.measured);
    Ok(Done {
        us: mean.total_ps / 1e6,
        parts: row.stages.iter().copied().zip(mean.stages_ps.iter().map(|ps| ps / 1e6)).collect(),
        megabytes: iops * f64::from(bytes) / 1e6,
        iops,
    })
}

pub(super) const WAYS: [(&str, Way); 3] = [
    ("kernel, interrupts", Way::Kernel),
    ("user space, polled", Way::Polled),
    ("FastPath", Way::Engine),
];

pub(super) const CORES: [(&str, Core); 2] =
    [("Cortex-A9, 667 MHz", Core::A9), ("x86, 3.4 GHz", Core::X86)];

/// The ways beside each other: latency, rate at depth 32, and what limits the rate.
pub(super) fn ways_table(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for (host, core) in CORES {
        for (name, way) in WAYS {
            let route = route(setup, core, way);
            let at = route.given_requests();
            let mut line = vec![format!("{host}: {name}")];
            for rw in ["randread", "randwrite"] {
                line.push(format!("{:.2}", run(&at, rw, 4096, 1)?.us));
            }
            for bytes in [4096, 128 << 10] {
                let deep = run(&route, "randread", bytes, DEEP)?;
                line.push(format!("{:.1}", deep.iops / 1e3));
            }
            lines.push(line);
        }
    }
    Ok(Table::exhibit(
        "Ways of a request: latency of 4 KiB at depth 1, us; reads a second at depth 32 by one core, \
                 thousands",
        &["", "read, us", "write, us", "4 KiB, k/s", "128 KiB, k/s"],
        lines,
        &[
            "FastPath wins over the kernel. Over a driver in user space that polls it wins nothing in \
                     latency: \
             the words of request and response cost a core what a command and its completion cost",
            "what FastPath has that such a driver lacks: a caller reaches its own area and its own buffer \
             only, and its core need not poll a queue of the drive",
            "rates include the creation of a request (host.costs.benchmark); the drive gives 244 thousand \
             of 4 KiB (1 GB/s)",
        ],
    ))
}

/// The kernel's way taken apart.
pub(super) fn baseline_table(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    const LAYERS: [(&str, &[&str]); 9] = [
        ("system calls", &["call entry", "call exit"]),
        ("file layer", &["file layer"]),
        ("block layer", &["block layer"]),
        ("driver", &["block driver", "submit", "complete", "core wait"]),
        ("cache sync, copy", &["cache sync", "copy"]),
        ("interrupt", &["interrupt"]),
        ("context switch", &["context switch"]),
        ("root complex", ROOT),
        ("device", DEVICE),
    ];
    let mut lines = Vec::new();
    for (name, stages) in LAYERS {
        let mut line = vec![name.to_owned()];
        for (core, rw) in [
            (Core::A9, "randread"),
            (Core::A9, "randwrite"),
            (Core::X86, "randread"),
            (Core::X86, "randwrite"),
        ] {
            let done = run(&route(setup, core, Way::Kernel).given_requests(), rw, 4096, 1)?;
            line.push(format!("{:.2}", done.of(stages)));
        }
        lines.push(line);
    }
    let mut line = vec!["in all".to_owned()];
    for (core, rw) in [
        (Core::A9, "randread"),
        (Core::A9, "randwrite"),
        (Core::X86, "randread"),
        (Core::X86, "randwrite"),
    ] {
        let done = run(&route(setup, core, Way::Kernel).given_requests(), rw, 4096, 1)?;
        line.push(format!("{:.2}", done.us));
    }
    lines.push(line);
    lines.push(["the paper (Table III)", "321.80", "352.30", "-", "-"].map(str::to_owned).into());
    Ok(Table::exhibit(
        "The baseline as work of the core: 4 KiB at depth 1 through Linux, us",
        &["", "A9, read", "A9, write", "x86, read", "x86, write"],
        lines,
        &[
            "the paper's figure 2 divides the software's part, but no value of it is in the text; 9 to 10 % \
             are the device's",
            "of 290 us of software the paper leaves, at 667 MHz, 193,000 cycles; each cost here is assumed, \
             none was chosen to meet that",
        ],
    ))
}
