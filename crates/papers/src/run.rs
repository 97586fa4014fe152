//! Running the exhibits of papers, on all cores of this machine.

use std::fmt::{self, Display, Formatter};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::check::{Item, Mutation, Spec};
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

/// A check with and without keys that the caller sets.
pub struct Compared {
    pub paper: &'static str,
    pub check: String,
    pub number: Option<f64>,
    pub without: Changed,
    pub with: Changed,
}

impl Compared {
    /// Returns true if the verdict changes.
    pub fn is_reversed(&self) -> bool {
        self.without.verdict != self.with.verdict
    }

    /// Returns true if the verdict or the number changes.
    pub fn is_changed(&self) -> bool {
        self.is_reversed() || self.without.ours != self.with.ours
    }
}

impl Display for Compared {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let word = |changed: &Changed| match changed.verdict {
            Verdict::Holds => "holds",
            Verdict::Departs => "departs",
        };
        let ours = |changed: &Changed| changed.ours.map_or("fails".to_owned(), number);
        let (without, with) = (&self.without, &self.with);
        write!(f, "{}, {}: {} {}", self.paper, self.check, word(without), ours(without))?;
        if self.is_changed() {
            write!(f, " -> {} {}", word(with), ours(with))?;
        }
        match self.number {
            Some(paper) => write!(f, ", the paper {}", number(paper)),
            None => Ok(()),
        }
    }
}

fn items(paper: &'static Paper, long: bool) -> impl Iterator<Item = &'static Item> {
    paper.items.iter().chain(if long { paper.long } else { &[] })
}

fn checks(paper: &'static Paper, long: bool) -> impl Iterator<Item = &'static Spec> {
    items(paper, long).filter_map(|item| match item {
        Item::Check(spec) => Some(spec),
        Item::Shown(_) => None,
    })
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
        for spec in checks(paper, long) {
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

/// Runs each check of these papers with and without these values of keys, beneath the settings of the
/// exhibits. Keys of `medium.flash` are set in plans that have it.
///
/// # Errors
/// A run fails.
pub fn compare(
    papers: &[&'static Paper],
    sets: &[(String, String)],
    long: bool,
) -> Result<Vec<Compared>, ExhibitError> {
    const NONE: Mutation = Mutation { change: "", settings: &[] };
    let setups: Vec<_> = papers.iter().map(|_| Setup::new()).collect();
    let mut jobs = Vec::new();
    for (number, paper) in papers.iter().enumerate() {
        jobs.extend(checks(paper, long).map(|spec| (number, spec)));
    }
    let compared = on_all_cores(&jobs, |(number, spec)| {
        let setup = &setups[*number];
        // First, as a wrong key is then an error before anything has run.
        let with = spec.changed(&setup.set(sets), &NONE)?;
        Ok(Compared {
            paper: papers[*number].name,
            check: spec.name(),
            number: spec.paper,
            without: spec.changed(setup, &NONE)?,
            with,
        })
    });
    compared.into_iter().collect()
}

fn changes(spec: &'static Spec) -> impl Iterator<Item = (&'static Mutation, bool)> {
    let mutations = spec.mutations().iter().map(|change| (change, false));
    mutations.chain(spec.swaps().iter().map(|change| (change, true)))
}
