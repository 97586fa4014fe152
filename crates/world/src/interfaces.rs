//! Registry of the interfaces: the device front end and the driver of each.
//!
//! An [`Interface`] is generic over the bus ports. Worlds, servers and the command line use its type-erased
//! [`Row`]. A new interface needs modules in `wire`, `device` and `host`, and a row here, or a call of
//! [`add`] from outside.

mod array;
mod block;
mod collections;
mod dcx;
mod dealt;
mod divided;
mod erase;
mod fastpath;
mod host_flash;
mod host_gc;
mod host_map;
mod interface;
mod lanes;
mod nvme;
mod placement;
mod row;
mod scsi;
mod shared;
pub mod stages;
mod windows;

use std::sync::{PoisonError, RwLock};

use crate::error::UnknownInterface;

pub use array::{Array, ArrayDriver};
pub use array::{TRACE_QUEUES, of_member};
pub use block::{Block, BlockDriver, block_options};
pub use collections::Collector;
pub use dcx::{Dcx, DcxDriver};
pub use dealt::Dealt;
pub use divided::{Divided, Extent, Side, Stop};
pub use fastpath::engine_options;
pub use fastpath::{Fastpath, FastpathDriver};
pub use host_flash::{HostFlash, HostFlashDriver};
pub use host_gc::{HostGc, HostGcDriver};
pub use host_map::{HostMap, HostMapDriver};
pub use interface::{Driver, Interface};
pub use lanes::{Lane, Lanes, StageLane};
pub use nvme::{Nvme, NvmeDriver};
pub use nvme::{clamped, controller_options, queue_options};
pub use placement::{MODULES, PLACEMENTS, Placement};
pub use row::{Connected, DeviceSide, Disk, Front, HostSide, Row};
pub use scsi::{Scsi, ScsiDriver, scsi_disk, spread_options};
pub use shared::Shared;

pub const NVME: &Row = Nvme::ROW;
/// DC Express for reads, NVM Express for all other commands.
pub const DCX: &Row = Dcx::ROW;
/// Descriptor blocks.
pub const BLOCK: &Row = Block::ROW;
/// NVM Express through the FastPath engine, which builds the commands.
pub const FASTPATH: &Row = Fastpath::ROW;
/// Physical page access, with the FTL on the host.
pub const HOST_FLASH: &Row = HostFlash::ROW;
/// NVM Express with garbage collection directed by the host.
pub const HOST_GC: &Row = HostGc::ROW;
/// NVM Express with the map of flash on the host.
pub const HOST_MAP: &Row = HostMap::ROW;
/// NVM Express behind a SCSI face.
pub const SCSI: &Row = Scsi::ROW;
/// An array of NVMe drives.
pub const NVME_ARRAY: &Row = Array::<Nvme>::ROW;
/// An array of NVMe drives whose collections the host directs, each by a collector of its own.
pub const HOST_GC_ARRAY: &Row = Array::<HostGc>::ROW;
/// An array of raw flash drives with the FTL on the host.
pub const HOST_FLASH_ARRAY: &Row = Array::<HostFlash>::ROW;

/// Interfaces of this crate that the command line accepts. Arrays are selected by the plan.
const OWN: &[&Row] = &[NVME, DCX, BLOCK, FASTPATH, HOST_FLASH, HOST_GC, HOST_MAP];

static ADDED: RwLock<Vec<&'static Row>> = RwLock::new(Vec::new());

/// The interfaces that the command line accepts, built-in ones first.
pub fn all() -> Vec<&'static Row> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(added.iter()).copied().collect()
}

/// Old names of interfaces, which [`by_name`] accepts, and the names that replace them.
const RENAMED: &[(&str, &str)] = &[("host-collector", "host-gc")];

/// The name that replaces this old name of an interface; `None` if it is not an old name.
pub fn new_name(old: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(name, _)| *name == old).map(|(_, new)| *new)
}

/// The interface of this name, of this [old name](new_name), or of this [placement](Placement::parse) of
/// flash software.
///
/// # Errors
/// The name is unknown; the error lists the known ones.
pub fn named(name: &str) -> Result<&'static Row, UnknownInterface> {
    if let Some(row) = Placement::parse(name).and_then(Placement::row) {
        return Ok(row);
    }
    let (all, name) = (all(), new_name(name).unwrap_or(name));
    all.iter().find(|row| row.name == name).copied().ok_or_else(|| UnknownInterface {
        found: name.to_owned(),
        known: all.iter().map(|row| row.name).collect(),
    })
}

/// As [`named`], with the text of the error.
///
/// # Errors
/// As for [`named`].
pub fn by_name(name: &str) -> Result<&'static Row, String> {
    named(name).map_err(|error| error.to_string())
}

/// Registers an external interface. A name that is already registered keeps its first interface.
pub fn add(row: &'static Row) {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if !OWN.iter().chain(added.iter()).any(|known| known.name == row.name) {
        added.push(row);
    }
}
