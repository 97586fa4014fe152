//! Tables for spreadsheets and data frames: RFC 4180, with a line of names first.

use crate::model::{Document, Run};
use crate::summary::world_word;
use crate::text::percentile;

/// One row for each run, job and kind of operation.
pub fn operations(document: &Document) -> String {
    let mut text = line(
        &[
            "file",
            "plan",
            "interface",
            "world",
            "seed",
            "job",
            "group",
            "kind",
            "operations",
            "bytes",
            "errors",
            "measured_ps",
            "iops",
            "bytes_per_second",
            "min_ns",
            "mean_ns",
            "p50_ns",
            "p90_ns",
            "p99_ns",
            "p99.9_ns",
            "max_ns",
        ]
        .map(str::to_owned),
    );
    for run in &document.runs {
        for job in &run.jobs {
            for (kind, of) in &job.operations {
                let latency = &of.latency;
                let at = |quantile| percentile(latency, quantile).to_string();
                text += &line(&[
                    run.work.file.clone(),
                    run.plan.name.clone(),
                    run.interface.clone(),
                    world_word(run).to_owned(),
                    run.plan.seed.to_string(),
                    job.name.clone(),
                    job.group.to_string(),
                    kind.name().to_owned(),
                    of.count.to_string(),
                    of.bytes.to_string(),
                    of.errors.to_string(),
                    job.measured_ps.to_string(),
                    of.iops.to_string(),
                    of.bytes_per_second.to_string(),
                    latency.min_ns.to_string(),
                    latency.mean_ns.to_string(),
                    at(0.5),
                    at(0.9),
                    at(0.99),
                    at(0.999),
                    latency.max_ns.to_string(),
                ]);
            }
        }
    }
    text
}

/// One row for each run and interval of its time series.
pub fn series(document: &Document) -> String {
    let mut text = line(
        &[
            "file",
            "plan",
            "interface",
            "world",
            "at_ps",
            "interval_ps",
            "reads",
            "read_bytes",
            "read_latency_sum_ps",
            "read_latency_max_ps",
            "writes",
            "write_bytes",
            "write_latency_sum_ps",
            "write_latency_max_ps",
            "host_units",
            "programmed_units",
            "host_memory_bytes",
            "host_cores_per_mille",
        ]
        .map(str::to_owned),
    );
    document.runs.iter().for_each(|run| text += &series_of(run));
    text
}

fn series_of(run: &Run) -> String {
    let Some(series) = &run.series else { return String::new() };
    let some = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    let row = |point: &crate::model::Point| {
        line(&[
            run.work.file.clone(),
            run.plan.name.clone(),
            run.interface.clone(),
            world_word(run).to_owned(),
            point.at_ps.to_string(),
            series.interval_ps.to_string(),
            point.read.count.to_string(),
            point.read.bytes.to_string(),
            point.read.latency_sum_ps.to_string(),
            point.read.latency_max_ps.to_string(),
            point.write.count.to_string(),
            point.write.bytes.to_string(),
            point.write.latency_sum_ps.to_string(),
            point.write.latency_max_ps.to_string(),
            some(point.host_units),
            some(point.programmed_units),
            point.host_memory_bytes.to_string(),
            some(point.host_cores_per_mille),
        ])
    };
    series.points.iter().map(row).collect()
}

fn line<const N: usize>(cells: &[String; N]) -> String {
    row(cells)
}

/// Cells as a line, with its line break.
pub(crate) fn row(cells: &[String]) -> String {
    let cells: Vec<_> = cells.iter().map(|cell| escaped(cell)).collect();
    cells.join(",") + "\r\n"
}

/// Quoted if it has a comma, a quote or a line break.
fn escaped(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        assert_eq!(line(&["a", "b,c", "d\"e"].map(str::to_owned)), "a,\"b,c\",\"d\"\"e\"\r\n");
    }
}
