//! `doorbell diskhog`: one thread per core, each in its own range of the disk, under each queue policy.

use std::path::PathBuf;

use campaign::diskhog::{self, Hog, LockCosts, Runs};
use clap::{Args, ValueEnum};
use plan::units::{parse_size, parse_span};
use plan::{LOCK_ORDERS, POLICIES, Plan};
use report::model::paper::Table;
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
    /// Order in which waiting cores get a queue's lock: unfair, fair, or both [default: the plan's]
    #[arg(long, value_parser = ["unfair", "fair", "both"])]
    lock: Option<String>,
    /// Number of runs of each policy; live they differ
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
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

/// A policy with an order of its locks, its machine, and what the model expects live.
struct Case {
    policy: &'static str,
    lock: &'static str,
    plan: Plan,
    predicted: Option<Vec<f64>>,
}

pub(super) fn diskhog(typed: &Diskhog, call: &Call) -> Result<bool, String> {
    if typed.sets.sets.iter().any(|(key, _)| key == "host.sharing.policy") {
        return Err("--set host.sharing.policy: each policy is run, expected --policy".into());
    }
    let plan = typed.sets.open(&typed.plan)?;
    let hog = typed.hog()?;
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let (mut all, mut warnings) = (Vec::new(), Vec::new());
    for simulated in typed.world.simulated() {
        let mut cases = cases(&plan, typed.policy, typed.lock.as_deref())?;
        let costs = (!simulated).then(diskhog::measure_locks);
        if let Some(costs) = costs {
            for case in &mut cases {
                let predicted = diskhog::predict(&case.plan, &hog, costs);
                let predicted = predicted.map_err(|error| error.to_string())?;
                case.predicted = Some(predicted.shares_by_core());
            }
            print_prediction(page, costs, &cases);
        }
        let run = |case: &Case| {
            let runs = (0..typed.runs).map(|_| match simulated {
                true => diskhog::simulated(&case.plan, &hog),
                false => diskhog::live(&case.plan, &hog),
            });
            let runs: Result<Vec<_>, _> = runs.collect();
            runs.map(Runs::new).map_err(|error| error.to_string())
        };
        let runs = cases.iter().map(run).collect::<Result<Vec<_>, _>>()?;
        let of_world: Vec<_> = cases.iter().zip(&runs).collect();
        print_report(page, &typed.what(), simulated, &hog, &of_world);
        warnings.extend(of_world.iter().flat_map(|(case, runs)| warnings_of(case, runs)));
        all.push(model::Hog {
            world: if simulated { model::World::Simulated } else { model::World::Live },
            plan: report::plan_of(&plan),
            threads: hog.threads,
            request_bytes: hog.bytes,
            write: hog.write,
            random: hog.random,
            batch: hog.batch,
            interval_ps: hog.interval.0,
            lock_costs: costs.map(|costs| model::HogLockCosts {
                lock_ps: costs.lock.0,
                transfer_ps: costs.transfer.0,
            }),
            policies: of_world.iter().map(|(case, runs)| policy_of(case, runs)).collect(),
        });
    }
    warnings.iter().for_each(|warning| page.line(format_args!("warning: {}", warning.text)));
    if let Some(json) = &mut json {
        let document = Document { warnings, ..call.document(Vec::new()) };
        let live = all.iter().any(|hog| hog.world == model::World::Live);
        let document = if live { measured(document) } else { document };
        json.put(&report::to_json(&Document { diskhog: all, ..document }))?;
    }
    Ok(true)
}

/// The warnings of all runs of a policy: a number that departs may be the scheduler's.
fn warnings_of(case: &Case, runs: &Runs) -> impl Iterator<Item = model::Warning> {
    let kind = model::WarningKind::DisturbedCores;
    runs.warnings().map(move |warning| {
        let text = format!("{} {}: {warning}", case.policy, case.lock);
        model::Warning { kind, text }
    })
}

fn policy_of(case: &Case, runs: &Runs) -> model::HogPolicy {
    let stats = runs.median();
    let (least_share, most_share) = stats.shares();
    let requests = stats.cores.iter().map(|core| core.requests).sum();
    let number = |core: Option<usize>| core.map(|core| core as u32);
    let core = |(core, shares): (&diskhog::CoreStats, [f64; 3])| model::HogCore {
        bytes: core.bytes,
        requests: core.requests,
        least_share: shares[0],
        median_share: shares[1],
        most_share: shares[2],
        series_bytes: core.series.clone(),
    };
    let live = case.predicted.as_deref();
    model::HogPolicy {
        policy: case.policy.to_owned(),
        lock: case.lock.to_owned(),
        runs: runs.count() as u32,
        thread_ids: stats.threads.iter().map(|thread| thread.id).collect(),
        verified_bytes: runs.verified_bytes(),
        predicted_core: live.and_then(|shares| number(diskhog::favoured(shares))),
        favoured_core: live.and_then(|_| number(diskhog::favoured(&runs.median_shares()))),
        queues: stats.shape.queues.into(),
        depth: stats.shape.depth.into(),
        outstanding: stats.shape.outstanding(),
        measured_ps: stats.measured.0,
        bytes_per_second: model::per_second(stats.bytes(), stats.measured.0),
        requests_per_second: model::per_second(requests, stats.measured.0),
        least_share,
        most_share,
        lock_waits: stats.lock_waits,
        cores: stats.cores.iter().zip(runs.shares()).map(core).collect(),
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
            ..Hog::sequential(self.threads)
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

/// The cases to run: each policy, and with a shared queue each order of its lock, by default the plan's.
fn cases(plan: &Plan, only: Option<&'static str>, lock: Option<&str>) -> Result<Vec<Case>, String> {
    let is_shared = |policy| POLICIES.iter().any(|(word, of)| *word == policy && of.is_shared());
    if lock.is_some() && !words(plan, only)?.into_iter().any(is_shared) {
        return Err(
            "--lock: found no queue that cores share, expected a plan with [host.sharing], and \
                    --policy single or round-robin if there is one"
                .to_owned(),
        );
    }
    let mut cases = Vec::new();
    let of_plan = plan.host.sharing.as_ref().map_or(LOCK_ORDERS[0].1, |sharing| sharing.order);
    let of_plan = LOCK_ORDERS.iter().find(|(_, order)| *order == of_plan);
    let lock = lock.unwrap_or(of_plan.expect("an order of a plan").0);
    for policy in words(plan, only)? {
        let known = POLICIES.iter().find(|(known, _)| *known == policy).expect("one of ours").1;
        for (word, order) in LOCK_ORDERS {
            if !(lock == word || lock == "both" && (known.is_shared() || word == "unfair")) {
                continue;
            }
            let mut plan = plan.clone();
            if let Some(sharing) = &mut plan.host.sharing {
                (sharing.policy, sharing.order) = (known, order);
            }
            cases.push(Case { policy, lock: word, plan, predicted: None });
        }
    }
    Ok(cases)
}

impl Case {
    /// The policy, with the order of its locks if it has any.
    fn name(&self, with_lock: bool) -> String {
        match with_lock && matches!(self.policy, "single" | "round-robin") {
            true => format!("{}, {}", self.policy, self.lock),
            false => self.policy.to_owned(),
        }
    }
}

/// The favoured core of these shares, in words.
fn favoured(shares: &[f64]) -> String {
    match diskhog::favoured(shares) {
        None => "none".into(),
        Some(core) => format!("core {core}, {:.2}", shares[core]),
    }
}

/// Prints what was measured and what the model expects, before the live runs.
fn print_prediction(page: Page, costs: LockCosts, cases: &[Case]) {
    let line = |case: &Case| {
        let shares = case.predicted.as_deref().unwrap_or_default();
        std::iter::once(case.name(true))
            .chain([favoured(shares)])
            .chain(shares.iter().map(|share| format!("{share:.2}")))
            .collect()
    };
    let cores = cases[0].predicted.as_ref().map_or(0, Vec::len);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    page.line(Table {
        caption: "predicted before the live runs: shares by core".into(),
        columns: ["policy", "favoured"]
            .map(String::from)
            .into_iter()
            .chain((0..cores).map(|core| core.to_string()))
            .collect(),
        lines: cases.iter().map(line).collect(),
        notes: vec![
            format!(
                "measured here: a lock at hand {}, a cache line to another core {}; all other costs are the \
                 plan's",
                costs.lock, costs.transfer
            ),
            format!("the model has a processor for each core, this machine {processors} for all"),
            "favoured: at least 1.1 of an even share".into(),
        ],
    });
}

fn print_report(page: Page, what: &str, simulated: bool, hog: &Hog, cases: &[(&Case, &Runs)]) {
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
    let both = cases.iter().any(|(case, _)| case.lock == "fair");
    let line = |(case, runs): &(&Case, &Runs)| {
        let stats = runs.median();
        let (least, most) = stats.shares();
        vec![
            case.name(both),
            format!("{} of {}", stats.shape.queues, stats.shape.depth),
            stats.shape.outstanding().to_string(),
            format!("{:.1}", stats.megabytes_s()),
            format!("{:.2}", stats.kiops()),
            format!("{least:.3}"),
            format!("{most:.3}"),
            stats.lock_waits.to_string(),
        ]
    };
    let world = if simulated { "simulated" } else { "live" };
    let runs = cases[0].1.count();
    let of_runs = (runs > 1).then(|| format!("the run of the median throughput, of {runs}"));
    page.line(Table {
        caption: format!("diskhog, {world}: {what}"),
        columns: columns.map(String::from).into(),
        lines: cases.iter().map(line).collect(),
        notes: std::iter::once(
            "a core's share is of what all have got, evenly divided: 1 is even".into(),
        )
        .chain(of_runs)
        .collect(),
    });
    if !simulated {
        print_verdicts(page, cases);
    }
    if !simulated || runs > 1 {
        print_shares(page, cases);
    }
    for (case, runs) in cases {
        series(page, &case.name(both), hog, runs.median());
    }
}

/// Prints for each case whether the favoured core is the predicted one.
fn print_verdicts(page: Page, cases: &[(&Case, &Runs)]) {
    let line = |(case, runs): &(&Case, &Runs)| {
        let (expected, seen) =
            (case.predicted.as_deref().unwrap_or_default(), runs.median_shares());
        let holds = diskhog::favoured(expected) == diskhog::favoured(&seen);
        let mut ids: Vec<_> = runs.median().threads.iter().map(|thread| thread.id).collect();
        let all = ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        ids.sort_unstable();
        ids.dedup();
        vec![
            case.name(true),
            favoured(expected),
            favoured(&seen),
            if holds { "holds" } else { "departs" }.into(),
            format!("{:.1} MB", runs.verified_bytes() as f64 / 1e6),
            ids.len().to_string(),
            all,
        ]
    };
    page.line(Table {
        caption: "favoured core: predicted and live".into(),
        columns: ["policy", "predicted", "live", "", "verified", "threads", "their ids"]
            .map(String::from)
            .into(),
        lines: cases.iter().map(line).collect(),
        notes: vec!["live: the median share of all runs; every byte read was compared".into()],
    });
}

/// Prints the share of each core: median, and range of all runs.
fn print_shares(page: Page, cases: &[(&Case, &Runs)]) {
    let line = |(case, runs): &(&Case, &Runs)| {
        let shares = runs.shares().into_iter();
        let shares =
            shares.map(|[least, median, most]| format!("{median:.2} ({least:.2}-{most:.2})"));
        std::iter::once(case.name(true)).chain(shares).collect()
    };
    let cores = cases[0].1.median().cores.len();
    page.line(Table {
        caption: format!("shares by core: median and range of {} runs", cases[0].1.count()),
        columns: std::iter::once("policy".to_owned())
            .chain((0..cores).map(|core| core.to_string()))
            .collect(),
        lines: cases.iter().map(line).collect(),
        notes: Vec::new(),
    });
}

/// Prints the samples of the monitor, one line per core.
fn series(page: Page, word: &str, hog: &Hog, job_result: &diskhog::HogStats) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_the_lock_is_the_plans_unless_it_is_given() {
        let plan = |order| {
            let sets = [("host.sharing.order", order)];
            Plan::open("vortex", &sets).expect("a built-in plan")
        };
        let locks = |order, lock| -> Vec<_> {
            let cases = cases(&plan(order), Some("single"), lock).expect("it has [host.sharing]");
            cases.iter().map(|case| case.lock).collect()
        };
        assert_eq!((locks("fair", None), locks("unfair", None)), (vec!["fair"], vec!["unfair"]));
        assert_eq!(locks("fair", Some("unfair")), ["unfair"]);
        assert_eq!(locks("fair", Some("both")).len(), 2);
    }
}
