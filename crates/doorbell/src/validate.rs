//! `doorbell validate`: plans beside published measurements of the drives that they describe.

use std::path::PathBuf;
use std::thread::available_parallelism;

use campaign::document::program;
use campaign::validate::{self, Effort, Length, Report, Table, built_in, text};
use clap::Args;
use report::page::drive::of_drives;

use super::Sets;
use super::output::{Page, Sink, bar};

#[derive(Args)]
pub(super) struct Validate {
    /// Drives: names of built-in tables, or table files (TSV) [default: all whose drive has a plan]
    #[arg(value_name = "DRIVE")]
    drives: Vec<String>,
    /// Plan of the drives: built-in name or TOML file [default: the plan with the drive's name]
    #[arg(long)]
    plan: Option<String>,
    /// Short runs, of closed loops of 4 KiB with at most 128 operations in flight
    #[arg(long)]
    quick: bool,
    /// Run only rows whose workload begins with this word, as `randread`
    #[arg(long, value_name = "WORKLOAD", default_value = "", hide_default_value = true)]
    rows: String,
    /// Write the reports to this file as JSON; `-` prints them instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write pictures of the reports to this file, as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    sets: Sets,
}

pub(super) fn validate(typed: &Validate) -> Result<bool, String> {
    let (tables, without_plan) = tables(typed)?;
    // Of all drives, those without such rows are reported as such.
    let only = |table: Table| match typed.drives.is_empty() {
        true => Ok(Table { only: typed.rows.clone(), ..table }),
        false => table.with_only(&typed.rows).map_err(|error| error.to_string()),
    };
    let tables = tables.into_iter().map(only).collect::<Result<Vec<_>, _>>()?;
    let plans: Vec<_> = tables
        .iter()
        .map(|table| typed.sets.open(typed.plan.as_deref().unwrap_or(table.plan())))
        .collect::<Result<_, _>>()?;
    let mut sink = typed.json.as_ref().map(Sink::open).transpose()?;
    let mut html = typed.html.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&sink, &html])?;
    let effort = Effort {
        length: if typed.quick { Length::QUICK } else { Length::WHOLE },
        threads: available_parallelism().map_or(1, usize::from),
    };
    let mut reports: Vec<Report> = Vec::new();
    for (table, plan) in tables.iter().zip(&plans) {
        let bar = bar(0, "{bar:40} {pos} of {len} runs, {eta} left");
        let progress = |done: usize, of: usize| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        };
        let report = validate::validate(plan, table, effort, &progress);
        bar.finish_and_clear();
        let report = report.map_err(|error| error.to_string())?;
        if !reports.is_empty() {
            page.line("");
        }
        page.text(&text::of(&report));
        reports.push(report);
    }
    if !without_plan.is_empty() {
        page.line(format_args!("\nwithout a plan: {} tables", without_plan.len()));
        for name in without_plan {
            page.line(format_args!("  {name}"));
        }
    }
    if let Some(html) = &mut html {
        let drives: Vec<_> = reports.iter().map(validate::page::of).collect();
        html.put(&of_drives(&drives, &program()))?;
    }
    if let Some(sink) = &mut sink {
        let json = serde_json::to_string_pretty(&reports).expect("reports are plain data");
        sink.put(&(json + "\n"))?;
    }
    Ok(true)
}

/// The tables to run, and the names of those whose drive has no plan.
fn tables(typed: &Validate) -> Result<(Vec<Table>, Vec<String>), String> {
    let has_plan = |name: &str| plan::built_in().iter().any(|(known, _)| *known == name);
    let open = |name: &str| built_in::open(name).map_err(|error| error.to_string());
    if typed.drives.is_empty() {
        let all = built_in::names().map(open).collect::<Result<Vec<_>, _>>()?;
        let (run, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|table| typed.plan.is_some() || has_plan(table.plan()));
        return Ok((run, rest.into_iter().map(|table| table.name).collect()));
    }
    let mut tables = Vec::new();
    for drive in &typed.drives {
        let table = open(drive)?;
        if typed.plan.is_none() && !has_plan(table.plan()) {
            return Err(format!("{drive}: found no plan {}, expected --plan", table.plan()));
        }
        tables.push(table);
    }
    Ok((tables, Vec::new()))
}
