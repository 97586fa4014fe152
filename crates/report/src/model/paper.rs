//! Papers: statements, figures and tables beside those of this model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A paper, and how this model compares with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// As on the command line.
    pub name: String,
    pub title: String,
    pub authors: String,
    /// In the order of the paper.
    pub exhibits: Vec<Exhibit>,
}

impl Paper {
    /// Returns true if every verdict is the one on record.
    pub fn is_as_expected(&self) -> bool {
        self.exhibits.iter().all(|exhibit| match exhibit {
            Exhibit::Check(check) => check.is_as_expected(),
            Exhibit::Figure(_) | Exhibit::Table(_) | Exhibit::Quotation(_) => true,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Exhibit {
    Check(Check),
    Figure(Figure),
    Table(Table),
    Quotation(Quotation),
}

/// The statement of a paper that an exhibit is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Row of the list of systems, as in "B7"; empty if it has none.
    pub row: String,
    pub title: String,
    /// The statement, with its place in the paper.
    pub claim: String,
    /// Unit of measurement; empty if the numbers have none.
    pub unit: String,
}

/// A statement with a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    pub subject: Subject,
    /// The mechanism of the model that it tests.
    pub mechanism: String,
    /// Changes of the model in words, with each of which it fails.
    pub mutations: Vec<String>,
    pub criterion: Criterion,
    pub ours: f64,
    /// Absent if the paper states a shape only.
    pub paper: Option<f64>,
    pub parts: Vec<Part>,
    pub swings: Vec<Swing>,
    /// Further numbers, a line each.
    pub details: Vec<String>,
    pub verdict: Verdict,
    /// The verdict on record. A difference is an error of this program.
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

    /// The swings that move the number by more than half a percent, and those that do not.
    pub fn swings_by_effect(&self) -> (Vec<&Swing>, Vec<&Swing>) {
        let moved = |value: f64| (value - self.ours).abs() > 0.005 * self.ours.abs();
        self.swings.iter().partition(|swing| moved(swing.low) || moved(swing.high))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Criterion {
    #[serde(flatten)]
    pub rule: Rule,
    /// The shape in words; empty for other rules.
    pub shape: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "rule")]
pub enum Rule {
    /// Within this many thousandths of the paper's number.
    Within { per_mille: u32 },
    /// Below the paper's number, which is a bound.
    Below,
    /// By shape: order, sign or knee.
    Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Holds,
    Departs,
}

/// A stage and its share of a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub stage: String,
    pub value: f64,
}

/// An assumed cost, and the number with that cost at half and at one and a half.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Swing {
    pub key: String,
    /// As the plan has it.
    pub value: String,
    pub low: f64,
    pub high: f64,
}

/// A check with one change of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    pub change: String,
    /// Absent if the run fails under it.
    pub ours: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    pub text: String,
    /// Single changes, and the check with each.
    pub swaps: Vec<Changed>,
}

/// A statement beside a number of this model, without a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quotation {
    pub subject: Subject,
    pub paper: Option<f64>,
    pub ours: Option<f64>,
    /// Why it is not a check.
    pub why: String,
}

/// A figure: series over one axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    pub caption: String,
    /// As in "Figure 5"; empty if the paper has none.
    pub number: String,
    /// As the paper draws it.
    #[serde(default, skip_serializing_if = "Form::is_lines")]
    pub form: Form,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub label: String,
    /// Empty if the values are counts.
    pub unit: String,
    pub logarithmic: bool,
    /// Names of the values 0, 1, 2, ... if the axis has categories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

impl Axis {
    pub fn linear(label: &str, unit: &str) -> Axis {
        let (label, unit) = (label.to_owned(), unit.to_owned());
        Axis { label, unit, logarithmic: false, places: Vec::new() }
    }

    pub fn logarithmic(label: &str, unit: &str) -> Axis {
        Axis { logarithmic: true, ..Axis::linear(label, unit) }
    }

    /// The label with the unit.
    pub fn title(&self) -> String {
        match &self.unit[..] {
            "" => self.label.clone(),
            unit => format!("{}, {unit}", self.label),
        }
    }
}

/// Form of a figure: how its series are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A curve for each series, with a mark at each point.
    #[default]
    Lines,
    /// At each place a bar for each series, side by side.
    Bars,
    /// At each place one bar, of which each series is a part.
    Stacked,
}

impl Figure {
    /// A figure with a curve for each series, as an exhibit.
    pub fn exhibit(
        number: &str,
        caption: impl Into<String>,
        (x, y): (Axis, Axis),
        series: Vec<Series>,
    ) -> Exhibit {
        let (caption, number) = (caption.into(), number.to_owned());
        Exhibit::Figure(Figure { caption, number, form: Form::Lines, x, y, series })
    }

    /// The caption without the number of the figure, with which it may begin.
    pub fn caption_alone(&self) -> &str {
        if self.number.is_empty() {
            return &self.caption;
        }
        // "Figures 7, 8" may be "Figures 7 and 8" here.
        let named = self.caption.split_once(':').filter(|(head, _)| head.starts_with("Figure"));
        let rest = named.map(|(_, rest)| rest).or(self.caption.strip_prefix(&self.number));
        rest.map_or(self.caption.as_str(), |rest| rest.trim_start_matches([':', ' ']))
    }
}

impl Form {
    fn is_lines(&self) -> bool {
        *self == Form::Lines
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    Ours,
    Paper,
}

/// One curve of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Letter that marks its points in text.
    pub letter: char,
    pub name: String,
    pub whose: Whose,
    /// Horizontal and vertical value of each point, in the units of the axes.
    pub points: Vec<[f64; 2]>,
}

impl Series {
    /// A curve of this model.
    pub fn ours(
        letter: char,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Series {
        let points = points.into_iter().map(<[f64; 2]>::from).collect();
        Series { letter, name: name.into(), whose: Whose::Ours, points }
    }

    /// A curve of the paper.
    pub fn paper(
        letter: char,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Series {
        Series { whose: Whose::Paper, ..Series::ours(letter, name, points) }
    }

    /// The name, marked if the series is the paper's.
    pub fn title(&self) -> String {
        match self.whose {
            Whose::Paper => format!("{} (paper)", self.name),
            Whose::Ours => self.name.clone(),
        }
    }
}

/// A table of a paper or of this model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
        Exhibit::Table(Table { caption: caption.to_owned(), columns, lines, notes })
    }
}
