//! `doorbell completions SHELL` and `doorbell man DIR`: files for shells and for man, made from the command
//! line.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::command_line;

#[derive(Args)]
pub(super) struct Completions {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Args)]
pub(super) struct Man {
    /// Folder for the pages, made if it is not there
    folder: PathBuf,
}

pub(super) fn completions(typed: &Completions) -> Result<bool, String> {
    let mut script = Vec::new();
    clap_complete::generate(typed.shell, &mut command_line(), "doorbell", &mut script);
    std::io::stdout().write_all(&script).map_err(|error| format!("standard output: {error}"))?;
    Ok(true)
}

/// One page for the program, and one for each command and each command of a command.
pub(super) fn man(typed: &Man) -> Result<bool, String> {
    let fails = |error| format!("{}: {error}", typed.folder.display());
    fs::create_dir_all(&typed.folder).map_err(fails)?;
    clap_mangen::generate_to(command_line(), &typed.folder).map_err(fails)?;
    Ok(true)
}
