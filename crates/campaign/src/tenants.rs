//! Tenants that share a drive: the latency of a small reader beside neighbours that read as fast as they can,
//! by what protects it; and the shares of tenants by class and by number of queues.
//!
//! A tenant is one job, with queues of its own unless all share one. Its protection is in the plan (queues,
//! classes and their weights) and in the job (a rate); [`Way::settings`] has the keys.

use std::path::Path;

use plan::Plan;
use runtime::Span;
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::{Work, WorkError};
use world::{self, Options, RunError, RunResult};

/// Clones of the neighbour, each with a queue of its own where there are several.
pub const NEIGHBOURS: u32 = 3;

/// Percentile of the victim that is compared, in thousandths of a percent.
const P99: u32 = 99_000;

/// Sharing of the drive by the victim and the neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Alone,
    OneQueue,
    /// A queue for the victim and one for each clone of the neighbour, round robin, with bursts of 64.
    OwnQueues,
    /// The same with bursts of one.
    SmallBursts,
    /// Bursts of 64, weighted: the victim's queue sixteen to one.
    Weighted,
    /// Bursts of 64, with the urgent class for the victim.
    Urgent,
    /// Queues of their own, and a rate for the neighbour.
    Rate,
}

impl Way {
    pub const ALL: [Way; 7] = [
        Way::Alone,
        Way::OneQueue,
        Way::OwnQueues,
        Way::SmallBursts,
        Way::Weighted,
        Way::Urgent,
        Way::Rate,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Way::Alone => "alone",
            Way::OneQueue => "in the neighbour's queue",
            Way::OwnQueues => "in its own queue, bursts of 64",
            Way::SmallBursts => "the same, bursts of 1",
            Way::Weighted => "a queue of weight 16 to 1",
            Way::Urgent => "an urgent queue",
            Way::Rate => "the neighbour at a rate",
        }
    }

    /// Keys of the plan. Eight command slots, so that commands wait in their queues, where arbitration
    /// chooses, and not in the drive.
    pub const fn settings(self) -> &'static [(&'static str, &'static str)] {
        const SLOTS: (&str, &str) = ("device.command_slots", "8");
        const DEPTH: (&str, &str) = ("host.queue_depth", "64");
        const QUEUES: (&str, &str) = ("host.queues", "4");
        const BURST: (&str, &str) = ("device.arbitration_burst", "64");
        const HIGH: (&str, &str) = ("arbitration.high", "16");
        const MEDIUM: (&str, &str) = ("arbitration.medium", "1");
        const LOW: (&str, &str) = ("arbitration.low", "1");
        match self {
            Way::Alone | Way::OneQueue => &[SLOTS, DEPTH, ("host.queues", "1")],
            Way::OwnQueues | Way::Rate => &[SLOTS, DEPTH, QUEUES, BURST],
            Way::SmallBursts => &[SLOTS, DEPTH, QUEUES, ("device.arbitration_burst", "1")],
            Way::Weighted => {
                const CLASSES: (&str, &str) = ("arbitration.classes", "high low low low");
                &[SLOTS, DEPTH, QUEUES, BURST, CLASSES, HIGH, MEDIUM, LOW]
            }
            Way::Urgent => {
                const CLASSES: (&str, &str) = ("arbitration.classes", "urgent low low low");
                &[SLOTS, DEPTH, QUEUES, BURST, CLASSES, HIGH, MEDIUM, LOW]
            }
        }
    }
}

/// Keys of a plan whose queues have classes of weight 4, 2 and 1.
pub const BY_WEIGHT: &[(&str, &str)] = &[
    ("device.command_slots", "8"),
    ("host.queue_depth", "64"),
    ("host.queues", "3"),
    ("arbitration.classes", "high medium low"),
    ("arbitration.high", "4"),
    ("arbitration.medium", "2"),
    ("arbitration.low", "1"),
];

/// Keys of a plan with four queues, round robin.
pub const BY_QUEUES: &[(&str, &str)] =
    &[("device.command_slots", "8"), ("host.queue_depth", "64"), ("host.queues", "4")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight of each clone of the neighbour; 0: it is idle.
    pub neighbour_depth: u32,
    /// Requests a second of each clone of the neighbour, with [`Way::Rate`]; 0: no limit.
    pub rate: u32,
    pub time: Span,
}

impl Default for Load {
    fn default() -> Load {
        Load { neighbour_depth: 32, rate: 1000, time: Span::ms(100) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenants {
    /// Latency of the victim's reads, us.
    pub p50_us: f64,
    pub p99_us: f64,
    pub victim_reads: u64,
    /// Throughput of the neighbour, 10^6 bytes a second.
    pub neighbour_mb_s: f64,
}

/// Why tenants could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantsError {
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("tenants: {job}: {errors} operations failed: {first}")]
    Failed { job: String, errors: u64, first: String },
}

/// Runs a victim that reads 4 KiB at a time, and a neighbour with reads of 32 KiB.
///
/// # Errors
/// The plan does not suit, or an operation failed.
pub fn measure(plan: &Plan, way: Way, load: Load, is_live: bool) -> Result<Tenants, TenantsError> {
    let mut text = format!("{}[victim]\nbs=4k\niodepth=1\n", global(load.time));
    if way != Way::Alone && load.neighbour_depth > 0 {
        let depth = load.neighbour_depth;
        text += &format!("[neighbour]\nbs=32k\niodepth={depth}\nnumjobs={NEIGHBOURS}\n");
        if way == Way::Rate && load.rate > 0 {
            text += &format!("rate_iops={}\n", load.rate);
        }
    }
    let result = run(plan, &text, is_live)?;
    let victim = &result.jobs[0].1.stats.read.total;
    let us = |thousandths| victim.percentile_ns(thousandths) as f64 / 1e3;
    let bytes = result.jobs.get(1).map_or(0, |(_, job)| job.stats.read.total.count() * (32 << 10));
    Ok(Tenants {
        p50_us: us(50_000),
        p99_us: us(P99),
        victim_reads: victim.count(),
        neighbour_mb_s: bytes as f64 / load.time.as_us_f64(),
    })
}

/// Share of each tenant in the reads of all. Each has this number of clones, and as many requests in flight,
/// all of its clones together.
///
/// # Errors
/// As [`measure`].
pub fn shares(
    plan: &Plan,
    clones: &[u32],
    time: Span,
    is_live: bool,
) -> Result<Vec<f64>, TenantsError> {
    let mut text = global(time);
    for (number, clones) in clones.iter().enumerate() {
        let depth = (48 / clones).max(1);
        text += &format!("[tenant{number}]\nbs=4k\niodepth={depth}\nnumjobs={clones}\n");
    }
    let result = run(plan, &text, is_live)?;
    let counts = result.jobs.iter().map(|(_, job)| job.stats.read.total.count() as f64);
    let sum: f64 = counts.clone().sum();
    Ok(counts.map(|count| count / sum.max(1.0)).collect())
}

/// Highest relative deviation of shares from what these weights give.
pub fn deviation(shares: &[f64], weights: &[f64]) -> f64 {
    let sum: f64 = weights.iter().sum();
    let off = |(share, weight): (&f64, &f64)| (share / (weight / sum) - 1.0).abs();
    shares.iter().zip(weights).map(off).fold(0.0, f64::max)
}

fn global(time: Span) -> String {
    let us = time.as_us_f64();
    format!("[global]\nrw=randread\nsize=64m\ntime_based\nruntime={us:.0}us\nnorandommap=1\n")
}

fn run(plan: &Plan, text: &str, is_live: bool) -> Result<RunResult, TenantsError> {
    let work = Work::parse(Path::new("tenants"), text, Mapping::default())?;
    let options = Options::default();
    let result = match is_live {
        true => world::live_in_threads(NVME, plan, &work, options)?,
        false => world::simulate(NVME, plan, &work, options)?,
    };
    for (job, result) in &result.jobs {
        if result.errors() > 0 {
            let first = result.messages.first().cloned().unwrap_or_default();
            let (job, errors) = (job.name.clone(), result.errors());
            return Err(TenantsError::Failed { job, errors, first });
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_relative_to_the_share_of_a_weight() {
        assert_eq!(deviation(&[0.5, 0.25, 0.25], &[2.0, 1.0, 1.0]), 0.0);
        assert!((deviation(&[0.5, 0.5], &[3.0, 1.0]) - 1.0).abs() < 1e-12);
    }
}
