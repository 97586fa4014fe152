//! Length of the simulations: a long job is shortened to an excerpt after a warm-up.

use runtime::Span;
use serde::Serialize;
use workload::job::Job;

use super::case::{Case, is_paced};
use super::error::ExplainError;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Length {
    /// The jobs run as given. Otherwise they are cut in time.
    pub whole: bool,
    /// Virtual time of an excerpt in microseconds, with its warm-up; none if the jobs run whole.
    pub excerpt_us: Option<f64>,
    /// Rate of the second half over that of the first; none for arrivals at their own times, and for groups
    /// of jobs that run in sequence.
    pub drift: Option<f64>,
}

/// Operations of an excerpt for each operation in flight: its begin and end, where fewer are in flight, must
/// not count.
const OPERATIONS_IN_FLIGHT: u64 = 40;
/// Warm-up of an excerpt: one part in this many of its measured time.
const WARM_UP: u64 = 4;
/// An excerpt is lengthened until its halves have rates within this share of each other.
pub const STEADY: f64 = 0.05;
/// Operations from which on the halves of a run are compared.
const OPERATIONS_LEAST: u64 = 1000;
/// Times that an excerpt is doubled.
const DOUBLINGS: u32 = 2;
/// A job of up to this many times the operations of an excerpt runs whole.
const WHOLE: u64 = 2;

/// A case with jobs of about this number of operations, and how they were cut.
pub(super) fn shorten(case: &Case, operations: u64) -> Result<(Case, Length), ExplainError> {
    let mut pilot = case.clone();
    let clones = case.work.clones_at_once() as u64;
    let depth: u64 = clones * u64::from(case.work.depth());
    let operations = operations.max(OPERATIONS_IN_FLIGHT * depth);
    let of_clone = WHOLE * operations.div_ceil(clones);
    for job in &mut pilot.work.jobs {
        job.number_ios = Some(job.number_ios.map_or(of_clone, |own| own.min(of_clone)));
        job.ramp_time = Span::ZERO;
    }
    let measured = pilot.measure()?;
    let each = case.work.jobs.iter().zip(&measured.of_jobs).zip(&measured.elapsed);
    let cuts = each.map(|((job, done), elapsed)| cut(job, *done, *elapsed, of_clone));
    let cuts: Vec<Option<Span>> = cuts.collect();
    if cuts.iter().all(Option::is_none) {
        let drift = match measured.operations {
            // The halves of a shorter run differ by their first and last operations.
            0..OPERATIONS_LEAST => None,
            _ => drift_of(case, None)?,
        };
        let length = Length { whole: true, excerpt_us: None, drift };
        return Ok((case.clone(), length));
    }
    let mut factor = 1;
    loop {
        let (short, longest) = excerpt(case, &cuts, factor);
        let drift = drift_of(&short, Some(longest))?;
        let is_steady = drift.is_none_or(|drift| (drift - 1.0).abs() <= STEADY);
        if is_steady || factor == 1 << DOUBLINGS {
            let total = longest + longest / WARM_UP;
            let length = Length { whole: false, excerpt_us: Some(total.as_us_f64()), drift };
            return Ok((short, length));
        }
        factor *= 2;
    }
}

/// Time after which a job is cut; none if it has ended by itself.
fn cut(job: &Job, done: u64, elapsed: Span, of_clone: u64) -> Option<Span> {
    let most = of_clone * u64::from(job.numjobs);
    match &job.trace {
        // A recording is not limited by a number of operations.
        Some(_) => {
            let time = u128::from(elapsed.0) * u128::from(most) / u128::from(done.max(1));
            (done > most).then_some(Span(time as u64) / WHOLE)
        }
        None => {
            let is_cut = done >= most && job.number_ios.is_none_or(|own| own > of_clone);
            is_cut.then_some(elapsed / WHOLE)
        }
    }
}

/// The jobs of each group that is cut, all for the same time, after a warm-up. Returns the longest time.
fn excerpt(case: &Case, cuts: &[Option<Span>], factor: u64) -> (Case, Span) {
    let mut short = case.clone();
    let (mut from, mut longest) = (0, Span::ZERO);
    let groups: Vec<usize> = case.work.groups().iter().map(|group| group.len()).collect();
    for jobs in groups {
        let shortest = cuts[from..from + jobs].iter().flatten().min().copied();
        if let Some(time) = shortest.map(|time| time * factor) {
            longest = longest.max(time);
            for job in &mut short.work.jobs[from..from + jobs] {
                // Faster variants of the run must not come to an end of the job before this time.
                (job.time_based, job.number_ios) = (true, None);
                job.runtime = Some(time);
                job.ramp_time = time / WARM_UP;
            }
        }
        from += jobs;
    }
    (short, longest)
}

/// The drift of a closed loop of one group. `excerpt` is the measured time of an excerpt.
fn drift_of(case: &Case, excerpt: Option<Span>) -> Result<Option<f64>, ExplainError> {
    if case.work.groups().len() > 1 || case.work.jobs.iter().any(is_paced) {
        return Ok(None);
    }
    let (elapsed, ramp) = match excerpt {
        Some(time) => (time + time / WARM_UP, time / WARM_UP),
        None => {
            let elapsed = case.measure()?.elapsed.into_iter().max().unwrap_or(Span::ZERO);
            (elapsed, case.work.jobs.iter().map(|job| job.ramp_time).max().unwrap_or(Span::ZERO))
        }
    };
    Ok(case.measure_drift(elapsed, ramp)?.drift)
}
