//! The verbs that change a drive. Each says what it has done; one that can't do anything on this drive is
//! refused with the reason.

use std::path::Path;

use device::faults::{Fault, What};
use media::Timing;
use media::contents::Backing;
use media::nand::Errors;
use plan::{MediumPace, Plan};
use runtime::Span;
use serde_json::json;

use super::answer::{Answer, Failed, failed, rejected};
use super::drive::Drive;
use super::parameters::Given;
use crate::plan_for_clients;

/// Makes a change, and returns what was done.
pub(super) fn change(
    drive: &Drive,
    opened: &Plan,
    method: &str,
    given: &Given,
) -> Result<String, Failed> {
    let done = match method {
        "wear" => return wear(drive, given),
        "save" => return save(drive),
        "power.cut" => return cut(drive),
        "faults.inject" => inject(drive, opened, given.required("fault"))?,
        "faults.clear" => clear(drive, given.text("name"))?,
        "timing.set" => retime(drive, opened, given.required("key"), given.required("value"))?,
        "power.restore" => match drive.restore_power().map_err(failed)? {
            true => "the power was on".into(),
            false => "the power is on".into(),
        },
        "pause" => match std::mem::replace(&mut drive.settings().paused, true) {
            true => "it was paused".into(),
            false => "paused: no command completes".into(),
        },
        _ => match std::mem::replace(&mut drive.settings().paused, false) {
            true => "resumed".into(),
            false => "it was not paused".into(),
        },
    };
    let is_running = drive.is_running();
    drive.ask().map_err(failed)?;
    let waits = !is_running && method != "power.restore";
    Ok(if waits { format!("{done}, from the next client on") } else { done })
}

/// Verbs that change a drive of several device threads: what all of them do, each at its own time.
const OF_THREADS: [&str; 4] = ["pause", "resume", "power.cut", "power.restore"];

/// Rejects what a shared or a paused drive, or one of several device threads, cannot do.
pub(super) fn may_change(drive: &Drive, method: &str) -> Result<(), Failed> {
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

pub(super) fn fork(drive: &Drive, file: &str) -> Answer {
    let path = Path::new(file);
    if !path.is_absolute() {
        return Err(rejected(format!("file: found {file:?}, expected an absolute path")));
    }
    let forked = drive.fork(path).map_err(failed)?;
    let ms = |span: Span| span.as_ns() as f64 / 1e6;
    let done = format!(
        "copied to {file}, drive {}: {} bytes in {}; commands waited for at most {}",
        forked.serial, forked.bytes, forked.took, forked.pause
    );
    Ok(json!({
        "drive": drive.name,
        "done": done,
        "file": file,
        "bytes": forked.bytes,
        "serial": forked.serial,
        "pause_ms": ms(forked.pause),
        "took_ms": ms(forked.took),
    }))
}

fn cut(drive: &Drive) -> Result<String, Failed> {
    let (was_on, clients) = (drive.settings().powered, drive.connected().len());
    drive.cut_power().map_err(failed)?;
    Ok(match was_on {
        true => format!("the power is off; clients disconnected: {clients}"),
        false => "the power was off".into(),
    })
}

fn save(drive: &Drive) -> Result<String, Failed> {
    let done = what_a_save_does(&drive.settings().plan)
        .map_err(|why| rejected(format!("{}: save: {why}", drive.name)))?;
    drive.save().map_err(failed)?;
    Ok(done)
}

/// The effect of a save on this drive, or why there is none.
fn what_a_save_does(plan: &Plan) -> Result<String, String> {
    let medium = &plan.medium;
    if let Some(flash) = &medium.flash {
        let of = flash.state.as_ref().map(|path| path.display().to_string());
        return Ok(match of {
            Some(state) => format!("flushed to {state}"),
            None => "flushed to flash in memory: it survives a power cut, and ends with the server"
                .into(),
        });
    }
    match &medium.contents.backing {
        Backing::File(path) | Backing::Bounded { path, .. } => {
            Ok(format!("flushed to {}", path.display()))
        }
        _ if plan.faults.iter().any(|fault| matches!(fault.what, What::IgnoreFlush(_))) => {
            Ok("what was written survives a power cut, and ends with the server".into())
        }
        _ => Err("medium.file: found none: blocks in memory have nothing to flush, and end with the server; \
                  expected a file, or flash"
            .into()),
    }
}

fn wear(drive: &Drive, given: &Given) -> Result<String, Failed> {
    /// Years in which a drive is used up to the rated cycles, unless they are given.
    const RATED_YEARS: u32 = 5;
    let years = given.number("years").unwrap_or_default();
    let errors = {
        let settings = drive.settings();
        settings.plan.medium.flash.as_ref().map(|flash| flash.spec.errors.clone())
    };
    let errors = errors.ok_or_else(|| rejected("medium.kind: expected flash, which wears"))?;
    if errors == Errors::none() {
        let expected = "expected \"profile\": without errors wear changes nothing that a host sees";
        return Err(rejected(format!("medium.flash.errors: found \"none\", {expected}")));
    }
    let used = u64::from(errors.rated_cycles) * u64::from(years) / u64::from(RATED_YEARS);
    let cycles =
        given.number("cycles").unwrap_or(used.min(super::parameters::CYCLES_MAX.into()) as u32);
    if years == 0 && cycles == 0 {
        return Err(rejected("years: found 0, expected at least 1, or cycles of at least 1"));
    }
    drive.wear(cycles, years).map_err(failed)?;
    Ok(format!(
        "each good block has {cycles} program/erase cycles more, data are {years} years older"
    ))
}

fn inject(drive: &Drive, opened: &Plan, text: &str) -> Result<String, Failed> {
    let faults = format!("[{text}]");
    let with = opened.with_sets([("faults", faults.as_str())]);
    let added = with.map_err(|errors| rejected(errors.to_string()))?.faults;
    if added.is_empty() {
        return Err(rejected("fault: found none, expected a table: { name = ..., what = ... }"));
    }
    let mut plan = drive.settings().plan.clone();
    let names: Vec<_> = added.iter().map(|fault| fault.name.clone()).collect();
    for fault in added {
        if plan.faults.iter().any(|other| other.name == fault.name) {
            return Err(rejected(format!(
                "faults.name: found {:?} twice, expected a new name",
                fault.name
            )));
        }
        may_happen(&plan, &fault)?;
        plan.faults.push(fault);
    }
    /// Each is looked at for each command.
    const FAULTS_MAX: usize = 64;
    if plan.faults.len() > FAULTS_MAX {
        return Err(rejected(format!("faults: expected at most {FAULTS_MAX}")));
    }
    world::device::check(drive.row, &plan).map_err(|error| rejected(error.to_string()))?;
    drive.settings().plan = plan;
    Ok(format!("added {}", names.join(", ")))
}

/// Refuses a fault that no command of this drive can meet.
fn may_happen(plan: &Plan, fault: &Fault) -> Result<(), Failed> {
    let refuse = |key: &str, found: &str, expected: &str| {
        let name = &fault.name;
        Err(rejected(format!("faults: {name}: {key}: found {found}, expected {expected}")))
    };
    let takes_no_time = plan.medium.pace == MediumPace::Immediate;
    match fault.what {
        What::Die { .. } if takes_no_time && fault.what.word() != "unreadable-die" => {
            refuse("medium.pace", "immediate", "modelled: chips that take no time are not slow")
        }
        What::CorruptMetadata if !plan.medium.keeps_metadata() => {
            refuse("medium", "none with metadata", "DRAM or PCM in memory, which has room for them")
        }
        _ => Ok(()),
    }
}

fn clear(drive: &Drive, name: Option<&str>) -> Result<String, Failed> {
    let faults = &mut drive.settings().plan.faults;
    let names: Vec<_> = faults.iter().map(|fault| fault.name.clone()).collect();
    match name {
        None => faults.clear(),
        Some(name) if names.iter().any(|other| other == name) => {
            faults.retain(|fault| fault.name != name);
            return Ok(format!("removed {name}"));
        }
        Some(name) => {
            let names = names.join(", ");
            return Err(rejected(format!("name: found {name:?}, expected one of: {names}")));
        }
    }
    Ok(match &names[..] {
        [] => "there were no faults".into(),
        names => format!("removed {}", names.join(", ")),
    })
}

fn retime(drive: &Drive, opened: &Plan, key: &str, value: &str) -> Result<String, Failed> {
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
    let mut settings = drive.settings();
    plan.device = settings.plan.device.clone();
    plan.faults = settings.plan.faults.clone();
    (settings.plan, settings.times) = (plan, times);
    Ok(format!("medium.timing.{key} is {value}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};
    use testing::Folder;
    use world::interfaces::named;

    use super::*;
    use crate::control::Control;
    use crate::control::verbs::perform;

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
        let row = named("nvme").expect("an interface");
        let drive = control.add(row, Path::new("drive"), &opened, 1);
        let set = |method: &str, parameters: Value| {
            perform(&control, method, Some(&parameters)).map(drop).map_err(|failed| failed.message)
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

    /// A drive of this plan that answers all requests, and the answer of a method.
    fn asked(
        plan: &str,
        sets: &[(&str, &str)],
        method: &str,
        given: &Value,
    ) -> Result<String, String> {
        let plan = Plan::open(plan, sets).expect("a plan");
        let control = Control::watching(plan.clone()).expect("two descriptors");
        let drive = control.add(named("nvme").expect("an interface"), Path::new("drive"), &plan, 1);
        let turn = drive.turn();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Acquire) {
                    drive.place(0).set_done(drive.asked());
                    std::thread::yield_now();
                }
            });
            let answer = perform(&control, method, Some(given));
            ended.store(true, std::sync::atomic::Ordering::Release);
            answer
        });
        drop(turn);
        let done = |answer: Value| answer["done"].as_str().expect("what was done").to_owned();
        answer.map(done).map_err(|failed| failed.message)
    }

    #[test]
    fn verb_that_can_do_nothing_on_a_drive_is_refused_with_the_reason() {
        let flash = ("small-flash", &[("medium.keep", "everything")][..]);
        let dram = ("live", &[][..]);
        let stuck =
            json!({ "fault": "{ name = \"s\", what = \"stuck-die\", die = 0, at = \"0 ps\" }" });
        let metadata = json!({ "fault": "{ name = \"m\", what = \"corrupt-metadata\" }" });
        for ((plan, sets), method, given, expected) in [
            (
                flash,
                "wear",
                json!({ "years": 3, "cycles": 3000 }),
                "medium.flash.errors: found \"none\"",
            ),
            (dram, "wear", json!({ "years": 3 }), "medium.kind: expected flash"),
            (dram, "save", json!({}), "medium.file: found none"),
            (dram, "faults.inject", json!({ "fault": "" }), "fault: found none"),
            (dram, "faults.inject", stuck, "medium.pace: found immediate"),
            (flash, "faults.inject", metadata, "found none with metadata"),
            (dram, "timing.set", json!({ "key": "first_byte", "value": "1 us" }), "pace modelled"),
        ] {
            let refused = asked(plan, sets, method, &given).expect_err(method);
            assert!(refused.contains(expected), "{plan}: {method}: {refused}");
        }
        let worn = [("medium.keep", "everything"), ("medium.flash.errors", "profile")];
        let nothing = json!({ "years": 0 });
        let refused = asked("small-flash", &worn, "wear", &nothing).expect_err("nothing is asked");
        assert_eq!(refused, "years: found 0, expected at least 1, or cycles of at least 1");
    }

    #[test]
    fn successful_change_reports_its_effect() {
        let worn = [("medium.keep", "everything"), ("medium.flash.errors", "profile")];
        let modelled = [("medium.pace", "modelled")];
        let fault = json!({ "fault": "{ name = \"late\", what = \"delay\", span = \"1 us\" }" });
        let time = json!({ "key": "first_byte", "value": "1 us" });
        for (plan, sets, method, given, expected) in [
            (
                "small-flash",
                &worn[..],
                "wear",
                json!({ "years": 3, "cycles": 30 }),
                "30 program/erase",
            ),
            ("small-flash", &worn, "save", json!({}), "flushed to flash in memory"),
            ("live", &modelled, "faults.inject", fault, "added late"),
            ("live", &modelled, "faults.clear", json!({}), "there were no faults"),
            ("live", &modelled, "timing.set", time, "medium.timing.first_byte is 1 us"),
            ("live", &modelled, "pause", json!({}), "paused: no command completes"),
            ("live", &modelled, "resume", json!({}), "it was not paused"),
            ("live", &modelled, "power.restore", json!({}), "the power was on"),
            ("live", &modelled, "stop", json!({}), "the server stops"),
        ] {
            let done = asked(plan, sets, method, &given).unwrap_or_else(|error| panic!("{error}"));
            assert!(done.contains(expected), "{plan}: {method}: {done}");
        }
    }
}
