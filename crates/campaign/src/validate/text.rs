//! The report as text of 80 columns.

use std::fmt::Write as _;

use super::Report;
use super::compare::{Compared, Share, Shares, by_workload};
use super::fills::{Filled, NEAR};
use super::load::BESIDE;
use super::table::{Figure, Figures};

/// The text of a report. It depends on table, plan and length of the runs only.
pub fn of(report: &Report) -> String {
    let mut text = format!("{}: {}\n", report.table, short_name(&report.drive));
    let run = report.rows.len() + report.fills.len();
    let all = run + report.left_out_rows();
    let short = if report.is_quick { ", short runs" } else { "" };
    line(&mut text, format_args!("plan {}, {run} of {all} rows are run{short}", report.plan));
    if !report.rows.is_empty() {
        text += "\nmodel over measured\n";
        heading(
            &mut text,
            &format!(
                "{:<23} {:>6} {:>5} {:>4} {:<6}",
                "workload", "bytes", "depth", "jobs", "host"
            ),
        );
        for row in &report.rows {
            ratios(&mut text, row);
        }
        text += "\nwithin 15 %\n";
        heading(&mut text, &format!("{:<23} {:>6} {:>5} {:>11}", "workload", "bytes", "rows", ""));
        for ((workload, bytes), of_group) in by_workload(&report.rows) {
            shares(&mut text, &workload, &bytes.to_string(), &of_group);
        }
        shares(&mut text, "all", "", &report.shares);
    }
    if !report.fills.is_empty() {
        fills(&mut text, &report.fills);
    }
    if let Some((row, figure)) = report.worst_row() {
        text.push('\n');
        worst(&mut text, row, figure);
    }
    if !report.left_out.is_empty() {
        let rows = report.left_out_rows();
        let s = if rows == 1 { "" } else { "s" };
        line(&mut text, format_args!("\nnot run: {rows} row{s}"));
        for left_out in &report.left_out {
            line(&mut text, format_args!("{:>6}  {}", left_out.rows, left_out.why));
        }
    }
    text
}

/// Name of a drive. The rest of the header's line is what is known of it, and long.
pub(super) fn short_name(drive: &str) -> &str {
    drive.split([',', ';', '(', ':']).next().unwrap_or_default().trim()
}

/// A ratio in at most five characters up to 99,999.
pub(super) fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(ratio) if ratio < 99.995 => format!("{ratio:.2}"),
        Some(ratio) => format!("{ratio:.0}"),
    }
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    writeln!(text, "{words}").expect("a string");
}

fn heading(text: &mut String, columns: &str) {
    text.push_str(columns);
    for figure in Figure::ALL {
        write!(text, " {:>5}", figure.name()).expect("a string");
    }
    text.push('\n');
}

fn number(number: Option<u32>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn ratios(text: &mut String, row: &Compared) {
    let (depth, jobs) = (number(row.depth), number(row.jobs));
    let Compared { workload, block_bytes, host, .. } = row;
    let workload = short(workload);
    write!(text, "{workload:<23} {block_bytes:>6} {depth:>5} {jobs:>4} {host:<6}")
        .expect("a string");
    for figure in Figure::ALL {
        let ratio = ratio(row.ratio.of(figure));
        write!(text, " {ratio:>5}").expect("a string");
    }
    text.push('\n');
}

fn shares(text: &mut String, workload: &str, bytes: &str, shares: &Shares) {
    let rows = shares.rows;
    write!(text, "{workload:<23} {bytes:>6} {rows:>5} {:>11}", "").expect("a string");
    for Share { near, of } in shares.figures {
        let percent = (100 * near).checked_div(of);
        let share = percent.map_or("-".to_owned(), |percent| format!("{percent} %"));
        write!(text, " {share:>5}").expect("a string");
    }
    text.push('\n');
}

/// Write amplification of each row, and how many are near.
fn fills(text: &mut String, rows: &[Filled]) {
    text.push_str(
        "\nwrite amplification\n\
         workload             span after        fills        measured  model model/meas.\n",
    );
    for row in rows {
        let Filled { workload, span, before, from, to, measured, model, ratio, .. } = row;
        let (percent, fills) = (100.0 * span, format!("{from:.2} to {to:.2}"));
        line(
            text,
            format_args!(
                "{workload:<19} {percent:>3.0} % {before:<12} {fills:<12} {measured:>8.2} {model:>6.2} \
                 {ratio:>11.2}"
            ),
        );
    }
    let near = rows.iter().filter(|row| (row.ratio - 1.0).abs() <= NEAR).count();
    line(text, format_args!("within {:.0} %: {near} of {}", 100.0 * NEAR, rows.len()));
}

/// A name that fits its column.
fn short(workload: &str) -> String {
    match workload.strip_prefix(BESIDE) {
        Some(load) => format!("beside {load}"),
        None => workload.to_owned(),
    }
}

fn worst(text: &mut String, row: &Compared, figure: Figure) {
    let Compared { workload, block_bytes, line: at, .. } = row;
    let loops = match (row.depth, row.jobs) {
        (Some(depth), Some(jobs)) => format!(", depth {depth}, jobs {jobs}"),
        (Some(depth), None) => format!(", depth {depth}"),
        _ => String::new(),
    };
    let (name, workload) = (figure.name(), short(workload));
    line(
        text,
        format_args!("worst: {name} of line {at}, {workload} of {block_bytes} bytes{loops}"),
    );
    let all = |figures: &Figures| {
        let each = Figure::ALL.iter().zip(figures.0).filter_map(|(figure, value)| {
            let value = value?;
            Some(match figure {
                Figure::Iops => format!("{value:.0} IOPS"),
                _ => format!("{} {value:.1} us", figure.name()),
            })
        });
        each.collect::<Vec<_>>().join(", ")
    };
    line(text, format_args!("  measured {}", all(&row.measured)));
    line(text, format_args!("  model    {}", all(&row.model)));
}
