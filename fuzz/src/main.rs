//! Every target in one program, so that shared code is built and linked once. DOORBELL_FUZZ selects the
//! target; `tools/fuzz` reads their list from the table below.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

// Test fixtures of the crates.
#[path = "../../crates/host/tests/it/common/mod.rs"]
mod common;
#[path = "../../crates/device/tests/it/raw/mod.rs"]
mod raw;

#[path = "../fuzz_targets/mod.rs"]
mod fuzz_targets;
use fuzz_targets::*;

/// A target: its name, and its function of an input.
type Target = (&'static str, fn(&[u8]));

const TARGETS: &[Target] = &[
    ("hostile_host", hostile_host::run),
    ("dcx_host", dcx_host::run),
    ("block_host", block_host::run),
    ("hostile_device", hostile_device::run),
    ("fastpath", fastpath::run),
    ("scsi", scsi::run),
    ("nbd", nbd::run),
    ("greeting", greeting::run),
    ("state", state::run),
    ("journal", journal::run),
    ("prp_walk", prp_walk::run),
    ("job_file", job_file::run),
    ("iolog", iolog::run),
];

/// Targets of the feature `machine`.
#[cfg(feature = "machine")]
const OF_MACHINE: &[Target] =
    &[("nbd_server", nbd_server::run), ("plan", plan::run), ("vfio_user", vfio_user::run)];
#[cfg(not(feature = "machine"))]
const OF_MACHINE: &[Target] = &[];

static CHOSEN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("DOORBELL_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().chain(OF_MACHINE).find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("DOORBELL_FUZZ={wanted}: expected the name of a target")).1
});

fuzz_target!(|data: &[u8]| CHOSEN(data));
