//! A plan against measurements of the drive that it describes.
//!
//! ```text
//!   table ─► row ─► jobs, host ─► a run in virtual time ─► model over measured ─► shares within 15 %
//!                └► left out, with a reason
//! ```
//!
//! All rows begin from one state of the drive, the plan's: each run has a copy of it. Nothing is fitted here.

pub mod built_in;
pub mod compare;
pub mod fills;
mod fio;
mod load;
pub mod page;
mod table;
pub mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use media::contents::Backing;
use plan::{Plan, Start};
use runtime::Span;
use serde::Serialize;
use workload::pattern::OpKind;
use workload::trace::Mapping;
use world::device::{FlashState, MediumState};
use world::interfaces::NVME;
use world::work::Work;
use world::{Options, RunError, RunResult};

pub use fio::jobs;
pub use load::{Host, LeftOut, Length, Load};
pub use table::{Figure, Figures, Row, Table, TableError};

use crate::explain::pool;
use compare::{Compared, Shares, Worst};
use fills::Filled;

/// Length of the runs, and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    pub length: Length,
    /// Number of threads; the result does not depend on it.
    pub threads: usize,
}

/// Rows that were run and rows that are to be run.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A plan beside a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The drive by the name of its file.
    pub table: String,
    /// The drive, by the header of the table.
    pub drive: String,
    /// The plan of all rows, by its key `name`.
    pub plan: String,
    pub is_quick: bool,
    /// Rows that were run, in the order of the table.
    pub rows: Vec<Compared>,
    pub shares: Shares,
    pub worst: Option<Worst>,
    /// Rows of write amplification, in the order of the table.
    pub fills: Vec<Filled>,
    /// Rows that were not run, by reason.
    pub left_out: Vec<Reason>,
}

/// Rows that were not run for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub why: String,
    pub rows: usize,
}

/// Why a plan cannot be validated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// The interface does not support the plan, or its drive cannot be made.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Every run would write the same file.
    #[error("{origin}: {key}: found a file, expected none: each row begins from the same drive")]
    File { origin: String, key: &'static str },
}

impl Report {
    /// Number of rows that were not run.
    pub fn left_out_rows(&self) -> usize {
        self.left_out.iter().map(|reason| reason.rows).sum()
    }

    /// The row of the worst ratio, and its figure.
    pub fn worst_row(&self) -> Option<(&Compared, Figure)> {
        let worst = self.worst.as_ref()?;
        let row = self.rows.iter().find(|row| row.line == worst.line)?;
        Some((row, worst.figure))
    }
}

/// Runs each row of a table on a plan.
///
/// # Errors
/// The plan cannot be run at all. A row that fails is left out, with the reason.
pub fn validate(
    plan: &Plan,
    table: &Table,
    effort: Effort,
    progress: Progress<'_>,
) -> Result<Report, ValidateError> {
    check(plan)?;
    let Runs { runs, mut left_out } = Runs::of(table, plan, effort.length);
    let (fill_runs, without_run) = match effort.length.only {
        None => fills::Run::all(table),
        Some(_) => {
            let rows = table.rows.iter().filter(|row| row.fill.is_some());
            (Vec::new(), rows.map(|_| LeftOut::Quick).collect())
        }
    };
    for why in without_run {
        *left_out.entry(why).or_default() += 1;
    }
    no_files(plan)?;
    let state = if runs.is_empty() { None } else { prepared(plan)? };
    let done = AtomicUsize::new(0);
    let of = runs.len() + fill_runs.len();
    let step = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, of);
    let results = pool::map(&runs, effort.threads, |run| {
        let result = run.compared(plan, state.as_ref());
        step();
        result
    });
    let filled = pool::map(&fill_runs, effort.threads, |run| {
        let result = run.filled(plan);
        step();
        result
    });
    let mut rows = Vec::new();
    for (run, result) in runs.iter().zip(results) {
        match result {
            Ok(of_run) => rows.extend(of_run),
            Err(why) => *left_out.entry(LeftOut::Run(why)).or_default() += run.rows.len(),
        }
    }
    rows.sort_by_key(|row| row.line);
    let mut fills = Vec::new();
    for (run, result) in fill_runs.iter().zip(filled) {
        match result {
            Ok(of_run) => fills.extend(of_run),
            Err(why) => *left_out.entry(LeftOut::Run(why)).or_default() += run.rows(),
        }
    }
    fills.sort_by_key(|row: &Filled| row.line);
    Ok(Report {
        table: table.name.clone(),
        drive: table.fact("drive").unwrap_or("no name in the table").to_owned(),
        plan: plan.name.clone(),
        is_quick: effort.length == Length::QUICK,
        shares: Shares::of(&rows),
        worst: compare::worst(&rows),
        rows,
        fills,
        left_out: reasons(left_out),
    })
}

/// # Errors
/// The interface does not support the plan.
pub(crate) fn check(plan: &Plan) -> Result<(), ValidateError> {
    Ok(world::device::check(NVME.of_plan(plan), plan)?)
}

pub(crate) fn reasons(left_out: BTreeMap<LeftOut, usize>) -> Vec<Reason> {
    let reason = |(why, rows): (LeftOut, usize)| Reason { why: why.to_string(), rows };
    left_out.into_iter().map(reason).collect()
}

/// # Errors
/// Runs would write a file.
fn no_files(plan: &Plan) -> Result<(), ValidateError> {
    let file = |key| Err(ValidateError::File { origin: plan.origin.clone(), key });
    if plan.medium.contents.backing != Backing::Memory {
        return file("medium.file");
    }
    match &plan.medium.flash {
        Some(flash) if flash.state.is_some() => file("medium.flash.state"),
        _ => Ok(()),
    }
}

/// The drive of all rows, mounted; none if each run makes its own, as of DRAM or fresh flash.
pub(crate) fn prepared(plan: &Plan) -> Result<Option<FlashState>, ValidateError> {
    no_files(plan)?;
    let Some(flash) = &plan.medium.flash else { return Ok(None) };
    if flash.start == Start::Fresh || plan.array.is_some() || plan.medium.bridge.is_some() {
        return Ok(None);
    }
    let state = MediumState::to_read(plan)?.into_flash().expect("the plan has flash");
    Ok(Some(state.mounted(plan)?))
}

/// The runs of a table, and the rows that have none.
pub(crate) struct Runs<'t> {
    pub runs: Vec<Run<'t>>,
    pub left_out: BTreeMap<LeftOut, usize>,
}

/// One load, and the rows that have its figures: the reads and the writes of one mix are two rows.
pub(crate) struct Run<'t> {
    load: Load,
    pub rows: Vec<(&'t Row, OpKind)>,
}

impl<'t> Runs<'t> {
    pub fn of(table: &'t Table, plan: &Plan, length: Length) -> Runs<'t> {
        let mut left_out: BTreeMap<LeftOut, usize> = BTreeMap::new();
        let mut runs: Vec<Run<'t>> = Vec::new();
        for row in table.rows.iter().filter(|row| row.fill.is_none()) {
            match Load::of(table, row, plan, length) {
                Err(why) => *left_out.entry(why).or_default() += 1,
                Ok((load, kind)) => match runs.iter_mut().find(|run| run.load == load) {
                    Some(run) => run.rows.push((row, kind)),
                    None => runs.push(Run { load, rows: vec![(row, kind)] }),
                },
            }
        }
        Runs { runs, left_out }
    }
}

impl Run<'_> {
    /// Its rows with the figures of the plan.
    ///
    /// # Errors
    /// The run fails, or some of its operations do.
    pub fn compared(
        &self,
        plan: &Plan,
        state: Option<&FlashState>,
    ) -> Result<Vec<Compared>, String> {
        let load = &self.load;
        let mut plan = load.host.of(plan);
        // Latencies are of all operations; their breakdown is not asked for.
        plan.run.breakdown_sample = BREAKDOWN_SAMPLE;
        let work = Work::parse(Path::new("row"), &load.text, Mapping::default());
        let work = work.map_err(|error| error.to_string())?;
        let (row, options) = (NVME.of_plan(&plan), Options::default());
        let result = match state {
            None => world::simulate(row, &plan, &work, options),
            Some(state) => world::simulate_on(row, &plan, &work, options, state.duplicate().into()),
        };
        let result = result.map_err(|error| error.to_string())?;
        no_errors(&result)?;
        let each = self.rows.iter();
        each.map(|(row, kind)| Ok(compared(row, load, figures(&result, load, *kind)?))).collect()
    }
}

/// # Errors
/// Operations of a job have failed.
fn no_errors(result: &RunResult) -> Result<(), String> {
    let Some((_, job)) = result.jobs.iter().find(|(_, job)| job.errors() > 0) else {
        return Ok(());
    };
    let first = job.messages.first().cloned().unwrap_or_default();
    Err(format!("{} operations failed: {first}", job.errors()))
}

const BREAKDOWN_SAMPLE: u32 = 1 << 16;

fn figures(result: &RunResult, load: &Load, kind: OpKind) -> Result<Figures, String> {
    let job = &result.jobs[0].1;
    let of_job = job.stats.of(kind);
    if of_job.total.count() == 0 {
        return Err("no operation in the measured time".to_owned());
    }
    let per_second = |count: u64, measured: Span| count as f64 / measured.as_s_f64();
    let rate = match load.is_open {
        true => {
            let each = result.jobs.iter().map(|(_, job)| (job.stats.of(kind), job.measured));
            each.map(|(of, measured)| per_second(of.total.count(), measured)).sum()
        }
        // Operations that began in the measured time. The end of the last operation is later, by its latency.
        false => per_second(of_job.total.count(), load.runtime),
    };
    let us = |thousandths| Some(of_job.total.percentile_ns(thousandths) as f64 / 1e3);
    Ok(Figures([
        Some(rate),
        Some(of_job.total.mean_ns() / 1e3),
        us(50_000),
        us(99_000),
        us(99_900),
    ]))
}

fn compared(row: &Row, load: &Load, model: Figures) -> Compared {
    Compared {
        line: row.line,
        workload: row.workload.clone(),
        block_bytes: row.block_bytes.unwrap_or_default(),
        depth: row.depth,
        jobs: row.jobs,
        host: load.host.name(),
        measured: row.measured,
        model,
        ratio: model.over(&row.measured),
    }
}
