//! Vučinić et al., "DC Express" (FAST 2014): reads in a loop, and the ways in of table 5 through Linux.

use super::ExhibitError;
use super::measure::{Arrivals, Machine, Reads, reads};
use super::setup::Setup;
use world::interfaces::DCX;

pub(super) const LINUX: &str = "dc-express-linux";

/// Stages of read(), and of the block driver.
pub(super) const CALL: [&str; 3] = ["call entry", "file layer", "call exit"];
pub(super) const DRIVER: [&str; 3] = ["block layer", "block driver", "copy"];

pub(super) fn sum(read: &Reads, stages: &[&str]) -> f64 {
    stages.iter().map(|stage| read.part(stage)).sum()
}

/// All software above the driver of this way by NVMe or DC Express.
pub(super) fn layers(read: &Reads) -> f64 {
    sum(read, &CALL) + sum(read, &DRIVER) + read.part("benchmark")
}

pub(super) fn looped(machine: &Machine, bytes: u32) -> Result<Reads, ExhibitError> {
    reads(DCX, machine, bytes, Arrivals::Loop)
}

/// The block driver and read() of table 5, which poll as in the paper.
pub(super) fn through_linux(setup: &Setup) -> Machine {
    setup.machine(LINUX).with("host.completion", "polled")
}

/// NVMe through Linux: its driver copies nothing, and a command has as many bytes as the controller takes.
pub(super) fn nvme_through_linux(setup: &Setup) -> Machine {
    let machine = setup.machine(LINUX).with("host.path.costs.copy", "\"0 ns\"");
    machine.with("host.path.piece", "128 KiB")
}
