//! Flash chips and flash software.

use maud::{Markup, html};

use super::bars::{Bar, Bars, Group, Part};
use super::number::Unit;
use super::palette::entry;
use super::parts::{Grid, figure, number, text};
use crate::model::{Document, Flash, FlashSoftware};

/// Units that were programmed, by their purpose: name, class, field.
type Purpose = (&'static str, &'static str, &'static str, fn(&FlashSoftware) -> u64);

const PURPOSES: [Purpose; 4] = [
    ("host data", "s1", "programmed_units", |of| of.programmed_units),
    ("copied by the collector", "s8", "copied_units", |of| of.copied_units),
    ("map and own data", "s3", "meta_units", |of| of.meta_units),
    ("padding", "s5", "padding_units", |of| of.padding_units),
];

pub(super) fn flash(document: &Document, names: &[String]) -> Markup {
    let found: Vec<(usize, &Flash)> = document
        .runs
        .iter()
        .enumerate()
        .filter_map(|(run, of)| Some((run, of.flash.as_ref()?)))
        .collect();
    if found.is_empty() {
        return html! {};
    }
    let software: Vec<(usize, &FlashSoftware)> =
        found.iter().filter_map(|(run, flash)| Some((*run, flash.software.as_ref()?))).collect();
    html! {
        @if software.iter().any(|(_, of)| PURPOSES.iter().any(|(_, _, _, units)| units(of) > 0)) {
            (programmed(&software, names))
        }
        (table(&found, names))
    }
}

fn programmed(software: &[(usize, &FlashSoftware)], names: &[String]) -> Markup {
    let bar = |run: usize, of: &FlashSoftware| {
        let part = |(name, class, field, units): &Purpose| Part {
            name: (*name).to_owned(),
            value: units(of) as f64,
            class: (*class).to_owned(),
            of: format!("sum /runs/{run}/flash/software/{field}"),
        };
        let total = of.write_amplification_per_mille;
        let total = total.map(|of| format!("x {:.2}", of as f64 / 1e3)).unwrap_or_default();
        let parts = PURPOSES.iter().map(part).collect();
        Bar { label: "units".into(), total, of: String::new(), parts }
    };
    let groups = software
        .iter()
        .map(|(run, of)| Group { heading: names[*run].clone(), bars: vec![bar(*run, of)] });
    let bars = Bars {
        groups: groups.collect(),
        axis: "mapping units programmed".into(),
        unit: Unit::Count,
        to: None,
    };
    let drawn = html! {
        ul.legend { @for (name, class, _, _) in &PURPOSES { (entry(class, name)) } }
        (bars.draw("Mapping units that were programmed, by purpose"))
    };
    let about = "By purpose; at the end of a bar the write amplification.";
    figure("Programmed units", about, &drawn, None)
}

/// A row of the table: name, field, unit, value in that unit.
type Row = (&'static str, &'static str, Unit, fn(&FlashSoftware) -> u64);

const ROWS: [Row; 18] = [
    ("units written by the host", "host_units", Unit::Count, |of| of.host_units),
    ("of them, placed by a hint", "hinted_units", Unit::Count, |of| of.hinted_units),
    ("units programmed for the host", "programmed_units", Unit::Count, |of| of.programmed_units),
    ("units copied by the collector", "copied_units", Unit::Count, |of| of.copied_units),
    ("units of the software's own data", "meta_units", Unit::Count, |of| of.meta_units),
    ("padding units", "padding_units", Unit::Count, |of| of.padding_units),
    ("segments of the map written", "map_units", Unit::Count, |of| of.map_units),
    ("segments of the map read", "map_reads", Unit::Count, |of| of.map_reads),
    ("units that hold data", "mapped_units", Unit::Count, |of| of.mapped_units),
    ("units of good blocks", "good_units", Unit::Count, |of| of.good_units),
    ("units left before collection", "left_units", Unit::Count, |of| of.left_units),
    ("superblocks erased", "erased", Unit::Count, |of| of.erased),
    ("superblocks collected", "collected", Unit::Count, |of| of.collected),
    ("blocks retired", "retired", Unit::Count, |of| of.retired),
    ("fewest erases of a superblock", "erases_least", Unit::Count, |of| of.erases_least),
    ("most erases of a superblock", "erases_most", Unit::Count, |of| of.erases_most),
    ("collector's share, per mille", "collector_share_per_mille", Unit::Count, |of| {
        of.collector_share_per_mille.unwrap_or_default()
    }),
    ("capacity for the host", "capacity_bytes", Unit::Bytes, |of| of.capacity_bytes),
];

type ChipRow = (&'static str, &'static str, Unit, fn(&Flash) -> u64);

const CHIP_ROWS: [ChipRow; 5] = [
    ("pages sensed", "senses", Unit::Count, |of| of.senses),
    ("pages sensed again", "retries", Unit::Count, |of| of.retries),
    ("pages programmed", "programs", Unit::Count, |of| of.programs),
    ("failed operations", "failures", Unit::Count, |of| of.failures),
    ("memory of the model", "memory_bytes", Unit::Bytes, |of| of.memory_bytes),
];

fn table(found: &[(usize, &Flash)], names: &[String]) -> Grid {
    let mut grid = Grid::new(&[""]).captioned("Flash chips and software");
    grid.columns.extend(found.iter().map(|(run, _)| names[*run].clone()));
    grid.row(
        [text("at the beginning")].into_iter().chain(found.iter().map(|(_, of)| text(&of.start))),
    );
    for (name, field, unit, value) in CHIP_ROWS {
        let cells = found.iter().map(|(run, of)| {
            number(unit, value(of) as f64, &format!("sum /runs/{run}/flash/{field}"))
        });
        grid.row([text(name)].into_iter().chain(cells));
    }
    if found.iter().all(|(_, of)| of.software.is_none()) {
        return grid;
    }
    for (name, field, unit, value) in ROWS {
        let cells = found.iter().map(|(run, of)| match &of.software {
            Some(software) => number(
                unit,
                value(software) as f64,
                &format!("sum /runs/{run}/flash/software/{field}"),
            ),
            None => text(""),
        });
        grid.row([text(name)].into_iter().chain(cells));
    }
    grid
}
