//! The `doorbell` command: its subcommands and their arguments.

mod bench;
mod calibrate;
mod compare;
mod conformance;
mod digest;
mod diskhog;
mod examples;
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
use examples::EXAMPLES;
use front_end::Listen;
use interface::Named;
use plan::{self, Plan};
use world::interfaces::Row;

/// Programmable PCIe SSD and its host software: live, on real memory, and simulated, in virtual time
#[derive(Parser)]
#[command(name = "doorbell", version, after_help = EXAMPLES)]
struct Typed {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run fio jobs and traces, live and simulated; print rates, latencies and their breakdown by stage
    #[command(after_help = examples::RUN)]
    Run(run::Run),
    /// Repeat a simulated run exactly; print the digest of its event log
    #[command(after_help = examples::REPLAY)]
    Replay(run::Replay),
    /// Run the same jobs through every interface of a plan; print rates and latency breakdowns side by side
    #[command(after_help = examples::COMPARE)]
    Compare(compare::Compare),
    /// Serve a live SSD to other processes: shared memory, vfio-user PCI function or NBD export
    #[command(after_help = format!("{}\n\n{}", front_end::limits(), examples::SERVE))]
    Serve {
        /// Plan: built-in name or TOML file
        plan: String,
        #[command(flatten)]
        listen: Listen,
        /// Serve one SSD on all vfio-user sockets, one NVMe controller each: namespaces are shared by hosts
        #[arg(long)]
        shared: bool,
        /// Host interface
        #[arg(long, value_parser = Named, default_value = "nvme")]
        interface: &'static Row,
        #[command(flatten)]
        sets: Sets,
    },
    /// Validate plans; print derived figures, and the source of every number
    #[command(after_help = examples::CHECK)]
    Check {
        /// Plans: built-in names or TOML files
        #[arg(required = true)]
        plans: Vec<String>,
        #[command(flatten)]
        sets: Sets,
    },
    /// List the built-in plans
    Plans,
    /// List fio job-file keys: supported, ignored, rejected
    Keys,
    /// Reproduce figures and tables of the papers; print published values beside simulated ones
    #[command(after_help = examples::PAPERS)]
    Papers {
        /// Only this paper [default: all]
        name: Option<String>,
    },
    /// Load a disk from all cores under each queue policy; print the share of each core
    #[command(after_help = examples::DISKHOG)]
    Diskhog(diskhog::Diskhog),
    /// Check, repair or upgrade the state file of a flash SSD
    #[command(after_help = examples::STATE)]
    State(state::State),
    /// Run a power-loss campaign on a flash SSD; verify that acknowledged data survive every cut
    #[command(after_help = examples::POWER_CUTS)]
    PowerCuts(power_cuts::PowerCuts),
    /// Test an NVMe controller against the specification, section by section
    #[command(after_help = examples::CONFORMANCE)]
    Conformance(conformance::Conformance),
    /// Enumerate and drive QEMU's PCI and NVMe device models over qtest, without a guest
    #[command(after_help = examples::HARDWARE)]
    Hardware(hardware::Hardware),
    /// Benchmark this machine: core-to-core round trip, then live reads as multiples of it
    #[command(after_help = examples::BENCH)]
    Bench(bench::Bench),
    /// Write a plan for this machine; print predicted and measured latencies
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(calibrate::Calibrate),
}

/// Values that override those of the plan.
#[derive(Args, Clone)]
struct Sets {
    /// Override a key of the plan: link.lanes=8 (repeatable)
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
    /// The flags as typed, quoted for a shell, each after a space.
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

/// Exits quietly when standard output is closed by its reader, as by `head`.
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

/// The status that a shell reports for SIGPIPE: 128 and the number of the signal.
const READER_GONE: i32 = 128 + 13;

/// Runs the command line. Errors go to standard error, one a line; the exit status is then 1.
pub fn main() -> ExitCode {
    main_from(std::env::args_os())
}

/// As [`main`], with these arguments, the program's name first: for a program that adds interfaces.
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

/// Returns true on success, and false if the failures have been printed.
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
    // A closed standard output must not end the server.
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
