//! A run to simulate: a plan, its work and an interface, and changes to them.

use media::nand::Geometry;
use plan::{Plan, Sourced, Start};
use serde::Serialize;
use workload::job::{Job, PerDirection};
use world::interfaces::Row;
use world::work::Work;

use super::error::ExplainError;

/// A change of the plan or of the jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Keys of the plan and their values, as for `--set`.
    pub sets: Vec<(String, String)>,
    pub job: Option<JobChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobChange {
    TwiceTheDepth,
    /// Arrivals at twice the rate.
    TwiceTheRate,
    HalfTheThinkTime,
}

#[derive(Clone)]
pub(super) struct Case {
    pub row: &'static Row,
    pub plan: Plan,
    pub work: Work,
}

impl Case {
    /// # Errors
    /// The medium has a file, which every simulation would write.
    pub fn new(row: &'static Row, plan: &Plan, work: &Work) -> Result<Case, ExplainError> {
        let file = |key| Err(ExplainError::File { origin: plan.origin.clone(), key });
        if plan.medium.contents.backing != media::contents::Backing::Memory {
            return file("medium.file");
        }
        if plan.medium.flash.as_ref().is_some_and(|flash| flash.state.is_some()) {
            return file("medium.flash.state");
        }
        let mut work = work.clone();
        for job in &mut work.jobs {
            // Checks of data take no virtual time, and reading them back is not part of the measurement.
            job.verify.on = false;
        }
        let case = Case { row, plan: plan.clone(), work };
        case.with(&Change::default())
    }

    /// # Errors
    /// The changed plan is invalid.
    pub fn with(&self, change: &Change) -> Result<Case, ExplainError> {
        let sets = change.sets.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let mut plan = self.plan.with_sets(sets)?;
        // Every command is traced, so that breakdown and latencies are of the same operations.
        plan.run.breakdown_sample = 1;
        with_chip_times(&mut plan);
        let mut work = self.work.clone();
        if let Some(change) = change.job {
            work.jobs.iter_mut().for_each(|job| change.apply(job));
        }
        Ok(Case { row: self.row, plan, work })
    }
}

/// Lists the times of flash chips that the plan takes from the profile, so that they are costs as well.
fn with_chip_times(plan: &mut Plan) {
    let Some(flash) = &plan.medium.flash else { return };
    let source = format!("profile {}", flash.profile);
    for (key, value) in flash.chip_times() {
        if plan.sources.iter().all(|sourced| sourced.key != key) {
            let source = source.clone();
            plan.sources.push(Sourced { key, value, source, assumed: false });
        }
    }
}

impl JobChange {
    fn apply(self, job: &mut Job) {
        match self {
            JobChange::TwiceTheDepth => job.iodepth = job.iodepth.max(1).saturating_mul(2),
            JobChange::HalfTheThinkTime => job.thinktime = job.thinktime / 2,
            JobChange::TwiceTheRate => {
                let twice = |rates: &mut PerDirection<Option<u64>>| {
                    for rate in [&mut rates.read, &mut rates.write, &mut rates.trim] {
                        *rate = rate.map(|rate| rate.saturating_mul(2));
                    }
                };
                twice(&mut job.rate_iops);
                twice(&mut job.rate_bytes);
                if let Some(trace) = &mut job.trace {
                    trace.time_scale_percent = trace.time_scale_percent.saturating_mul(2);
                }
            }
        }
    }
}

/// Whether the job's operations arrive at their own times.
pub(super) fn is_paced(job: &Job) -> bool {
    let rates = job.rate_iops.each().into_iter().chain(job.rate_bytes.each());
    rates.into_iter().any(Option::is_some)
        || job.trace.as_ref().is_some_and(|trace| !trace.no_stall)
}

/// A change to chips with enough spare blocks to program `written` mapping units without a collection: the
/// same capacity, on a fresh or a sequentially filled drive.
pub(super) fn without_collection(plan: &Plan, work: &Work, written: u64) -> Option<Change> {
    let flash = plan.medium.flash.as_ref()?;
    let geometry: &Geometry = &flash.spec.geometry;
    let pages = u64::from(geometry.all_dies() * geometry.planes) * u64::from(geometry.pages());
    let units_of_a_block = (pages * u64::from(geometry.page_bytes / geometry.unit_bytes)).max(1);
    // A faster drive writes more in the same time, and superblocks are opened before they are needed.
    let more = 8 * written / units_of_a_block + u64::from(geometry.blocks) / 2 + 32;
    let blocks = u64::from(geometry.blocks) + more;
    let reads = work.jobs.iter().any(reads);
    let start = match flash.start {
        Start::Fresh => "fresh".to_owned(),
        // The places of what is read do not change.
        Start::Scattered if reads => "scattered".to_owned(),
        Start::Striped { units } if reads => format!("striped:{} B", units * geometry.unit_bytes),
        // Reads of blocks that were never written take no time, so a drive that is read is filled.
        _ if reads => "filled".to_owned(),
        _ => "fresh".to_owned(),
    };
    let set = |key: &str, value: String| (key.to_owned(), value);
    let sets = vec![
        set("medium.flash.blocks", blocks.to_string()),
        set("medium.flash.start", start),
        set("medium.flash.capacity", format!("{} B", flash.capacity_bytes())),
    ];
    Some(Change { sets, job: None })
}

fn reads(job: &Job) -> bool {
    use workload::job::Direction;
    job.trace.is_some() || matches!(job.direction, Direction::Read | Direction::Mixed)
}
