//! The `doorbell` command: its subcommands and their arguments.
//!
//! ```text
//!    arguments ─► plan, work ─► world, serve, campaign, papers, qemu ─► a report on standard output
//! ```
//!
//! It holds flags, tables and file access. It has no model, no protocol and no statistics: those are in the
//! crates that it calls.
//!
//! ```console
//! $ doorbell run jobs/randread-4k.fio --world sim --plan dc-express
//! $ doorbell serve live --nbd 127.0.0.1:10809
//! ```

mod bench;
mod calibrate;
mod call;
mod compare;
mod conformance;
mod ctl;
mod digest;
mod diskhog;
mod examples;
mod explain;
mod fit;
mod front_end;
mod hardware;
mod interface;
mod log;
mod output;
mod papers;
mod perfetto;
mod plans;
mod power_cuts;
mod recorded;
mod run;
mod serve_command;
mod shells;
mod state;
mod sweep;
mod tenants;
mod validate;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use call::Call;
use clap::{Args, CommandFactory, Parser, Subcommand};
use examples::EXAMPLES;
use front_end::Listen;
use interface::Named;
use plan::{self, Plan};
use serve::{Client, Hosts};
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
    /// Say what bounds the rate of a simulated run, and what each change would give
    #[command(after_help = examples::EXPLAIN)]
    Explain(explain::Explain),
    /// Simulate over axes of plans, jobs, interfaces and seeds on all cores; search along an axis
    #[command(after_help = examples::SWEEP)]
    Sweep(sweep::SweepArguments),
    /// Serve a live SSD to other processes: shared memory, vfio-user PCI function or NBD export
    #[command(after_help = format!("{}\n\n{}", front_end::limits(), examples::SERVE))]
    Serve {
        /// Plan: built-in name or TOML file
        plan: String,
        #[command(flatten)]
        listen: Listen,
        #[command(flatten)]
        control: serve_command::Controls,
        /// Serve one SSD on all vfio-user sockets, one NVMe controller each: namespaces are shared by hosts
        #[arg(long)]
        shared: bool,
        /// Divide one SSD among clients, one for each socket in the same order: NAME reaches BLOCKS blocks of
        /// the medium from block FROM on, and nothing else
        #[arg(long = "client", value_name = "NAME=FROM+BLOCKS", conflicts_with = "shared")]
        clients: Vec<Client>,
        /// Device threads, to which the queues of an SSD are dealt, or the clients in order; for media in
        /// memory without timing
        #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "shared")]
        device_threads: usize,
        /// Host interface
        #[arg(long, value_parser = Named, default_value = "nvme")]
        interface: &'static Row,
        #[command(flatten)]
        sets: Sets,
    },
    /// Control a running server: counts, faults, timing, pause, power, stop
    #[command(after_help = ctl::help())]
    Ctl(ctl::Ctl),
    /// Validate plans; print derived figures, and the source of every number
    #[command(after_help = examples::CHECK)]
    Check {
        /// Plans: built-in names or TOML files
        #[arg(required = true)]
        plans: Vec<String>,
        /// Write the result to this file as JSON; - is standard output, and then the only thing there
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        #[command(flatten)]
        sets: Sets,
    },
    /// List the built-in plans, or print one
    #[command(after_help = examples::PLANS)]
    Plans {
        /// Print this plan: a built-in one with its comments and sources, a file with its base merged in
        plan: Option<String>,
        /// Write the result to this file as JSON; - is standard output, and then the only thing there
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// List fio job-file keys: supported, ignored, rejected
    Keys,
    /// Reproduce figures and tables of the papers; print published values beside simulated ones
    #[command(after_help = examples::PAPERS)]
    Papers(papers::Papers),
    /// Load a disk from all cores under each queue policy; print the share of each core
    #[command(after_help = examples::DISKHOG)]
    Diskhog(diskhog::Diskhog),
    /// Latency of a reader beside neighbours, by what protects it; shares by class and number of queues
    #[command(after_help = examples::TENANTS)]
    Tenants(tenants::TenantsOf),
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
    /// Benchmark this machine: live reads and writes beside its copies and its core-to-core round trip
    #[command(after_help = examples::BENCH)]
    Bench(bench::Bench),
    /// Write a plan for this machine; print predicted and measured latencies
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(calibrate::Calibrate),
    /// Run published measurements of real drives on their plans; print model over measured
    #[command(after_help = examples::VALIDATE)]
    Validate(validate::Validate),
    /// Fit a plan to measurements of a drive; print what they can tell, and the error on rows held out
    #[command(after_help = examples::FIT)]
    Fit(fit::Fit),
    /// Print the completions of a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(shells::Completions),
    /// Write a man page for each command
    #[command(after_help = examples::MAN)]
    Man(shells::Man),
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
            format!(" --set {}", quoted(&format!("{key}={value}")))
        };
        self.sets.iter().map(one).collect()
    }

    /// These flags after other settings, which they override.
    fn over(&self, settings: &[(&str, &str)]) -> Sets {
        let settings = settings.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        Sets { sets: settings.chain(self.sets.iter().cloned()).collect() }
    }

    fn open(&self, plan: &str) -> Result<Plan, String> {
        let sets: Vec<_> = self.sets.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        Plan::open(plan, &sets).map_err(|errors| errors.to_string())
    }
}

/// The text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
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

/// The command line: names, flags and help of the program and of each command.
#[must_use]
pub fn command_line() -> clap::Command {
    Typed::command()
}

/// Runs the command line. Errors go to standard error, one a line; the exit status is then 1.
pub fn main() -> ExitCode {
    main_from(std::env::args_os())
}

/// As [`main`], with these arguments, the program's name first: for a program that adds interfaces.
pub fn main_from(typed: impl IntoIterator<Item = OsString>) -> ExitCode {
    end_with_the_reader();
    let typed: Vec<_> = typed.into_iter().collect();
    let call = Call::of(&typed);
    match perform(Typed::parse_from(typed).command, &call) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("doorbell: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true on success, and false if the failures have been printed.
fn perform(command: Command, call: &Call) -> Result<bool, String> {
    match command {
        Command::Run(typed) => run::run(&typed, call),
        Command::Replay(typed) => run::replay(&typed, call),
        Command::Compare(typed) => compare::compare(&typed, call),
        Command::Explain(typed) => explain::explain(&typed),
        Command::Sweep(typed) => sweep::sweep(&typed),
        Command::Serve {
            plan,
            listen,
            control,
            shared,
            clients,
            device_threads,
            interface,
            sets,
        } => {
            let hosts = match (shared, &clients[..]) {
                (true, _) => Hosts::Sharing,
                (false, []) => Hosts::Apart { device_threads },
                (false, clients) => Hosts::Clients { clients, device_threads },
            };
            serve_command::serve(&plan, &sets, &listen, &control, hosts, interface)
        }
        Command::Ctl(typed) => ctl::ctl(&typed),
        Command::Check { plans, json, sets } => plans::check(&plans, &sets, json.as_ref(), call),
        Command::Plans { plan, json } => plans::plans(plan.as_deref(), json.as_ref(), call),
        Command::Keys => {
            print!("{}", output::in_columns(workload::job::help().trim_end()));
            Ok(true)
        }
        Command::Papers(typed) => papers::papers(&typed, call),
        Command::Diskhog(typed) => diskhog::diskhog(&typed, call),
        Command::Tenants(typed) => tenants::tenants(&typed),
        Command::State(typed) => state::state(&typed),
        Command::PowerCuts(typed) => power_cuts::power_cuts(&typed),
        Command::Conformance(typed) => conformance::conformance(&typed, call),
        Command::Hardware(typed) => hardware::hardware(&typed),
        Command::Bench(typed) => bench::bench(&typed, call),
        Command::Calibrate(typed) => calibrate::calibrate(&typed, call),
        Command::Validate(typed) => validate::validate(&typed),
        Command::Fit(typed) => fit::fit(&typed),
        Command::Completions(typed) => shells::completions(&typed),
        Command::Man(typed) => shells::man(&typed),
    }
}
