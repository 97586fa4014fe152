//! `doorbell state`: checks, repairs and upgrades state files of flash.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use media::nand::check;
use world::device::check_mount;

/// Arguments of `state`.
#[derive(Args)]
pub(super) struct State {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the contents of a state file and its journal; exit with 1 if damaged
    Check {
        /// State file: the value of medium.flash.state
        file: PathBuf,
    },
    /// Make a damaged state usable: unreadable rows become media errors, the journal is cut before the
    /// damage; the damaged files are kept with the suffix .damaged
    Repair {
        /// State file, not in use by a drive
        file: PathBuf,
    },
    /// Convert files of an older version; the old files are kept with the suffix .old
    Upgrade {
        /// State file, not in use by a drive
        file: PathBuf,
    },
}

/// Runs the action. Returns false if damage remains.
pub(super) fn state(typed: &State) -> Result<bool, String> {
    let (file, report) = match &typed.action {
        Action::Check { file } => (file, check::check(file)),
        Action::Repair { file } => (file, check::repair(file)),
        Action::Upgrade { file } => (file, check::upgrade(file)),
    };
    let report = report.map_err(|error| error.to_string())?;
    report.lines.iter().for_each(|line| println!("{line}"));
    report.damage.iter().for_each(|line| println!("damage: {line}"));
    let is_check = matches!(typed.action, Action::Check { .. });
    if is_check && !report.damage.is_empty() {
        return Ok(false);
    }
    // As a start does, also after a repair.
    if let Err(error) = check_mount(file) {
        println!("damage: {error}");
        return Ok(false);
    }
    println!("mount: flash software can mount it");
    if report.damage.is_empty() {
        println!("no damage found");
    }
    Ok(true)
}
