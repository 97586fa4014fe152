//! `doorbell state`: checks, repairs and upgrades state files of flash.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use device::life;
use media::nand::Lock;
use media::nand::check::{self, Report};
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
    /// damage, damaged names and counts of the drive are lost; the damaged files are kept with the suffix
    /// .damaged
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

/// Checks the file of the drive's names and counts beside a state; a repair renames a damaged one. Returns
/// false if damage remains.
fn names_and_counts(action: &Action, file: &Path, report: &mut Report) -> Result<bool, String> {
    let is_repair = matches!(action, Action::Repair { .. });
    // No drive may start meanwhile and have it.
    let lock = is_repair.then(|| Lock::exclusive(file)).transpose();
    let _lock = lock.map_err(|error| error.to_string())?;
    let Err(damage) = life::check(file) else { return Ok(true) };
    report.damage.push(damage.to_string());
    if is_repair {
        let kept = life::put_away(file).map_err(|error| error.to_string())?;
        let kept = kept.display();
        report.lines.push(format!("names and counts of the drive are lost; kept as {kept}"));
    }
    Ok(is_repair)
}

/// Runs the action. Returns false if damage remains.
pub(super) fn state(typed: &State) -> Result<bool, String> {
    let (file, report) = match &typed.action {
        Action::Check { file } => (file, check::check(file)),
        Action::Repair { file } => (file, check::repair(file)),
        Action::Upgrade { file } => (file, check::upgrade(file)),
    };
    let mut report = report.map_err(|error| error.to_string())?;
    let is_check = matches!(typed.action, Action::Check { .. });
    let remains = is_check && !report.damage.is_empty();
    let is_whole = names_and_counts(&typed.action, file, &mut report)? && !remains;
    report.lines.iter().for_each(|line| println!("{line}"));
    report.damage.iter().for_each(|line| println!("damage: {line}"));
    if !is_whole {
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
