//! A sweep as a table: a row for each point and kind of operations.

use crate::csv::row;
use crate::model::{SweepHeader, SweepPoint};

/// Columns after those of the axes.
const COLUMNS: [&str; 17] = [
    "plan",
    "interface",
    "file",
    "seed",
    "failed",
    "errors",
    "kind",
    "operations",
    "bytes",
    "iops",
    "bytes_per_second",
    "mean_ns",
    "p50_ns",
    "p99_ns",
    "p99.9_ns",
    "max_ns",
    "digest",
];

/// The points as a table, RFC 4180, with a line of names first. An axis has a column, and another with its
/// numbers if these have a unit. A point without operations has one row.
pub fn csv(header: &SweepHeader, points: &[SweepPoint]) -> String {
    let mut names = vec!["point".to_owned()];
    for axis in &header.axes {
        names.push(axis.name.clone());
        if !axis.unit.is_empty() {
            names.push(format!("{} ({})", axis.name, axis.unit));
        }
    }
    names.extend(COLUMNS.map(str::to_owned));
    let mut text = row(&names);
    for point in points {
        let first = first_cells(header, point);
        let result = point.result.as_ref().filter(|result| !result.operations.is_empty());
        let Some(result) = result else {
            let mut cells = first;
            cells.resize(names.len(), String::new());
            text += &row(&cells);
            continue;
        };
        for (kind, of) in &result.operations {
            let mut cells = first.clone();
            cells.extend([result.errors.to_string(), kind.name().to_owned()]);
            cells.extend([of.count, of.bytes].map(|count| count.to_string()));
            cells.extend([of.iops, of.bytes_per_second, of.mean_ns].map(|rate| rate.to_string()));
            cells.extend([of.p50_ns, of.p99_ns, of.p99_9_ns, of.max_ns].map(|ns| ns.to_string()));
            cells.push(result.digest.clone());
            text += &row(&cells);
        }
    }
    text
}

/// Up to the column `failed`.
fn first_cells(header: &SweepHeader, point: &SweepPoint) -> Vec<String> {
    let mut cells = vec![point.point.to_string()];
    for axis in &header.axes {
        cells.push(point.at.get(&axis.name).cloned().unwrap_or_default());
        if !axis.unit.is_empty() {
            cells.push(point.number.get(&axis.name).map(f64::to_string).unwrap_or_default());
        }
    }
    cells.extend([&point.plan, &point.interface, &point.file].map(String::clone));
    cells.push(point.seed.to_string());
    let failed = point.failed.as_ref().or(point.left_out.as_ref());
    cells.push(failed.cloned().unwrap_or_default());
    cells
}
