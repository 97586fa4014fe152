//! The summary: rate and latency of every stream side by side, and the largest waits in words.

use maud::{Markup, html};

use super::number::Unit;
use super::parts::{Grid, details, number, text};
use super::streams::Stream;
use crate::model::Operations;

/// A number of a stream, with its origin.
type Measure = (f64, String);

/// Stages that the sentence on waits names.
const WAITS: usize = 3;

pub(super) fn summary(streams: &[Stream<'_>]) -> Markup {
    let tile = |title: &str, about: &str, unit: Unit, of: &dyn Fn(&Stream<'_>) -> Measure| {
        let measures: Vec<Measure> = streams.iter().map(of).collect();
        let most = measures.iter().map(|measure| measure.0).fold(f64::MIN_POSITIVE, f64::max);
        html! {
            div.tile {
                h3 { (title) " " small { (about) } }
                @for (stream, (value, from)) in streams.iter().zip(&measures) {
                    div.measure {
                        span.name { (stream.name) }
                        span.value { (number(unit, *value, from)) }
                        span.meter aria-hidden="true" {
                            span class={ "c" (stream.colour % 8 + 1) }
                                style={ "width:" (format!("{:.1}", 100.0 * value / most)) "%" } {}
                        }
                    }
                }
            }
        }
    };
    let quantile = |quantile: f64| {
        move |stream: &Stream<'_>| {
            (stream.latency.at(quantile) as f64, stream.quantile_of(quantile))
        }
    };
    let rate = |stream: &Stream<'_>| (stream.sum(|of| of.iops), stream.sum_of("iops"));
    html! {
        div.tiles {
            (tile("Rate", "more is better", Unit::PerSecond, &rate))
            (tile("Latency, p50", "less is better", Unit::Nanoseconds, &quantile(0.5)))
            (tile("Latency, p99", "less is better", Unit::Nanoseconds, &quantile(0.99)))
        }
        (waits(streams))
        (details("All rates and latencies", &table(streams)))
    }
}

fn table(streams: &[Stream<'_>]) -> Grid {
    let mut grid = Grid::new(&[
        "",
        "operations",
        "errors",
        "rate",
        "throughput",
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ]);
    for stream in streams {
        let sum = |unit, field: &str, of: fn(&Operations) -> f64| {
            number(unit, stream.sum(of), &stream.sum_of(field))
        };
        let at = |quantile| {
            number(
                Unit::Nanoseconds,
                stream.latency.at(quantile) as f64,
                &stream.quantile_of(quantile),
            )
        };
        grid.row([
            text(&stream.name),
            sum(Unit::Count, "count", |of| of.count as f64),
            sum(Unit::Count, "errors", |of| of.errors as f64),
            sum(Unit::PerSecond, "iops", |of| of.iops),
            sum(Unit::BytesPerSecond, "bytes_per_second", |of| of.bytes_per_second),
            number(Unit::Nanoseconds, stream.latency.mean_ns, &stream.mean_of()),
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            number(
                Unit::Nanoseconds,
                stream.latency.max_ns as f64,
                &stream.end_of("max", "max_ns"),
            ),
        ]);
    }
    grid
}

/// For each stream the stages with the largest shares of the mean.
fn waits(streams: &[Stream<'_>]) -> Markup {
    let sentences = streams.iter().filter_map(|stream| {
        let breakdown = stream.parts.iter().max_by_key(|part| part.operations.count)?;
        let breakdown = breakdown.operations.breakdown.as_ref()?;
        let total = breakdown.mean.total_ns;
        let mut stages: Vec<(&String, f64)> =
            breakdown.stages.iter().zip(breakdown.mean.stages_ns.iter().copied()).collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        stages.truncate(WAITS);
        stages.retain(|(_, ns)| *ns > 0.0);
        let shares = stages.iter().map(|(name, ns)| {
            let time = Unit::Nanoseconds.text(*ns);
            let share = Unit::Share.text(ns / total.max(1e-3));
            // A number stays on one line with its unit.
            format!("{name} {} ({})", time.replace(' ', "\u{a0}"), share.replace(' ', "\u{a0}"))
        });
        let shares = shares.collect::<Vec<_>>().join(", ");
        (!shares.is_empty()).then_some((&stream.name, total, shares))
    });
    html! {
        ul.waits {
            @for (name, total, shares) in sentences {
                li { strong { (name) } ": of " (Unit::Nanoseconds.text(total)) " in the mean, " (shares) }
            }
        }
    }
}
