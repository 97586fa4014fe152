//! Files of flash: what is in them, and what can be saved of damaged ones.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use media::nand::check;

/// What to do with a state.
#[derive(Args)]
pub(super) struct State {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print what is in a state and in the journal beside it; fails if something is damaged
    Check {
        /// The file of medium.flash.state
        file: PathBuf,
    },
    /// Make a damaged state usable: unreadable rows become media errors, the journal ends before the damage;
    /// the damaged files are kept, .damaged behind their names
    Repair {
        /// The file of medium.flash.state, which no drive uses now
        file: PathBuf,
    },
    /// Convert files of an older version; the old ones are kept, .old behind their names
    Upgrade {
        /// The file of medium.flash.state, which no drive uses now
        file: PathBuf,
    },
}

/// Performs it. False: something is damaged still.
pub(super) fn state(typed: &State) -> Result<bool, String> {
    let report = match &typed.action {
        Action::Check { file } => check::check(file),
        Action::Repair { file } => check::repair(file),
        Action::Upgrade { file } => check::upgrade(file),
    };
    let report = report.map_err(|error| error.to_string())?;
    report.lines.iter().for_each(|line| println!("{line}"));
    report.damage.iter().for_each(|line| println!("damage: {line}"));
    if report.damage.is_empty() {
        println!("no damage was found");
    }
    Ok(report.damage.is_empty() || !matches!(typed.action, Action::Check { .. }))
}
