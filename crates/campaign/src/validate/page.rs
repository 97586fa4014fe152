//! Reports as pictures: measured and model, over operations in flight, rates of writes, and fills.

use report::page::drive::{Drive, Pair, Picture, Scale, Table};

use super::compare::Compared;
use super::fills::Filled;
use super::load::open;
use super::table::Figure;
use super::{Report, text};

/// A mean hides the tail that a percentile shows, and a rate follows from the load of an open loop.
const DRAWN: [Figure; 2] = [Figure::P50, Figure::P99];

/// The drive of a report.
pub fn of(report: &Report) -> Drive {
    let mut pictures = Vec::new();
    for (key, rows) in groups(&report.rows, |row| {
        (row.workload.clone(), row.block_bytes, row.host, row.depth.is_some())
    }) {
        let (workload, bytes, host, is_closed) = key;
        if !is_closed {
            continue;
        }
        let in_flight =
            |row: &Compared| Some(f64::from(row.depth?) * f64::from(row.jobs.unwrap_or(1)));
        let title = format!("{workload} of {bytes} bytes, {host}");
        let across = Scale::InFlight("operations in flight");
        pictures.extend(latencies(title, across, &rows, in_flight));
    }
    for (kind, rows) in groups(&report.rows, |row| open(&row.workload).map(|(_, kind)| kind)) {
        let Some(kind) = kind else { continue };
        let rate = |row: &Compared| open(&row.workload).map(|(rate, _)| rate as f64);
        let title = format!("{} beside random writes of 4 KiB", kind.name());
        pictures.extend(latencies(title, Scale::Rate("writes"), &rows, rate));
    }
    pictures.extend(amplification(&report.fills));
    let tables = [ratios(&report.rows), amplifications(&report.fills)];
    let left_out = report.left_out.iter().map(|of| format!("{} rows: {}", of.rows, of.why));
    Drive {
        name: report.table.clone(),
        about: format!(
            "{}; plan {}. Ratios are model over measured.",
            text::short_name(&report.drive),
            report.plan
        ),
        pictures,
        tables: tables.into_iter().filter(|table| !table.rows.is_empty()).collect(),
        left_out: left_out.collect(),
    }
}

fn ratios(rows: &[Compared]) -> Table {
    let mut columns = vec!["workload", "bytes", "depth", "jobs", "host"];
    columns.extend(Figure::ALL.map(Figure::name));
    let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    let cells = |row: &Compared| {
        let mut cells = vec![
            row.workload.clone(),
            row.block_bytes.to_string(),
            number(row.depth),
            number(row.jobs),
            row.host.to_owned(),
        ];
        cells.extend(Figure::ALL.map(|figure| text::ratio(row.ratio.of(figure))));
        cells
    };
    Table { columns, rows: rows.iter().map(cells).collect() }
}

fn amplifications(rows: &[Filled]) -> Table {
    let columns = vec!["workload", "span", "after", "fills", "measured", "model", "ratio"];
    let cells = |row: &Filled| {
        vec![
            row.workload.clone(),
            format!("{:.0} %", 100.0 * row.span),
            row.before.to_owned(),
            format!("{:.2} to {:.2}", row.from, row.to),
            format!("{:.2}", row.measured),
            format!("{:.2}", row.model),
            format!("{:.2}", row.ratio),
        ]
    };
    Table { columns, rows: rows.iter().map(cells).collect() }
}

/// Rows by a key, in the order of its first row.
fn groups<'r, R, K: PartialEq>(rows: &'r [R], key: impl Fn(&R) -> K) -> Vec<(K, Vec<&'r R>)> {
    let mut groups: Vec<(K, Vec<&'r R>)> = Vec::new();
    for row in rows {
        let of = key(row);
        match groups.iter_mut().find(|(known, _)| *known == of) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((of, vec![row])),
        }
    }
    groups
}

/// It has two places at least.
fn is_curve(pair: &Pair) -> bool {
    let first = pair.measured.first();
    pair.measured.iter().any(|point| first.is_some_and(|first| first[0] != point[0]))
}

/// Percentiles over a place of each row; none if fewer than two rows have them.
fn latencies(
    title: String,
    across: Scale,
    rows: &[&Compared],
    at: impl Fn(&Compared) -> Option<f64>,
) -> Option<Picture> {
    let mut pairs = Vec::new();
    for figure in DRAWN {
        let mut pair = Pair { name: figure.name().to_owned(), ..Pair::default() };
        for row in rows {
            let both = row.measured.of(figure).zip(row.model.of(figure));
            if let (Some(x), Some((measured, model))) = (at(row), both) {
                // Microseconds, and nanoseconds.
                pair.measured.push([x, 1e3 * measured]);
                pair.model.push([x, 1e3 * model]);
            }
        }
        for points in [&mut pair.measured, &mut pair.model] {
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        }
        if is_curve(&pair) {
            pairs.push(pair);
        }
    }
    (!pairs.is_empty()).then_some(Picture { title, across, up: Scale::Time("latency"), pairs })
}

/// One picture of each load, with a pair for each span or preconditioning.
fn amplification(fills: &[Filled]) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for (workload, rows) in groups(fills, |row| row.workload.clone()) {
        let mut pairs: Vec<Pair> = Vec::new();
        for row in rows {
            let name = format!("{:.0} % of the drive, after {}", 100.0 * row.span, row.before);
            let middle = f64::midpoint(row.from, row.to);
            // Another run of the same kind is a curve of its own.
            let goes_on = |pair: &&mut Pair| {
                pair.name == name && pair.measured.last().is_some_and(|last| last[0] < middle)
            };
            let at = match pairs.iter_mut().rfind(goes_on) {
                Some(pair) => pair,
                None => {
                    pairs.push(Pair { name, ..Pair::default() });
                    pairs.last_mut().expect("it was pushed")
                }
            };
            at.measured.push([middle, row.measured]);
            at.model.push([middle, row.model]);
        }
        pairs.retain(is_curve);
        if !pairs.is_empty() {
            let title = format!("Write amplification of {workload}");
            let across = Scale::Ratio("fills of the span");
            pictures.push(Picture { title, across, up: Scale::Ratio("amplification"), pairs });
        }
    }
    pictures
}
