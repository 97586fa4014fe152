//! Latency by stage: for each job and kind a bar for the mean and for the quantiles.

use maud::{Markup, html};

use super::bars::{Bar, Bars, Group, Part};
use super::number::Unit;
use super::palette::{OTHER, Palette, UNEXPLAINED};
use super::parts::{Grid, figure, number, text};
use super::streams::Stream;
use crate::model::{Breakdown, Shares};

/// If the longest bar is this many times the shortest, the shares are drawn as well.
const UNEQUAL: f64 = 5.0;
/// Less than this share is arithmetic.
const NOTHING: f64 = 1e-6;

/// A breakdown with its name and its place in the document.
struct Found<'a> {
    name: String,
    breakdown: &'a Breakdown,
    at: String,
}

fn all<'a>(streams: &'a [Stream<'a>]) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for stream in streams {
        for part in &stream.parts {
            let Some(breakdown) = &part.operations.breakdown else { continue };
            let name = match stream.parts.len() {
                1 => stream.name.clone(),
                _ => format!("{}, {}", stream.name, part.job.name),
            };
            found.push(Found { name, breakdown, at: format!("{}/breakdown", part.at) });
        }
    }
    found
}

pub(super) fn breakdowns(streams: &[Stream<'_>], palette: &Palette) -> Markup {
    let found = all(streams);
    if found.is_empty() {
        return html! {};
    }
    let groups: Vec<Group> = found.iter().map(|found| group(found, palette)).collect();
    let lengths = groups.iter().flat_map(|group| &group.bars);
    let lengths = lengths.map(|bar| bar.parts.iter().map(|part| part.value).sum::<f64>());
    let (least, most) = lengths
        .filter(|length| *length > 0.0)
        .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let shares = (most > UNEQUAL * least).then(|| Bars {
        groups: found.iter().map(|found| as_shares(group(found, palette))).collect(),
        axis: "share of the latency".into(),
        unit: Unit::Share,
        to: Some(1.0),
    });
    let times = Bars { groups, axis: "latency".into(), unit: Unit::Nanoseconds, to: None };
    let stages =
        || found.iter().flat_map(|found| found.breakdown.stages.iter().map(String::as_str));
    let legend = palette.legend(stages(), &rests(&found, palette));
    let about = "Time of the traced operations by stage: the mean, and the operations around each quantile.";
    html! {
        @for found in &found { (sampled(found)) }
        (figure(
            "Latency by stage",
            about,
            &html! { (legend) (times.draw("Latency by stage, stacked bars")) },
            None,
        ))
        @if let Some(shares) = &shares {
            (figure(
                "The same as shares",
                "Bars of equal length, as the latencies differ.",
                &html! { (legend) (shares.draw("Latency by stage, shares of each bar")) },
                None,
            ))
        }
        details {
            summary { "The numbers" }
            @for found in &found { (table(found)) }
        }
    }
}

/// A sentence if not every operation was traced.
fn sampled(found: &Found<'_>) -> Markup {
    html! {
        @if found.breakdown.sampled_one_in > 1 {
            p.note {
                (found.name) ": 1 command in " (found.breakdown.sampled_one_in) " was traced, "
                (Unit::Count.text(found.breakdown.traced as f64)) " operations."
            }
        }
    }
}

/// Rests that occur in a bar.
fn rests(found: &[Found<'_>], palette: &Palette) -> Vec<&'static str> {
    let occurs = |of: &dyn Fn(&Found<'_>, &Shares) -> bool| {
        found
            .iter()
            .any(|found| bars_of(found.breakdown).iter().any(|(_, _, shares, _)| of(found, shares)))
    };
    let other = occurs(&|found, shares| {
        let stages = found.breakdown.stages.iter().zip(&shares.stages_ns);
        stages.filter(|(name, _)| !palette.has(name)).any(|(_, ns)| *ns > 0.0)
    });
    let unexplained = occurs(&|_, shares| shares.unexplained_ns > NOTHING * shares.total_ns);
    [(other, OTHER), (unexplained, UNEXPLAINED)]
        .into_iter()
        .filter(|rest| rest.0)
        .map(|rest| rest.1)
        .collect()
}

/// Name, place, shares and bucket of each bar.
fn bars_of(breakdown: &Breakdown) -> Vec<(String, String, &Shares, Option<u64>)> {
    let mut bars = vec![("mean".to_owned(), "/mean".to_owned(), &breakdown.mean, None)];
    for (number, around) in breakdown.at.iter().enumerate() {
        let percent = (around.quantile * 1e8).round() / 1e6;
        bars.push((
            format!("p{percent}"),
            format!("/at/{number}/shares"),
            &around.shares,
            Some(around.count),
        ));
    }
    bars
}

fn group(found: &Found<'_>, palette: &Palette) -> Group {
    let bars = bars_of(found.breakdown).into_iter().map(|(label, at, shares, _)| {
        let at = format!("{}{at}", found.at);
        let (mut parts, mut rest) = (Vec::new(), 0.0);
        for (place, (name, ns)) in found.breakdown.stages.iter().zip(&shares.stages_ns).enumerate()
        {
            if !palette.has(name) {
                rest += ns;
                continue;
            }
            let of = format!("sum {at}/stages_ns/{place}");
            parts.push(Part { name: name.clone(), value: *ns, class: palette.class(name), of });
        }
        parts.push(Part {
            name: "other stages".into(),
            value: rest,
            class: OTHER.into(),
            of: String::new(),
        });
        if shares.unexplained_ns > NOTHING * shares.total_ns {
            let of = format!("sum {at}/unexplained_ns");
            let (name, class) = (UNEXPLAINED.to_owned(), UNEXPLAINED.to_owned());
            parts.push(Part { name, value: shares.unexplained_ns, class, of });
        }
        let of = format!("sum {at}/total_ns");
        Bar { label, total: Unit::Nanoseconds.text(shares.total_ns), of, parts }
    });
    Group { heading: found.name.clone(), bars: bars.collect() }
}

fn as_shares(mut group: Group) -> Group {
    for bar in &mut group.bars {
        let all: f64 = bar.parts.iter().map(|part| part.value).sum();
        for part in &mut bar.parts {
            part.value /= all.max(f64::MIN_POSITIVE);
            part.of.clear();
        }
    }
    group
}

fn table(found: &Found<'_>) -> Grid {
    let mut grid = Grid::new(&["stage"]).captioned(&found.name);
    let bars = bars_of(found.breakdown);
    for (label, _, _, count) in &bars {
        grid.columns.push(match count {
            Some(count) => format!("{label}, of {}", Unit::Count.text(*count as f64)),
            None => format!("{label}, of {}", Unit::Count.text(found.breakdown.traced as f64)),
        });
    }
    let cell = |ns: f64, at: &str, field: String| {
        number(Unit::Nanoseconds, ns, &format!("sum {}{at}/{field}", found.at))
    };
    for (place, stage) in found.breakdown.stages.iter().enumerate() {
        if bars.iter().all(|(_, _, shares, _)| shares.stages_ns[place] == 0.0) {
            continue;
        }
        let cells = bars.iter().map(|(_, at, shares, _)| {
            cell(shares.stages_ns[place], at, format!("stages_ns/{place}"))
        });
        grid.row([text(stage)].into_iter().chain(cells));
    }
    let unexplained = bars
        .iter()
        .map(|(_, at, shares, _)| cell(shares.unexplained_ns, at, "unexplained_ns".into()));
    grid.row([text(UNEXPLAINED)].into_iter().chain(unexplained));
    let totals = bars.iter().map(|(_, at, shares, _)| cell(shares.total_ns, at, "total_ns".into()));
    grid.row([text("total")].into_iter().chain(totals));
    grid
}
