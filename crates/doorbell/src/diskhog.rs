//! `doorbell diskhog`: one thread per core, each in its own range of the disk, under each queue policy.

use std::path::PathBuf;

use campaign::diskhog::{self, Hog, HogStats};
use clap::{Args, ValueEnum};
use papers::Table;
use plan::units::{parse_size, parse_span};
use plan::{POLICIES, Plan};
use report::model::{self, Document};
use runtime::Span;

use super::Sets;
use super::call::{Call, measured};
use super::output::{Page, Sink};
use super::run::World;

#[derive(Args)]
pub(super) struct Diskhog {
    /// Plan: built-in name or TOML file
    #[arg(long, default_value = "vortex")]
    plan: String,
    /// World to run in
    #[arg(long, value_enum, default_value_t = World::Sim)]
    world: World,
    /// Direction
    #[arg(long, value_enum, default_value_t = Way::Read)]
    rw: Way,
    /// Random instead of sequential offsets
    #[arg(long)]
    random: bool,
    /// Threads, each on its own core and in its own range
    #[arg(long, default_value_t = 8)]
    threads: u32,
    /// Bytes per request
    #[arg(long, default_value = "4 MiB")]
    bytes: String,
    /// Requests that a thread submits before it waits for all of them
    #[arg(long, default_value_t = 1)]
    batch: u32,
    /// Duration
    #[arg(long, default_value = "2 s")]
    time: String,
    /// Sampling interval of the monitor
    #[arg(long, default_value = "1 s")]
    interval: String,
    /// Only this policy: single, round-robin, per-core or pool
    #[arg(long, value_parser = policy)]
    policy: Option<&'static str>,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sets: Sets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    Read,
    Write,
}

fn policy(word: &str) -> Result<&'static str, String> {
    let words: Vec<_> = POLICIES.iter().map(|(word, _)| *word).collect();
    let known = words.iter().find(|known| **known == word);
    known.copied().ok_or_else(|| format!("expected one of {}", words.join(", ")))
}

pub(super) fn diskhog(typed: &Diskhog, call: &Call) -> Result<bool, String> {
    let plan = typed.sets.open(&typed.plan)?;
    let hog = typed.hog()?;
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let mut all = Vec::new();
    for simulated in typed.world.simulated() {
        let world = if simulated { World::Sim } else { World::Live };
        let mut of_world = Vec::new();
        for word in words(&plan, typed.policy)? {
            let plan = with_policy(&plan, word);
            let job_result = match simulated {
                true => diskhog::simulated(&plan, &hog),
                false => diskhog::live(&plan, &hog),
            };
            of_world.push((word, job_result.map_err(|error| error.to_string())?));
        }
        print_report(page, &typed.what(), world, &hog, &of_world);
        all.push(model::Hog {
            world: if simulated { model::World::Simulated } else { model::World::Live },
            plan: report::plan_of(&plan),
            threads: hog.threads,
            request_bytes: hog.bytes,
            write: hog.write,
            random: hog.random,
            batch: hog.batch,
            interval_ps: hog.interval.0,
            policies: of_world.iter().map(policy_of).collect(),
        });
    }
    if let Some(json) = &mut json {
        let document = call.document(Vec::new());
        let live = all.iter().any(|hog| hog.world == model::World::Live);
        let document = if live { measured(document) } else { document };
        json.put(&report::to_json(&Document { diskhog: all, ..document }))?;
    }
    Ok(true)
}

fn policy_of((word, stats): &(&'static str, HogStats)) -> model::HogPolicy {
    let (least_share, most_share) = stats.shares();
    let requests = stats.cores.iter().map(|core| core.requests).sum();
    let core = |core: &diskhog::CoreStats| model::HogCore {
        bytes: core.bytes,
        requests: core.requests,
        series_bytes: core.series.clone(),
    };
    model::HogPolicy {
        policy: (*word).to_owned(),
        queues: stats.shape.queues.into(),
        depth: stats.shape.depth.into(),
        outstanding: stats.shape.outstanding(),
        measured_ps: stats.measured.0,
        bytes_per_second: model::per_second(stats.bytes(), stats.measured.0),
        requests_per_second: model::per_second(requests, stats.measured.0),
        least_share,
        most_share,
        lock_waits: stats.lock_waits,
        cores: stats.cores.iter().map(core).collect(),
    }
}

impl Diskhog {
    fn hog(&self) -> Result<Hog, String> {
        let span = |option: &str, text: &str| -> Result<Span, String> {
            parse_span(text).map_err(|error| format!("--{option}: {text:?} {error}"))
        };
        let bytes = parse_size(&self.bytes);
        Ok(Hog {
            threads: self.threads,
            bytes: bytes.map_err(|error| format!("--bytes: {:?} {error}", self.bytes))?,
            write: self.rw == Way::Write,
            batch: self.batch,
            random: self.random,
            ramp: Span::ZERO,
            time: span("time", &self.time)?,
            interval: span("interval", &self.interval)?,
        })
    }

    fn what(&self) -> String {
        let rw = if self.rw == Way::Write { "writes" } else { "reads" };
        let random = if self.random { "random " } else { "" };
        format!("{random}{rw} of {}, {} threads, plan {}", self.bytes, self.threads, self.plan)
    }
}

/// The policies to run: all of them if the plan has costs of sharing.
fn words(plan: &Plan, only: Option<&'static str>) -> Result<Vec<&'static str>, String> {
    if plan.host.sharing.is_none() {
        return match only {
            None | Some("per-core") => Ok(vec!["per-core"]),
            Some(word) => Err(format!(
                "{}: policy {word}: found no table [host.sharing], expected one: plans/vortex.toml has it",
                plan.origin
            )),
        };
    }
    let all = POLICIES.iter().map(|(word, _)| *word);
    Ok(all.filter(|word| only.is_none_or(|only| only == *word)).collect())
}

fn with_policy(plan: &Plan, word: &str) -> Plan {
    let mut plan = plan.clone();
    let policy = POLICIES.iter().find(|(known, _)| *known == word).expect("one of ours").1;
    if let Some(sharing) = &mut plan.host.sharing {
        sharing.policy = policy;
    }
    plan
}

fn name(world: World) -> &'static str {
    if world == World::Live { "live, one thread" } else { "simulated" }
}

fn print_report(
    page: Page,
    what: &str,
    world: World,
    hog: &Hog,
    stats: &[(&'static str, HogStats)],
) {
    let columns = [
        "policy",
        "queues",
        "outstanding",
        "MB/s",
        "kIOPS",
        "least of a share",
        "most",
        "lock waits",
    ];
    let line = |(word, job_result): &(&'static str, HogStats)| {
        let (least, most) = job_result.shares();
        vec![
            (*word).to_owned(),
            format!("{} of {}", job_result.shape.queues, job_result.shape.depth),
            job_result.shape.outstanding().to_string(),
            format!("{:.1}", job_result.megabytes_s()),
            format!("{:.2}", job_result.kiops()),
            format!("{least:.3}"),
            format!("{most:.3}"),
            job_result.lock_waits.to_string(),
        ]
    };
    page.line(Table {
        caption: format!("diskhog, {}: {what}", name(world)),
        columns: columns.map(String::from).into(),
        lines: stats.iter().map(line).collect(),
        notes: vec!["a core's share is of what all have got, evenly divided: 1 is even".into()],
    });
    for (word, job_result) in stats {
        series(page, word, hog, job_result);
    }
}

/// Prints the samples of the monitor, one line per core.
fn series(page: Page, word: &str, hog: &Hog, job_result: &HogStats) {
    let samples = job_result.cores.iter().map(|core| core.series.len()).max().unwrap_or(0);
    let columns = (1..=samples).map(|at| format!("{}", hog.interval * at as u64));
    let rate = |bytes: u64| format!("{:.1}", bytes as f64 / hog.interval.as_us_f64());
    let line = |(core, stats): (usize, &diskhog::CoreStats)| {
        let sampled = (0..samples).map(|at| rate(stats.series.get(at).copied().unwrap_or(0)));
        std::iter::once(format!("core {core}")).chain(sampled).collect()
    };
    page.line(Table {
        caption: format!("{word}: MB/s of each core, sample by sample"),
        columns: std::iter::once("until".to_owned()).chain(columns).collect(),
        lines: job_result.cores.iter().enumerate().map(line).collect(),
        notes: Vec::new(),
    });
}
