//! `doorbell explain`: what bounds the rate of a run, and what each change would give.

mod text;

use std::path::PathBuf;
use std::thread::available_parallelism;

use campaign::explain::{self, Effort, Swings};
use clap::Args;
use world::interfaces::Row;

use super::Sets;
use super::interface::Named;
use super::output::{Page, Sink, bar};
use super::run::Jobs;

/// Operations of each simulation, about, and with `--quick`.
const OPERATIONS: [u64; 2] = [20_000, 4_000];

#[derive(Args)]
pub(super) struct Explain {
    /// fio job file or trace
    #[arg(value_name = "JOB|TRACE")]
    file: PathBuf,
    /// Plan: built-in name or TOML file
    #[arg(long, default_value = "live")]
    plan: String,
    /// Host interface
    #[arg(long, value_parser = Named, default_value = "nvme")]
    interface: &'static Row,
    /// Seed of every RNG [default: the plan's run.seed]
    #[arg(long)]
    seed: Option<u64>,
    /// Shorter simulations; assumed costs change the rate and its gain, but the bound is not looked for again
    #[arg(long)]
    quick: bool,
    /// Print every stage, lever and assumed cost
    #[arg(long)]
    verbose: bool,
    /// Write the findings to this file as JSON; `-` prints them instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    sets: Sets,
}

pub(super) fn explain(typed: &Explain) -> Result<bool, String> {
    let mut sets = typed.sets.clone();
    sets.sets.extend(typed.seed.map(|seed| ("run.seed".to_owned(), seed.to_string())));
    let plan = sets.open(&typed.plan)?;
    let work = &typed.jobs.works(std::slice::from_ref(&typed.file))?[0];
    let mut sink = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&sink])?;
    let bar = bar(0, "{bar:40} {pos} of {len} simulations");
    let effort = Effort {
        operations: OPERATIONS[usize::from(typed.quick)],
        swings: if typed.quick { Swings::Gain } else { Swings::Verdict },
        threads: available_parallelism().map_or(1, usize::from),
    };
    let progress = |done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    };
    let found = explain::explain(typed.interface, &plan, work, effort, &progress);
    bar.finish_and_clear();
    let found = found.map_err(|error| error.to_string())?;
    let json = || serde_json::to_string_pretty(&found).expect("findings are plain data");
    page.text(&text::of(&found, typed.verbose));
    if let Some(sink) = &mut sink {
        sink.put(&(json() + "\n"))?;
    }
    Ok(found.measured.errors == 0)
}
