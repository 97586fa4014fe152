//! `doorbell compare`: the same jobs through every interface of a plan, side by side.

use std::path::PathBuf;

use clap::Args;
use papers::Table;
use plan::Plan;
use workload::pattern::OpKind;
use world::device;
use world::engine::JobResult;
use world::interfaces::{self, Row};
use world::work::Work;
use world::{self, Options};

use super::Sets;
use super::run::{Lay, World, works};

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
    /// Mapping of the trace's devices or files onto the SSD
    #[arg(long, value_enum, default_value_t = Lay::Concatenate)]
    map: Lay,
    #[command(flatten)]
    sets: Sets,
}

/// Results of one interface: all jobs together, by kind of operation.
struct Column {
    name: &'static str,
    kinds: Vec<Kind>,
    errors: u64,
}

/// Operations of one kind.
struct Kind {
    kind: OpKind,
    iops: f64,
    mean_us: f64,
    p99_us: f64,
    /// Microseconds by stage, of traced requests.
    stages: Vec<(&'static str, f64)>,
}

pub(super) fn compare(typed: &Compare) -> Result<bool, String> {
    let plan = typed.sets.open(&typed.plan)?;
    let mut good = true;
    for work in &works(&typed.files, typed.map)? {
        for simulated in [false, true] {
            let wanted = match typed.world {
                World::Live => !simulated,
                World::Sim => simulated,
                World::Both => true,
            };
            if wanted {
                let world = if simulated { "simulated" } else { "live, two threads" };
                println!("== {}, {world}, plan {}", work.file.display(), plan.name);
                let columns = columns(&plan, work, simulated)?;
                good &= columns.iter().all(|column| column.errors == 0);
                print_report(&columns);
            }
        }
    }
    Ok(good)
}

/// One column for each interface of the plan. An interface that the plan lacks is reported and left out.
fn columns(plan: &Plan, work: &Work, simulated: bool) -> Result<Vec<Column>, String> {
    let all = interfaces::all().into_iter().filter(|row| simulated || row.live);
    let (mut columns, mut lacks) = (Vec::new(), Vec::new());
    for row in all.map(|row| row.of_plan(plan)) {
        match device::check(row, plan) {
            Ok(()) => columns.push(column(row, plan, work, simulated)?),
            Err(why) => lacks.push(why.to_string()),
        }
    }
    if columns.is_empty() {
        return Err(format!("{}: no interface fits it: {}", plan.origin, lacks.join("; ")));
    }
    lacks.iter().for_each(|why| println!("note: {why}"));
    Ok(columns)
}

fn column(row: &'static Row, plan: &Plan, work: &Work, simulated: bool) -> Result<Column, String> {
    let run_result = match simulated {
        true => world::simulate(row, plan, work, Options::default()),
        false => world::live_in_threads(row, plan, work, Options::default()),
    };
    let run_result = run_result.map_err(|error| format!("{}: {error}", row.name))?;
    let mut all = JobResult::default();
    for (job, job_result) in &run_result.jobs {
        for message in &job_result.messages {
            eprintln!("error: {}, {}: {message}", row.name, job.name);
        }
        match all.stats.breakdowns.is_empty() {
            true => {
                all = JobResult {
                    stats: job_result.stats.clone(),
                    measured: job_result.measured,
                    ..JobResult::default()
                }
            }
            false => all.merge(job_result),
        }
    }
    let errors = run_result.jobs.iter().map(|(_, job_result)| job_result.errors()).sum();
    let kinds = OpKind::ALL.into_iter().filter_map(|kind| of_kind(row, &all, kind)).collect();
    Ok(Column { name: row.name, kinds, errors })
}

fn of_kind(row: &'static Row, job_result: &JobResult, kind: OpKind) -> Option<Kind> {
    let stats = job_result.stats.of(kind);
    if stats.total.count() == 0 {
        return None;
    }
    let mean = job_result.stats.breakdowns.get(&kind)?.mean();
    let stages = row.stages.iter().copied().zip(mean.stages_ps.iter().map(|ps| ps / 1e6));
    let mut stages: Vec<_> = stages.collect();
    stages.push(("unexplained", mean.unexplained_ps / 1e6));
    Some(Kind {
        kind,
        iops: stats.iops(job_result.measured),
        mean_us: stats.total.mean_ns() / 1e3,
        p99_us: stats.total.percentile_ns(99_000) as f64 / 1e3,
        stages,
    })
}

fn print_report(columns: &[Column]) {
    let words = ["reads", "writes", "flushes", "trims"];
    for (kind, word) in OpKind::ALL.into_iter().zip(words) {
        let of = |column: &'_ Column| column.kinds.iter().position(|of| of.kind == kind);
        let have: Vec<_> =
            columns.iter().filter_map(|c| of(c).map(|at| (c.name, &c.kinds[at]))).collect();
        if have.is_empty() {
            continue;
        }
        let line = |what: &str, value: &dyn Fn(&Kind) -> String| -> Vec<String> {
            std::iter::once(what.to_owned()).chain(have.iter().map(|(_, of)| value(of))).collect()
        };
        let mut lines = vec![
            line("IOPS", &|of| format!("{:.0}", of.iops)),
            line("mean, us", &|of| format!("{:.3}", of.mean_us)),
            line("p99, us", &|of| format!("{:.3}", of.p99_us)),
        ];
        lines.extend(by_stage(&have));
        let columns = std::iter::once(String::new());
        let columns = columns.chain(have.iter().map(|(name, _)| (*name).to_owned())).collect();
        let mut notes = vec![fastest(&have)];
        notes.extend(why(&have));
        println!("{}", Table { what: word.to_owned(), columns, lines, notes });
    }
}

/// One line for each stage in which an interface spends time, in order of first appearance.
fn by_stage(have: &[(&'static str, &Kind)]) -> Vec<Vec<String>> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in have.iter().flat_map(|(_, of)| &of.stages) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let us = |of: &Kind, name: &str| stage(of, name).map(|us| format!("{us:.3}"));
    let line = |name: &str| -> Vec<String> {
        let cells = have.iter().map(|(_, of)| us(of, name).unwrap_or_else(|| "-".into()));
        std::iter::once(format!("  {name}")).chain(cells).collect()
    };
    let is_spent = |name: &&&str| {
        have.iter().any(|(_, of)| stage(of, name).is_some_and(|us| us.abs() >= 0.0005))
    };
    names.iter().filter(is_spent).map(|name| line(name)).collect()
}

fn stage(of: &Kind, name: &str) -> Option<f64> {
    of.stages.iter().find(|(stage, _)| *stage == name).map(|(_, us)| *us)
}

fn fastest(have: &[(&'static str, &Kind)]) -> String {
    let most = have.iter().max_by(|(_, a), (_, b)| a.iops.total_cmp(&b.iops));
    let quickest = have.iter().min_by(|(_, a), (_, b)| a.mean_us.total_cmp(&b.mean_us));
    let (most, quickest) = (most.expect("one at least"), quickest.expect("one at least").0);
    // Work that comes at its own times is done at its own rate by all that keep up with it.
    let alike = have.iter().all(|(_, of)| of.iops >= 0.99 * most.1.iops);
    let most = match alike && have.len() > 1 {
        true => "operations a second: alike, to 1 %".to_owned(),
        false => format!("most operations a second: {}", most.0),
    };
    format!("{most}; shortest in the mean: {quickest}")
}

/// For each interface but the fastest: the stages that add most to its latency.
fn why(have: &[(&'static str, &Kind)]) -> Vec<String> {
    let quickest = have.iter().min_by(|(_, a), (_, b)| a.mean_us.total_cmp(&b.mean_us));
    let Some((best, quick)) = quickest else { return Vec::new() };
    let others = have.iter().filter(|(name, _)| name != best);
    others
        .map(|(name, of)| {
            let mut more: Vec<_> = of
                .stages
                .iter()
                .map(|(name, us)| (*name, us - stage(quick, name).unwrap_or(0.0)))
                .collect();
            more.sort_by(|a, b| b.1.total_cmp(&a.1));
            let parts = more.iter().take(3).filter(|(_, us)| *us > 0.0);
            let parts: Vec<_> = parts.map(|(stage, us)| format!("{stage} {us:+.3}")).collect();
            let longer = of.mean_us - quick.mean_us;
            format!("{name} over {best}: {longer:+.3} us, most of it {}", parts.join(", "))
        })
        .collect()
}
