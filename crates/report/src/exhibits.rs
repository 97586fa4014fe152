//! Exhibits of papers as text.

use std::fmt::{self, Display, Formatter};

use crate::letters;
use crate::model::Paper;
use crate::model::paper::{Check, Criterion, Exhibit, Quotation, Rule, Table, Verdict};
use crate::number::wrapped;

/// A number with four digits or more, at most ten characters in all; a dash for `None`.
pub fn number(value: impl Into<Option<f64>>) -> String {
    let Some(value) = value.into().filter(|value| value.is_finite()) else { return "-".into() };
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        ..100.0 => format!("{value:.2}"),
        ..1e4 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

impl Check {
    /// The verdict in a word; in capitals if it is not the one on record.
    fn word(&self) -> &'static str {
        match (self.verdict, self.is_as_expected()) {
            (Verdict::Holds, true) => "holds",
            (Verdict::Departs, true) => "departs",
            (Verdict::Holds, false) => "HOLDS",
            (Verdict::Departs, false) => "FAILS",
        }
    }
}

impl Display for Criterion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::Within { per_mille: 0 } => f.write_str("equal to the paper's number"),
            Rule::Within { per_mille } => {
                write!(f, "within {}.{} % of the paper's number", per_mille / 10, per_mille % 10)
            }
            Rule::Below => f.write_str("below the paper's number, which is a bound"),
            Rule::Shape => f.write_str(&self.shape),
        }
    }
}

/// The verdicts of a paper, one line of at most 80 characters each.
pub struct Verdicts<'a>(pub &'a Paper);

impl Display for Verdicts<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Verdicts(paper) = self;
        writeln!(f, "{}\n{}\n", paper.title, paper.authors)?;
        writeln!(
            f,
            "{:<4} {:<7} {:>9} {:>9} {:<5} check",
            "row", "verdict", "ours", "paper", "unit"
        )?;
        let (mut holds, mut departs, mut quoted) = (0, 0, 0);
        for exhibit in &paper.exhibits {
            let (word, subject, ours, paper) = match exhibit {
                Exhibit::Check(check) => {
                    match check.verdict {
                        Verdict::Holds => holds += 1,
                        Verdict::Departs => departs += 1,
                    }
                    (check.word(), &check.subject, Some(check.ours), check.paper)
                }
                Exhibit::Quotation(quotation) => {
                    quoted += 1;
                    ("quoted", &quotation.subject, quotation.ours, quotation.paper)
                }
                Exhibit::Figure(_) | Exhibit::Table(_) => continue,
            };
            let (ours, paper) = (number(ours), number(paper));
            let (row, unit, title) = (&subject.row, &subject.unit, &subject.title);
            writeln!(f, "{row:<4} {word:<7} {ours:>9} {paper:>9} {unit:<5} {title}")?;
        }
        writeln!(f, "{holds} hold, {departs} depart, {quoted} quoted")
    }
}

/// All exhibits of a paper at length.
pub struct Details<'a>(pub &'a Paper);

impl Display for Details<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.exhibits.iter().try_for_each(|exhibit| writeln!(f, "{exhibit}"))
    }
}

impl Display for Exhibit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Exhibit::Check(check) => check.fmt(f),
            Exhibit::Figure(figure) => f.write_str(&letters::figure(figure)),
            Exhibit::Table(table) => table.fmt(f),
            Exhibit::Quotation(quotation) => quotation.fmt(f),
        }
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let unit = &self.subject.unit;
        writeln!(f, "{}: {}", self.subject.row, self.subject.claim)?;
        writeln!(f, "  {}: {}", self.criterion, self.word())?;
        writeln!(f, "  mechanism: {}", self.mechanism)?;
        for mutation in &self.mutations {
            writeln!(f, "  fails with: {mutation}")?;
        }
        let line = |f: &mut Formatter<'_>, name, value| {
            writeln!(f, "    {name:<34} {:>10} {unit}", number(value))
        };
        if let Some(paper) = self.paper {
            line(f, "the paper", paper)?;
        }
        line(f, "ours", self.ours)?;
        for part in self.parts.iter().filter(|part| part.value > 0.0) {
            writeln!(f, "      {:<32} {:>10} {unit}", part.stage, number(part.value))?;
        }
        if let Some(unexplained) = self.unexplained() {
            line(f, "unexplained", unexplained)?;
        }
        for detail in &self.details {
            writeln!(f, "    {detail}")?;
        }
        self.write_swings(f)?;
        self.write_cause(f)
    }
}

impl Check {
    fn write_swings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (moving, still) = self.swings_by_effect();
        if !moving.is_empty() {
            writeln!(f, "    {:<34} {:>10} {:>10}", "assumed cost", "at half", "at 1.5")?;
        }
        for swing in moving {
            let (key, low, high) = (&swing.key, number(swing.low), number(swing.high));
            writeln!(f, "      {key:<32} {low:>10} {high:>10} {}", self.subject.unit)?;
        }
        if !still.is_empty() {
            let keys: Vec<_> = still.iter().map(|swing| &swing.key[..]).collect();
            lines(f, &format!("    no effect: {}", keys.join(", ")), "      ")?;
        }
        Ok(())
    }

    fn write_cause(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(cause) = &self.cause else { return Ok(()) };
        lines(f, &format!("  cause: {}", cause.text), "    ")?;
        for swap in &cause.swaps {
            let word = if swap.verdict == Verdict::Holds { "holds" } else { "still departs" };
            writeln!(
                f,
                "  with {}: {} {}, {word}",
                swap.change,
                number(swap.ours),
                self.subject.unit
            )?;
        }
        if cause.swaps.is_empty() {
            writeln!(f, "  no single change of this model was found with which it holds")?;
        }
        Ok(())
    }
}

fn lines(f: &mut Formatter<'_>, text: &str, indent: &str) -> fmt::Result {
    wrapped(text, indent).iter().try_for_each(|line| writeln!(f, "{line}"))
}

impl Display for Quotation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let unit = &self.subject.unit;
        writeln!(f, "{}: {}\n  quoted", self.subject.row, self.subject.claim)?;
        for (name, value) in [("the paper", self.paper), ("ours", self.ours)] {
            if let Some(value) = value {
                writeln!(f, "    {name:<34} {:>10} {unit}", number(value))?;
            }
        }
        lines(f, &format!("  not a check: {}", self.why), "    ")
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.caption)?;
        let width = |column: usize| {
            let cells = self.lines.iter().map(|line| line[column].chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        for line in std::iter::once(&self.columns).chain(&self.lines) {
            let mut text = String::from("   ");
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => text += &format!(" {cell:<width$}"),
                    _ => text += &format!("  {cell:>width$}"),
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "    {note}"))
    }
}
