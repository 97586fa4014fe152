//! Exhibits as data: checks, figures, tables, quotations. Text and pictures are views of them.

use serde::Serialize;

/// An exhibit of a paper, computed by this model.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Exhibit {
    Check(Check),
    Figure(Figure),
    Table(Table),
    Quotation(Quotation),
}

/// The statement of a paper that an exhibit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// Row of the list of systems, for example "B7".
    pub row: &'static str,
    /// At most 40 characters, for the table of verdicts.
    pub title: &'static str,
    /// The statement, with its place in the paper.
    pub claim: &'static str,
    /// Unit of measurement.
    pub unit: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "rule")]
pub enum Rule {
    /// Within this many thousandths of the paper's number.
    Within { per_mille: u32 },
    /// Below the paper's number, which is a bound.
    Below,
    /// By shape: order, sign or knee. Magnitudes are printed and not compared.
    Shape,
}

#[derive(Clone, Debug, Serialize)]
pub struct Criterion {
    #[serde(flatten)]
    pub rule: Rule,
    /// The shape in words; empty for other rules.
    pub shape: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Holds,
    Departs,
}

/// A stage and its share of a number.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    pub stage: &'static str,
    pub value: f64,
}

/// An assumed cost, and the number with that cost at half and at one and a half.
#[derive(Clone, Debug, Serialize)]
pub struct Swing {
    pub key: String,
    pub value: String,
    pub low: f64,
    pub high: f64,
}

impl Swing {
    /// Returns true if either end differs from `ours` by more than half a percent.
    pub fn moves(&self, ours: f64) -> bool {
        [self.low, self.high].iter().any(|value| (value - ours).abs() > 0.005 * ours.abs())
    }
}

/// One change to the model, and the check with it.
#[derive(Clone, Debug, Serialize)]
pub struct Changed {
    pub change: &'static str,
    /// The number with the change; `None` if the run fails under it.
    pub ours: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Serialize)]
pub struct Cause {
    pub text: &'static str,
    /// Single changes, and the check with each. None: no single change was found under which it holds.
    pub swaps: Vec<Changed>,
}

/// A statement of a paper with a verdict, which a named change of the mechanism reverses.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub subject: Subject,
    /// The mechanism that the check tests.
    pub mechanism: &'static str,
    /// The changes that break the mechanism, in words; with each of them the check must fail.
    pub mutations: Vec<&'static str>,
    pub criterion: Criterion,
    pub ours: f64,
    /// The number of the paper; none if it states a shape only.
    pub paper: Option<f64>,
    pub parts: Vec<Part>,
    pub swings: Vec<Swing>,
    /// Further numbers, a line each.
    pub details: Vec<String>,
    pub verdict: Verdict,
    /// The verdict on record. A difference is a regression.
    pub expected: Verdict,
    /// Of a check that departs.
    pub cause: Option<Cause>,
}

impl Check {
    /// Returns true if the verdict is the one on record.
    pub fn is_as_expected(&self) -> bool {
        self.verdict == self.expected
    }

    /// The paper's number less ours; `None` without a number, and for a bound.
    pub fn unexplained(&self) -> Option<f64> {
        self.paper.filter(|_| self.criterion.rule != Rule::Below).map(|paper| paper - self.ours)
    }
}

/// A statement of a paper beside a number of ours, without a verdict: no change of this model would make it
/// fail, or the model lacks the mechanism.
#[derive(Clone, Debug, Serialize)]
pub struct Quotation {
    pub subject: Subject,
    pub paper: Option<f64>,
    pub ours: Option<f64>,
    /// Why it is not a check.
    pub why: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    pub label: &'static str,
    /// Unit of measurement; empty for counts.
    pub unit: &'static str,
    pub logarithmic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    Ours,
    Paper,
}

/// One curve of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Letter that marks its points in text.
    pub letter: char,
    pub name: String,
    pub whose: Whose,
    /// Horizontal and vertical value of each point, in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn ours(letter: char, name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { letter, name: name.into(), whose: Whose::Ours, points }
    }

    pub fn paper(letter: char, name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { letter, name: name.into(), whose: Whose::Paper, points }
    }
}

/// A figure of a paper, computed by this model.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub caption: String,
    /// The figure of the paper, for example "Figure 5"; empty if the paper has none.
    pub number: &'static str,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

/// A table of a paper or of this model.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub caption: String,
    pub columns: Vec<String>,
    /// Lines of as many cells as there are columns.
    pub lines: Vec<Vec<String>>,
    pub notes: Vec<String>,
}

impl Table {
    /// A table of these cells, as an exhibit.
    pub fn exhibit(
        caption: &str,
        columns: &[&str],
        lines: Vec<Vec<String>>,
        notes: &[&str],
    ) -> Exhibit {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let (columns, notes) = (owned(columns), owned(notes));
        Exhibit::Table(Table { caption: caption.into(), columns, lines, notes })
    }
}
