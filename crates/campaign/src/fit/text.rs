//! The report of a fit as text of 80 columns.

use std::fmt::Write as _;

use super::{Agreement, Fit, Precision, Value};
use crate::validate::Figure;
use crate::validate::compare::Share;

impl Precision {
    /// In words, as in the report and in the source of the value.
    pub(super) fn in_words(&self) -> String {
        match self {
            Precision::Determined { percent } => format!("+- {percent:.1} %"),
            Precision::Uncertain { percent, confounded_with: None } => {
                format!("+- {percent:.0} %: uncertain")
            }
            Precision::Uncertain { confounded_with: Some(key), .. } => {
                format!("confounded with {}", short(key))
            }
            Precision::NoEffect => "no effect".to_owned(),
        }
    }
}

/// The text of a fit.
pub fn of(fit: &Fit) -> String {
    let Fit { table, plan, tries, seed, .. } = fit;
    let mut text = format!("{table}, fitted from plan {plan}: {tries} plans tried, seed {seed}\n");
    let mut line = |words: std::fmt::Arguments<'_>| writeln!(text, "{words}").expect("a string");
    line(format_args!("\n{:<30} {:>11} {:>11}  standard error", "key", "from", "to"));
    for Value { key, from, to, is_at_end, precision } in &fit.keys {
        let (key, precision) = (short(key), precision.in_words());
        let end = if *is_at_end { ", end of its range" } else { "" };
        line(format_args!("{key:<30} {from:>11} {to:>11}  {precision}{end}"));
    }
    let headings = Figure::ALL.map(|figure| format!(" {:>5}", figure.name())).concat();
    line(format_args!("\n{:<20} {:>5}{headings}  median error", "within 15 %", "rows"));
    let both = [("fitted", &fit.fitted), ("held out", &fit.held)];
    for (name, Agreement { rows, before, after, median_before, median_after }) in both {
        let each = [("before", before, median_before), ("after", after, median_after)];
        for (when, shares, median) in each {
            let of_figure = |Share { near, of }: &Share| {
                let percent = (100 * near).checked_div(*of);
                let share = percent.map_or("-".to_owned(), |percent| format!("{percent} %"));
                format!(" {share:>5}")
            };
            let figures: String = shares.figures.iter().map(of_figure).collect();
            let median = median.map_or("-".to_owned(), |percent| format!("{percent:.1} %"));
            line(format_args!(
                "{:<20} {rows:>5}{figures}  {median:>12}",
                format!("{name}, {when}")
            ));
        }
    }
    if !fit.left_out.is_empty() {
        let rows: usize = fit.left_out.iter().map(|reason| reason.rows).sum();
        let s = if rows == 1 { "" } else { "s" };
        line(format_args!("\nnot run: {rows} row{s}"));
        for left_out in &fit.left_out {
            line(format_args!("{:>6}  {}", left_out.rows, left_out.why));
        }
    }
    text
}

/// A key without the tables that every drive has.
fn short(key: &str) -> &str {
    key.strip_prefix("medium.flash.").unwrap_or(key)
}
