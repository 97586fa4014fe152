//! Sections of the other commands, as tables.

use maud::html;

use super::number::Unit;
use super::parts::{Grid, Section, number, text};
use super::streams::world_name;
use crate::model::{Bench, Calibration, CaseVerdict, Conformance, Document, Hog, PlanFound};

pub(super) fn sections(document: &Document) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |id: &str, title: &str, body| sections.push(Section::new(id, title, body));
    if !document.plans.is_empty() {
        add("plans", "Plans", html! { @for found in &document.plans { (plan(found)) } });
    }
    if !document.conformance.is_empty() {
        add(
            "conformance",
            "Conformance",
            html! { @for of in &document.conformance { (conformance(of)) } },
        );
    }
    if !document.diskhog.is_empty() {
        add(
            "diskhog",
            "Throughput by queue policy",
            html! { @for of in &document.diskhog { (hog(of)) } },
        );
    }
    if let Some(of) = &document.bench {
        add("bench", "Live reads", html! { (bench(of)) });
    }
    if let Some(of) = &document.calibration {
        add("calibration", "Calibration", html! { (calibration(of)) });
    }
    sections
}

fn plan(found: &PlanFound) -> maud::Markup {
    html! {
        h3 { (found.typed) }
        @for error in &found.errors { p.error { (error) } }
        @if let Some(report) = &found.report { pre { code { (report) } } }
    }
}

fn conformance(of: &Conformance) -> Grid {
    let mut grid = Grid::new(&["case", "verdict", "specification", "found"])
        .captioned(&of.controller)
        .of_text();
    for case in &of.cases {
        let (class, word) = match case.verdict {
            CaseVerdict::Passed => ("holds", "✓ passed"),
            CaseVerdict::Failed => ("fails", "✗ failed"),
            CaseVerdict::Lacking => ("", "lacking"),
            CaseVerdict::NotRun => ("", "not run"),
        };
        grid.row([
            text(&case.name),
            html! { span class={ "badge " (class) } { (word) } },
            text(&format!("{} {}", case.of, case.section)),
            text(if case.found.is_empty() { &case.about } else { &case.found }),
        ]);
    }
    grid
}

fn hog(of: &Hog) -> Grid {
    let columns = [
        "policy",
        "queues",
        "outstanding",
        "throughput",
        "requests",
        "slowest core",
        "fastest core",
    ];
    let mut grid = Grid::new(&columns).captioned(world_name(of.world));
    for policy in &of.policies {
        grid.row([
            text(&policy.policy),
            number(Unit::Count, f64::from(policy.queues), ""),
            number(Unit::Count, policy.outstanding as f64, ""),
            number(Unit::BytesPerSecond, policy.bytes_per_second, ""),
            number(Unit::PerSecond, policy.requests_per_second, ""),
            number(Unit::Share, policy.least_share, ""),
            number(Unit::Share, policy.most_share, ""),
        ]);
    }
    grid
}

fn bench(of: &Bench) -> Grid {
    let mut grid =
        Grid::new(&["range", "interface", "bytes", "depth", "rate", "p50", "p99", "round trip"]);
    for row in &of.rows {
        grid.row([
            text(&row.range),
            text(&row.way),
            number(Unit::Count, row.bytes as f64, ""),
            number(Unit::Count, f64::from(row.depth), ""),
            number(Unit::PerSecond, row.iops, ""),
            number(Unit::Nanoseconds, row.p50_ns as f64, ""),
            number(Unit::Nanoseconds, row.p99_ns as f64, ""),
            number(Unit::Nanoseconds, row.round_trip_ps as f64 / 1e3, ""),
        ]);
    }
    grid
}

fn calibration(of: &Calibration) -> maud::Markup {
    let mut costs = Grid::new(&["cost", "time"]);
    for span in of.measured.iter().chain(&of.costs) {
        costs.row([text(&span.name), number(Unit::Nanoseconds, span.ps as f64 / 1e3, "")]);
    }
    let mut rows = Grid::new(&["bytes", "depth", "predicted p50", "measured p50"]);
    for row in &of.rows {
        rows.row([
            number(Unit::Count, row.bytes as f64, ""),
            number(Unit::Count, f64::from(row.depth), ""),
            number(Unit::Nanoseconds, row.predicted_p50_ps as f64 / 1e3, ""),
            number(Unit::Nanoseconds, row.measured_p50_ps as f64 / 1e3, ""),
        ]);
    }
    html! { (costs) (rows) }
}
