//! `doorbell hardware`: enumeration, interrupt lines and the NVMe driver on QEMU's hardware models.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use qemu::{self, Wanted};

#[derive(Args)]
pub(super) struct Hardware {
    /// Socket of QEMU's -qtest option
    #[arg(long, value_name = "SOCKET")]
    qtest: PathBuf,
    /// File of QEMU's memory-backend-file,share=on
    #[arg(long, value_name = "FILE")]
    memory: PathBuf,
    /// Verified operations per NVMe device
    #[arg(long, default_value_t = 10_000)]
    ios: u64,
    /// Operations in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// Seed of offsets and data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Remove the first hot-pluggable NVMe device during I/O
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
