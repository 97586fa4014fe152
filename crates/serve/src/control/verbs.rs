//! The verbs of the control socket: methods of JSON-RPC.

use device::meter::{Counts, Kind};
use runtime::{STD_CLOCK, Time, WallClock};
use serde_json::{Map, Value, json};
use world::device::DieView;

use super::Control;
use super::answer::{Answer, Failed, failed, rejected};
use super::changes::{change, fork, may_change};
use super::drive::Drive;
use super::parameters::{Given, VERBS, Verb};

/// Does what a method says. `parameters` is the member `params` of the request, if it has one.
pub(super) fn perform(control: &Control, method: &str, parameters: Option<&Value>) -> Answer {
    let Some(verb) = Verb::of(method) else {
        let names: Vec<_> = VERBS.iter().map(|verb| verb.method).collect();
        let message = format!("{method:?}: expected one of {}", names.join(", "));
        return Err(Failed { code: -32601, message });
    };
    let given = Given::parse(verb, parameters)?;
    match method {
        "stats" => each(control, &given, stats),
        "clients" => each(control, &given, |drive| Ok(clients(drive))),
        "faults.list" => each(control, &given, |drive| {
            let _request = drive.request();
            drive.ask().map_err(failed)?;
            Ok(faults(drive))
        }),
        "stop" => {
            control.stop().request();
            let done = "the server stops: each drive is flushed and saved";
            Ok(json!({ "stopping": true, "done": done }))
        }
        _ => {
            let drive = one(control, given.text("drive"))?;
            let opened =
                control.opened.as_ref().ok_or_else(|| rejected("the server watches no drive"))?;
            if method == "fork" {
                may_change(&drive, method)?;
                return fork(&drive, given.required("file"));
            }
            let _request = drive.request();
            may_change(&drive, method)?;
            let done = change(&drive, opened, method, &given)?;
            Ok(state(&drive, &done))
        }
    }
}

/// The drives that are named; all, if none is.
fn each(control: &Control, given: &Given, of: impl Fn(&Drive) -> Answer) -> Answer {
    let drives = match given.text("drive") {
        Some(name) => vec![one(control, Some(name))?],
        None => control.drives().clone(),
    };
    let all = drives.iter().map(|drive| {
        let mut answer = of(drive)?;
        if let Some(fields) = answer.as_object_mut() {
            fields.insert("drive".into(), json!(drive.name));
        }
        Ok(answer)
    });
    Ok(json!({ "drives": all.collect::<Result<Vec<_>, Failed>>()? }))
}

/// The drive of this address; without a name, the only one.
fn one(control: &Control, name: Option<&str>) -> Result<std::sync::Arc<Drive>, Failed> {
    let drives = control.drives();
    let found = match (name, &drives[..]) {
        (None, [only]) => Some(only),
        (None, _) => None,
        (Some(name), drives) => drives.iter().find(|drive| drive.name == name),
    };
    found.cloned().ok_or_else(|| {
        let names: Vec<_> = drives.iter().map(|drive| drive.name.as_str()).collect();
        rejected(format!(
            "drive: found {}, expected one of {}",
            name.unwrap_or("none"),
            names.join(", ")
        ))
    })
}

fn state(drive: &Drive, done: &str) -> Value {
    let settings = drive.settings();
    json!({
        "drive": drive.name,
        "done": done,
        "powered": settings.powered,
        "paused": settings.paused,
        "faults": settings.plan.faults.len(),
    })
}

fn clients(drive: &Drive) -> Value {
    let now = STD_CLOCK.now();
    let client = |(name, since): (String, Time)| {
        let connected_s = now.since(since).as_ns() as f64 / 1e9;
        json!({ "client": name, "connected_s": connected_s })
    };
    let connected: Vec<_> = drive.connected().into_iter().map(client).collect();
    json!({ "clients": connected, "accepted": drive.accepted() })
}

fn faults(drive: &Drive) -> Value {
    let (settings, posted) = (drive.settings(), drive.posted());
    let fault = |fault: &device::faults::Fault| {
        let injected = posted.injected(&fault.name);
        json!({ "name": fault.name, "what": fault.what.word(), "injected": injected })
    };
    json!({ "faults": settings.plan.faults.iter().map(fault).collect::<Vec<_>>() })
}

fn stats(drive: &Drive) -> Answer {
    let posted = {
        let _request = drive.request();
        drive.ask().map_err(failed)?;
        drive.posted()
    };
    let mut commands = Map::new();
    for (kind, (now, before)) in Kind::ALL.iter().zip(posted.now.kinds.iter().zip(&posted.before)) {
        let (all, seconds) = (before.and(now.totals), device::meter::SECONDS as f64);
        let us = |permille| now.percentile_ns(permille).map(|ns| ns as f64 / 1e3);
        commands.insert(
            kind.word().into(),
            json!({
                "commands": all.commands,
                "bytes": all.bytes,
                "errors": all.errors,
                "mean_us": (all.commands > 0).then(|| all.latency_ns as f64 / 1e3 / all.commands as f64),
                "per_s": now.commands as f64 / seconds,
                "bytes_per_s": now.bytes as f64 / seconds,
                "in_device": now.latency_ns as f64 / 1e9 / seconds,
                "p50_us": us(500),
                "p99_us": us(990),
                "p999_us": us(999),
                "traced": now.traced,
                "stages_us": stages(now),
            }),
        );
    }
    let die = |die: &DieView| {
        json!({
            "doing": die.doing,
            "collects": die.collects,
            "waiting": die.waiting,
            "cycles_mean": die.cycles_mean,
            "cycles_most": die.cycles_most,
            "bad_blocks": die.bad_blocks,
        })
    };
    let settings = drive.settings();
    Ok(json!({
        "powered": settings.powered,
        "paused": settings.paused,
        "shared": drive.shared,
        "clients": drive.connected().len(),
        "commands": commands,
        "flushes_ignored": posted.flushes_ignored(),
        "flash": posted.flash,
        "dies": posted.dies.iter().map(die).collect::<Vec<_>>(),
    }))
}

/// Mean time of each stage of the traced commands, in microseconds, the longest first; the last is time that
/// no stage names.
pub(super) fn stage_means(counts: &Counts) -> Vec<(&'static str, f64)> {
    let named: u64 = counts.stages_ps.iter().map(|(_, ps)| ps).sum();
    let unexplained = ("unexplained", counts.traced_ps.saturating_sub(named));
    let mut all = counts.stages_ps.clone();
    all.sort_by_key(|(_, ps)| std::cmp::Reverse(*ps));
    all.extend((counts.traced > 0).then_some(unexplained));
    all.into_iter().map(|(name, ps)| (name, ps as f64 / 1e6 / counts.traced as f64)).collect()
}

fn stages(counts: &Counts) -> Value {
    let stage = |(stage, us): (&str, f64)| json!({ "stage": stage, "us": us });
    stage_means(counts).into_iter().map(stage).collect()
}
