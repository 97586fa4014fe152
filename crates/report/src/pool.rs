//! Operations of one kind of all jobs of a run together.

use std::collections::BTreeMap;

use crate::model::{Bin, Histogram, Kind, Operations, Run, per_second};

/// Operations of one kind, of all jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    pub count: u64,
    pub bytes: u64,
    /// Time of the jobs: of those that ran at once, the longest; one after the other, the sum.
    pub measured_ps: u64,
    pub latency: Histogram,
    pub traced: u64,
    /// Mean total of the traced operations, nanoseconds.
    pub traced_ns: f64,
    /// Mean of each stage of the traced operations, nanoseconds; the last is `unexplained`.
    pub stages: Vec<(String, f64)>,
}

impl Pool {
    pub fn of(run: &Run, kind: Kind) -> Pool {
        let mut pool = Pool::default();
        let (mut bins, mut sum, mut at_once) = (BTreeMap::<u64, u64>::new(), 0.0, 0);
        let mut stages: Vec<(String, f64)> = Vec::new();
        for job in &run.jobs {
            if job.after_previous {
                pool.measured_ps += std::mem::take(&mut at_once);
            }
            let Some(of) = job.operations.get(&kind).filter(|of| of.count > 0) else { continue };
            at_once = at_once.max(job.measured_ps);
            pool.count += of.count;
            pool.bytes += of.bytes;
            sum += of.latency.mean_ns * of.count as f64;
            of.latency.bins.iter().for_each(|Bin(ns, n)| *bins.entry(*ns).or_default() += n);
            let (min, all) = (of.latency.min_ns, &mut pool.latency);
            all.min_ns = if all.count == 0 { min } else { all.min_ns.min(min) };
            all.max_ns = all.max_ns.max(of.latency.max_ns);
            all.count += of.latency.count;
            add_stages(&mut stages, &mut pool, of);
        }
        pool.measured_ps += at_once;
        let traced = pool.traced.max(1) as f64;
        pool.traced_ns /= traced;
        pool.stages = stages.into_iter().map(|(name, ns)| (name, ns / traced)).collect();
        pool.latency.mean_ns = sum / pool.latency.count.max(1) as f64;
        pool.latency.bins = bins.into_iter().map(|(ns, count)| Bin(ns, count)).collect();
        pool
    }

    pub fn iops(&self) -> f64 {
        per_second(self.count, self.measured_ps)
    }

    pub fn bytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.measured_ps)
    }

    /// Mean of a stage, nanoseconds.
    pub fn stage_ns(&self, name: &str) -> Option<f64> {
        self.stages.iter().find(|(stage, _)| stage == name).map(|(_, ns)| *ns)
    }

    /// The largest stages, up to `most`: name, nanoseconds and share of the mean.
    pub fn largest(&self, most: usize) -> Vec<(&str, f64, f64)> {
        let mut stages: Vec<_> = self
            .stages
            .iter()
            .filter(|(_, ns)| *ns > 0.0)
            .map(|(name, ns)| (name.as_str(), *ns, ns / self.traced_ns.max(f64::MIN_POSITIVE)))
            .collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        stages.truncate(most);
        stages
    }
}

/// Adds sums of the stages of these operations.
fn add_stages(stages: &mut Vec<(String, f64)>, pool: &mut Pool, of: &Operations) {
    let Some(breakdown) = &of.breakdown else { return };
    let weight = breakdown.traced as f64;
    pool.traced += breakdown.traced;
    pool.traced_ns += breakdown.mean.total_ns * weight;
    let names = breakdown.stages.iter().map(String::as_str).chain(["unexplained"]);
    let values = breakdown.mean.stages_ns.iter().chain([&breakdown.mean.unexplained_ns]);
    for (name, ns) in names.zip(values) {
        match stages.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += ns * weight,
            None => stages.push((name.to_owned(), ns * weight)),
        }
    }
}
