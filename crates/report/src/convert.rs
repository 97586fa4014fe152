//! From the result of a run to its model.

mod parts;
mod warnings;

use std::collections::BTreeMap;

use plan::Plan;
use runtime::Span;
use workload::job::Job;
use workload::pattern::OpKind;
use workload::stats::{Breakdown, JobStats, Latencies, PERCENTILES, Recorder, Shares};
use workload::trace::Mapping;
use world::RunResult;
use world::engine::JobResult;
use world::work::Work;

use crate::model;

/// Quantiles of the breakdowns, in thousandths of a percent.
const AROUND: [u32; 3] = [50_000, 99_000, 99_900];
/// The errno of a job with errors, as in fio: EIO.
pub(crate) const EIO: i32 = 5;

/// A run that ended: its description, to which [`RunContext::with`] adds the result.
pub struct RunContext<'a> {
    pub plan: &'a Plan,
    pub work: &'a Work,
    /// Settings of the jobs from the command line.
    pub settings: &'a [(String, String)],
    /// The recordings of the work: see [`crate::recordings`].
    pub recordings: &'a [model::Recording],
    pub interface: &'a str,
    pub world: model::World,
    pub device: model::Device,
    pub threads: u32,
    /// Number of controller resets that were requested.
    pub resets: u32,
    /// Simulated: the event log, if it was digested.
    pub log: Option<model::EventLog>,
    /// Register writes of the host, counted if the work is a recording of a live run.
    pub register_writes: u64,
}

impl RunContext<'_> {
    /// The run with its result.
    pub fn with(self, result: &RunResult) -> model::Run {
        let (plan, work) = (self.plan, self.work);
        let busy = result.busy.as_ref();
        // A simulated run traces every command, whatever the plan samples live.
        let one_in = match self.world {
            model::World::Simulated => 1,
            model::World::Live => plan.run.breakdown_sample,
        };
        let mut run = model::Run {
            world: self.world,
            device: self.device,
            interface: self.interface.to_owned(),
            plan: plan_of(plan),
            work: work_of(work, self.settings, self.recordings),
            resets: model::Resets { requested: self.resets, completed: result.resets },
            threads: self.threads,
            notes: result.notes.clone(),
            warnings: Vec::new(),
            jobs: jobs(one_in, &result.jobs),
            link: busy.map(parts::link),
            cores: busy.map(parts::cores),
            host_thread_ps: result.host_thread.map(|span| span.0),
            flash: result.flash.as_ref().map(|flash| parts::flash(flash, plan)),
            faults: result.faults.iter().map(parts::fault).collect(),
            energy: parts::energy(&result.power, plan),
            series: result.series.as_ref().map(parts::series),
            timeline: result.timeline.as_ref().map_or_else(Vec::new, |sampled| {
                parts::timeline(sampled, plan.medium.contents.block_bytes.into())
            }),
            recorded: work
                .recorded
                .as_ref()
                .map(|live| parts::recorded(live, self.register_writes)),
            timed_events: result.timed_events,
            log: self.log,
        };
        run.warnings = warnings::of(&run, plan, result);
        run
    }
}

pub fn plan_of(plan: &Plan) -> model::Plan {
    let source = |one: &plan::Sourced| model::Sourced {
        key: one.key.clone(),
        value: one.value.clone(),
        source: one.source.clone(),
        assumed: one.assumed,
    };
    model::Plan {
        name: plan.name.clone(),
        about: plan.about.clone(),
        origin: plan.origin.clone(),
        seed: plan.run.seed,
        text: plan.text.clone(),
        sets: settings(&plan.sets),
        sources: plan.sources.iter().map(source).collect(),
    }
}

fn work_of(
    work: &Work,
    of_command: &[(String, String)],
    recordings: &[model::Recording],
) -> model::Work {
    model::Work {
        file: work.file.display().to_string(),
        text: work.text.clone(),
        globals: settings(&work.globals),
        settings: settings(of_command),
        variables: settings(&work.variables),
        recordings: recordings.to_vec(),
        mapping: match work.mapping {
            Mapping::Concatenate => model::Mapping::Concatenate,
            Mapping::Modulo => model::Mapping::Modulo,
        },
        notes: work.notes.clone(),
    }
}

fn settings(pairs: &[(String, String)]) -> Vec<model::Setting> {
    let setting =
        |(key, value): &(String, String)| model::Setting { key: key.clone(), value: value.clone() };
    pairs.iter().map(setting).collect()
}

fn jobs(one_in: u32, results: &[(Job, JobResult)]) -> Vec<model::Job> {
    let mut group = 0;
    let with_group = results.iter().enumerate().map(|(at, (job, result))| {
        group += u32::from(at > 0 && (job.wait_for_previous || job.new_group));
        (group, job, result)
    });
    with_group.map(|(group, job, result)| one_job(one_in, group, job, result)).collect()
}

fn one_job(one_in: u32, group: u32, job: &Job, result: &JobResult) -> model::Job {
    let stats = &result.stats;
    let level = |(level, percent): (&str, f64)| model::Level { level: level.to_owned(), percent };
    let operations = OpKind::ALL.into_iter().filter_map(|kind| {
        let recorder = stats.of(kind);
        let used = recorder.total.count() > 0 || recorder.errors > 0;
        let one = || operations(recorder, result.measured, breakdown(stats, kind, one_in));
        used.then(|| (model_kind(kind), one()))
    });
    model::Job {
        name: job.name.clone(),
        group,
        after_previous: job.wait_for_previous,
        description: job.description.clone(),
        options: settings(&job.options),
        errors: result.errors(),
        messages: result.messages.clone(),
        measured_ps: result.measured.0,
        elapsed_ps: result.elapsed.0,
        blocks_verified: result.blocks_verified,
        operations: operations.collect(),
        depth: stats.depths.percent().map(level).collect(),
        submitted: stats.submitted.percent().map(level).collect(),
        completed: stats.completed.percent().map(level).collect(),
    }
}

pub(crate) fn model_kind(kind: OpKind) -> model::Kind {
    match kind {
        OpKind::Read => model::Kind::Read,
        OpKind::Write => model::Kind::Write,
        OpKind::Flush => model::Kind::Flush,
        OpKind::Trim => model::Kind::Trim,
    }
}

fn operations(
    stats: &Recorder,
    measured: Span,
    breakdown: Option<model::Breakdown>,
) -> model::Operations {
    let some = |all: &Latencies| (all.count() > 0).then(|| histogram(all));
    let count = stats.total.count();
    let window = |counts: &workload::stats::Counts| parts::window(counts);
    model::Operations {
        count,
        bytes: stats.bytes,
        errors: stats.errors,
        iops: model::per_second(count, measured.0),
        bytes_per_second: model::per_second(stats.bytes, measured.0),
        latency: histogram(&stats.total),
        submission: some(&stats.submission),
        completion: some(&stats.completion),
        breakdown,
        windows: model::Windows {
            width_ps: stats.windows.width().0,
            windows: stats.windows.counts().iter().map(window).collect(),
        },
    }
}

pub(crate) fn histogram(all: &Latencies) -> model::Histogram {
    let percentile = |thousandths: u32| model::Percentile {
        quantile: quantile(thousandths),
        ns: all.percentile_ns(thousandths),
    };
    model::Histogram {
        count: all.count(),
        min_ns: all.min_ns(),
        max_ns: all.max_ns(),
        mean_ns: all.mean_ns(),
        stddev_ns: all.stddev_ns(),
        percentiles: match all.count() {
            0 => Vec::new(),
            _ => PERCENTILES.into_iter().map(percentile).collect(),
        },
        bins: all.distribution().map(|(ns, count)| model::Bin(ns, count)).collect(),
    }
}

fn quantile(thousandths: u32) -> f64 {
    f64::from(thousandths) / 100_000.0
}

fn breakdown(stats: &JobStats, kind: OpKind, one_in: u32) -> Option<model::Breakdown> {
    // No operation may have been traced: on an array, or live if none was sampled.
    let all = stats.breakdowns.get(&kind).filter(|all| all.count() > 0)?;
    let at = |thousandths: u32| around(all, thousandths);
    Some(model::Breakdown {
        traced: all.count(),
        sampled_one_in: one_in,
        stages: all.names().iter().map(|name| (*name).to_owned()).collect(),
        mean: shares(&all.mean()),
        at: AROUND.into_iter().filter_map(at).collect(),
    })
}

fn around(all: &Breakdown, thousandths: u32) -> Option<model::Around> {
    let around = all.around(thousandths)?;
    Some(model::Around {
        quantile: quantile(thousandths),
        from_ps: around.from.0,
        to_ps: around.to.0,
        count: around.shares.count,
        shares: shares(&around.shares),
    })
}

fn shares(shares: &Shares) -> model::Shares {
    model::Shares {
        total_ns: shares.total_ps / 1e3,
        stages_ns: shares.stages_ps.iter().map(|ps| ps / 1e3).collect(),
        unexplained_ns: shares.unexplained_ps / 1e3,
    }
}

/// Latencies by kind, of a recording.
fn latencies(all: &BTreeMap<OpKind, Latencies>) -> BTreeMap<model::Kind, model::Histogram> {
    all.iter().map(|(kind, all)| (model_kind(*kind), histogram(all))).collect()
}
