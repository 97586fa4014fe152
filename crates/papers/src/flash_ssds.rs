//! The two SSDs of the flash paper under its Iometer loads.

use std::path::Path;

use runtime::Span;
use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::measure::Machine;
use plan::Plan;
use world::interfaces::{HOST_FLASH, HOST_FLASH_ARRAY, NVME, NVME_ARRAY};
use world::series::{Point, TimeSeries};
use world::work::Work;
use world::{self, Options, RunError, RunResult};

/// Sampling interval of the time series.
const INTERVAL: Span = Span::ms(1);
/// Request size, in bytes, of the writes that fill a quarter of a drive before it is read.
const FILL_BYTES: u32 = 128 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ssd {
    /// Controllers with flash software behind a bridge.
    Bridge,
    /// Endpoints with bare flash; the flash software is on the host.
    Closer,
}

impl Ssd {
    pub fn machine(self) -> Machine {
        Machine::of(match self {
            Ssd::Bridge => "flash-bridge",
            Ssd::Closer => "flash-closer",
        })
    }

    /// Legacy mode, one command at a time: each controller has one tag.
    pub fn legacy(self) -> Machine {
        match self {
            Ssd::Bridge => self.machine().with("medium.bridge.queue", "1"),
            Ssd::Closer => self.machine(),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Ssd::Bridge => "bridge",
            Ssd::Closer => "from-scratch",
        }
    }
}

#[derive(Clone, Copy)]
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
        // Writes fill the buffers several times; for reads a few hundred are representative.
        let amount = match (rw.ends_with("write"), bytes) {
            (true, _) => 12 << 20,
            (false, ..4096) => 1 << 20,
            (false, ..65_536) => 8 << 20,
            (false, _) => 32 << 20,
        };
        Load { rw, bytes, depth: 128, workers: 1, amount }
    }

    /// Legacy mode: the next request after the completion of the previous one.
    pub fn legacy(rw: &'static str, bytes: u32) -> Load {
        Load { depth: 1, amount: 6 << 20, ..Load::queued(rw, bytes) }
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
    /// Time series of the load, without the initial fill.
    pub series: TimeSeries,
}

/// Runs jobs on a new drive or array, in virtual time.
pub(super) fn simulate(
    ssd: Ssd,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    match (ssd, plan.array.is_some()) {
        (Ssd::Bridge, false) => world::simulate(NVME, plan, work, options),
        (Ssd::Closer, false) => world::simulate(HOST_FLASH, plan, work, options),
        (Ssd::Bridge, true) => world::simulate(NVME_ARRAY, plan, work, options),
        (Ssd::Closer, true) => world::simulate(HOST_FLASH_ARRAY, plan, work, options),
    }
}

/// Runs a load on a new drive, in virtual time.
pub(super) fn run(ssd: Ssd, machine: &Machine, load: &Load) -> Result<Measured, RunError> {
    let plan = machine.open()?;
    let work = Work::parse(Path::new("papers"), &load.job(), Mapping::default());
    let work = work.map_err(RunError::of)?;
    let options = Options { series: Some(INTERVAL), ..Options::default() };
    let mut run_result = simulate(ssd, &plan, &work, options)?;
    let (_, measured) = run_result.jobs.pop().expect("the load is the last");
    if measured.errors() > 0 {
        return Err(RunError(measured.messages.join("; ")));
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
        series,
    })
}
