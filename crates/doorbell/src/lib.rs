//! What is typed, and who does it.

mod bench;
mod calibrate;
mod compare;
mod conformance;
mod digest;
mod diskhog;
mod front_end;
mod hardware;
mod interface;
mod papers;
mod power_cuts;
mod recorded;
mod run;
mod state;
mod stats;
mod watch;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use front_end::Listen;
use interface::Named;
use plan::{self, Plan};
use world::interfaces::Row;

/// A PCIe SSD that you can program, and the host software that drives it, live and in virtual time.
#[derive(Parser)]
#[command(name = "doorbell", version)]
struct Typed {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run fio job files and recordings, live and simulated, and say where the time went
    Run(run::Run),
    /// Repeat a simulated run exactly, and print its event log's digest
    Replay(run::Replay),
    /// Run the same work by every interface that a plan has, side by side, and say where each wins
    Compare(compare::Compare),
    /// Serve a live device to other processes: over shared memory, as a PCI function, or as a network disk
    #[command(after_help = front_end::limits())]
    Serve {
        /// A plan: a built-in name or a file
        plan: String,
        #[command(flatten)]
        listen: Listen,
        /// One SSD behind all vfio-user sockets, a controller for each: hosts that share what it holds
        #[arg(long)]
        shared: bool,
        /// Which host interface
        #[arg(long, value_parser = Named, default_value = "nvme")]
        interface: &'static Row,
        #[command(flatten)]
        sets: Sets,
    },
    /// Check plans, and print what follows from them
    Check {
        /// Plans: built-in names or files
        #[arg(required = true)]
        plans: Vec<String>,
        #[command(flatten)]
        sets: Sets,
    },
    /// List the built-in plans
    Plans,
    /// List the job-file keys: honoured, noted, refused
    Keys,
    /// Print figures and tables of papers beside what this code gives
    Papers {
        /// Only this paper
        name: Option<String>,
    },
    /// Hog a disk from all cores, by every queue policy, and say what each core gets
    Diskhog(diskhog::Diskhog),
    /// Check, repair or upgrade the file that a flash SSD is kept in
    State(state::State),
    /// Let the power of a flash SSD fail again and again, and check what is left
    PowerCuts(power_cuts::PowerCuts),
    /// Try an NVMe controller against the specification, section by section
    Conformance(conformance::Conformance),
    /// Find, route and drive the hardware models of a QEMU without a processor
    Hardware(hardware::Hardware),
    /// Measure this machine: the core-to-core round trip, and NVMe beside it
    Bench(bench::Bench),
    /// Write a plan of this machine, and say what it predicts beside what is measured
    Calibrate(calibrate::Calibrate),
}

/// Values set beside the plan.
#[derive(Args, Clone)]
struct Sets {
    /// Set a key of the plan, as in link.lanes=8
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    sets: Vec<(String, String)>,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err(format!("{text:?}: expected KEY=VALUE, as in link.lanes=8")),
    }
}

impl Sets {
    /// As they were typed, quoted for a shell; each behind a blank.
    fn typed(&self) -> String {
        let one = |(key, value): &(String, String)| {
            format!(" --set '{key}={}'", value.replace('\'', "'\\''"))
        };
        self.sets.iter().map(one).collect()
    }

    fn open(&self, plan: &str) -> Result<Plan, String> {
        let sets: Vec<_> = self.sets.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        Plan::open(plan, &sets).map_err(|errors| errors.to_string())
    }
}

/// Whoever reads the output has had enough, as `head` has: that ends the program, and is no mistake.
fn end_with_the_reader() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let words = panic.payload().downcast_ref::<String>();
        if words.is_some_and(|words| {
            words.starts_with("failed printing to stdout") && words.contains("os error 32")
        }) {
            std::process::exit(READER_GONE);
        }
        otherwise(panic);
    }));
}

/// What a shell gives for a program that a closed pipe has ended: 128 and the number of SIGPIPE.
const READER_GONE: i32 = 128 + 13;

/// Does what was typed. Failures go to standard error, one a line, and make the exit code 1.
pub fn main() -> ExitCode {
    main_from(std::env::args_os())
}

/// The same with these words, the program's name first: for a program with interfaces of its own.
pub fn main_from(typed: impl IntoIterator<Item = OsString>) -> ExitCode {
    end_with_the_reader();
    match perform(Typed::parse_from(typed).command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("doorbell: {error}");
            ExitCode::FAILURE
        }
    }
}

/// True if all went well, false if what went wrong has been said.
fn perform(command: Command) -> Result<bool, String> {
    match command {
        Command::Run(typed) => run::run(&typed),
        Command::Replay(typed) => run::replay(&typed),
        Command::Compare(typed) => compare::compare(&typed),
        Command::Serve { plan, listen, shared, interface, sets } => {
            serve(&sets.open(&plan)?, &listen, shared, interface)
        }
        Command::Check { plans, sets } => check(&plans, &sets),
        Command::Plans => {
            for (name, text) in plan::built_in() {
                let plan = Plan::parse(text, name).map_err(|errors| errors.to_string())?;
                println!("{name:<20} {}", plan.about);
            }
            Ok(true)
        }
        Command::Keys => {
            print!("{}", workload::job::help());
            Ok(true)
        }
        Command::Papers { name } => papers::papers(name.as_deref()),
        Command::Diskhog(typed) => diskhog::diskhog(&typed),
        Command::State(typed) => state::state(&typed),
        Command::PowerCuts(typed) => power_cuts::power_cuts(&typed),
        Command::Conformance(typed) => conformance::conformance(&typed),
        Command::Hardware(typed) => hardware::hardware(&typed),
        Command::Bench(typed) => bench::bench(&typed),
        Command::Calibrate(typed) => calibrate::calibrate(&typed),
    }
}

fn serve(
    plan: &Plan,
    listen: &Listen,
    shared: bool,
    interface: &'static Row,
) -> Result<bool, String> {
    // Clients are served whether or not the output is read.
    let report = |address: &Path, what: &str| {
        let _ = writeln!(std::io::stdout(), "doorbell: {}: {what}", address.display());
    };
    let served = listen.front_end.serve(interface, plan, &listen.addresses, shared, &report);
    served.map_err(|error| error.to_string())?;
    Ok(true)
}

fn check(plans: &[String], sets: &Sets) -> Result<bool, String> {
    let mut good = true;
    for plan in plans {
        match sets.open(plan) {
            Ok(plan) => println!("{}", plan.report()),
            Err(errors) => {
                eprintln!("{errors}");
                good = false;
            }
        }
    }
    Ok(good)
}
