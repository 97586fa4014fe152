//! `--shm SOCKET`, `--vfio-user SOCKET`, `--nbd ADDRESS`: one flag for each row of the registry of front
//! ends.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, value_parser};
use serve::{Addresses, FrontEnd};

/// A front end, and the addresses at which it listens.
pub(super) struct Listen {
    pub(super) front_end: &'static FrontEnd,
    pub(super) addresses: Vec<PathBuf>,
}

/// Limits of clients, for the end of the help.
pub(super) fn limits() -> String {
    let width = serve::all().map(|row| row.name.len()).max().unwrap_or(0);
    let line = |row: &FrontEnd| format!("\n  --{:width$}  {}", row.name, row.limits);
    format!("Limits:{}", serve::all().map(line).collect::<String>())
}

fn arg(front_end: &'static FrontEnd) -> Arg {
    let action = match front_end.addresses {
        Addresses::One => ArgAction::Set,
        Addresses::Clients | Addresses::Several => ArgAction::Append,
    };
    Arg::new(front_end.name)
        .long(front_end.name)
        .value_name(front_end.value_name)
        .help(front_end.help)
        .value_parser(value_parser!(PathBuf))
        .action(action)
}

impl Args for Listen {
    fn augment_args(command: Command) -> Command {
        let names = serve::all().map(|front_end| front_end.name);
        let one = ArgGroup::new("front end").args(names).required(true).multiple(false);
        command.args(serve::all().map(arg)).group(one)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Listen::augment_args(command)
    }
}

impl FromArgMatches for Listen {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Listen, clap::Error> {
        let given = serve::all().find_map(|front_end| {
            let addresses = matches.get_many::<PathBuf>(front_end.name)?.cloned().collect();
            Some(Listen { front_end, addresses })
        });
        given.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingRequiredArgument))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Listen::from_arg_matches(matches)?;
        Ok(())
    }
}
