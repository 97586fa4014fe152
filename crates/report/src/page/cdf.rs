//! Distributions of latency: the cumulative share, and the tail.

use maud::{Markup, html};

use super::number::Unit;
use super::parts::{Grid, figure, number, text};
use super::plot::{Axis, Curve, Plot};
use super::streams::Stream;
use crate::model::paper::Form;

const QUANTILES: [f64; 13] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 0.999_99];

/// Quantiles at the ends of the axis. One operation of another order must not squeeze all the others.
const FIRST: f64 = 0.001;
const LAST: f64 = 0.999;

pub(super) fn distributions(streams: &[Stream<'_>]) -> Markup {
    let sampled: Vec<&Stream<'_>> =
        streams.iter().filter(|stream| !stream.latency.bins.is_empty()).collect();
    if sampled.is_empty() {
        return html! {};
    }
    let at = |quantile| sampled.iter().map(move |stream| stream.latency.at(quantile).max(1));
    let least = at(FIRST).min().unwrap_or(1) as f64;
    let across = |last: u64| {
        // A little beyond the curves, so that they do not lie on the edges.
        let ends = Some([least / 1.05, (last as f64).max(least) * 1.05]);
        Axis { ends, ..Axis::new("latency", Unit::Nanoseconds, true) }
    };
    let (most, largest) = (at(LAST).max().unwrap_or(1), at(1.0).max().unwrap_or(1));
    let mut up = Axis::new("operations that took at most this long", Unit::Share, false);
    up.ends = Some([0.0, 1.0]);
    let all = Plot {
        form: Form::Lines,
        across: across(most),
        up,
        curves: sampled.iter().map(|stream| cumulative(stream)).collect(),
    };
    // A share below that of one operation: a logarithmic axis has no zero, so curves fall to its lower end.
    let count = sampled.iter().map(|stream| stream.latency.count).max().unwrap_or(1).max(1);
    let floor = 10f64.powf((1.0 / count as f64).log10().floor());
    let floor = floor.min(0.1);
    let mut up_rest = Axis::new("operations that took longer", Unit::Share, true);
    up_rest.ends = Some([floor, 1.0]);
    let rest = Plot {
        form: Form::Lines,
        across: across(largest),
        up: up_rest,
        curves: sampled.iter().map(|stream| tail(stream, floor)).collect(),
    };
    html! {
        (figure(
            "Latency",
            "Share of the operations that took at most a time, up to p99.9.",
            &all.draw("Cumulative distribution of latency, one curve for each run and kind"),
            Some(&table(&sampled)),
        ))
        (figure(
            "Tail",
            "Share of the operations that took longer than a time, logarithmic.",
            &rest.draw("Share of the operations that took longer, one curve for each run and kind"),
            None,
        ))
    }
}

fn curve(stream: &Stream<'_>, points: Vec<[f64; 2]>, of: String) -> Curve {
    let (name, colour, dashed) = (stream.name.clone(), stream.colour, stream.dashed);
    Curve { name, colour, dashed, steps: true, points, of, ..Curve::default() }
}

/// Shares of the operations that took at most a time.
fn cumulative(stream: &Stream<'_>) -> Curve {
    let start = stream.latency.min_ns.clamp(1, stream.latency.bins[0].0.max(1));
    let points = stream.latency.cumulative().map(|(ns, share)| [ns.max(1) as f64, share]);
    let points = [[start as f64, 0.0]].into_iter().chain(points).collect();
    curve(stream, points, stream.quantile_of(0.5))
}

/// Shares of the operations that took longer than a time.
fn tail(stream: &Stream<'_>, floor: f64) -> Curve {
    let points =
        stream.latency.cumulative().map(|(ns, share)| [ns.max(1) as f64, (1.0 - share).max(floor)]);
    let start = [stream.latency.min_ns.max(1) as f64, 1.0];
    curve(stream, [start].into_iter().chain(points).collect(), String::new())
}

fn table(streams: &[&Stream<'_>]) -> Grid {
    let mut grid = Grid::new(&["share"]);
    grid.columns.extend(streams.iter().map(|stream| stream.name.clone()));
    grid.row([text("least")].into_iter().chain(streams.iter().map(|stream| {
        number(Unit::Nanoseconds, stream.latency.min_ns as f64, &stream.end_of("min", "min_ns"))
    })));
    for quantile in QUANTILES {
        let percent = format!("{}", (quantile * 1e8).round() / 1e6);
        grid.row([text(&format!("p{percent}"))].into_iter().chain(streams.iter().map(|stream| {
            number(
                Unit::Nanoseconds,
                stream.latency.at(quantile) as f64,
                &stream.quantile_of(quantile),
            )
        })));
    }
    grid.row([text("largest")].into_iter().chain(streams.iter().map(|stream| {
        number(Unit::Nanoseconds, stream.latency.max_ns as f64, &stream.end_of("max", "max_ns"))
    })));
    grid
}
