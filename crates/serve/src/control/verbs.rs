//! The verbs of the control socket: methods of JSON-RPC.

use device::meter::{Counts, Kind};
use media::Timing;
use plan::{MediumPace, Plan};
use runtime::{STD_CLOCK, Span, Time, WallClock};
use serde_json::{Map, Value, json};
use world::device::DieView;

use super::Control;
use super::drive::Drive;
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
    verb("fork", "FILE", "Copy the drive's state to a new file while it runs"),
    verb(
        "wear",
        "YEARS [CYCLES]",
        "Wear flash by years, and by program/erase cycles of each block",
    ),
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
            let _request = drive.request();
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
            let opened =
                control.opened.as_ref().ok_or_else(|| rejected("the server watches no drive"))?;
            if method == "fork" {
                may_change(&drive, method)?;
                return fork(&drive, parameters);
            }
            let _request = drive.request();
            may_change(&drive, method)?;
            change(&drive, opened, method, parameters)?;
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

fn change(drive: &Drive, opened: &Plan, method: &str, parameters: &Value) -> Result<(), Failed> {
    let text = |name: &str| {
        let found = parameters.get(name).and_then(Value::as_str);
        found.ok_or_else(|| rejected(format!("{name}: found none, expected text")))
    };
    match method {
        "wear" => return wear(drive, parameters),
        "faults.inject" => return inject(drive, opened, text("fault")?),
        "faults.clear" => return clear(drive, parameters.get("name").and_then(Value::as_str)),
        "timing.set" => return retime(drive, opened, text("key")?, text("value")?),
        "save" => return drive.save().map_err(failed),
        "power.cut" => return drive.cut_power().map_err(failed),
        "power.restore" => drive.settings().powered = true,
        "pause" => drive.settings().paused = true,
        _ => drive.settings().paused = false,
    }
    drive.ask().map_err(failed)
}

/// Verbs that change a drive of several device threads: what all of them do, each at its own time.
const OF_THREADS: [&str; 4] = ["pause", "resume", "power.cut", "power.restore"];

/// Rejects what a shared or a paused drive, or one of several device threads, cannot do.
fn may_change(drive: &Drive, method: &str) -> Result<(), Failed> {
    if drive.shared && (drive.divided || !method.starts_with("faults.")) {
        let expected = "expected a drive that clients do not share";
        return Err(rejected(format!("{}: {method}: {expected}", drive.name)));
    }
    let threads = drive.device_threads();
    if threads > 1 && !OF_THREADS.contains(&method) {
        let expected = format!("found {threads} device threads, expected one");
        return Err(rejected(format!("{}: {method}: {expected}", drive.name)));
    }
    // The copy and the flush of flash are work of the device's thread, which sleeps.
    if ["fork", "save"].contains(&method) && drive.settings().paused {
        let expected = "found it paused, expected it to run";
        return Err(rejected(format!("{}: {method}: {expected}", drive.name)));
    }
    Ok(())
}

fn fork(drive: &Drive, parameters: &Value) -> Answer {
    let file = parameters.get("file").and_then(Value::as_str).unwrap_or_default();
    let path = std::path::Path::new(file);
    if !path.is_absolute() {
        return Err(rejected(format!("file: found {file:?}, expected an absolute path")));
    }
    let forked = drive.fork(path).map_err(failed)?;
    let ms = |span: Span| span.as_ns() as f64 / 1e6;
    Ok(json!({
        "drive": drive.name,
        "file": file,
        "bytes": forked.bytes,
        "pause_ms": ms(forked.pause),
        "took_ms": ms(forked.took),
    }))
}

/// A parameter that is a whole number up to `most`, as a number or as text.
fn number(parameters: &Value, name: &str, most: u32) -> Result<Option<u32>, Failed> {
    let Some(given) = parameters.get(name) else { return Ok(None) };
    let found = given.as_u64().or_else(|| given.as_str()?.parse().ok());
    let found = found.and_then(|number| u32::try_from(number).ok());
    found.filter(|number| *number <= most).map(Some).ok_or_else(|| {
        rejected(format!("{name}: found {given}, expected a whole number from 0 to {most}"))
    })
}

fn wear(drive: &Drive, parameters: &Value) -> Result<(), Failed> {
    const YEARS_MAX: u32 = 100;
    const CYCLES_MAX: u32 = 10_000_000;
    /// Years in which a drive is used up to the rated cycles, unless they are given.
    const RATED_YEARS: u32 = 5;
    let years = number(parameters, "years", YEARS_MAX)?
        .ok_or_else(|| rejected("years: found none, expected a whole number of years"))?;
    let rated = {
        let settings = drive.settings();
        let flash = settings.plan.medium.flash.as_ref();
        flash.map(|flash| flash.spec.errors.rated_cycles)
    };
    let rated = rated.ok_or_else(|| rejected("medium.kind: expected flash, which wears"))?;
    let used = u64::from(rated) * u64::from(years) / u64::from(RATED_YEARS);
    let used = used.min(CYCLES_MAX.into()) as u32;
    let cycles = number(parameters, "cycles", CYCLES_MAX)?.unwrap_or(used);
    drive.wear(cycles, years).map_err(failed)
}

fn inject(drive: &Drive, opened: &Plan, text: &str) -> Result<(), Failed> {
    let faults = format!("[{text}]");
    let with = opened.with_sets([("faults", faults.as_str())]);
    let added = with.map_err(|errors| rejected(errors.to_string()))?.faults;
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

fn retime(drive: &Drive, opened: &Plan, key: &str, value: &str) -> Result<(), Failed> {
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
    let sets = sets.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let plan = opened.with_sets(sets).map_err(|errors| rejected(errors.to_string()))?;
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
        plan.device.number = settings.plan.device.number;
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use testing::Folder;
    use world::interfaces::by_name;

    use super::*;

    #[test]
    fn settings_apply_to_the_plan_that_was_opened() {
        let folder = Folder::new("opened");
        let plan = |latency: &str| {
            format!(
                "base = \"live\"\n[medium]\npace = \"modelled\"\n[medium.timing]\n\
                 first_byte = {{ value = \"1 us\", source = \"assumed\" }}\n[host]\nretries = {latency}\n"
            )
        };
        let path = folder.file("p.toml", &plan("7"));
        let opened = Plan::open(&path.display().to_string(), &[]).expect("a plan");
        let control = Control::watching(opened.clone()).expect("two descriptors");
        let row = by_name("nvme").expect("an interface");
        let drive = control.add(row, Path::new("drive"), &opened, 1);
        let set = |method: &str, parameters: Value| {
            perform(&control, method, &parameters).map(drop).map_err(|failed| failed.message)
        };
        let of_file = |drive: &Drive| {
            let settings = drive.settings();
            (settings.plan.host.retries, settings.plan.faults.len())
        };
        folder.file("p.toml", &plan("9"));
        let times = json!({ "key": "first_byte", "value": "2 us" });
        assert_eq!(set("timing.set", times.clone()), Ok(()));
        assert_eq!(of_file(&drive), (7, 0), "after the file was edited");
        std::fs::remove_file(&path).expect("the file is there");
        assert_eq!(set("timing.set", times), Ok(()));
        let fault = json!({ "fault": "{ name = \"late\", what = \"delay\", span = \"1 us\" }" });
        assert_eq!(set("faults.inject", fault), Ok(()));
        assert_eq!(of_file(&drive), (7, 1), "after the file was deleted");
    }
}
