//! What tests of the command share.

pub use testing::*;

/// The command, in this folder.
pub fn doorbell(folder: &Folder, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.current_dir(folder.at()).args(arguments).stdin(std::process::Stdio::null());
    command
}
