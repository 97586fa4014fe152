//! The interfaces that there are: for each, which device front end answers which driver.
//!
//! An [`Interface`] has types of its own, and is compiled for each port of the buses; what runs a world,
//! serves a drive or reads a command line sees its [`Row`]. To add one, write its modules in `wire`, `device`
//! and `host`, and its row here, or [`add`] it from outside.

mod array;
mod block;
mod collections;
mod dcx;
mod fastpath;
#[cfg(feature = "rtl")]
mod fastpath_rtl;
mod host_collector;
mod host_flash;
mod interface;
mod nvme;
mod row;
mod scsi;
mod shared;
mod stages;

use std::sync::{PoisonError, RwLock};

pub use array::{Array, ArrayDriver};
pub use array::{TRACE_QUEUES, of_member};
pub use block::{Block, BlockDriver, block_options};
pub use collections::Collector;
pub use dcx::{Dcx, DcxDriver};
pub use fastpath::engine_options;
pub use fastpath::{Fastpath, FastpathDriver};
#[cfg(feature = "rtl")]
pub use fastpath_rtl::{FastpathRtl, FastpathRtlDriver};
pub use host_collector::{HostCollector, HostCollectorDriver};
pub use host_flash::{HostFlash, HostFlashDriver};
pub use interface::{Driver, Interface};
pub use nvme::{Nvme, NvmeDriver};
pub use nvme::{clamped, controller_options, queue_options};
pub use row::{Connected, DeviceSide, Disk, Front, HostSide, Row};
pub use scsi::{Scsi, ScsiDriver, spread_options};
pub use shared::Shared;

pub const NVME: &Row = Nvme::ROW;
/// DC Express for reads, NVM Express for all else.
pub const DCX: &Row = Dcx::ROW;
/// Descriptor blocks.
pub const BLOCK: &Row = Block::ROW;
/// NVM Express, through an engine that forms the commands.
pub const FASTPATH: &Row = Fastpath::ROW;
/// Physical pages, with the flash software on the host.
pub const HOST_FLASH: &Row = HostFlash::ROW;
/// NVM Express, with the collector led by the host.
pub const HOST_COLLECTOR: &Row = HostCollector::ROW;
/// NVM Express behind a SCSI face.
pub const SCSI: &Row = Scsi::ROW;
/// An array of NVMe drives.
pub const NVME_ARRAY: &Row = Array::<Nvme>::ROW;
/// An array of drives whose flash software is the host's.
pub const HOST_FLASH_ARRAY: &Row = Array::<HostFlash>::ROW;
/// FastPath with the engine in hardware, clock by clock.
#[cfg(feature = "rtl")]
pub const FASTPATH_RTL: &Row = FastpathRtl::ROW;

/// Those that a command line names.
const OWN: &[&Row] = &[
    NVME,
    DCX,
    BLOCK,
    FASTPATH,
    HOST_FLASH,
    HOST_COLLECTOR,
    #[cfg(feature = "rtl")]
    FASTPATH_RTL,
];

static ADDED: RwLock<Vec<&'static Row>> = RwLock::new(Vec::new());

/// The interfaces that a command line names, this program's own first.
pub fn all() -> Vec<&'static Row> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(added.iter()).copied().collect()
}

/// The interface of this name.
///
/// # Errors
/// There is none: the names that there are.
pub fn by_name(name: &str) -> Result<&'static Row, String> {
    let all = all();
    all.iter().find(|row| row.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|row| row.name).collect();
        format!("interface: found {name:?}, expected one of {}", names.join(", "))
    })
}

/// Adds an interface of a program that uses this one. An interface that is there already, by its name, stays.
pub fn add(row: &'static Row) {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if !OWN.iter().chain(added.iter()).any(|known| known.name == row.name) {
        added.push(row);
    }
}
