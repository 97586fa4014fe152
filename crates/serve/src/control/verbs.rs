//! The verbs of the control socket: methods of JSON-RPC.

use device::meter::Kind;
use media::Timing;
use plan::{MediumPace, Plan};
use runtime::{STD_CLOCK, Time, WallClock};
use serde_json::{Map, Value, json};

use super::drive::Drive;
use super::{Control, Reopen};
use crate::plan_for_clients;

/// A verb, as `doorbell ctl` and docs/control.md have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// Its method, with a point for a space on the command line.
    pub method: &'static str,
    /// Names of its parameters in order, those in brackets optional.
    pub parameters: &'static str,
    pub help: &'static str,
}

const fn verb(method: &'static str, parameters: &'static str, help: &'static str) -> Verb {
    Verb { method, parameters, help }
}

/// All verbs, in the order of the documentation.
pub const VERBS: &[Verb] = &[
    verb("stats", "", "Counts since the start; rates and latencies of the last seconds"),
    verb("clients", "", "Connected clients"),
    verb("faults.list", "", "Faults, and the number of injections of each"),
    verb(
        "faults.inject",
        "FAULT",
        "Add faults: { name = \"late\", what = \"delay\", span = \"40 us\" }",
    ),
    verb("faults.clear", "[NAME]", "Remove a fault, or all"),
    verb("pause", "", "Stop executing commands"),
    verb("resume", "", "Continue after a pause"),
    verb("timing.set", "KEY VALUE", "Change a key of medium.timing"),
    verb("power.cut", "", "Cut the power: clients are disconnected, what is not durable is lost"),
    verb("power.restore", "", "Switch the drive on again"),
    verb("save", "", "Make everything that was written durable"),
    verb("stop", "", "Stop the server in order, as SIGTERM does"),
];

/// Error of a request, as JSON-RPC has it.
#[derive(Debug)]
pub(super) struct Failed {
    pub code: i32,
    pub message: String,
}

fn rejected(message: impl Into<String>) -> Failed {
    Failed { code: -32602, message: message.into() }
}

fn failed(message: String) -> Failed {
    Failed { code: -32000, message }
}

type Answer = Result<Value, Failed>;

pub(super) fn perform(control: &Control, method: &str, parameters: &Value) -> Answer {
    let text = |name: &str| parameters.get(name).and_then(Value::as_str);
    match method {
        "stats" => each(control, text("drive"), stats),
        "clients" => each(control, text("drive"), |drive| Ok(clients(drive))),
        "faults.list" => each(control, text("drive"), |drive| {
            drive.ask().map_err(failed)?;
            Ok(faults(drive))
        }),
        "stop" => {
            control.stop().request();
            Ok(json!({ "stopping": true }))
        }
        _ => {
            let known = VERBS.iter().any(|verb| verb.method == method);
            if !known {
                let names: Vec<_> = VERBS.iter().map(|verb| verb.method).collect();
                let message = format!("{method:?}: expected one of {}", names.join(", "));
                return Err(Failed { code: -32601, message });
            }
            let drive = one(control, text("drive"))?;
            let reopen =
                control.reopen.as_ref().ok_or_else(|| rejected("the server watches no drive"))?;
            change(&drive, reopen, method, parameters)?;
            Ok(state(&drive))
        }
    }
}

/// The drives that are named; all, if none is.
fn each(control: &Control, name: Option<&str>, of: impl Fn(&Drive) -> Answer) -> Answer {
    let drives = match name {
        Some(_) => vec![one(control, name)?],
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

fn change(drive: &Drive, reopen: &Reopen, method: &str, parameters: &Value) -> Result<(), Failed> {
    let text = |name: &str| {
        let found = parameters.get(name).and_then(Value::as_str);
        found.ok_or_else(|| rejected(format!("{name}: found none, expected text")))
    };
    if drive.shared {
        return Err(rejected(format!(
            "{}: {method}: expected a drive that clients do not share",
            drive.name
        )));
    }
    match method {
        "faults.inject" => return inject(drive, reopen, text("fault")?),
        "faults.clear" => return clear(drive, parameters.get("name").and_then(Value::as_str)),
        "timing.set" => return retime(drive, reopen, text("key")?, text("value")?),
        "save" => return drive.save().map_err(failed),
        "power.cut" => return drive.cut_power().map_err(failed),
        "power.restore" => drive.settings().powered = true,
        "pause" => drive.settings().paused = true,
        _ => drive.settings().paused = false,
    }
    drive.ask().map_err(failed)
}

fn inject(drive: &Drive, reopen: &Reopen, text: &str) -> Result<(), Failed> {
    let added = reopen(&[("faults", &format!("[{text}]"))]).map_err(rejected)?.faults;
    let mut plan = drive.settings().plan.clone();
    for fault in added {
        if plan.faults.iter().any(|other| other.name == fault.name) {
            return Err(rejected(format!(
                "faults.name: found {:?} twice, expected a new name",
                fault.name
            )));
        }
        plan.faults.push(fault);
    }
    /// Each is looked at for each command.
    const FAULTS_MAX: usize = 64;
    if plan.faults.len() > FAULTS_MAX {
        return Err(rejected(format!("faults: expected at most {FAULTS_MAX}")));
    }
    world::device::check(drive.row, &plan).map_err(|error| rejected(error.to_string()))?;
    drive.settings().plan = plan;
    drive.ask().map_err(failed)
}

fn clear(drive: &Drive, name: Option<&str>) -> Result<(), Failed> {
    {
        let faults = &mut drive.settings().plan.faults;
        match name {
            None => faults.clear(),
            Some(name) if faults.iter().any(|fault| fault.name == name) => {
                faults.retain(|fault| fault.name != name);
            }
            Some(name) => {
                let names: Vec<_> = faults.iter().map(|fault| fault.name.as_str()).collect();
                return Err(rejected(format!(
                    "name: found {name:?}, expected one of: {}",
                    names.join(", ")
                )));
            }
        }
    }
    drive.ask().map_err(failed)
}

fn retime(drive: &Drive, reopen: &Reopen, key: &str, value: &str) -> Result<(), Failed> {
    if !Timing::LIVE.contains(&key) {
        return Err(rejected(format!(
            "key: found {key:?}, expected one of {}",
            Timing::LIVE.join(", ")
        )));
    }
    let mut times = drive.settings().times.clone();
    times.insert(key.to_owned(), value.to_owned());
    let sets: Vec<_> =
        times.iter().map(|(key, value)| (format!("medium.timing.{key}"), value)).collect();
    let sets: Vec<_> = sets.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let plan = reopen(&sets).map_err(rejected)?;
    if plan.medium.timing().is_none() || plan.medium.pace == MediumPace::Immediate {
        let expected = "expected a medium with the table medium.timing, of medium.pace modelled";
        return Err(rejected(format!("medium: {expected}")));
    }
    let mut plan: Plan =
        plan_for_clients(drive.row, &plan).map_err(|error| rejected(error.to_string()))?;
    if drive.number > 0 {
        plan.medium.number_files(drive.number);
    }
    {
        let mut settings = drive.settings();
        plan.faults = settings.plan.faults.clone();
        (settings.plan, settings.times) = (plan, times);
    }
    drive.ask().map_err(failed)
}

fn state(drive: &Drive) -> Value {
    let settings = drive.settings();
    json!({
        "drive": drive.name,
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
    drive.ask().map_err(failed)?;
    let posted = drive.posted();
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
                "p50_us": us(500),
                "p99_us": us(990),
                "p999_us": us(999),
            }),
        );
    }
    let settings = drive.settings();
    Ok(json!({
        "powered": settings.powered,
        "paused": settings.paused,
        "clients": drive.connected().len(),
        "commands": if drive.shared { Value::Null } else { Value::Object(commands) },
        "flushes_ignored": posted.flushes_ignored(),
        "flash": posted.flash,
    }))
}
