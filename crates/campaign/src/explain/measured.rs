//! One simulation and its results, all jobs together.

use std::collections::BTreeMap;

use plan::Start;
use runtime::Span;
use serde::Serialize;
use workload::pattern::OpKind;
use workload::stats::Latencies;
use world::engine::JobResult;
use world::{Options, RunError, RunResult};

use super::case::{Case, Change};
use super::error::ExplainError;

/// Results of a simulation: all jobs and kinds of operations together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub operations: u64,
    pub errors: u64,
    /// Operations per second.
    pub rate: f64,
    pub bytes_per_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Mean of each stage in microseconds, in the order of a request's path; their sum is the mean.
    pub stages: Vec<Stage>,
    pub busy: Busy,
    /// Operations in flight in the mean (Little's law).
    pub in_flight: f64,
    /// Superblocks collected, and units written by the host and programmed for each of these; none without
    /// flash.
    pub flash: Option<Flash>,
    /// Reads, writes and trims of each job, failed ones included.
    #[serde(skip)]
    pub of_jobs: Vec<u64>,
    /// Virtual time of each job from its first operation to its last, with its ramp.
    #[serde(skip)]
    pub elapsed: Vec<Span>,
    /// Rate of the second half over that of the first; none if it was not asked for.
    pub drift: Option<f64>,
    pub messages: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub name: String,
    pub us: f64,
}

/// Utilisations, from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Busy {
    /// The link towards the host.
    pub link_up: f64,
    /// The link towards the device.
    pub link_down: f64,
    /// Work of each host core.
    pub cores: Vec<f64>,
    /// The device's processors, from the stages of its work; none: pipelined hardware.
    pub processors: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flash {
    pub collected: u64,
    pub host_units: u64,
    pub write_amplification: Option<f64>,
}

/// Intervals of the series that shows whether a run is steady.
const INTERVALS: u64 = 16;

impl Case {
    /// # Errors
    /// The run fails, or no operation succeeds.
    pub fn measure(&self) -> Result<Measured, ExplainError> {
        self.measure_by(None)
    }

    /// As [`Case::measure`], with the drift of the rate. `ramp` is left out of it.
    pub fn measure_drift(&self, elapsed: Span, ramp: Span) -> Result<Measured, ExplainError> {
        self.measure_by(Some((elapsed, ramp)))
    }

    fn measure_by(&self, halves: Option<(Span, Span)>) -> Result<Measured, ExplainError> {
        let interval =
            halves.map(|(elapsed, ramp)| Span((elapsed.saturating_sub(ramp).0 / INTERVALS).max(1)));
        let options = || Options { series: interval, ..Options::default() };
        let run = |case: &Case| {
            let row = case.row.of_plan(&case.plan);
            world::simulate(row, &case.plan, &case.work, options())
        };
        let run_result = match run(self) {
            // Twice the depth may need more memory than the plan has. Its size takes no time.
            Err(RunError::Buffers(_) | RunError::OutOfMemory(_)) => {
                let bytes = self.plan.host.memory_bytes.saturating_mul(4);
                let sets = vec![("host.memory".to_owned(), format!("{bytes} B"))];
                run(&self.with(&Change { sets, ..Change::default() })?)?
            }
            run_result => run_result?,
        };
        let measured = self.measured(&run_result, halves.map(|(_, ramp)| ramp));
        match measured.operations {
            0 => Err(ExplainError::NoOperation {
                file: self.work.file.display().to_string(),
                messages: measured.messages,
            }),
            _ => Ok(measured),
        }
    }

    fn measured(&self, run_result: &RunResult, ramp: Option<Span>) -> Measured {
        let results: Vec<&JobResult> = run_result.jobs.iter().map(|(_, result)| result).collect();
        let mut all = Latencies::default();
        let (mut bytes, mut errors) = (0, 0);
        for job_result in &results {
            errors += job_result.errors();
            for kind in OpKind::ALL {
                all.merge(&job_result.stats.of(kind).total);
                bytes += job_result.stats.of(kind).bytes;
            }
        }
        let measured = self.span(&results);
        let seconds = measured.as_s_f64().max(f64::MIN_POSITIVE);
        let in_flight: u64 = results.iter().map(|job_result| job_result.in_flight.0).sum();
        let whole = measured.0.max(1) as f64;
        let stages = stages(&results);
        let us = |percentile| all.percentile_ns(percentile) as f64 / 1e3;
        Measured {
            operations: all.count(),
            errors,
            rate: all.count() as f64 / seconds,
            bytes_per_s: bytes as f64 / seconds,
            mean_us: all.mean_ns() / 1e3,
            p50_us: us(50_000),
            p99_us: us(99_000),
            busy: self.busy(run_result, &stages, all.count() as f64 / seconds),
            stages,
            in_flight: in_flight as f64 / whole,
            flash: run_result.flash.and_then(|flash| flash.software).map(|software| Flash {
                collected: software.counters.collected,
                host_units: software.counters.host_units,
                write_amplification: software
                    .counters
                    .write_amplification_per_mille()
                    .map(|per_mille| per_mille as f64 / 1e3),
            }),
            of_jobs: results.iter().map(|job_result| operations(job_result)).collect(),
            elapsed: results.iter().map(|job_result| job_result.elapsed).collect(),
            drift: ramp.and_then(|ramp| drift(run_result, ramp)),
            messages: results.iter().flat_map(|job_result| job_result.messages.clone()).collect(),
        }
    }

    /// Measured time: the longest of each group, added over the groups.
    fn span(&self, results: &[&JobResult]) -> Span {
        let (mut from, mut measured) = (0, Span::ZERO);
        for group in self.work.groups() {
            let of_group = &results[from..from + group.len()];
            from += group.len();
            measured += of_group.iter().map(|one| one.measured).max().unwrap_or(Span::ZERO);
        }
        measured
    }

    fn busy(&self, run_result: &RunResult, stages: &[Stage], rate: f64) -> Busy {
        let busy = run_result.busy.as_ref().expect("a simulated world");
        let share = |span: Span| (span.0 as f64 / busy.of.0.max(1) as f64).min(1.0);
        let device: Vec<_> =
            self.plan.sim_spec().device_costs.iter().map(|cost| cost.name).collect();
        let work = stages.iter().filter(|stage| device.contains(&stage.name.as_str()));
        let work_us: f64 = work.map(|stage| stage.us).sum();
        let processors = self.plan.device.processors;
        Busy {
            link_up: share(busy.up),
            link_down: share(busy.down),
            cores: busy.cores.iter().map(|core| share(*core)).collect(),
            processors: (processors > 0).then(|| rate * work_us / 1e6 / f64::from(processors)),
        }
    }

    /// Whether reads of never written blocks, which take no flash time, may be among the results.
    pub fn is_fresh_flash(&self) -> bool {
        self.plan.medium.flash.as_ref().is_some_and(|flash| flash.start == Start::Fresh)
    }
}

/// Reads, writes and trims that a job has completed, failed ones included.
fn operations(job_result: &JobResult) -> u64 {
    let data = [OpKind::Read, OpKind::Write, OpKind::Trim];
    let of_kinds = data.iter().map(|kind| job_result.stats.of(*kind));
    of_kinds.map(|recorder| recorder.total.count() + recorder.errors).sum()
}

/// Mean of each stage over all kinds of operations, those of no time left out.
fn stages(results: &[&JobResult]) -> Vec<Stage> {
    let mut names: Vec<&str> = Vec::new();
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut count = 0;
    for breakdown in results.iter().flat_map(|one| one.stats.breakdowns.values()) {
        if breakdown.count() == 0 {
            continue;
        }
        let mean = breakdown.mean();
        count += mean.count;
        let of_stages = breakdown.names().iter().copied().zip(mean.stages_ps.iter().copied());
        for (name, ps) in of_stages.chain([("unexplained", mean.unexplained_ps)]) {
            if !names.contains(&name) {
                names.push(name);
            }
            *sums.entry(name).or_default() += ps * mean.count as f64;
        }
    }
    let us = |name: &&str| sums[name] / 1e6 / f64::max(1.0, count as f64);
    let stages = names.iter().map(|name| Stage { name: (*name).to_owned(), us: us(name) });
    stages.filter(|stage| stage.us.abs() >= 0.000_05).collect()
}

/// Operations in the second half of the intervals after `ramp` over those in the first.
fn drift(run_result: &RunResult, ramp: Span) -> Option<f64> {
    let series = run_result.series.as_ref()?;
    let after = series.points.iter().filter(|point| point.at > ramp + series.interval);
    let operations: Vec<u64> = after.map(|point| point.both().ops).collect();
    let half = operations.len() / 2;
    let first: u64 = operations[..half].iter().sum();
    let last: u64 = operations[operations.len() - half..].iter().sum();
    (half > 0 && first > 0).then(|| last as f64 / first as f64)
}
