//! Use of the link by kind of packet, and of the host's cores.

use maud::{Markup, html};

use super::bars::{Bar, Bars, Group, Part};
use super::number::Unit;
use super::palette::entry;
use super::parts::{Grid, figure, number, text};
use crate::model::{Direction, Document, Link, Packets};

/// Directions as labels and as names of fields.
const WAYS: [(&str, &str); 2] = [("to the host", "up"), ("to the device", "down")];

fn ways(link: &Link) -> impl Iterator<Item = (&'static str, &'static str, &Direction)> {
    WAYS.into_iter().zip([&link.up, &link.down]).map(|((label, field), way)| (label, field, way))
}

pub(super) fn link(document: &Document, names: &[String]) -> Markup {
    let links: Vec<(usize, &Link)> = document
        .runs
        .iter()
        .enumerate()
        .filter_map(|(run, of)| Some((run, of.link.as_ref()?)))
        .collect();
    if links.is_empty() {
        return html! {};
    }
    let mut kinds: Vec<&str> = Vec::new();
    for (_, link) in &links {
        for packets in ways(link).flat_map(|(_, _, way)| &way.packets) {
            if !kinds.contains(&packets.kind.as_str()) {
                kinds.push(&packets.kind);
            }
        }
    }
    let groups = links.iter().map(|(run, link)| Group {
        heading: names[*run].clone(),
        bars: ways(link).map(|(label, _, way)| busy_bar(label, *run, link, way)).collect(),
    });
    let busy = Bars {
        groups: groups.collect(),
        axis: "share of the time".into(),
        unit: Unit::Share,
        to: Some(1.0),
    };
    html! {
        (figure(
            "Time that the link was busy",
            "Of the whole run, bring-up included.",
            &busy.draw("Share of the time that each direction of the link was busy"),
            None,
        ))
        @if !kinds.is_empty() { (packets(&links, names, &kinds)) }
    }
}

fn busy_bar(label: &str, run: usize, link: &Link, way: &Direction) -> Bar {
    let share = way.busy_ps as f64 / link.of_ps.max(1) as f64;
    let field = if std::ptr::eq(way, &raw const link.up) { "up" } else { "down" };
    let of = format!("ratio /runs/{run}/link/{field}/busy_ps /runs/{run}/link/of_ps");
    let part = Part { name: "busy".into(), value: share, class: "s1".into(), of: of.clone() };
    let total = format!(
        "{} of {}",
        Unit::Share.text(share),
        Unit::Nanoseconds.text(link.of_ps as f64 / 1e3)
    );
    Bar { label: label.to_owned(), total, of, parts: vec![part] }
}

fn packets(links: &[(usize, &Link)], names: &[String], kinds: &[&str]) -> Markup {
    let class = |kind: &str| {
        let place = kinds.iter().position(|other| *other == kind).unwrap_or(0);
        format!("s{}", place % 16 + 1)
    };
    let bar = |run: usize, (label, field, way): (&str, &str, &Direction)| {
        let bytes_of = |place| format!("/runs/{run}/link/{field}/packets/{place}/bytes");
        let part = |(place, packets): (usize, &Packets)| Part {
            name: packets.kind.clone(),
            value: packets.bytes as f64,
            class: class(&packets.kind),
            of: format!("sum {}", bytes_of(place)),
        };
        let origins: Vec<String> = (0..way.packets.len()).map(bytes_of).collect();
        let bytes = way.packets.iter().map(|packets| packets.bytes).sum::<u64>();
        let payload = way.packets.iter().map(|packets| packets.payload_bytes).sum::<u64>();
        let share = Unit::Share.text(payload as f64 / bytes.max(1) as f64);
        Bar {
            label: label.to_owned(),
            total: format!("{} ({share})", Unit::Bytes.text(bytes as f64)),
            of: format!("sum {}", origins.join(" ")),
            parts: way.packets.iter().enumerate().map(part).collect(),
        }
    };
    let groups = links.iter().map(|(run, link)| Group {
        heading: names[*run].clone(),
        bars: ways(link).map(|way| bar(*run, way)).collect(),
    });
    let bars =
        Bars { groups: groups.collect(), axis: "on the wire".into(), unit: Unit::Bytes, to: None };
    let mut grid = Grid::new(&["", "direction", "packet", "count", "bytes", "payload"]);
    for (run, link) in links {
        for (label, field, way) in ways(link) {
            for (place, packets) in way.packets.iter().enumerate() {
                let of = |of: &str| format!("sum /runs/{run}/link/{field}/packets/{place}/{of}");
                grid.row([
                    text(&names[*run]),
                    text(label),
                    text(&packets.kind),
                    number(Unit::Count, packets.count as f64, &of("count")),
                    number(Unit::Count, packets.bytes as f64, &of("bytes")),
                    number(Unit::Count, packets.payload_bytes as f64, &of("payload_bytes")),
                ]);
            }
        }
    }
    let drawn = html! {
        ul.legend { @for kind in kinds { (entry(&class(kind), kind)) } }
        (bars.draw("Bytes on the link by kind of packet"))
    };
    let about = "Bytes on the wire by kind of packet, headers and framing included; in brackets, the \
                 share of payload.";
    figure("Packets", about, &drawn, Some(&grid))
}

pub(super) fn cores(document: &Document, names: &[String]) -> Markup {
    let mut groups = Vec::new();
    for (run, name) in names.iter().enumerate() {
        let Some(cores) = &document.runs[run].cores else { continue };
        let all = cores.of_ps.max(1) as f64;
        // A plan may have more cores than the work has jobs.
        let used = cores.each.iter().enumerate().filter(|(_, of)| of.busy_ps + of.polling_ps > 0);
        let bars = used.map(|(core, of)| {
            let part = |name: &str, field: &str, ps: u64, class: &str| Part {
                name: name.to_owned(),
                value: ps as f64 / all,
                class: class.to_owned(),
                of: format!("ratio /runs/{run}/cores/each/{core}/{field} /runs/{run}/cores/of_ps"),
            };
            let (busy, polling) = (of.busy_ps as f64 / all, of.polling_ps as f64 / all);
            Bar {
                label: format!("core {core}"),
                total: format!("{} + {}", Unit::Share.text(busy), Unit::Share.text(polling)),
                of: format!("ratio /runs/{run}/cores/each/{core}/busy_ps /runs/{run}/cores/of_ps"),
                parts: vec![
                    part("work", "busy_ps", of.busy_ps, "s1"),
                    part("polling", "polling_ps", of.polling_ps, "s11"),
                ],
            }
        });
        let bars: Vec<Bar> = bars.collect();
        let heading = match cores.each.len() - bars.len() {
            0 => name.clone(),
            idle => format!("{name} ({idle} of {} cores idle)", cores.each.len()),
        };
        groups.push(Group { heading, bars });
    }
    if groups.is_empty() {
        return html! {};
    }
    let bars = Bars { groups, axis: "share of the time".into(), unit: Unit::Share, to: Some(1.0) };
    let drawn = html! {
        ul.legend { (entry("s1", "work")) (entry("s11", "polls that found no completion")) }
        (bars.draw("Use of the host's cores"))
    };
    figure("Host cores", "Work and polling, of the whole run, bring-up included.", &drawn, None)
}
