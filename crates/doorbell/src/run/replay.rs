//! `doorbell replay`: a simulated run, repeated from its job file, plan and seed, or from its result.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use campaign::document::document;
use campaign::event_log::Digest;
use campaign::run::{Device, RunSpec};
use clap::Args;
use report::model::{Document, Run, World};
use world::interfaces::{NVME, Row};
use world::work::Work;

use super::flags::Jobs;
use super::spec::{print_errors, watched};
use super::{TIMELINE_OPERATIONS, repro_arguments, seeded};
use crate::Sets;
use crate::call::Call;
use crate::digest::{into_file, line};
use crate::interface::Named;
use crate::output::{Page, Sink};

#[derive(Args)]
pub(crate) struct Replay {
    /// Job file or trace of the run, or a result that --json or --html has written
    #[arg(value_name = "JOB|TRACE|RESULT")]
    file: PathBuf,
    /// Plan of the run; a result has its own, as it has all that follows
    #[arg(long)]
    plan: Option<String>,
    /// Seed of the run
    #[arg(long)]
    seed: Option<u64>,
    /// Host interface of the run [default: nvme]
    #[arg(long, value_parser = Named)]
    interface: Option<&'static Row>,
    #[command(flatten)]
    jobs: Jobs,
    /// Controller resets during the run [default: 0]
    #[arg(long)]
    resets: Option<u32>,
    /// Write the event log to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the result to this file as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print everything about each run after the summary
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    sets: Sets,
}

/// Most bytes of a file that is looked at as a result.
const RESULT_BYTES_MAX: u64 = 1 << 30;

pub(crate) fn replay(typed: &Replay, call: &Call) -> Result<bool, String> {
    match result_of(&typed.file)? {
        Some(text) => of_result(typed, &text),
        None => of_job(typed, call),
    }
}

/// The result in a file that begins as an object of JSON or as a page: no job file and no recording does.
fn result_of(path: &PathBuf) -> Result<Option<String>, String> {
    use std::io::Read;
    let unread = |error: std::io::Error| format!("{}: cannot be read: {error}", path.display());
    let mut file = std::fs::File::open(path).map_err(unread)?;
    let mut beginning = [0; 64];
    let length = file.read(&mut beginning).map_err(unread)?;
    let first = beginning[..length].iter().find(|byte| !byte.is_ascii_whitespace());
    if !matches!(first, Some(b'{' | b'<')) {
        return Ok(None);
    }
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(RESULT_BYTES_MAX + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > RESULT_BYTES_MAX {
        let most = RESULT_BYTES_MAX;
        return Err(format!("{}: expected a result of at most {most} bytes", path.display()));
    }
    Ok(Some(report::page::embedded(&text).map_or(text.clone(), str::to_owned)))
}

fn of_job(typed: &Replay, call: &Call) -> Result<bool, String> {
    let (Some(plan), Some(seed)) = (&typed.plan, typed.seed) else {
        let file = typed.file.display();
        return Err(format!("{file}: expected --plan and --seed, which only a result has in it"));
    };
    let name = plan;
    let plan = seeded(&typed.sets, name, Some(seed))?;
    let work = &typed.jobs.works(std::slice::from_ref(&typed.file))?[0];
    let (interface, resets) = (typed.interface.unwrap_or(NVME), typed.resets.unwrap_or(0));
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let recordings = match json {
        Some(_) => report::recordings(work).map_err(|error| error.to_string())?,
        None => Vec::new(),
    };
    let spec = RunSpec {
        plan: &plan,
        work,
        settings: &typed.jobs.settings,
        interface,
        simulated: true,
        device: Device::Thread,
        resets,
        threads: 1,
        device_threads: 1,
        series: None,
        timeline: None,
        run_recorder: None,
        register_writes: Rc::default(),
        progress: Arc::default(),
    };
    let arguments = repro_arguments(name, seed, &typed.jobs, interface, resets, &typed.sets);
    let log = log(typed)?;
    let run_result = watched(&spec, Some(&log))?;
    let run = spec.model(
        &run_result,
        &recordings,
        Some(log.finish().map_err(|error| error.to_string())?),
    );
    let good = print_errors(&spec, &run, &arguments);
    super::print_runs(page, &[&run], typed.verbose);
    page.line(line(run.log.as_ref().expect("digested"), name, seed));
    if let Some(json) = &mut json {
        json.put(&report::to_json(&call.document(vec![run])))?;
    }
    Ok(good)
}

fn log(typed: &Replay) -> Result<Digest, String> {
    typed.log.as_ref().map_or_else(|| Ok(Digest::default()), into_file)
}

/// Rejects what a result has in it.
fn check_flags(typed: &Replay) -> Result<(), String> {
    let flags = [
        ("--plan", typed.plan.is_some()),
        ("--seed", typed.seed.is_some()),
        ("--interface", typed.interface.is_some()),
        ("--resets", typed.resets.is_some()),
        ("--set", !typed.sets.sets.is_empty()),
        ("--map or --job", !typed.jobs.typed().is_empty()),
    ];
    match flags.into_iter().find(|(_, is_there)| *is_there) {
        None => Ok(()),
        Some((flag, _)) => {
            let file = typed.file.display();
            Err(format!("{flag}: found the result {file}, expected none: it has all of its run"))
        }
    }
}

fn of_result(typed: &Replay, text: &str) -> Result<bool, String> {
    check_flags(typed)?;
    let file = typed.file.display();
    let read = report::from_json(text);
    let before = read.map_err(|error| format!("{file}: {error}"))?;
    let simulated = |run: &&Run| run.world == World::Simulated;
    let runs: Vec<&Run> = before.runs.iter().filter(simulated).collect();
    if runs.is_empty() {
        return Err(format!("{file}: found no simulated run, expected one: others do not repeat"));
    }
    if typed.log.is_some() && runs.len() > 1 {
        let count = runs.len();
        return Err(format!("--log: found {count} simulated runs in {file}, expected one"));
    }
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let (mut good, mut again) = (true, Vec::new());
    for run in runs {
        let (now, is_good) = one(typed, run)?;
        good &= is_good;
        super::print_runs(page, &[&now], typed.verbose);
        page.line(line(now.log.as_ref().expect("digested"), &now.plan.name, now.plan.seed));
        good &= agrees(page, &file.to_string(), run, &now);
        again.push(now);
    }
    if let Some(json) = &mut json {
        // The call of the result, so that equal results are equal byte for byte.
        let document = Document {
            warnings: before.warnings.clone(),
            ..document(before.command.clone(), again)
        };
        json.put(&report::to_json(&document))?;
    }
    Ok(good)
}

/// The run of the result, once more. False if an operation failed.
fn one(typed: &Replay, run: &Run) -> Result<(Run, bool), String> {
    let file = typed.file.display();
    let rebuilt = report::rebuild(run).map_err(|error| format!("{file}: {error}"))?;
    let work: &Work = &rebuilt.work;
    let log = log(typed)?;
    let spec = RunSpec {
        plan: &rebuilt.plan,
        work,
        settings: &rebuilt.settings,
        interface: rebuilt.interface,
        simulated: true,
        device: Device::Thread,
        resets: rebuilt.resets,
        threads: 1,
        device_threads: 1,
        series: rebuilt.series,
        timeline: (!run.timeline.is_empty()).then_some(TIMELINE_OPERATIONS),
        run_recorder: None,
        register_writes: Rc::default(),
        progress: Arc::default(),
    };
    let run_result = watched(&spec, Some(&log))?;
    let now = spec.model(
        &run_result,
        &run.work.recordings,
        Some(log.finish().map_err(|error| error.to_string())?),
    );
    let good = now.jobs.iter().all(|job| job.errors == 0);
    for message in now.jobs.iter().flat_map(|job| &job.messages) {
        eprintln!("error: {message}");
    }
    Ok((now, good))
}

/// Whether the numbers are equal. A run of a sweep may have shared the memory of its drive.
fn is_equal(before: &Run, now: &Run) -> bool {
    let mut before = Run { log: now.log.clone(), ..before.clone() };
    if let (Some(before), Some(now)) = (&mut before.flash, &now.flash)
        && before.memory_bytes == 0
    {
        before.memory_bytes = now.memory_bytes;
    }
    before == *now
}

/// Whether the runs are equal; prints what differs.
fn agrees(page: Page, file: &str, before: &Run, now: &Run) -> bool {
    let digest = |run: &Run| run.log.as_ref().map(|log| log.digest.clone());
    match digest(before) {
        Some(expected) if digest(now).as_ref() != Some(&expected) => {
            eprintln!(
                "error: {file}: found another event log, expected digest {expected}: this program differs \
                 from the one that wrote it, or a file outside of the result has changed"
            );
            false
        }
        // A result without a digest has its numbers alone.
        _ if !is_equal(before, now) => {
            eprintln!("error: {file}: the replay differs from the result in its numbers");
            false
        }
        _ => {
            page.line(format_args!("as in {file}"));
            true
        }
    }
}
