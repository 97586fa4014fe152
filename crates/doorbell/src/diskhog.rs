//! `doorbell diskhog`: one thread per core, each in its own range of the disk, under each queue policy.

use std::path::PathBuf;

use campaign::diskhog::{self, Hog, HogStats};
use clap::{Args, ValueEnum};
use papers::Table;
use plan::units::{parse_size, parse_span};
use plan::{POLICIES, Plan};
use runtime::Span;
use serde_json::json;

use super::Sets;
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
    /// Write the results to this file as JSON
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

pub(super) fn diskhog(typed: &Diskhog) -> Result<bool, String> {
    let plan = typed.sets.open(&typed.plan)?;
    let hog = typed.hog()?;
    let worlds = [World::Live, World::Sim].into_iter();
    let worlds = worlds.filter(|world| typed.world == World::Both || typed.world == *world);
    let mut stats = Vec::new();
    for world in worlds {
        let mut of_world = Vec::new();
        for word in words(&plan, typed.policy)? {
            let plan = with_policy(&plan, word);
            let job_result = match world {
                World::Live => diskhog::live(&plan, &hog),
                _ => diskhog::simulated(&plan, &hog),
            };
            of_world.push((word, job_result.map_err(|error| error.to_string())?));
        }
        print_report(&typed.what(), world, &hog, &of_world);
        stats.extend(of_world.into_iter().map(|(word, job_result)| (world, word, job_result)));
    }
    match &typed.json {
        Some(path) => write_json(path, &stats).map(|()| true),
        None => Ok(true),
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

fn print_report(what: &str, world: World, hog: &Hog, stats: &[(&'static str, HogStats)]) {
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
    println!(
        "{}",
        Table {
            what: format!("diskhog, {}: {what}", name(world)),
            columns: columns.map(String::from).into(),
            lines: stats.iter().map(line).collect(),
            notes: vec!["a core's share is of what all have got, evenly divided: 1 is even".into()],
        }
    );
    for (word, job_result) in stats {
        series(word, hog, job_result);
    }
}

/// Prints the samples of the monitor, one line per core.
fn series(word: &str, hog: &Hog, job_result: &HogStats) {
    let samples = job_result.cores.iter().map(|core| core.series.len()).max().unwrap_or(0);
    let columns = (1..=samples).map(|at| format!("{}", hog.interval * at as u64));
    let rate = |bytes: u64| format!("{:.1}", bytes as f64 / hog.interval.as_us_f64());
    let line = |(core, stats): (usize, &diskhog::CoreStats)| {
        let sampled = (0..samples).map(|at| rate(stats.series.get(at).copied().unwrap_or(0)));
        std::iter::once(format!("core {core}")).chain(sampled).collect()
    };
    println!(
        "{}",
        Table {
            what: format!("{word}: MB/s of each core, sample by sample"),
            columns: std::iter::once("until".to_owned()).chain(columns).collect(),
            lines: job_result.cores.iter().enumerate().map(line).collect(),
            notes: Vec::new(),
        }
    );
}

fn write_json(path: &PathBuf, stats: &[(World, &'static str, HogStats)]) -> Result<(), String> {
    let runs: Vec<_> = stats
        .iter()
        .map(|(world, word, job_result)| {
            json!({
                "world": if *world == World::Live { "live" } else { "sim" },
                "policy": word,
                "queues": job_result.shape.queues,
                "depth": job_result.shape.depth,
                "outstanding": job_result.shape.outstanding(),
                "seconds": job_result.measured.as_us_f64() / 1e6,
                "megabytes_per_second": job_result.megabytes_s(),
                "lock_waits": job_result.lock_waits,
                "cores": job_result.cores,
            })
        })
        .collect();
    let text = serde_json::to_string_pretty(&json!({ "diskhog": runs })).expect("plain numbers");
    std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}
