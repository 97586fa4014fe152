//! Measurements of a plan in virtual time.

use std::path::Path;

use runtime::{Log, Span};
use wire::Lba;
use workload::pattern::OpKind;
use workload::trace::Mapping;

use plan::Plan;
use plan::units::scaled;
use world::interfaces::{Dcx, Row};
use world::work::Work;
use world::{self, Busy, Options, RunError};

/// A plan with overridden values.
#[derive(Clone)]
pub(super) struct Machine {
    pub plan: &'static str,
    pub sets: Vec<(String, String)>,
}

impl Machine {
    pub fn of(plan: &'static str) -> Machine {
        Machine { plan, sets: Vec::new() }
    }

    /// The same with one more override.
    pub fn with(&self, key: &str, value: &str) -> Machine {
        let mut machine = self.clone();
        machine.sets.push((key.to_owned(), value.to_owned()));
        machine
    }

    pub fn open(&self) -> Result<Plan, RunError> {
        let sets: Vec<_> = self.sets.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        Plan::open(self.plan, &sets).map_err(|errors| RunError(errors.to_string()))
    }

    /// Results of a row with each assumed cost of the plan at half and at one and a half.
    pub fn swings(
        &self,
        number: impl Fn(&Machine) -> Result<f64, RunError>,
    ) -> Result<Vec<(String, f64, f64)>, RunError> {
        let mut swings = Vec::new();
        for source in self.open()?.sources.iter().filter(|source| source.assumed) {
            if self.sets.iter().any(|(key, _)| *key == source.key) {
                continue;
            }
            let at = |halves| -> Result<Option<f64>, RunError> {
                let Some(value) = scaled(&source.value, halves, 2) else { return Ok(None) };
                let value = format!("{{ value = {value}, source = \"assumed\" }}");
                number(&self.with(&source.key, &value)).map(Some)
            };
            if let (Some(low), Some(high)) = (at(1)?, at(3)?) {
                swings.push((source.key.clone(), low, high));
            }
        }
        Ok(swings)
    }
}

/// Mean results of operations of one kind.
pub(super) struct Reads {
    /// Total latency, us.
    pub total_us: f64,
    /// Latency by stage, us.
    pub parts: Vec<(&'static str, f64)>,
    pub busy: Busy,
    pub count: u64,
}

impl Reads {
    /// Latency of a stage, us.
    pub fn part(&self, name: &str) -> f64 {
        self.parts.iter().find(|(stage, _)| *stage == name).map_or(0.0, |(_, us)| *us)
    }

    /// TLPs per read, upstream and downstream, including bring-up, which is negligible over the number of
    /// reads.
    pub fn tlps(&self) -> (f64, f64) {
        let (up, down) = self.busy.tlps;
        (up as f64 / self.count as f64, down as f64 / self.count as f64)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrivals {
    /// Each at the end of the previous one.
    Loop,
    /// Random, with this average rate per second.
    Random(u32),
}

/// Random reads of `bytes` bytes at depth 1. In virtual time a thousand are as good as a million.
pub(super) fn reads(
    row: &'static Row,
    machine: &Machine,
    bytes: u32,
    arrivals: Arrivals,
) -> Result<Reads, RunError> {
    let when = match arrivals {
        Arrivals::Loop => "number_ios=1000".to_owned(),
        // A polling device is never idle: the simulation cost is by time, not by reads.
        Arrivals::Random(rate) => {
            let count = (rate / 10).clamp(20, 1000);
            format!("number_ios={count}\nrate_iops={rate}\nrate_process=poisson")
        }
    };
    let job = format!("[reads]\nrw=randread\nbs={bytes}\n{when}\n");
    run(row, machine, &job, OpKind::Read)
}

/// Random writes of `bytes` bytes at depth 1.
pub(super) fn writes(row: &'static Row, machine: &Machine, bytes: u32) -> Result<Reads, RunError> {
    let job = format!("[writes]\nrw=randwrite\nbs={bytes}\nnumber_ios=300\n");
    run(row, machine, &job, OpKind::Write)
}

fn run(row: &'static Row, machine: &Machine, job: &str, kind: OpKind) -> Result<Reads, RunError> {
    let plan = machine.open()?;
    let job = format!("{job}iodepth=1\nsize=16m\n");
    let work = Work::parse(Path::new("papers"), &job, Mapping::default());
    let work = work.map_err(|error| RunError(error.to_string()))?;
    let mut run_result = world::simulate(row, &plan, &work, Options::default())?;
    let job_result = run_result.jobs.remove(0).1;
    if job_result.errors() > 0 {
        return Err(RunError(job_result.messages.join("; ")));
    }
    let mean = job_result.stats.breakdowns[&kind].mean();
    let us = |ps: f64| ps / 1e6;
    Ok(Reads {
        total_us: us(mean.total_ps),
        parts: row.stages.iter().copied().zip(mean.stages_ps.iter().map(|ps| us(*ps))).collect(),
        busy: run_result.busy.expect("a simulated world"),
        count: mean.count,
    })
}

/// Mean latency of DC Express reads of the first `bytes` bytes of a block, in a tight loop, us.
pub(super) fn small_reads(machine: &Machine, bytes: u32) -> Result<f64, RunError> {
    const WARM: u64 = 200;
    const COUNT: u64 = 1000;
    let plan = machine.open()?;
    let span = world::in_virtual_time::<Dcx, _>(&plan, Log::Off, async |rt, _, driver| {
        let queue = world::interfaces::Driver::disk(&driver, 0);
        let mut buffer = host::BlockDevice::buffer(&queue, bytes as usize)
            .map_err(|error| RunError(error.to_string()))?;
        let mut begun = rt.now();
        for read in 0..WARM + COUNT {
            if read == WARM {
                begun = rt.now();
            }
            let (back, done) = queue.read_head(Lba(read * 7919 % 4096), buffer).await;
            done.map_err(|error| RunError(error.to_string()))?;
            buffer = back;
        }
        Ok::<Span, RunError>(rt.now().since(begun))
    })??;
    Ok(span.as_us_f64() / COUNT as f64)
}
