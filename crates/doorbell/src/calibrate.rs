//! `doorbell calibrate`: a plan for this machine, with predicted and measured latencies.

use std::path::{Path, PathBuf};

use campaign::calibrate::{Primitives, Shares, Ways, plan};
use clap::Args;
use plan::Plan;
use report::model::{Calibration, CalibrationRow, Document, NamedSpan};
use runtime::Span;
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options, RunResult};

use super::call::{Call, measured};
use super::output::{Page, Sink, create, put};

#[derive(Args)]
pub(super) struct Calibrate {
    /// Write the plan to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Samples per median
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(3..=1_000_000))]
    samples: u32,
    /// Milliseconds per live measurement
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Reads of a simulated run: exact, so that few are enough.
const SIMULATED: u64 = 20_000;

/// Largest relative difference between prediction and measurement that counts as agreement.
const WITHIN: f64 = 0.25;

pub(super) fn calibrate(typed: &Calibrate, call: &Call) -> Result<bool, String> {
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let of = Primitives::measured(typed.samples as usize)
        .map_err(|error| format!("measuring: {error}"))?;
    let ways = Ways::kept();
    let shares = Shares::new(&of, &ways);
    print(page, &of, &shares);
    let text = plan(&of, &ways);
    let name = typed.out.as_deref().unwrap_or(Path::new("calibrated")).display().to_string();
    if let Some(path) = &typed.out {
        put(&mut create(path)?, path, &text)?;
        page.line(format_args!("the plan is {name}"));
    }
    let plan = Plan::parse(&text, &name).map_err(|errors| errors.to_string())?;
    let rows = rows(&plan, typed.ms, page)?;
    page.line("nothing was adjusted to what was measured live");
    if let Some(json) = &mut json {
        let calibration = Calibration {
            measured: primitives(&of),
            costs: costs(&shares),
            plan: report::plan_of(&plan),
            rows,
        };
        let document = measured(call.document(Vec::new()));
        json.put(&report::to_json(&Document { calibration: Some(calibration), ..document }))?;
    }
    Ok(true)
}

/// Reads, predicted by the plan and measured.
fn rows(plan: &Plan, ms: u64, page: Page) -> Result<Vec<CalibrationRow>, String> {
    page.line("random reads over 1 MiB by nvme, p50, in virtual time and live:");
    page.line(format_args!(
        "{:>6} {:>6} {:>11} {:>11} {:>7} {:>12}",
        "bytes", "depth", "predicted", "measured", "ratio", "unexplained"
    ));
    let mut rows = Vec::new();
    for bytes in [512, 4096] {
        for depth in [1, 32] {
            let row = Row { bytes, depth };
            let predicted = p50(world::simulate(NVME, plan, &row.simulated()?, options()))?;
            let live = world::live_in_threads(NVME, plan, &row.live(ms)?, options());
            let measured = p50(live)?;
            let ratio = predicted.0 as f64 / measured.0 as f64;
            let is_far = (ratio - 1.0).abs() > WITHIN;
            rows.push(CalibrationRow {
                bytes,
                depth,
                predicted_p50_ps: predicted.0,
                measured_p50_ps: measured.0,
                far: is_far,
            });
            let far = if is_far { "  far" } else { "" };
            let left = difference(measured, predicted);
            let (predicted, measured) = (predicted.to_string(), measured.to_string());
            page.line(format_args!(
                "{bytes:>6} {depth:>6} {predicted:>11} {measured:>11} {ratio:>7.2} {left:>12}{far}"
            ));
        }
    }
    Ok(rows)
}

fn named(spans: &[(&str, Span)]) -> Vec<NamedSpan> {
    spans.iter().map(|(name, span)| NamedSpan { name: (*name).to_owned(), ps: span.0 }).collect()
}

fn primitives(of: &Primitives) -> Vec<NamedSpan> {
    named(&[
        ("core-to-core round trip", of.round_trip),
        ("a line of the other core's, alone", of.line_alone),
        ("a line of the other core's, one of many", of.line_of_many),
        ("a copy of 4 KiB, all near", of.copy),
        ("a look at memory", of.look),
        ("a read in virtual time", of.simulated_read),
    ])
}

fn costs(shares: &Shares) -> Vec<NamedSpan> {
    named(&[
        ("submit", shares.submit),
        ("complete", shares.complete),
        ("load generator", shares.engine),
        ("device", shares.device),
        ("device, for each 4 KiB", shares.copy),
    ])
}

/// Prints the measurements, and the cost per thread derived from them.
fn print(page: Page, of: &Primitives, shares: &Shares) {
    page.line("measured, with no live command for storage:");
    page.line(format_args!("  core-to-core round trip           {}", of.round_trip));
    page.line(format_args!("  a line of the other core's, alone {}", of.line_alone));
    page.line(format_args!("  the same, one of many             {}", of.line_of_many));
    page.line(format_args!("  a copy of 4 KiB, all near         {}", of.copy));
    page.line(format_args!("  a look at memory                  {}", of.look));
    page.line(format_args!("  a read in virtual time            {}", of.simulated_read));
    let Shares { submit, complete, engine, device, copy } = shares;
    page.line("so a read takes of each thread's time, whatever is in flight:");
    page.line(format_args!(
        "  the host {}: to the doorbell {submit}, from the completion on {complete},",
        shares.host()
    ));
    page.line(format_args!("    the load generator {engine}"));
    page.line(format_args!("  the device {device}, and for each 4 KiB {copy}"));
}

/// The signed difference, as text.
fn difference(this: Span, that: Span) -> String {
    let (more, less) = (this.saturating_sub(that), that.saturating_sub(this));
    if less == Span::ZERO { more.to_string() } else { format!("-{less}") }
}

fn options() -> Options {
    Options::default()
}

struct Row {
    bytes: u64,
    depth: u32,
}

impl Row {
    fn simulated(&self) -> Result<Work, String> {
        self.work(&format!("number_ios={SIMULATED}"))
    }

    fn live(&self, ms: u64) -> Result<Work, String> {
        self.work(&format!("time_based\nruntime={ms}ms"))
    }

    /// A job that writes the range, then reads it.
    fn work(&self, until: &str) -> Result<Work, String> {
        let Row { bytes, depth } = self;
        let job = format!(
            "[global]\nsize=1m\n[fill]\nrw=write\nbs=64k\niodepth=8\n\
             [reads]\nstonewall\nrw=randread\nbs={bytes}\niodepth={depth}\n{until}\n"
        );
        let work = Work::parse(Path::new("calibrate"), &job, Mapping::default());
        work.map_err(|error| error.to_string())
    }
}

fn p50(run_result: Result<RunResult, world::RunError>) -> Result<Span, String> {
    let run_result = run_result.map_err(|error| error.to_string())?;
    let (_, job_result) = run_result.jobs.last().expect("the reads");
    match job_result.errors() {
        0 => Ok(Span::ns(job_result.stats.read.total.percentile_ns(50_000))),
        errors => Err(format!("{errors} reads failed, expected none")),
    }
}
