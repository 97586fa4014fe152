//! Conditions under which the numbers of a run do not mean what they seem to.

use std::fmt;

use ftl::Stats;
use plan::Plan;
use runtime::Span;
use workload::job::Job;
use workload::pattern::OpKind;

use crate::engine::JobResult;
use crate::processor::ThreadUse;
use crate::trend::Falling;

/// Hundredths by which the mean of the traced operations may differ from the mean of all.
const TRACED_PERCENT: f64 = 5.0;

/// A condition that a reader of the results must know.
#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// A thread of a live run lost its core.
    Disturbed {
        /// `host` or `device`, for the thread that was disturbed.
        thread: &'static str,
        found: ThreadUse,
    },
    /// No superblock of the flash was ever erased, and part of the capacity was never written: writes meet no
    /// collector, and reads of blocks that hold no data sense no page.
    FreshFlash {
        /// Part of the capacity that holds data, in thousandths.
        written_per_mille: u64,
    },
    /// Writes to a drive with space left, which met no collector.
    NothingCollected {
        /// Mapping units that the host wrote.
        host_units: u64,
    },
    /// The write rate still fell: the drive had not reached its steady state.
    StillFalls { falling: Falling },
    /// Reads of flash that was never written, which sense no page.
    UnwrittenReads {
        /// Mapping units that were never written, and all that were read.
        blank_units: u64,
        read_units: u64,
    },
    /// The operations of the breakdown are not typical of all.
    UntypicalBreakdown {
        job: String,
        kind: OpKind,
        /// One command in this number was traced.
        one_in: u64,
        /// Mean latency of the traced operations, and of all.
        traced: Span,
        all: Span,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Disturbed { thread, found: ThreadUse { elapsed, waited, switches, .. } } => {
                write!(f, "the {thread} thread lost its core")?;
                match waited {
                    // The system counts in ticks: of a short run that is no share of its length.
                    Some(waited) if waited > elapsed => {
                        write!(f, " for {waited} by the system's count, in a run of {elapsed}")?;
                    }
                    Some(waited) => {
                        let percent = waited.0 as f64 * 100.0 / elapsed.0.max(1) as f64;
                        write!(f, " for {percent:.1} % of the run")?;
                    }
                    None => {}
                }
                let times = if *switches == Some(1) { "time" } else { "times" };
                match switches {
                    Some(switches) => write!(f, ", {switches} {times}; ")?,
                    None => f.write_str("; ")?,
                }
                f.write_str("latencies include the scheduler's")
            }
            Warning::FreshFlash { written_per_mille: written } => write!(
                f,
                "the flash is fresh: {}.{} % of it written, nothing overwritten; see medium.flash.start",
                written / 10,
                written % 10
            ),
            Warning::NothingCollected { host_units } => write!(
                f,
                "nothing was collected while {host_units} units were written: a drive in long use is \
                 slower; see medium.flash.start = \"steady\""
            ),
            Warning::StillFalls { falling: Falling { first, second } } => write!(
                f,
                "the write rate still fell, from {first} to {second} units/s by halves: see \
                 medium.flash.start = \"steady\" and medium.flash.steady_for, or measure later (ramp_time)"
            ),
            Warning::UnwrittenReads { blank_units, read_units } => write!(
                f,
                "{blank_units} of {read_units} units read were never written, and took no time of flash"
            ),
            Warning::UntypicalBreakdown { job, kind, one_in, traced, all } => write!(
                f,
                "{job}: the breakdown is of 1 {} in {one_in}, mean {traced}; the mean of all is {all}",
                kind.name()
            ),
        }
    }
}

/// The warning about a thread, if it was disturbed.
pub(crate) fn of_thread(thread: &'static str, found: Option<ThreadUse>) -> Option<Warning> {
    Warning::of_thread(thread, found?)
}

impl Warning {
    /// The warning about a thread with this use of its processor, if it was disturbed.
    pub fn of_thread(thread: &'static str, found: ThreadUse) -> Option<Warning> {
        found.is_disturbed().then_some(Warning::Disturbed { thread, found })
    }
}

/// The warning about flash whose FTL has these statistics, if it is fresh or had nothing to collect.
pub fn of_flash(stats: &Stats, unit_bytes: u64) -> Option<Warning> {
    let units = (stats.capacity_bytes / unit_bytes.max(1)).max(1);
    let is_fresh = stats.erases == 0 && stats.mapped_units < units;
    let written_per_mille = stats.mapped_units * 1000 / units;
    let ftl::Counters { host_units, collected, copied_units, erased, .. } = stats.counters;
    match (is_fresh, host_units > 0 && collected + copied_units + erased == 0) {
        (true, _) => Some(Warning::FreshFlash { written_per_mille }),
        (false, true) => Some(Warning::NothingCollected { host_units }),
        (false, false) => None,
    }
}

/// The warning about reads of flash that was never written, if there were any.
pub(crate) fn of_reads(stats: &Stats) -> Option<Warning> {
    let ftl::Counters { blank_units, read_units, .. } = stats.counters;
    (blank_units > 0).then_some(Warning::UnwrittenReads { blank_units, read_units })
}

/// The warnings about breakdowns of a live run on this plan.
pub fn of_breakdowns<'a>(
    plan: &Plan,
    jobs: &'a [(Job, JobResult)],
) -> impl Iterator<Item = Warning> + 'a {
    let one_in = u64::from(plan.run.breakdown_sample);
    let each = jobs
        .iter()
        .flat_map(|(job, result)| OpKind::ALL.into_iter().map(move |kind| (job, result, kind)));
    each.filter_map(move |(job, result, kind)| {
        let breakdown = result.stats.breakdowns.get(&kind)?;
        let (all, traced) = (result.stats.of(kind).total.mean_ns(), breakdown.mean());
        let differs = (traced.total_ps / 1e3 - all).abs() * 100.0 > all * TRACED_PERCENT;
        (traced.count > 0 && one_in > 1 && differs).then(|| Warning::UntypicalBreakdown {
            job: job.name.clone(),
            kind,
            one_in,
            traced: Span::ns((traced.total_ps / 1e3).round() as u64),
            all: Span::ns(all.round() as u64),
        })
    })
}
