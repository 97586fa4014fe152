//! The text report: microseconds with three decimals, columns aligned.

use std::fmt::{self, Write};

use super::{JobReport, Report};
use crate::pattern::OpKind;
use crate::stats::{Around, Breakdown, Latencies, Recorder, Shares};
use runtime::Span;

/// Percentiles of the text report, in thousandths of a percent.
const PERCENTILES: [(&str, u32); 7] = [
    ("p50", 50_000),
    ("p90", 90_000),
    ("p95", 95_000),
    ("p99", 99_000),
    ("p99.5", 99_500),
    ("p99.9", 99_900),
    ("p99.99", 99_990),
];

/// The columns of a breakdown in addition to the mean, in thousandths of a percent.
const AROUND: [(&str, u32); 3] = [("p50", 50_000), ("p99", 99_000), ("p99.9", 99_900)];

/// Prefix of the stages in which an operation waits for garbage collection.
const COLLECTOR: &str = "collector at ";

pub fn write(page: &mut impl Write, report: &Report) -> fmt::Result {
    for note in &report.notes {
        writeln!(page, "note: {note}")?;
    }
    for (at, job) in report.jobs.iter().enumerate() {
        if at > 0 || !report.notes.is_empty() {
            writeln!(page)?;
        }
        one_job(page, job)?;
    }
    Ok(())
}

fn one_job(page: &mut impl Write, job: &JobReport) -> fmt::Result {
    write!(page, "{}: group {}, measured {}", job.name, job.group, job.measured)?;
    writeln!(page, ", errors {}", job.stats.errors())?;
    for kind in OpKind::ALL {
        let stats = job.stats.of(kind);
        if stats.total.count() == 0 && stats.errors == 0 {
            continue;
        }
        direction(page, kind.name(), stats, job.measured)?;
        // No operation may have been traced: on an array, or live if none was sampled.
        let followed = job.stats.breakdowns.get(&kind).filter(|one| one.mean().count > 0);
        if let Some(one) = followed {
            breakdown(page, one)?;
        }
    }
    Ok(())
}

fn direction(page: &mut impl Write, name: &str, stats: &Recorder, over: Span) -> fmt::Result {
    const MIB: f64 = 1_048_576.0;
    write!(page, "  {name:<5} {} ops, IOPS {:.1}", stats.total.count(), stats.iops(over))?;
    if stats.bytes > 0 {
        let bandwidth = stats.bytes_per_second(over) / MIB;
        write!(page, ", {bandwidth:.3} MiB/s, {:.3} MiB moved", stats.bytes as f64 / MIB)?;
    }
    if stats.errors > 0 {
        write!(page, ", {} FAILED", stats.errors)?;
    }
    writeln!(page)?;
    let rows = [("slat", &stats.submission), ("clat", &stats.completion), ("lat", &stats.total)];
    let used = rows.into_iter().filter(|(_, all)| all.count() > 0);
    let header = used.clone().count() > 0;
    if header {
        writeln!(page, "    {:<4} {}", "us", columns(["min", "mean", "max", "stddev"]))?;
    }
    for (name, all) in used {
        let numbers = [all.min_ns() as f64, all.mean_ns(), all.max_ns() as f64, all.stddev_ns()];
        writeln!(page, "    {name:<4} {}", columns(numbers.map(us)))?;
    }
    if header { percentiles(page, &stats.total) } else { Ok(()) }
}

fn percentiles(page: &mut impl Write, all: &Latencies) -> fmt::Result {
    writeln!(page, "    {:<4} {}", "us", columns(PERCENTILES.map(|(name, _)| name)))?;
    let numbers = PERCENTILES.map(|(_, at)| us(all.percentile_ns(at) as f64));
    writeln!(page, "    {:<4} {}", "lat", columns(numbers))
}

/// Nanoseconds as microseconds with three decimals.
fn us(ns: f64) -> String {
    format!("{:.3}", ns / 1e3)
}

fn columns<const N: usize>(cells: [impl AsRef<str>; N]) -> String {
    let padded: Vec<String> = cells.iter().map(|cell| format!("{:>11}", cell.as_ref())).collect();
    padded.join(" ")
}

/// Prints the share of the latency caused by garbage collection, if any.
fn collector(
    page: &mut impl Write,
    breakdown: &Breakdown,
    mean: &Shares,
    around: &[(&str, Around)],
) -> fmt::Result {
    let is_its = |name: &&str| name.starts_with(COLLECTOR);
    let share = |shares: &Shares| {
        let stages = breakdown.names().iter().zip(&shares.stages_ps);
        let its: f64 = stages.filter(|(name, _)| is_its(name)).map(|(_, ps)| ps).sum();
        if shares.total_ps > 0.0 { its * 100.0 / shares.total_ps } else { 0.0 }
    };
    if share(mean) == 0.0 {
        return Ok(());
    }
    write!(page, "      GC share: {:.1} %", share(mean))?;
    for (name, around) in around {
        write!(page, ", at {name} {:.1} %", share(&around.shares))?;
    }
    writeln!(page)
}

const HEADING: &str = "latency breakdown, us";

fn breakdown(page: &mut impl Write, breakdown: &Breakdown) -> fmt::Result {
    let mean = breakdown.mean();
    let around: Vec<(&str, Around)> =
        AROUND.into_iter().filter_map(|(name, at)| Some((name, breakdown.around(at)?))).collect();
    let widest = breakdown.names().iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = widest.max(HEADING.len() - 2);
    let row = |page: &mut dyn Write, name: &str, of: &dyn Fn(&Shares) -> f64| {
        let share = if mean.total_ps > 0.0 { of(&mean) * 100.0 / mean.total_ps } else { 0.0 };
        write!(page, "      {name:<width$} {:>11} {share:>6.1}%", us(of(&mean) / 1e3))?;
        for (_, around) in &around {
            write!(page, " {:>11}", us(of(&around.shares) / 1e3))?;
        }
        writeln!(page)
    };
    write!(page, "    {:<1$} {2:>11} {3:>7}", HEADING, width + 2, "mean", "share")?;
    for (name, _) in &around {
        write!(page, " {:>11}", format!("at {name}"))?;
    }
    writeln!(page)?;
    for (at, name) in breakdown.names().iter().enumerate() {
        // Stages without time are omitted; this world may not have them at all.
        if mean.stages_ps[at] == 0.0 {
            continue;
        }
        row(page, name, &|shares| shares.stages_ps[at])?;
    }
    row(page, "unexplained", &|shares| shares.unexplained_ps)?;
    row(page, "total", &|shares| shares.total_ps)?;
    collector(page, breakdown, &mean, &around)?;
    for (name, around) in &around {
        let Around { from, to, shares } = around;
        writeln!(page, "      at {name}: mean of {} ops from {from} to {to}", shares.count)?;
    }
    Ok(())
}
