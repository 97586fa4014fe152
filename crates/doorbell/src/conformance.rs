//! `doorbell conformance`.

use std::io::IsTerminal;
use std::path::PathBuf;

use ::conformance::{Case, CaseRun, Harm, Stop, sections};
use campaign::conformance::{Controller, run};
use clap::{Args, ValueEnum};
use plan::Plan;
use report::model::{self, CaseVerdict, Document};

use super::Sets;
use super::call::{Call, measured};
use super::output::{Page, Sink};
use super::run::World;

#[derive(Args)]
pub(super) struct Conformance {
    /// Plan of the controller and of host memory: built-in name or TOML file
    #[arg(long, default_value = "live", conflicts_with = "list")]
    plan: String,
    /// World to run in
    #[arg(long, value_enum, default_value_t = World::Both)]
    world: World,
    /// Test the SSD served at this socket (serve --shm)
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["vfio_user", "vfio", "qtest"])]
    socket: Option<PathBuf>,
    /// Test the NVMe function of the vfio-user server at this socket
    #[arg(long, value_name = "SOCKET")]
    vfio_user: Option<PathBuf>,
    /// Test the PCI function at this address, bound to vfio-pci
    #[arg(long, value_name = "ADDRESS", conflicts_with = "vfio_user")]
    vfio: Option<String>,
    /// Test the first NVMe device of a QEMU started with -qtest SOCKET
    #[arg(long, value_name = "SOCKET", requires = "memory", conflicts_with_all = ["vfio_user", "vfio"])]
    qtest: Option<PathBuf>,
    /// File of QEMU's memory-backend-file,share=on
    #[arg(long, value_name = "FILE", requires = "qtest")]
    memory: Option<PathBuf>,
    /// Permitted damage to the data of an external controller
    #[arg(long, value_enum, default_value_t = Data::Keep)]
    data: Data,
    /// Only cases whose section or name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// List the cases without running them
    #[arg(long)]
    list: bool,
    /// List features that the controller lacks, by case
    #[arg(long)]
    lacking: bool,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sets: Sets,
}

/// Permitted damage to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Data {
    /// None: keep all data
    Keep,
    /// Overwrite blocks at the start and the end
    Overwrite,
    /// Erase all data, create and delete namespaces
    Erase,
}

impl Data {
    fn allows(self) -> Harm {
        match self {
            Data::Keep => Harm::None,
            Data::Overwrite => Harm::Writes,
            Data::Erase => Harm::Erases,
        }
    }
}

pub(super) fn conformance(typed: &Conformance, call: &Call) -> Result<bool, String> {
    check_flags(typed)?;
    if typed.list {
        list(typed);
        return Ok(true);
    }
    let plan = typed.sets.open(&typed.plan)?;
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let mut all = Vec::new();
    let good = try_all(typed, &plan, page, &mut all)?;
    if let Some(json) = &mut json {
        let document = call.document(Vec::new());
        let document = if typed.is_simulated() { document } else { measured(document) };
        json.put(&report::to_json(&Document { conformance: all, ..document }))?;
    }
    Ok(good)
}

impl Conformance {
    /// Whether no controller is live.
    fn is_simulated(&self) -> bool {
        let others = [&self.socket, &self.vfio_user, &self.qtest];
        self.world == World::Sim && self.vfio.is_none() && others.iter().all(|path| path.is_none())
    }
}

fn try_all(
    typed: &Conformance,
    plan: &Plan,
    page: Page,
    all: &mut Vec<model::Conformance>,
) -> Result<bool, String> {
    let mut try_one = |controller, title: &str| {
        let (found, good) = try_one(typed, plan, controller, title, page)?;
        all.push(found);
        Ok::<bool, String>(good)
    };
    if let Some(socket) = &typed.socket {
        let title = format!("over shared memory, {}", socket.display());
        return try_one(Controller::Socket(socket), &title);
    }
    if let Some(socket) = &typed.vfio_user {
        let title = format!("over vfio-user, {}", socket.display());
        return try_one(Controller::VfioUser(socket), &title);
    }
    if let Some(address) = &typed.vfio {
        return try_one(Controller::Vfio(address), &format!("VFIO, {address}"));
    }
    if let (Some(socket), Some(memory)) = (&typed.qtest, &typed.memory) {
        let title = format!("qtest, {}", socket.display());
        return try_one(Controller::Qtest { socket, memory }, &title);
    }
    let mut good = true;
    for (world, other, word) in [
        (Controller::Thread, World::Sim, "live, two threads"),
        (Controller::Simulated, World::Live, "simulated"),
    ] {
        if typed.world != other {
            good &= try_one(world, &format!("{word}, plan {}", plan.name))?;
        }
    }
    Ok(good)
}

/// Rejects flags without effect, and a filter without a match.
fn check_flags(typed: &Conformance) -> Result<(), String> {
    let others = [
        ("--socket", typed.socket.is_some()),
        ("--vfio-user", typed.vfio_user.is_some()),
        ("--vfio", typed.vfio.is_some()),
        ("--qtest", typed.qtest.is_some()),
    ];
    let other = others.into_iter().find_map(|(flag, is_there)| is_there.then_some(flag));
    if let Some(flag) = other.filter(|_| typed.world != World::Both) {
        return Err(format!(
            "{flag}: found --world, expected none: that controller is there as it is"
        ));
    }
    if other.is_none() && typed.data != Data::Keep {
        return Err("--data: found no other controller, expected --socket, --vfio-user, --vfio or --qtest: \
                    one that is made for this keeps nothing"
            .to_owned());
    }
    let is_of_run = other.is_some()
        || typed.lacking
        || typed.world != World::Both
        || typed.json.is_some()
        || !typed.sets.sets.is_empty();
    if typed.list && is_of_run {
        return Err(
            "--list: found a flag of a run, expected --only alone: no case is run".to_owned()
        );
    }
    let all = || sections().flat_map(|section| section.cases);
    if !all().any(|case| picks(typed, case)) {
        let numbers: Vec<_> = sections().map(|section| section.number).collect();
        return Err(format!(
            "--only {}: found no such case, expected a part of a case's name (conformance --list prints \
             them) or the number of a section: {}",
            typed.only.as_deref().unwrap_or_default(),
            numbers.join(", ")
        ));
    }
    Ok(())
}

fn try_one(
    typed: &Conformance,
    plan: &Plan,
    controller: Controller<'_>,
    title: &str,
    page: Page,
) -> Result<(model::Conformance, bool), String> {
    let ours = matches!(controller, Controller::Simulated | Controller::Thread);
    let harm = if ours { Harm::Erases } else { typed.data.allows() };
    page.line(format_args!("== conformance, {title}"));
    let progress = std::io::stderr().is_terminal();
    let mut number = 0;
    let table = run(
        plan,
        controller,
        |case| case.harm <= harm && picks(typed, case),
        |case_run: &CaseRun| {
            number += 1;
            if progress {
                eprint!("\r{number:>4} {:<60}", case_run.case.name);
            }
        },
    );
    if progress {
        eprint!("\r{:<65}\r", "");
    }
    let table = table.map_err(|error| error.to_string())?;
    if table.runs.is_empty() {
        let expected =
            "expected --data overwrite or erase: every case that was picked writes or erases";
        return Err(format!("--data: found keep, {expected}"));
    }
    page.text(&table.text());
    if typed.lacking {
        page.text(&table.lacking());
    }
    let left = sections().flat_map(|section| section.cases).filter(|case| case.harm > harm).count();
    if left > 0 {
        page.line(format_args!(
            "{left} cases that write or erase were left out: --data overwrite or erase"
        ));
    }
    let is_good =
        |case_run: &CaseRun| !matches!(case_run.verdict, None | Some(Err(Stop::Failed(_))));
    let good = table.runs.iter().all(is_good);
    let found = model::Conformance {
        controller: title.to_owned(),
        cases: table.runs.iter().map(case).collect(),
        left_out: left as u64,
    };
    Ok((found, good))
}

fn case(case_run: &CaseRun) -> model::Case {
    let CaseRun { section, case, verdict } = case_run;
    let (verdict, found) = match verdict {
        Some(Ok(())) => (CaseVerdict::Passed, String::new()),
        Some(Err(Stop::Failed(words))) => (CaseVerdict::Failed, words.clone()),
        Some(Err(Stop::Lacks(words))) => (CaseVerdict::Lacking, words.clone()),
        None => (CaseVerdict::NotRun, String::new()),
    };
    model::Case {
        of: section.of.to_owned(),
        section: section.number.to_owned(),
        name: case.name.to_owned(),
        about: case.about.to_owned(),
        verdict,
        found,
    }
}

fn picks(typed: &Conformance, case: &Case) -> bool {
    let Some(only) = &typed.only else { return true };
    let of = |number: &str| {
        sections().any(|section| {
            section.number == number && section.cases.iter().any(|one| std::ptr::eq(one, case))
        })
    };
    case.name.contains(only.as_str()) || of(only)
}

fn list(typed: &Conformance) {
    for section in sections() {
        let mut head = Some(format!("{}, {}: {}", section.of, section.number, section.title));
        for case in section.cases.iter().filter(|case| picks(typed, case)) {
            if let Some(head) = head.take() {
                println!("{head}");
            }
            println!("  {}: {}", case.name, case.about);
        }
    }
}
