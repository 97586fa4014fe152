//! `doorbell hardware`: enumeration, interrupt lines and the NVMe driver on QEMU's hardware models.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use qemu::{self, Wanted};

#[derive(Args)]
pub(super) struct Hardware {
    /// The socket of QEMU's option -qtest
    #[arg(long, value_name = "SOCKET")]
    qtest: PathBuf,
    /// The file of its memory, from memory-backend-file with share=on
    #[arg(long, value_name = "FILE")]
    memory: PathBuf,
    /// Verified operations on each NVMe device
    #[arg(long, default_value_t = 10_000)]
    ios: u64,
    /// How many are in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// For the places and the contents of operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pulls the first NVMe device that is in a slot out under I/O
    #[arg(long)]
    pull: bool,
}

pub(super) fn hardware(typed: &Hardware) -> Result<bool, String> {
    let Hardware { qtest, memory, ios, depth, seed, pull } = typed;
    let (ios, depth, seed, pull) = (*ios, *depth, *seed, *pull);
    let wanted = Wanted { socket: qtest, memory, ios, depth, seed, pull };
    let mut say = |line: &str| {
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    let (passed, failed) = qemu::check(&wanted, &mut say).map_err(|error| error.to_string())?;
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}
