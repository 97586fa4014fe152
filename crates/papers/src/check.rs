//! Definitions of checks: number, criterion, mechanism, the changes that break it.

use super::ExhibitError;
use super::changes::Change;
use super::setup::Setup;
use plan::units::scaled;
use report::model::paper::{
    self, Cause, Changed, Check, Criterion, Exhibit, Part, Rule, Swing, Verdict,
};

/// The statement of a paper that an exhibit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Row of the list of systems, for example "B7".
    pub row: &'static str,
    /// At most 40 characters, for the table of verdicts.
    pub title: &'static str,
    /// The statement, with its place in the paper.
    pub claim: &'static str,
    /// Unit of measurement; empty if the numbers have none.
    pub unit: &'static str,
}

impl From<Subject> for paper::Subject {
    fn from(of: Subject) -> paper::Subject {
        let [row, title, claim, unit] = [of.row, of.title, of.claim, of.unit].map(str::to_owned);
        paper::Subject { row, title, claim, unit }
    }
}

/// The number of a check in this model, and what goes with it.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub ours: f64,
    /// Of a rule by shape: true if it holds.
    pub shape: bool,
    /// The paper's number, where it is computed from other numbers of the paper.
    pub paper: Option<f64>,
    pub parts: Vec<Part>,
    pub details: Vec<String>,
}

impl Seen {
    pub fn of(ours: f64, shape: bool) -> Seen {
        Seen { ours, shape, ..Seen::default() }
    }

    pub fn number(ours: f64) -> Seen {
        Seen::of(ours, true)
    }

    pub fn with(self, detail: impl Into<String>) -> Seen {
        let mut details = self.details;
        details.push(detail.into());
        Seen { details, ..self }
    }

    pub fn parts(self, parts: &[(&str, f64)]) -> Seen {
        let part = |&(stage, value): &(&str, f64)| Part { stage: stage.to_owned(), value };
        Seen { parts: parts.iter().map(part).collect(), ..self }
    }
}

pub(super) type Number = fn(&Setup) -> Result<f64, ExhibitError>;

/// A change of the model in words, and as settings.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    pub change: &'static str,
    pub settings: &'static [Change],
}

#[derive(Clone, Copy)]
pub(super) enum Expected {
    Holds,
    /// The cause, and single changes of which at least one makes it hold; none if none is known.
    Departs(&'static str, &'static [Mutation]),
}

/// Costs of these plans are halved and raised by half.
pub(super) struct Swung {
    pub plans: &'static [&'static str],
    /// The number by itself, where the check computes more than its number.
    pub number: Option<Number>,
}

/// A check of a paper: what it states, and how it is tested.
pub struct Spec {
    pub(super) subject: Subject,
    pub(super) mechanism: &'static str,
    pub(super) rule: Rule,
    pub(super) shape: &'static str,
    pub(super) paper: Option<f64>,
    pub(super) see: fn(&Setup) -> Result<Seen, ExhibitError>,
    pub(super) swung: Swung,
    pub(super) mutations: &'static [Mutation],
    pub(super) expected: Expected,
}

impl Spec {
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// Row and title, for messages.
    pub fn name(&self) -> String {
        format!("{} ({})", self.subject.row, self.subject.title)
    }

    /// The changes that break the mechanism.
    pub fn mutations(&self) -> &'static [Mutation] {
        self.mutations
    }

    /// Single changes of which at least one makes a departing check hold.
    pub fn swaps(&self) -> &'static [Mutation] {
        match self.expected {
            Expected::Holds => &[],
            Expected::Departs(_, swaps) => swaps,
        }
    }

    pub fn expected(&self) -> Verdict {
        match self.expected {
            Expected::Holds => Verdict::Holds,
            Expected::Departs(..) => Verdict::Departs,
        }
    }

    fn verdict(&self, seen: &Seen) -> Verdict {
        let paper = seen.paper.or(self.paper);
        let holds = match (self.rule, paper) {
            (Rule::Within { per_mille }, Some(paper)) => {
                (seen.ours - paper).abs() * 1000.0 <= paper * f64::from(per_mille)
            }
            (Rule::Below, Some(paper)) => seen.ours < paper,
            // A rule by number without a number of the paper holds for nothing.
            (Rule::Within { .. } | Rule::Below, None) => false,
            (Rule::Shape, _) => seen.shape,
        };
        if holds && seen.ours.is_finite() { Verdict::Holds } else { Verdict::Departs }
    }

    /// Runs the check, with its swings if `swings`.
    ///
    /// # Errors
    /// The runs fail.
    pub fn run(&self, setup: &Setup, swings: bool) -> Result<Check, ExhibitError> {
        let seen = (self.see)(setup)?;
        let verdict = self.verdict(&seen);
        let cause = match self.expected {
            Expected::Holds => None,
            Expected::Departs(text, swaps) => {
                let swaps = swaps.iter().map(|swap| self.changed(setup, swap));
                Some(Cause { text: text.to_owned(), swaps: swaps.collect::<Result<_, _>>()? })
            }
        };
        Ok(Check {
            subject: self.subject.into(),
            mechanism: self.mechanism.to_owned(),
            mutations: self.mutations.iter().map(|mutation| mutation.change.to_owned()).collect(),
            criterion: Criterion { rule: self.rule, shape: self.shape.to_owned() },
            ours: seen.ours,
            paper: seen.paper.or(self.paper),
            parts: seen.parts,
            swings: if swings { self.swings(setup)? } else { Vec::new() },
            details: seen.details,
            verdict,
            expected: self.expected(),
            cause,
        })
    }

    /// Runs the check with a change of the model. Operations that fail are a verdict, an invalid plan is not.
    ///
    /// # Errors
    /// The change is invalid.
    pub fn changed(&self, setup: &Setup, change: &Mutation) -> Result<Changed, ExhibitError> {
        let (ours, verdict) = match (self.see)(&setup.changed(change.settings)) {
            Ok(seen) => (Some(seen.ours), self.verdict(&seen)),
            Err(ExhibitError::Job(_) | ExhibitError::Io(_)) => (None, Verdict::Departs),
            Err(error) => return Err(error),
        };
        Ok(Changed { change: change.change.to_owned(), ours, verdict })
    }

    /// The number with each assumed cost at half and at one and a half.
    fn swings(&self, setup: &Setup) -> Result<Vec<Swing>, ExhibitError> {
        let number = |setup: &Setup| match self.swung.number {
            Some(number) => number(setup),
            None => (self.see)(setup).map(|seen| seen.ours),
        };
        let mut swings = Vec::new();
        for &plan in self.swung.plans {
            let sources = setup.machine(plan).open()?.sources;
            for source in sources.iter().filter(|source| source.assumed) {
                let at = |halves| -> Result<Option<f64>, ExhibitError> {
                    let Some(value) = scaled(&source.value, halves, 2) else { return Ok(None) };
                    let value = format!("{{ value = {value}, source = \"assumed\" }}");
                    number(&setup.with_cost(plan, &source.key, &value)).map(Some)
                };
                if let (Some(low), Some(high)) = (at(1)?, at(3)?) {
                    let (key, value) = (source.key.clone(), source.value.clone());
                    swings.push(Swing { key, value, low, high });
                }
            }
        }
        Ok(swings)
    }
}

/// A part of a paper's exhibits.
pub enum Item {
    Check(Spec),
    Shown(fn(&Setup) -> Result<Vec<Exhibit>, ExhibitError>),
}
