//! Why a simulated run has its rate and its latency: what bounds it, and what relaxing each part would give.
//!
//! ```text
//!   plan, jobs ─► excerpt ─► the run as it is ─┬─► each resource relaxed alone ─► bound
//!                                              ├─► each key alone              ─► gains
//!                                              └─► each assumed cost ½, 1½     ─► range of the answer
//! ```
//!
//! Every number is of a simulation with the same seed, none is computed from shares or utilisations. A
//! resource *bounds* the rate if relaxing it by a factor of two raises the rate most: the costs of software
//! and device at half, the link twice as wide, twice the depth. The largest share of the mean latency need
//! not be the bound: a queue in front of one part appears as the wait for another.
//!
//! In a closed loop of fixed depth, rate and mean latency are tied (Little's law), so one bound answers for
//! both. In an open loop the rate is the job's own until a part saturates.

mod case;
mod error;
mod findings;
mod length;
mod levers;
mod measured;
pub(crate) mod pool;
mod resource;
mod verdict;

use std::sync::atomic::{AtomicUsize, Ordering};

use plan::Plan;
use plan::units::scaled;
use world::device;
use world::interfaces::Row;
use world::work::Work;

pub use case::{Change, JobChange};
pub use error::ExplainError;
pub use findings::{
    Answer, Bound, Effect, Explanation, Largest, Pair, Range, Share, Skipped, Swing,
};
pub use length::{Length, STEADY};
pub use measured::{Busy, Flash, Measured, Stage};
pub use resource::Resource;
pub use verdict::{BOUND_FROM, utilisation};

use case::Case;
use levers::{Known, Lever};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Operations of each simulation, about: longer jobs are cut.
    pub operations: u64,
    pub swings: Swings,
    /// Number of threads; the result does not depend on it.
    pub threads: usize,
}

/// The simulations for each assumed cost at half and at one and a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swings {
    None,
    /// The run and the bound's lever: rate, mean, gain.
    Gain,
    /// Also the levers of the resources with the largest gains: which of them bounds the rate.
    Verdict,
}

/// Resources whose levers are simulated again for each assumed cost at first.
const CANDIDATES: usize = 4;

/// A gain of the bound that is less by this much with a changed cost: all resources are compared again.
const LESS: f64 = 0.1;

/// Simulated and expected simulations, for a progress bar.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Explains a run of this work.
///
/// # Errors
/// The run itself fails, the interface does not support the plan, or the medium has a file.
pub fn explain(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    effort: Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ExplainError> {
    device::check(row.of_plan(plan), plan)?;
    let case = Case::new(row, plan, work)?;
    let (case, length) = length::shorten(&case, effort.operations)?;
    let measured = case.measure()?;
    let done = AtomicUsize::new(0);
    let lab = Lab { case: &case, measured: &measured, effort, progress, done: &done };
    let known = lab.known()?;
    let mut skipped = Vec::new();
    let levers = Resource::ALL.into_iter();
    let levers: Vec<Lever> =
        levers.filter_map(|resource| levers::relaxed(&case, &known, resource)).collect();
    let resources = lab.effects(&levers, &mut skipped);
    let details = lab.effects(&levers::details(&case, &known), &mut skipped);
    let pairs = lab.pairs(&known, &resources);
    let bound = verdict::bound(&resources, &pairs);
    let shares = verdict::shares(&measured);
    let largest = verdict::largest(&measured, &shares, &resources, &bound);
    let idle = |effect: &&Effect| same(&effect.measured, &measured);
    let idle: Vec<String> = details
        .iter()
        .filter(idle)
        .flat_map(|effect| effect.change.sets.iter().map(|set| set.0.clone()))
        .collect();
    let (swings, range) = lab.swings(&known, &resources, &bound, &idle)?;
    let (no_effect, details): (Vec<_>, Vec<_>) =
        details.into_iter().partition(|effect| same(&effect.measured, &measured));
    Ok(Explanation {
        file: work.file.display().to_string(),
        plan: plan.name.clone(),
        interface: row.name.to_owned(),
        seed: plan.run.seed,
        notes: notes(&case, work, &measured, &length, &resources),
        length,
        paced: work.jobs.iter().any(case::is_paced),
        simulations: done.load(Ordering::Relaxed),
        measured,
        bound,
        shares,
        largest,
        resources,
        pairs,
        details,
        no_effect: no_effect.into_iter().map(|effect| effect.title).collect(),
        skipped,
        swings,
        range,
    })
}

/// Whether two simulations have the same results.
fn same(one: &Measured, other: &Measured) -> bool {
    let of = |measured: &Measured| (measured.rate, measured.mean_us, measured.p99_us);
    of(one) == of(other)
}

/// The run as it is, and how variants of it are simulated.
struct Lab<'a> {
    case: &'a Case,
    measured: &'a Measured,
    effort: Effort,
    progress: Progress<'a>,
    done: &'a AtomicUsize,
}

impl Lab<'_> {
    /// Simulates variants; each is a function so that its plan is parsed on the thread that runs it.
    fn all<T: Sync>(
        &self,
        items: &[T],
        variant: impl Fn(&T) -> Result<Case, ExplainError> + Sync,
    ) -> Vec<Result<Measured, ExplainError>> {
        let before = self.done.load(Ordering::Relaxed);
        pool::map(items, self.effort.threads, |item| {
            let measured = variant(item).and_then(|case| case.measure());
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            (self.progress)(done, before + items.len());
            measured
        })
    }

    /// The tables without effect on this run, and what the flash has done.
    fn known(&self) -> Result<Known, ExplainError> {
        let sections = levers::sections(&self.case.plan);
        let probes = self.all(&sections, |section| {
            self.case.with(&levers::of_section(&self.case.plan, section))
        });
        let mut unused = Vec::new();
        for (section, probe) in sections.into_iter().zip(probes) {
            if same(&probe?, self.measured) {
                unused.push(section);
            }
        }
        let flash = self.measured.flash.as_ref();
        Ok(Known {
            unused,
            collected: flash.map_or(0, |flash| flash.collected),
            written: flash.map_or(0, |flash| flash.host_units),
        })
    }

    /// The effect of each lever, the largest gain first. A lever that the machine does not allow is skipped.
    fn effects(&self, levers: &[Lever], skipped: &mut Vec<Skipped>) -> Vec<Effect> {
        let results = self.all(levers, |lever| self.case.with(&lever.change));
        let mut effects = Vec::new();
        for (lever, result) in levers.iter().zip(results) {
            let (resource, title) = (lever.resource, lever.title.clone());
            match result {
                // Only a run without new errors is comparable.
                Ok(measured) if measured.errors <= self.measured.errors => {
                    let gain = measured.rate / self.measured.rate - 1.0;
                    let change = lever.change.clone();
                    effects.push(Effect { resource, title, change, gain, measured });
                }
                Ok(measured) => {
                    let why = format!("{} errors", measured.errors);
                    skipped.push(Skipped { title, why });
                }
                Err(error) => skipped.push(Skipped { title, why: error.to_string() }),
            }
        }
        effects.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        effects
    }

    /// Pairs of resources that are relaxed together: limits of what is in flight, of which the smallest
    /// counts; all pairs if no resource gains alone; else the bound with those that are busy all the time and
    /// yet gain nothing alone.
    fn pairs(&self, known: &Known, resources: &[Effect]) -> Vec<Pair> {
        let best = resources.iter().map(|effect| effect.gain).fold(0.0, f64::max);
        let mut wanted: Vec<[Resource; 2]> = Vec::new();
        let names: Vec<Resource> = resources.iter().map(|effect| effect.resource).collect();
        let limits = |pair: &[Resource; 2]| pair.iter().all(|one| one.limits_in_flight());
        for (at, one) in names.iter().enumerate() {
            let pairs = names[at + 1..].iter().map(|other| [*one, *other]);
            wanted.extend(pairs.filter(|pair| best < BOUND_FROM || limits(pair)));
        }
        if best >= BOUND_FROM {
            let idle = resources.iter().skip(1).filter(|effect| {
                let busy = utilisation(self.measured, effect.resource);
                effect.gain < BOUND_FROM && busy.is_some_and(|busy| busy >= verdict::BUSY_FROM)
            });
            wanted.extend(idle.map(|effect| [names[0], effect.resource]));
        }
        let results = self.all(&wanted, |pair| {
            let mut case = self.case.clone();
            for resource in pair {
                if let Some(lever) = levers::relaxed(&case, known, *resource) {
                    case = case.with(&lever.change)?;
                }
            }
            Ok(case)
        });
        let pairs = wanted.into_iter().zip(results).filter_map(|(resources, result)| {
            Some(Pair { resources, gain: result.ok()?.rate / self.measured.rate - 1.0 })
        });
        pairs.collect()
    }

    /// Each assumed cost at half and at one and a half, those of `idle` without effect left out.
    fn swings(
        &self,
        known: &Known,
        resources: &[Effect],
        bound: &Bound,
        idle: &[String],
    ) -> Result<(Vec<Swing>, Option<Range>), ExplainError> {
        let all: Vec<Resource> = resources.iter().map(|effect| effect.resource).collect();
        let mut first = bound.resources.clone();
        match self.effort.swings {
            Swings::None => return Ok((Vec::new(), None)),
            Swings::Gain => {}
            Swings::Verdict => {
                let more = all.iter().filter(|resource| !bound.resources.contains(resource));
                first.extend(more.take(CANDIDATES - 1));
            }
        }
        let costs = levers::costs(&self.case.plan, known).map(|(cost, _)| cost);
        let parts = costs.filter(|cost| cost.assumed && !idle.contains(&cost.key));
        let costs: Vec<_> = parts.collect();
        let changes = costs.iter().flat_map(|cost| {
            [1, 3].map(|half| {
                let value = scaled(&cost.value, half, 2).unwrap_or_else(|| cost.value.clone());
                Change { sets: vec![(cost.key.clone(), value)], ..Change::default() }
            })
        });
        let changes: Vec<Change> = changes.collect();
        let mut answers = self.answers(known, &changes, &first, bound)?;
        if self.effort.swings == Swings::Verdict {
            // If the bound gains less, any resource may have become the bound.
            let less = |answer: &Answer| answer.gain.is_some_and(|gain| gain < bound.gain - LESS);
            let again: Vec<usize> = (0..answers.len()).filter(|at| less(&answers[*at])).collect();
            let those: Vec<Change> = again.iter().map(|at| changes[*at].clone()).collect();
            let found = self.answers(known, &those, &all, bound)?;
            again.into_iter().zip(found).for_each(|(at, answer)| answers[at] = answer);
        }
        let swings = costs.iter().zip(answers.chunks(2)).map(|(cost, answers)| Swing {
            key: cost.key.clone(),
            value: cost.value.clone(),
            source: cost.source.clone(),
            half: answers[0].clone(),
            one_and_a_half: answers[1].clone(),
        });
        let swings: Vec<Swing> = swings.collect();
        let range = range(self.measured, &swings, bound);
        Ok((swings, Some(range)))
    }

    /// The answer with each change: the changed run, and with each candidate relaxed too.
    fn answers(
        &self,
        known: &Known,
        changes: &[Change],
        candidates: &[Resource],
        bound: &Bound,
    ) -> Result<Vec<Answer>, ExplainError> {
        let levers = || std::iter::once(None).chain(candidates.iter().copied().map(Some));
        let tasks = changes.iter().flat_map(|change| levers().map(move |lever| (change, lever)));
        let tasks: Vec<(&Change, Option<Resource>)> = tasks.collect();
        let results = self.all(&tasks, |(change, lever)| {
            let case = self.case.with(change)?;
            match lever.and_then(|resource| levers::relaxed(&case, known, resource)) {
                Some(lever) => case.with(&lever.change),
                None => Ok(case),
            }
        });
        let results: Vec<Measured> = results.into_iter().collect::<Result<_, _>>()?;
        let of_each = results.chunks(1 + candidates.len());
        Ok(of_each.map(|of_one| self.answer(candidates, bound, of_one)).collect())
    }

    /// The answer of one changed plan: its run, then each candidate relaxed.
    fn answer(&self, candidates: &[Resource], bound: &Bound, results: &[Measured]) -> Answer {
        let base = &results[0];
        let gains = results[1..].iter().map(|measured| measured.rate / base.rate - 1.0);
        let gains: Vec<(Resource, f64)> = candidates.iter().copied().zip(gains).collect();
        let of_bound = gains.iter().filter(|(resource, _)| bound.resources.contains(resource));
        let gain = of_bound.map(|(_, gain)| *gain).max_by(f64::total_cmp);
        let verdict = self.effort.swings == Swings::Verdict && bound.resources.len() == 1;
        let best = gains.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let bound = match (best, gain) {
            (Some((_, most)), Some(gain)) if verdict && *most - gain < verdict::NEARLY => {
                bound.resources.clone()
            }
            (Some((resource, most)), _) if verdict && *most >= BOUND_FROM => vec![*resource],
            _ => Vec::new(),
        };
        Answer { rate: base.rate, mean_us: base.mean_us, gain, bound }
    }
}

/// Smallest and largest answers of the run and of all swings.
fn range(measured: &Measured, swings: &[Swing], bound: &Bound) -> Range {
    let answers = || swings.iter().flat_map(|swing| [&swing.half, &swing.one_and_a_half]);
    let span = |first: f64, values: &dyn Fn(&Answer) -> Option<f64>| {
        let all = answers().filter_map(values);
        all.fold((first, first), |(low, high), value| (low.min(value), high.max(value)))
    };
    let flips = swings.iter().filter(|swing| {
        let other = |answer: &Answer| !answer.bound.is_empty() && answer.bound != bound.resources;
        other(&swing.half) || other(&swing.one_and_a_half)
    });
    Range {
        rate: span(measured.rate, &|answer| Some(answer.rate)),
        mean_us: span(measured.mean_us, &|answer| Some(answer.mean_us)),
        gain: span(bound.gain, &|answer| answer.gain),
        flips: flips.map(|swing| swing.key.clone()).collect(),
    }
}

/// Warnings and conditions of the answer.
fn notes(
    case: &Case,
    work: &Work,
    measured: &Measured,
    length: &Length,
    resources: &[Effect],
) -> Vec<String> {
    let mut notes = Vec::new();
    if measured.errors > 0 {
        let first = measured.messages.first().map_or("", String::as_str);
        notes.push(format!("{} operations failed: {first}", measured.errors));
    }
    if let Some(drift) = length.drift.filter(|drift| (drift - 1.0).abs() > STEADY) {
        notes.push(format!(
            "not steady: the second half of the run has {:.0} % of the rate of the first",
            100.0 * drift
        ));
    }
    if case.is_fresh_flash() {
        let of = "reads of blocks that were never written take no flash time, and a longer run collects more";
        notes.push(format!("a fresh flash drive: {of}; see medium.flash.start"));
    }
    if work.groups().len() > 1 {
        notes.push(format!(
            "{} groups of jobs run in sequence: rate and latency are of all together",
            work.groups().len()
        ));
    }
    let collected = resources.iter().find(|effect| effect.resource == Resource::Collector);
    let still = collected.and_then(|effect| effect.measured.flash.as_ref());
    if let Some(flash) = still.filter(|flash| flash.collected > 0) {
        notes.push(format!(
            "with more spare blocks the collector still ran {} times",
            flash.collected
        ));
    }
    notes
}
