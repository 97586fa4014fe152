//! A sweep as text of 80 columns: a table of two axes, of all points, or of each axis; and its extremes.

use crate::model::{SweepAxis, SweepHeader, SweepPoint};
use crate::number::{COLUMNS, cut, mib, rate, short_us, wrapped};
use crate::style::Style;

use super::{Metric, Number};

/// Most rows of a table.
const ROWS_MAX: usize = 40;
/// Width of a number, with the blank before it.
const CELL: usize = 10;
const REASONS_MAX: usize = 5;
/// Least width of the values of an axis.
const NAMES_MIN: usize = 12;

#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Name of the sweep, for the heading.
    pub title: &'a str,
    /// Of a table of two axes, and of the summary of an axis.
    pub metric: Metric,
    pub style: Style,
}

/// The points as text. Points that are not there yet are left out.
pub fn text(header: &SweepHeader, points: &[SweepPoint], shown: Shown<'_>) -> String {
    let failed = points.iter().filter(|point| point.failed.is_some()).count();
    let left_out = points.iter().filter(|point| point.left_out.is_some()).count();
    let mut head = format!("== {}: {} points", shown.title, points.len());
    if (points.len() as u64) < header.points {
        head += &format!(" of {}", header.points);
    }
    for (count, word) in [(failed, "failed"), (left_out, "left out")] {
        if count > 0 {
            head += &format!(", {count} {word}");
        }
    }
    let mut lines = vec![shown.style.head(&cut(&head, COLUMNS))];
    let varied: Vec<&SweepAxis> = header.axes.iter().filter(|axis| axis.values.len() > 1).collect();
    let is_grid = header.method == "grid";
    lines.extend(match pivot(&varied, points, shown).filter(|_| is_grid) {
        Some(table) => table,
        None if points.len() <= ROWS_MAX => table(&varied, points, shown),
        None => by_axis(&varied, points, shown),
    });
    lines.extend(extremes(&varied, points, shown));
    lines.extend(problems(points, shown.style));
    lines.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn cell(number: Number, value: Option<f64>) -> String {
    match (value, number) {
        (None, _) => "-".to_owned(),
        (Some(value), Number::Iops) => rate(value),
        (Some(value), Number::Bandwidth) => mib(value),
        (Some(value), _) => short_us(value),
    }
}

fn value<'p>(point: &'p SweepPoint, axis: &SweepAxis) -> &'p str {
    point.at.get(&axis.name).map_or("", String::as_str)
}

/// A table of two axes: a row for each value of one, a column for each value of the other.
fn pivot(varied: &[&SweepAxis], points: &[SweepPoint], shown: Shown<'_>) -> Option<Vec<String>> {
    let [one, other] = varied else { return None };
    // Numbers go down, names and shorter axes across.
    let is_across = |axis: &SweepAxis| (!axis.numbers.is_empty(), axis.values.len());
    let (down, across) = match is_across(one) < is_across(other) {
        true => (other, one),
        false => (one, other),
    };
    let names = names_width([*down].into_iter());
    let room = (COLUMNS - names) / across.values.len();
    let widest = across.values.iter().map(|name| name.chars().count() + 1).max()?;
    let width = widest.max(CELL).min(room);
    if width < CELL || down.values.len() > ROWS_MAX {
        return None;
    }
    let title =
        cut(&format!("{} by {}", shown.metric.number.heading(), across.name), COLUMNS - names);
    let mut lines = vec![format!("{:names$} {title}", "")];
    let mut head = format!("{:<names$}", cut(&down.name, names));
    for name in &across.values {
        head += &format!("{:>width$}", cut(name, width - 1));
    }
    lines.push(head);
    for row in &down.values {
        let mut line = format!("{:<names$}", cut(row, names));
        for column in &across.values {
            let here =
                points.iter().find(|one| value(one, down) == row && value(one, across) == column);
            let of = here.and_then(|point| shown.metric.of_point(point));
            line += &format!("{:>width$}", cell(shown.metric.number, of));
        }
        lines.push(line);
    }
    Some(lines)
}

fn names_width<'a>(axes: impl Iterator<Item = &'a SweepAxis>) -> usize {
    let longest = |axis: &SweepAxis| {
        let values = axis.values.iter().map(|value| value.chars().count()).max();
        values.unwrap_or(0).max(axis.name.chars().count()) + 1
    };
    axes.map(longest).max().unwrap_or(0).clamp(NAMES_MIN, 30)
}

/// A row for each point.
fn table(varied: &[&SweepAxis], points: &[SweepPoint], shown: Shown<'_>) -> Vec<String> {
    let numbers = [Number::Iops, Number::Mean, Number::P50, Number::P99];
    let room = COLUMNS - numbers.len() * CELL;
    let width = (room / varied.len().max(1)).max(4);
    let mut head: String =
        varied.iter().map(|axis| format!("{:<width$}", cut(&axis.name, width - 1))).collect();
    head = format!("{:<room$}", cut(&head, room));
    head.extend(numbers.iter().map(|number| format!("{:>CELL$}", number.heading())));
    let mut lines = vec![head];
    for point in points {
        let of_axis = |axis: &&SweepAxis| format!("{:<width$}", cut(value(point, axis), width - 1));
        let first: String = varied.iter().map(of_axis).collect();
        let mut line = format!("{:<room$}", cut(&first, room));
        for number in numbers {
            let metric = Metric { number, ..shown.metric };
            line += &format!("{:>CELL$}", cell(number, metric.of_point(point)));
        }
        lines.push(line);
    }
    lines
}

/// For each value of each axis the smallest, the median and the largest value of the metric.
fn by_axis(varied: &[&SweepAxis], points: &[SweepPoint], shown: Shown<'_>) -> Vec<String> {
    let number = shown.metric.number;
    let names = names_width(varied.iter().copied());
    let mut lines = Vec::new();
    for axis in varied {
        let title = format!("least, median and most {}", number.heading());
        lines.push(format!("{:<names$}{:>8}  {title}", cut(&axis.name, names - 1), "points"));
        let shown_values = axis.values.iter().take(ROWS_MAX / varied.len().max(1));
        for name in shown_values.clone() {
            let here = points.iter().filter(|point| value(point, axis) == name);
            let mut all: Vec<f64> = here.filter_map(|point| shown.metric.of_point(point)).collect();
            all.sort_by(f64::total_cmp);
            let at = |place: usize| cell(number, all.get(place).copied());
            let ends = [at(0), at(all.len() / 2), at(all.len().saturating_sub(1))];
            let ends: String = ends.iter().map(|end| format!("{end:>CELL$}")).collect();
            lines.push(format!("{:<names$}{:>8}{ends}", cut(name, names - 1), all.len()));
        }
        let left = axis.values.len() - shown_values.len();
        if left > 0 {
            lines.push(format!("... {left} more values"));
        }
    }
    lines
}

/// The points with the highest rate and with the lowest latencies.
fn extremes(varied: &[&SweepAxis], points: &[SweepPoint], shown: Shown<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, title) in [
        (Number::Iops, "most IOPS"),
        (Number::Mean, "least mean us"),
        (Number::P99, "least p99 us"),
    ] {
        let metric = Metric { number, ..shown.metric };
        let values = points.iter().filter_map(|point| Some((metric.of_point(point)?, point)));
        let sign = if number.is_latency() { -1.0 } else { 1.0 };
        // Of equal points the first.
        let best = values.reduce(|best, one| if sign * one.0 > sign * best.0 { one } else { best });
        if let Some((found, point)) = best {
            let at: Vec<String> =
                varied.iter().map(|axis| format!("{} {}", axis.name, value(point, axis))).collect();
            let text = format!("{title} {} at {}", cell(number, Some(found)), at.join(", "));
            lines.extend(wrapped(&text, "  "));
        }
    }
    lines
}

/// Failed points by reason, and points with errors.
fn problems(points: &[SweepPoint], style: Style) -> Vec<String> {
    let mut reasons: Vec<(&str, u64, usize)> = Vec::new();
    for point in points {
        let Some(reason) = point.failed.as_deref().or(point.left_out.as_deref()) else { continue };
        match reasons.iter_mut().find(|(known, ..)| *known == reason) {
            Some((.., count)) => *count += 1,
            None => reasons.push((reason, point.point, 1)),
        }
    }
    let mut lines = Vec::new();
    for (reason, first, count) in reasons.iter().take(REASONS_MAX) {
        let more = match count - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.extend(wrapped(&format!("point {first}{more}: {reason}"), "  "));
    }
    if reasons.len() > REASONS_MAX {
        lines.push(format!("... {} more reasons", reasons.len() - REASONS_MAX));
    }
    let errors = |point: &&SweepPoint| point.result.as_ref().is_some_and(|of| of.errors > 0);
    let with_errors = points.iter().filter(errors).count();
    if with_errors > 0 {
        lines.push(style.error(&format!("error: {with_errors} points have failed operations")));
    }
    lines
}
