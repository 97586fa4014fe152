//! `doorbell conformance`.

use std::io::IsTerminal;
use std::path::PathBuf;

use ::conformance::{Case, CaseRun, Harm, Stop, sections};
use campaign::conformance::{Controller, run};
use clap::{Args, ValueEnum};
use plan::Plan;

use super::Sets;
use super::run::World;

#[derive(Args)]
pub(super) struct Conformance {
    /// A plan, of the controller and of host memory: a built-in name or a file
    #[arg(long, default_value = "live")]
    plan: String,
    /// Which world
    #[arg(long, value_enum, default_value_t = World::Both)]
    world: World,
    /// The device that listens at this socket: another process's, over shared memory
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["vfio_user", "vfio", "qtest"])]
    socket: Option<PathBuf>,
    /// The function of the vfio-user server that listens at this socket
    #[arg(long, value_name = "SOCKET")]
    vfio_user: Option<PathBuf>,
    /// The PCI function at this address, which Linux's vfio-pci has
    #[arg(long, value_name = "ADDRESS", conflicts_with = "vfio_user")]
    vfio: Option<String>,
    /// The first NVMe device of a QEMU without a processor: the socket of its option -qtest
    #[arg(long, value_name = "SOCKET", requires = "memory", conflicts_with_all = ["vfio_user", "vfio"])]
    qtest: Option<PathBuf>,
    /// The file of its memory, from memory-backend-file with share=on
    #[arg(long, value_name = "FILE", requires = "qtest")]
    memory: Option<PathBuf>,
    /// What may become of the data of a controller that is not made for this
    #[arg(long, value_enum, default_value_t = Data::Keep)]
    data: Data,
    /// Only cases of this section, or whose name has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// List the cases, and run none
    #[arg(long)]
    list: bool,
    /// Say what the controller does not have, case by case
    #[arg(long)]
    lacking: bool,
    #[command(flatten)]
    sets: Sets,
}

/// What may become of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Data {
    /// Nothing
    Keep,
    /// Blocks at the beginning and the end may be written
    Overwrite,
    /// All of it may be erased, and namespaces reshaped
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

pub(super) fn conformance(typed: &Conformance) -> Result<bool, String> {
    check_flags(typed)?;
    if typed.list {
        list(typed);
        return Ok(true);
    }
    let plan = typed.sets.open(&typed.plan)?;
    if let Some(socket) = &typed.socket {
        let title = format!("over shared memory, {}", socket.display());
        return try_one(typed, &plan, Controller::Socket(socket), &title);
    }
    if let Some(socket) = &typed.vfio_user {
        let title = format!("over vfio-user, {}", socket.display());
        return try_one(typed, &plan, Controller::VfioUser(socket), &title);
    }
    if let Some(address) = &typed.vfio {
        return try_one(typed, &plan, Controller::Vfio(address), &format!("VFIO, {address}"));
    }
    if let (Some(socket), Some(memory)) = (&typed.qtest, &typed.memory) {
        let title = format!("qtest, {}", socket.display());
        return try_one(typed, &plan, Controller::Qtest { socket, memory }, &title);
    }
    let mut good = true;
    for (world, other, word) in [
        (Controller::Thread, World::Sim, "live, two threads"),
        (Controller::Simulated, World::Live, "simulated"),
    ] {
        if typed.world != other {
            good &= try_one(typed, &plan, world, &format!("{word}, plan {}", plan.name))?;
        }
    }
    Ok(good)
}

/// Every flag that was typed has its effect, and picks a case at least.
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
    if typed.list && (other.is_some() || typed.lacking || typed.world != World::Both) {
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
) -> Result<bool, String> {
    let ours = matches!(controller, Controller::Simulated | Controller::Thread);
    let harm = if ours { Harm::Erases } else { typed.data.allows() };
    println!("== conformance, {title}");
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
    print!("{}", table.text());
    if typed.lacking {
        print!("{}", table.lacking());
    }
    let left = sections().flat_map(|section| section.cases).filter(|case| case.harm > harm).count();
    if left > 0 {
        println!("{left} cases that write or erase were left out: --data overwrite or erase");
    }
    Ok(table
        .runs
        .iter()
        .all(|case_run| !matches!(case_run.verdict, None | Some(Err(Stop::Failed(_))))))
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
