//! The two SSDs of the flash paper under its Iometer loads.

use std::path::Path;

use runtime::Span;
use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::ExhibitError;
use super::changes::Change;
use super::check::{Mutation, Subject, Swung};
use super::measure::Machine;
use super::setup::Setup;
use plan::Plan;
use world::interfaces::{HOST_FLASH, HOST_FLASH_ARRAY, NVME, NVME_ARRAY};
use world::series::{Point, TimeSeries};
use world::work::Work;
use world::{self, HostMemory, Options, RunError, RunResult};

/// Sampling interval of the time series.
const INTERVAL: Span = Span::ms(1);
/// Reads of a load in queue mode.
const READS: u64 = 8192;
/// Request size, in bytes, of the writes that fill a quarter of a drive before it is read.
const FILL_BYTES: u32 = 128 << 10;

/// Mutation: the flash software of the from-scratch SSD on the device, which makes it the other SSD.
pub(super) const ON_DEVICE: &str = "flash software on the device";
/// Mutation: workers share the entries of one.
pub(super) const SHARED_ENTRIES: &str = "workers share entries";
/// Mutation: queue mode has one entry.
pub(super) const ONE_ENTRY: &str = "queue mode with one entry";

/// Mutation: the bridge's buffers take requests of any length.
pub(super) const ONE_PATH: &str = "all requests to the buffer";

/// Scale of capacity, buffers and tables between a real drive and the model.
pub(super) const SCALE: f64 = 1024.0;

/// Cost of handing a request to another core.
pub(super) const HAND_OVER: &str =
    "{ value = \"100 ns\", source = \"assumed: a cache line from one core to another\" }";

/// Swings are long here: each cost means writing two drives full, per size and pattern.
pub(super) const NO_SWINGS: Swung = Swung { plans: &[], number: None };

pub(super) const IN_DEVICE: Mutation = Mutation {
    change: "the from-scratch SSD's flash software on the device",
    settings: &[Change::Switch(ON_DEVICE)],
};

pub(super) const fn subject(
    row: &'static str,
    title: &'static str,
    claim: &'static str,
    unit: &'static str,
) -> Subject {
    Subject { row, title, claim, unit }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ssd {
    /// Controllers with flash software behind a bridge.
    Bridge,
    /// Endpoints with bare flash; the flash software is on the host.
    Closer,
}

impl Ssd {
    pub fn machine(self, setup: &Setup) -> Machine {
        setup.machine(match self {
            Ssd::Closer if !setup.is_switched(ON_DEVICE) => "flash-closer",
            _ => "flash-bridge",
        })
    }

    /// Returns true if it is the bridge, or a switch makes it one.
    pub fn is_bridge(self, setup: &Setup) -> bool {
        self.machine(setup).is_of("flash-bridge")
    }

    /// Legacy mode, one command at a time: each controller has one tag.
    pub fn legacy(self, setup: &Setup) -> Machine {
        match self {
            Ssd::Bridge => self.machine(setup).with("medium.bridge.queue", "1"),
            Ssd::Closer => self.machine(setup),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Ssd::Bridge => "bridge",
            Ssd::Closer => "from-scratch",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Access pattern as in a job file, for example `randwrite`.
    pub rw: &'static str,
    /// Bytes per request.
    pub bytes: u32,
    /// Queue depth of each worker.
    pub depth: u32,
    pub workers: u32,
    /// Total bytes.
    pub amount: u64,
}

impl Load {
    /// Queue mode: 128 entries, one worker.
    pub fn queued(rw: &'static str, bytes: u32) -> Load {
        // Writes fill the buffers several times. Reads are enough that neither the first nor the last
        // ones, of which fewer than 128 are under way, set the rate.
        let amount = if rw.ends_with("write") { 12 << 20 } else { READS * u64::from(bytes) };
        Load { rw, bytes, depth: 128, workers: 1, amount }
    }

    /// Legacy mode: the next request after the completion of the previous one.
    pub fn legacy(rw: &'static str, bytes: u32) -> Load {
        Load { depth: 1, amount: 6 << 20, ..Load::queued(rw, bytes) }
    }

    /// As changed by the switches of this setup.
    fn switched(self, machine: &Machine) -> Load {
        let mut load = self;
        if machine.is_switched(SHARED_ENTRIES) {
            load.depth = (load.depth / load.workers).max(1);
        }
        if machine.is_switched(ONE_ENTRY) {
            load.depth = 1;
        }
        load
    }

    /// The same load from each of `workers` workers.
    pub fn by(self, workers: u32) -> Load {
        Load { workers, ..self }
    }

    fn job(&self) -> String {
        let Load { rw, bytes, depth, workers, .. } = self;
        let each = self.amount / u64::from(*workers);
        let fill = if rw.ends_with("read") {
            format!("[fill]\nrw=write\nbs={FILL_BYTES}\niodepth=8\nsize=25%\n\n")
        } else {
            String::new()
        };
        let size = if rw.ends_with("read") { 25 } else { 100 };
        format!(
            "{fill}[load]\nstonewall\nrw={rw}\nbs={bytes}\niodepth={depth}\nnumjobs={workers}\n\
             size={size}%\nio_size={each}\nnorandommap=1\n"
        )
    }
}

#[derive(Clone)]
pub(super) struct Measured {
    /// Mean latency, us.
    pub us: f64,
    /// Requests per second.
    pub iops: f64,
    /// Share of all cores' time used during the load.
    pub cores: f64,
    /// Core time per request, us.
    pub core_us: f64,
    /// Maximum host memory, bytes.
    pub memory: f64,
    /// Of it, that of flash software on the host.
    pub parts: HostMemory,
    /// Time series of the load, without the initial fill.
    pub series: TimeSeries,
}

impl Measured {
    /// Host memory of a drive and machine in full size, bytes: each part by what it grows with. The map and
    /// the tables grow with the capacity, and the write buffer is given by 1024 like it; of dies, link and
    /// queues the plans have all, and so of the pages that are read, commands and callers' buffers.
    pub fn memory_in_full(&self) -> f64 {
        let HostMemory { map, tables, write_buffer, .. } = self.parts;
        self.memory + (SCALE - 1.0) * (map + tables + write_buffer) as f64
    }
}

/// Runs jobs on a new drive or array, in virtual time.
fn simulate(
    machine: &Machine,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    let row = match (machine.is_of("flash-bridge"), plan.array.is_some()) {
        (true, false) => NVME,
        (false, false) => HOST_FLASH,
        (true, true) => NVME_ARRAY,
        (false, true) => HOST_FLASH_ARRAY,
    };
    world::simulate(row, plan, work, options)
}

/// Runs a load on a new drive, in virtual time.
pub(super) fn run(machine: &Machine, load: &Load) -> Result<Measured, ExhibitError> {
    let load = load.switched(machine);
    machine.once(format!("{load:?}"), |machine| run_once(machine, &load))
}

fn run_once(machine: &Machine, load: &Load) -> Result<Measured, ExhibitError> {
    let plan = machine.open()?;
    let work = Work::parse(Path::new("papers"), &load.job(), Mapping::default())?;
    let options = Options { series: Some(INTERVAL), ..Options::default() };
    let mut run_result = simulate(machine, &plan, &work, options)?;
    let (_, measured) = run_result.jobs.pop().expect("the load is the last");
    if measured.errors() > 0 {
        return Err(ExhibitError::Job(measured.messages));
    }
    let reads = load.rw.ends_with("read");
    let stats = measured.stats.of(if reads { OpKind::Read } else { OpKind::Write });
    let mut series = run_result.series.expect("asked for");
    let its = |point: &Point| if reads { point.reads.ops } else { point.writes.ops };
    let first =
        series.points.iter().position(|point| its(point) > 0 && (!reads || point.writes.ops == 0));
    series.points.drain(..first.unwrap_or(0));
    let (points, ops) =
        (series.points.len() as f64, series.points.iter().map(its).sum::<u64>() as f64);
    let busy = |point: &Point| point.cores_per_mille.unwrap_or(0) as f64 / 1e3;
    let cores = series.points.iter().map(busy).sum::<f64>() / points.max(1.0);
    let all_us = INTERVAL.as_us_f64() * points * f64::from(plan.host.cores);
    let memory = series.points.iter().map(|point| point.memory_bytes).max().unwrap_or(0);
    Ok(Measured {
        us: stats.total.mean_ns() / 1e3,
        iops: stats.iops(measured.measured),
        cores,
        core_us: cores * all_us / ops.max(1.0),
        memory: memory as f64,
        parts: run_result.host_memory.unwrap_or_default(),
        series,
    })
}
