//! The sections of runs.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::number::Unit;
use super::palette::Palette;
use super::parts::{Grid, Section, details, number, text};
use super::streams::{Stream, merged};
use super::{breakdown, cdf, flash, lanes, over_time, resources, streams, summary};
use crate::model::{Document, Histogram, Recorded, Run};

pub(super) fn sections(document: &Document) -> Vec<Section> {
    if document.runs.is_empty() {
        return Vec::new();
    }
    let names = streams::run_names(document);
    let files = streams::files(document).into_iter();
    let files = files.map(|(file, runs)| (file, streams::streams(document, &runs)));
    let files: Vec<(&str, Vec<Stream<'_>>)> = files.collect();
    // Runs of different work are not compared in one picture.
    let by_file = |of: &dyn Fn(&[Stream<'_>]) -> Markup| {
        let each = files.iter().map(|(file, streams)| (file, of(streams)));
        let each = each.filter(|(_, body)| !body.0.trim().is_empty());
        html! {
            @for (file, body) in each {
                @if files.len() > 1 { h3.file { (file) } }
                (body)
            }
        }
    };
    let palette = Palette::of(document);
    let sections = [
        ("summary", "Summary", by_file(&|streams| summary::summary(streams))),
        ("over-time", "Over time", by_file(&|streams| over_time::over_time(document, streams))),
        (
            "distribution",
            "Distribution of latency",
            by_file(&|streams| cdf::distributions(streams)),
        ),
        (
            "breakdown",
            "Latency breakdown",
            by_file(&|streams| breakdown::breakdowns(streams, &palette)),
        ),
        ("timeline", "Timeline of sampled commands", lanes::timelines(document, &names, &palette)),
        ("link", "Link", resources::link(document, &names)),
        ("flash", "Flash", flash::flash(document, &names)),
        ("cores", "Host cores", resources::cores(document, &names)),
        ("details", "Jobs and runs", jobs(document, &names)),
    ];
    sections
        .into_iter()
        .filter(|(_, _, body)| !body.0.trim().is_empty())
        .map(|(id, title, body)| Section::new(id, title, body))
        .collect()
}

/// Every job of every run, and the rest of the numbers.
fn jobs(document: &Document, names: &[String]) -> Markup {
    html! {
        @for (number, (run, name)) in document.runs.iter().zip(names).enumerate() {
            h3 { (name) }
            @for note in run.notes.iter().chain(&run.work.notes) { p.note { (note) } }
            (job_table(number, run))
            @for job in &run.jobs {
                @for message in &job.messages { p.error { (job.name) ": " (message) } }
            }
            (details("Operations in flight", &depths(run)))
            @if let Some(recorded) = &run.recorded { (beside(number, run, recorded)) }
            (run_table(number, run))
        }
    }
}

fn job_table(number_of_run: usize, run: &Run) -> Grid {
    let mut grid =
        Grid::new(&["job", "", "operations", "errors", "rate", "throughput", "mean", "p99"]);
    for (place, job) in run.jobs.iter().enumerate() {
        for (kind, of) in &job.operations {
            let at = format!("/runs/{number_of_run}/jobs/{place}/operations/{}", kind.name());
            let from = |field: &str| format!("sum {at}/{field}");
            grid.row([
                text(&job.name),
                text(kind.name()),
                number(Unit::Count, of.count as f64, &from("count")),
                number(Unit::Count, of.errors as f64, &from("errors")),
                number(Unit::PerSecond, of.iops, &from("iops")),
                number(Unit::BytesPerSecond, of.bytes_per_second, &from("bytes_per_second")),
                number(Unit::Nanoseconds, of.latency.mean_ns, &from("latency/mean_ns")),
                number(
                    Unit::Nanoseconds,
                    of.latency.at(0.99) as f64,
                    &format!("at:0.99 {at}/latency"),
                ),
            ]);
        }
    }
    grid
}

/// The live run that was recorded, beside this run of the same work.
fn beside(number_of_run: usize, run: &Run, recorded: &Recorded) -> Markup {
    let mut grid = Grid::new(&["latency", "", "operations", "mean", "p50", "p99", "largest"]);
    for (kind, then) in &recorded.latencies {
        let at = format!("/runs/{number_of_run}/recorded/latencies/{}", kind.name());
        let mut row = |title: &str, of: &Histogram, at: Option<&str>| {
            let from = |operation: &str, field: &str| {
                at.map(|at| format!("{operation} {at}{field}")).unwrap_or_default()
            };
            let ns = |value: f64, of: &str| number(Unit::Nanoseconds, value, of);
            grid.row([
                text(title),
                text(kind.name()),
                number(Unit::Count, of.count as f64, &from("sum", "/count")),
                ns(of.mean_ns, &from("sum", "/mean_ns")),
                ns(of.at(0.5) as f64, &from("at:0.5", "")),
                ns(of.at(0.99) as f64, &from("at:0.99", "")),
                ns(of.max_ns as f64, &from("sum", "/max_ns")),
            ]);
        };
        row("recorded", then, Some(&at));
        let now = run.jobs.iter().filter_map(|job| job.operations.get(kind));
        row("this run", &merged(now.map(|of| &of.latency)), None);
    }
    html! {
        p { "Replay of " (recorded.run) "." }
        (grid)
    }
}

fn depths(run: &Run) -> Grid {
    let mut grid = Grid::new(&["in flight"]).captioned("Share of the submissions, percent");
    let mut levels: Vec<&str> = Vec::new();
    for level in run.jobs.iter().flat_map(|job| &job.depth) {
        if !levels.contains(&level.level.as_str()) {
            levels.push(&level.level);
        }
    }
    grid.columns.extend(run.jobs.iter().map(|job| job.name.clone()));
    for depth in levels {
        let cells = run.jobs.iter().map(|job| {
            let level = job.depth.iter().find(|level| level.level == depth);
            text(&level.map(|level| format!("{:.1}", level.percent)).unwrap_or_default())
        });
        grid.row([text(depth)].into_iter().chain(cells));
    }
    grid
}

fn run_table(number_of_run: usize, run: &Run) -> Grid {
    let mut grid = Grid::new(&["", "value"]);
    let at = |field: &str| format!("sum /runs/{number_of_run}/{field}");
    let mut count = |name: &str, value: Option<u64>, of: &str| {
        if let Some(value) = value {
            grid.row([text(name), number(Unit::Count, value as f64, of)]);
        }
    };
    count("host threads", Some(u64::from(run.threads)), &at("threads"));
    count("timed events", run.timed_events, &at("timed_events"));
    count("lines of the event log", run.log.as_ref().map(|log| log.lines), &at("log/lines"));
    let verified: u64 = run.jobs.iter().map(|job| job.blocks_verified).sum();
    count("blocks verified", Some(verified).filter(|blocks| *blocks > 0), "");
    let resets = Some(u64::from(run.resets.completed)).filter(|_| run.resets.requested > 0);
    count("controller resets", resets, &at("resets/completed"));
    for (place, fault) in run.faults.iter().enumerate() {
        count(
            &format!("injected: {}", fault.name),
            Some(fault.injected),
            &at(&format!("faults/{place}/injected")),
        );
    }
    if let Some(log) = &run.log {
        grid.row([text("digest of the event log"), text(&log.digest)]);
    }
    if let Some(ps) = run.host_thread_ps {
        grid.row([
            text("CPU time of the host's thread"),
            text(&Unit::Nanoseconds.text(ps as f64 / 1e3)),
        ]);
    }
    let options: BTreeMap<&str, &str> = run
        .jobs
        .iter()
        .filter(|_| run.jobs.len() == 1)
        .flat_map(|job| {
            job.options.iter().map(|option| (option.key.as_str(), option.value.as_str()))
        })
        .collect();
    for (key, value) in options {
        grid.row([text(key), text(value)]);
    }
    grid
}
