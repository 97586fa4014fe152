//! `doorbell compare`: the same jobs through every interface of a plan, side by side.

use std::path::PathBuf;

use campaign::event_log::Digest;
use clap::Args;
use plan::Plan;
use report::model::{Device, Recording, Run, Warning, WarningKind, World as InWorld};
use report::{RunContext, recordings};
use runtime::Log;
use world::interfaces::{self, Row};
use world::work::Work;
use world::{self, Options, device};

use super::Sets;
use super::call::Call;
use super::output::{Page, Sink, create, put};
use super::run::{Jobs, TIMELINE_OPERATIONS, World, page_interval};

#[derive(Args)]
pub(super) struct Compare {
    /// fio job files and traces
    #[arg(required = true, value_name = "JOB|TRACE")]
    files: Vec<PathBuf>,
    /// Plan: built-in name or TOML file
    #[arg(long, default_value = "gen4")]
    plan: String,
    /// World to run in
    #[arg(long, value_enum, default_value_t = World::Both)]
    world: World,
    #[command(flatten)]
    jobs: Jobs,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a table to this file as CSV, a row for each interface, job and kind of operation; - is standard
    /// output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the result to this file as one page, with pictures and the data
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the latency by stage after the summary
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    sets: Sets,
}

impl Compare {
    /// Returns true if a file has the result as data.
    fn keeps_result(&self) -> bool {
        self.json.is_some() || self.html.is_some()
    }
}

pub(super) fn compare(typed: &Compare, call: &Call) -> Result<bool, String> {
    let plan = typed.sets.open(&typed.plan)?;
    let works = typed.jobs.works(&typed.files)?;
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let mut csv = typed.csv.as_ref().map(Sink::open).transpose()?;
    let mut html = typed.html.as_ref().map(create).transpose()?;
    let page = Page::beside(&[&json, &csv])?;
    let mut left_out = Vec::new();
    let mut all = Vec::new();
    for work in &works {
        let recordings = match typed.keeps_result() {
            true => recordings(work).map_err(|error| error.to_string())?,
            false => Vec::new(),
        };
        let runs = one_file(typed, &plan, work, &recordings, &mut left_out)?;
        let mut document = call.document(Vec::new());
        document.warnings.clone_from(&left_out);
        let each: Vec<_> = runs.iter().collect();
        page.text(&report::compare::of_file(&document, &each, page.style));
        if typed.verbose {
            page.text(&report::compare::details(&document, &each));
        }
        page.line("");
        all.extend(runs);
    }
    let good = all.iter().flat_map(|run: &Run| &run.jobs).all(|job| job.errors == 0);
    let mut document = call.document(all);
    document.warnings = left_out;
    if let Some(csv) = &mut csv {
        csv.put(&report::csv::operations(&document))?;
    }
    if let (Some(file), Some(path)) = (&mut html, &typed.html) {
        put(file, path, &report::page::html(&document))?;
        page.line(format_args!("page: {}", path.display()));
    }
    if let Some(json) = &mut json {
        json.put(&report::to_json(&document))?;
    }
    Ok(good)
}

/// Runs a file through each interface of the plan, in each world. One that the plan lacks is left out.
fn one_file(
    typed: &Compare,
    plan: &Plan,
    work: &Work,
    recordings: &[Recording],
    left_out: &mut Vec<Warning>,
) -> Result<Vec<Run>, String> {
    let mut runs = Vec::new();
    for simulated in typed.world.simulated() {
        let rows = interfaces::all().into_iter().filter(|row| simulated || row.is_live());
        let (mut lacks, mut has) = (Vec::new(), false);
        for row in rows {
            if let Err(why) = device::check(row.of_plan(plan), plan) {
                lacks.push(why.to_string());
                continue;
            }
            has = true;
            let settings = &typed.jobs.settings;
            runs.push(one(typed, row, plan, work, (settings, recordings), simulated)?);
        }
        if !has {
            return Err(format!("{}: no interface fits it: {}", plan.origin, lacks.join("; ")));
        }
        for text in lacks {
            let warning = Warning { kind: WarningKind::LeftOut, text };
            if !left_out.contains(&warning) {
                left_out.push(warning);
            }
        }
    }
    Ok(runs)
}

fn one(
    typed: &Compare,
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    (settings, recordings): (&[(String, String)], &[Recording]),
    simulated: bool,
) -> Result<Run, String> {
    let digest = (simulated && typed.keeps_result()).then(Digest::default);
    let log = digest.as_ref().map_or(Log::Off, Digest::log);
    let timeline = typed.html.is_some().then_some(TIMELINE_OPERATIONS);
    let series = typed.html.is_some().then(|| page_interval(work));
    let options = Options { log, timeline, series, ..Options::default() };
    let of_plan = row.of_plan(plan);
    let run_result = match simulated {
        true => world::simulate(of_plan, plan, work, options),
        false => world::live_in_threads(of_plan, plan, work, options),
    };
    let run_result = run_result.map_err(|error| format!("{}: {error}", row.name))?;
    let context = RunContext {
        plan,
        work,
        settings,
        recordings,
        interface: row.name,
        world: if simulated { InWorld::Simulated } else { InWorld::Live },
        device: if simulated { Device::Modelled } else { Device::Thread },
        threads: 1,
        resets: 0,
        log: digest.map(|digest| digest.finish()).transpose().map_err(|error| error.to_string())?,
        register_writes: 0,
    };
    let run = context.with(&run_result);
    for job in &run.jobs {
        for message in &job.messages {
            eprintln!("error: {}, {}: {message}", row.name, job.name);
        }
    }
    Ok(run)
}
