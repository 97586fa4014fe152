//! Figures as text of 80 columns, for a terminal.
//!
//! A series has a letter. A cell with points of several series has a digit or another sign instead of their
//! letters, and the legend lists the series of that sign: no series hides another.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::model::paper::{Axis, Figure, Form, Series};
use crate::number::{COLUMNS, wrapped};
use crate::scale::{Scale, labels};

const ROWS: usize = 14;
/// Columns of the labels of the vertical axis, and the axis itself.
const MARGIN: usize = 11;
/// A logarithmic axis with at most this many places has labels there: lengths are powers of two.
const FEW: usize = 12;
/// Signs of cells with several series, in the order of their first use.
const SIGNS: &str = "123456789*#@%&+=~^$!?";

/// The figure as lines of at most 80 columns.
pub fn figure(figure: &Figure) -> String {
    let mut text = String::new();
    let head = [figure.number.as_str(), figure.caption_alone()];
    let head = head.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    wrap(&mut text, "", &head);
    let values = heights(figure);
    let points = || values.iter().flatten();
    if points().next().is_none() {
        text.push_str("    (no points)\n");
        return text;
    }
    let y =
        Scale::over(points().map(|point| point[1]), figure.y.logarithmic, 0.0, (ROWS - 1) as f64);
    let x = across(&figure.x, points().map(|point| point[0]));
    let letters = letters(&figure.series);
    let mut cells: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (number, points) in values.iter().enumerate() {
        for point in points {
            let cell = (y.at(point[1]).round() as usize, x.at(point[0]).round() as usize);
            let here = cells.entry(cell).or_default();
            if !here.contains(&number) {
                here.push(number);
            }
        }
    }
    let signs = signs(&cells);
    wrap(&mut text, "  ", &titled(&figure.y));
    grid(&mut text, &y, &x, &cells, |here| match &here[..] {
        [one] => letters[*one],
        _ => signs[here],
    });
    let mut measured: Vec<f64> = points().map(|point| point[0]).collect();
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    places(&mut text, &figure.x, &x, &measured);
    for (series, letter) in figure.series.iter().zip(&letters) {
        wrap(&mut text, &format!("    {letter}: "), &series.title());
    }
    let mut listed: Vec<(&Vec<usize>, char)> =
        signs.iter().map(|(here, sign)| (*here, *sign)).collect();
    listed.sort_by_key(|(_, sign)| SIGNS.find(*sign));
    for (here, sign) in listed {
        let names = here
            .iter()
            .map(|number| letters[*number].to_string())
            .collect::<Vec<_>>()
            .join(" and ");
        wrap(&mut text, &format!("    {sign}: "), &names);
    }
    text
}

/// Drawn points of each series: those of a stack are at its height up to there.
fn heights(figure: &Figure) -> Vec<Vec<[f64; 2]>> {
    let usable = |point: &&[f64; 2]| {
        let logs = [(figure.x.logarithmic, point[0]), (figure.y.logarithmic, point[1])];
        point.iter().all(|value| value.is_finite())
            && logs.iter().all(|(log, value)| !log || *value > 0.0)
    };
    let below = |number: usize, place: f64| -> f64 {
        let earlier = figure.series[..number].iter().flat_map(|series| &series.points);
        earlier
            .filter(|point| point[0] == place && point[1].is_finite())
            .map(|point| point[1])
            .sum()
    };
    let heights = figure.series.iter().enumerate().map(|(number, series)| {
        let points = series.points.iter().filter(usable);
        let stacked = figure.form == Form::Stacked;
        let height =
            |point: &[f64; 2]| if stacked { point[1] + below(number, point[0]) } else { point[1] };
        points.map(|point| [point[0], height(point)]).collect()
    });
    heights.collect()
}

fn across(axis: &Axis, values: impl Iterator<Item = f64>) -> Scale {
    let end = (COLUMNS - MARGIN - 1) as f64;
    if axis.places.is_empty() {
        return Scale::over(values, axis.logarithmic, 0.0, end);
    }
    let to = axis.places.len() as f64 - 0.5;
    Scale { from: -0.5, to, log: false, start: 0.0, end }
}

/// A letter for each series: its own, or the first that is free.
fn letters(series: &[Series]) -> Vec<char> {
    let mut taken: Vec<char> = series.iter().map(|series| series.letter).collect();
    let own = series.iter().enumerate().map(|(number, of)| {
        let first = series.iter().position(|other| other.letter == of.letter);
        if of.letter.is_alphabetic() && first == Some(number) {
            return of.letter;
        }
        let free =
            ('a'..='z').chain('A'..='Z').find(|letter| !taken.contains(letter)).unwrap_or('?');
        taken.push(free);
        free
    });
    own.collect()
}

/// A sign for each set of series that share a cell.
fn signs(cells: &BTreeMap<(usize, usize), Vec<usize>>) -> BTreeMap<&Vec<usize>, char> {
    let mut signs = BTreeMap::new();
    let mut free = SIGNS.chars();
    for here in cells.values().filter(|here| here.len() > 1) {
        if !signs.contains_key(here) {
            // Beyond those there are letters of other alphabets, so that two sets never share a sign.
            let number = signs.len() as u32;
            let further = || char::from_u32('α' as u32 + number).unwrap_or('¤');
            signs.insert(here, free.next().unwrap_or_else(further));
        }
    }
    signs
}

fn titled(axis: &Axis) -> String {
    let log = if axis.logarithmic { " (logarithmic)" } else { "" };
    format!("{}{log}", axis.title())
}

fn grid(
    text: &mut String,
    y: &Scale,
    x: &Scale,
    cells: &BTreeMap<(usize, usize), Vec<usize>>,
    sign: impl Fn(&Vec<usize>) -> char,
) {
    let ticks = y.ticks(5);
    let marks: BTreeMap<usize, String> =
        ticks.iter().map(|tick| y.at(*tick).round() as usize).zip(labels(&ticks, y.log)).collect();
    for row in (0..ROWS).rev() {
        let label = marks.get(&row).map(String::as_str).unwrap_or_default();
        let edge = if label.is_empty() { '|' } else { '+' };
        let line: String = (0..=x.end as usize)
            .map(|column| cells.get(&(row, column)).map_or(' ', &sign))
            .collect();
        writeln!(text, "{label:>width$} {edge}{}", line.trim_end(), width = MARGIN - 2)
            .expect("a string");
    }
}

/// The horizontal axis with its labels, none of which touches another.
fn places(text: &mut String, axis: &Axis, x: &Scale, measured: &[f64]) {
    let labelled: Vec<(usize, String)> = if axis.places.is_empty() {
        let ticks =
            if axis.logarithmic && measured.len() <= FEW { measured.to_vec() } else { x.ticks(8) };
        let texts = labels(&ticks, axis.logarithmic);
        ticks.iter().map(|tick| x.at(*tick).round() as usize).zip(texts).collect()
    } else {
        let places = axis.places.iter().enumerate();
        places.map(|(at, name)| (x.at(at as f64).round() as usize, name.clone())).collect()
    };
    let mut line = vec!['-'; x.end as usize + 1];
    for (at, _) in &labelled {
        line[*at] = '+';
    }
    writeln!(text, "{:>width$}+{}", "", line.iter().collect::<String>(), width = MARGIN - 1)
        .expect("a string");
    // Long names do not fit side by side: they are listed.
    let width = COLUMNS - MARGIN;
    let room = width / labelled.len().max(1);
    let long =
        !axis.places.is_empty() && labelled.iter().any(|(_, name)| name.chars().count() + 1 > room);
    if long {
        let numbered: Vec<String> = axis
            .places
            .iter()
            .enumerate()
            .map(|(at, name)| format!("{}: {name}", at + 1))
            .collect();
        let short =
            labelled.iter().enumerate().map(|(number, (at, _))| (*at, (number + 1).to_string()));
        writeln!(text, "{:>MARGIN$}{}", "", placed(short, width)).expect("a string");
        wrap(text, &" ".repeat(MARGIN), &numbered.join("; "));
    } else {
        writeln!(text, "{:>MARGIN$}{}", "", placed(labelled.into_iter(), width)).expect("a string");
    }
    wrap(text, &" ".repeat(MARGIN), &titled(axis));
}

/// A line with each text in the middle of its column, as far as there is room.
fn placed(texts: impl Iterator<Item = (usize, String)>, width: usize) -> String {
    let mut line = String::new();
    let mut used = 0;
    for (at, text) in texts {
        let length = text.chars().count();
        let from = at.saturating_sub(length / 2).min(width.saturating_sub(length));
        if from < used + usize::from(used > 0) {
            continue;
        }
        write!(line, "{:>gap$}{text}", "", gap = from - used).expect("a string");
        used = from + length;
    }
    line
}

/// Adds text in lines of at most 80 columns; the lines after the first begin as far to the right.
fn wrap(text: &mut String, head: &str, content: &str) {
    let indent = " ".repeat(head.chars().count());
    for line in wrapped(&format!("{head}{content}"), &indent) {
        writeln!(text, "{}", line.trim_end()).expect("a string");
    }
}
