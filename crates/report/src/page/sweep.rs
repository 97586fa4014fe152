//! The page of a sweep: curves of a number over an axis, and all points as a table.

use maud::{Markup, html};

use super::number::Unit;
use super::parts::{Grid, figure, text};
use super::plot::{Axis, Curve, Plot};
use super::whole;
use crate::model::paper::Form;
use crate::model::{SweepAxis, SweepHeader, SweepPoint};
use crate::sweep::{Metric, Number};

/// Most curves of a picture.
const CURVES_MAX: usize = 12;
/// Most rows of the table.
const ROWS_MAX: usize = 2000;
/// Ratio of the ends of an axis from which on it is logarithmic.
const LOG_FROM: f64 = 20.0;

/// The page of a sweep. `metric` is drawn, with the rate.
pub fn of_sweep(
    header: &SweepHeader,
    points: &[SweepPoint],
    title: &str,
    metric: Metric,
) -> String {
    let varied: Vec<&SweepAxis> = header.axes.iter().filter(|axis| axis.values.len() > 1).collect();
    let mut shown = vec![metric];
    for number in [Number::Iops, Number::P99] {
        if number != metric.number {
            shown.push(Metric { number, ..metric });
        }
    }
    let body = html! {
        header {
            h1 { (title) }
            @if !header.about.is_empty() { p { (header.about) } }
            p { (points.len()) " of " (header.points) " points, " (header.method) ", simulated" }
        }
        main {
            section id="curves" {
                h2 { "Curves" }
                @for metric in shown { (curves(&varied, points, metric)) }
            }
            section id="points" {
                h2 { "Points" }
                (table(&varied, points))
            }
        }
        footer { p { (header.program.name) " " (header.program.version) "." } }
    };
    whole(title, &header.program, &body)
}

fn unit(number: Number) -> Unit {
    match number {
        Number::Iops => Unit::PerSecond,
        Number::Bandwidth => Unit::BytesPerSecond,
        _ => Unit::Nanoseconds,
    }
}

/// The axis across: the one with the most numbers; none if no axis has numbers.
fn across<'a>(varied: &[&'a SweepAxis]) -> Option<&'a SweepAxis> {
    let numbered = varied.iter().filter(|axis| axis.numbers.len() > 1);
    numbered.rev().max_by_key(|axis| axis.values.len()).copied()
}

/// A number over the axis, a curve for each combination of the others.
fn curves(varied: &[&SweepAxis], points: &[SweepPoint], metric: Metric) -> Markup {
    let Some(axis) = across(varied) else {
        return html! { p.note { "No axis has numbers: the table has all points." } };
    };
    let others: Vec<&&SweepAxis> = varied.iter().filter(|one| one.name != axis.name).collect();
    let mut names: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
    // A picture counts times in nanoseconds.
    let (size, unit_across) = match axis.unit.as_str() {
        "ps" => (1e3, Unit::Nanoseconds),
        "B" => (1.0, Unit::Bytes),
        "B/s" => (1.0, Unit::BytesPerSecond),
        _ => (1.0, Unit::Plain),
    };
    for point in points {
        let here = point.number.get(&axis.name).copied();
        let Some((x, y)) = here.zip(point.result.as_ref().and_then(|result| metric.of(result)))
        else {
            continue;
        };
        let values = others.iter().map(|one| point.at.get(&one.name).map_or("", String::as_str));
        let name = values.collect::<Vec<_>>().join(", ");
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push([x / size, y]),
            None => names.push((name, vec![[x / size, y]])),
        }
    }
    let left_out = names.len().saturating_sub(CURVES_MAX);
    names.truncate(CURVES_MAX);
    let curves = names.into_iter().enumerate().map(|(colour, (name, mut points))| {
        points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        Curve { name, colour, points, ..Curve::default() }
    });
    let curves: Vec<Curve> = curves.collect();
    let is_log = |at: usize| {
        let values = curves.iter().flat_map(|curve| &curve.points).map(|point| point[at]);
        let ends = values
            .fold([f64::INFINITY, 0.0_f64], |[low, high], value| [low.min(value), high.max(value)]);
        ends[0] > 0.0 && ends[1] / ends[0] >= LOG_FROM
    };
    let (log_across, log_up) = (is_log(0), is_log(1));
    let plot = Plot {
        form: Form::Lines,
        across: Axis::new(&axis.name, unit_across, log_across),
        up: Axis::new(&metric.to_string(), unit(metric.number), log_up),
        curves,
    };
    let title = format!("{metric} over {}", axis.name);
    let about = match left_out {
        0 => String::new(),
        more => format!("{more} more curves are in the table."),
    };
    figure(&title, &about, &plot.draw(&title), None)
}

fn table(varied: &[&SweepAxis], points: &[SweepPoint]) -> Markup {
    let mut grid = Grid::new(&["point"]);
    grid.columns.extend(varied.iter().map(|axis| axis.name.clone()));
    let numbers =
        [Number::Iops, Number::Bandwidth, Number::Mean, Number::P50, Number::P99, Number::P999];
    grid.columns.extend(numbers.iter().map(|number| number.name().to_owned()));
    grid.columns.push("most of the mean".to_owned());
    for point in points.iter().take(ROWS_MAX) {
        let mut cells = vec![text(&point.point.to_string())];
        cells.extend(
            varied.iter().map(|axis| text(point.at.get(&axis.name).map_or("", String::as_str))),
        );
        for number in numbers {
            let of =
                point.result.as_ref().and_then(|result| Metric { kind: None, number }.of(result));
            cells.push(text(&of.map_or("-".to_owned(), |value| unit(number).text(value))));
        }
        let failed = point.failed.as_ref().or(point.left_out.as_ref());
        let waits = point.result.iter().flat_map(|result| result.operations.values());
        let stage = waits.flat_map(|of| &of.waits).next().map(|wait| &wait.stage);
        cells.push(text(failed.or(stage).map_or("", String::as_str)));
        grid.row(cells);
    }
    html! {
        (grid)
        @if points.len() > ROWS_MAX { p.note { (points.len() - ROWS_MAX) " more points are in the file." } }
    }
}
