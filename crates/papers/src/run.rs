//! Running the exhibits of papers, on all cores of this machine.

use std::fmt::{self, Display, Formatter};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::check::{Item, Spec};
use super::setup::Setup;
use super::{ExhibitError, Paper};
use report::exhibits::number;
use report::model;
use report::model::paper::{Changed, Exhibit, Verdict};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Checks are repeated with each assumed cost at half and at one and a half.
    pub swings: bool,
    pub long: bool,
}

/// A check with one change of the model.
pub struct Mutated {
    pub paper: &'static str,
    pub check: String,
    pub change: &'static str,
    /// True for a change that must make the check hold, false for one that must make it fail.
    pub is_swap: bool,
    /// The check with the change, or why the change is not possible.
    pub changed: Result<Changed, ExhibitError>,
}

impl Mutated {
    /// Returns true if the change has the verdict that it must have.
    pub fn is_as_expected(&self) -> bool {
        let holds = |changed: &Changed| changed.verdict == Verdict::Holds;
        self.changed.as_ref().is_ok_and(|changed| holds(changed) == self.is_swap)
    }
}

impl Display for Mutated {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (word, ours) = match &self.changed {
            Ok(changed) if changed.verdict == Verdict::Holds => ("holds", number(changed.ours)),
            Ok(changed) => ("fails", number(changed.ours)),
            Err(error) => ("ERROR", error.to_string()),
        };
        let mark = if self.is_as_expected() { "" } else { "  <-- not as on record" };
        writeln!(f, "{word}  {}, {}{mark}", self.paper, self.check)?;
        writeln!(f, "       {ours} with {}", self.change)
    }
}

fn items(paper: &'static Paper, long: bool) -> impl Iterator<Item = &'static Item> {
    paper.items.iter().chain(if long { paper.long } else { &[] })
}

/// Applies `run` to each job, on all cores. Results are in the order of the jobs.
fn on_all_cores<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((number, job)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, jobs.get(at)?)))
        {
            let result = run(job);
            done.lock().expect("no panic under this lock").push((number, result));
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..cores.min(jobs.len()) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().expect("no panic under this lock");
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Computes the exhibits of these papers.
///
/// # Errors
/// A run fails.
pub fn run(papers: &[&'static Paper], options: Options) -> Result<Vec<model::Paper>, ExhibitError> {
    let setups: Vec<_> = papers.iter().map(|_| Setup::new()).collect();
    let mut jobs = Vec::new();
    for (number, paper) in papers.iter().enumerate() {
        jobs.extend(items(paper, options.long).map(|item| (number, item)));
    }
    let results = on_all_cores(&jobs, |(number, item)| match item {
        Item::Check(spec) => {
            spec.run(&setups[*number], options.swings).map(|check| vec![Exhibit::Check(check)])
        }
        Item::Shown(make) => make(&setups[*number]),
    });
    let without = |paper: &&Paper| model::Paper {
        name: paper.name.to_owned(),
        title: paper.title.to_owned(),
        authors: paper.authors.to_owned(),
        exhibits: Vec::new(),
    };
    let mut computed: Vec<_> = papers.iter().map(without).collect();
    for ((number, _), result) in jobs.iter().zip(results) {
        computed[*number].exhibits.extend(result?);
    }
    Ok(computed)
}

/// Runs each check of these papers with each change that must reverse its verdict.
pub fn mutations(papers: &[&'static Paper], long: bool) -> Vec<Mutated> {
    let setups: Vec<_> = papers.iter().map(|_| Setup::new()).collect();
    let mut jobs = Vec::new();
    for (number, paper) in papers.iter().enumerate() {
        let specs = items(paper, long).filter_map(|item| match item {
            Item::Check(spec) => Some(spec),
            Item::Shown(_) => None,
        });
        for spec in specs {
            jobs.extend(changes(spec).map(|(change, is_swap)| (number, spec, change, is_swap)));
        }
    }
    on_all_cores(&jobs, |(number, spec, change, is_swap)| Mutated {
        paper: papers[*number].name,
        check: spec.name(),
        change: change.change,
        is_swap: *is_swap,
        changed: spec.changed(&setups[*number], change),
    })
}

fn changes(spec: &'static Spec) -> impl Iterator<Item = (&'static super::Mutation, bool)> {
    let mutations = spec.mutations().iter().map(|change| (change, false));
    mutations.chain(spec.swaps().iter().map(|change| (change, true)))
}
