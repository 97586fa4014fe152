//! Registry of the interfaces: the device front end and the driver of each.
//!
//! An [`Interface`] is two functions that are generic over the bus ports: the device's end and the driver's.
//! Worlds, servers and the command line use its [`Row`], in which they are instantiated once for each bus. A
//! new interface needs modules in `wire`, `device` and `host`, and a row here, or a call of [`add`] from
//! outside.

mod array;
mod array_gc;
mod block;
mod clients;
mod dcx;
mod driver;
mod fastpath;
mod host_flash;
mod host_gc;
mod host_map;
mod nvme;
mod nvme_live;
mod placement;
pub mod places;
mod row;
mod scsi;
pub mod stages;

use std::sync::{PoisonError, RwLock};

use crate::error::UnknownInterface;

pub(crate) use array::check as check_array;
pub use array::{ArrayDriver, TRACE_QUEUES, of_member};
pub use array_gc::Collector;
pub use block::{BlockDriver, block_options};
pub use clients::{Extent, OneThread, Shared, Side, Stop};
pub use dcx::{DcxDriver, DcxQueue};
pub use driver::{Boxed, Connected, Disk, Driver};
pub use fastpath::{FastpathDriver, engine_options};
pub use host_flash::HostFlashDriver;
pub use host_gc::HostGcDriver;
pub use host_map::HostMapDriver;
pub use nvme::{Nvme, NvmeDriver, clamped, controller_options, queue_options};
pub use nvme_live::{LiveController, LiveQueue, ScsiThreads, ThreadDisks};
pub use placement::{MODULES, PLACEMENTS, Placement};
pub use row::{
    Cores, DeviceSide, Devices, Ends, Front, HostSide, Interface, Queues, Row, StartDevice,
};
pub use scsi::{ScsiDriver, spread_options};

pub use crate::lanes::{Lane, Lanes, StageLane};

/// NVM Express: the row on which others are based.
pub const NVME: &Row = &nvme::ROW;
/// DC Express for reads, NVM Express for all other commands.
pub const DCX: &Row = &dcx::ROW;
/// Descriptor blocks.
pub const BLOCK: &Row = &block::ROW;
/// NVM Express through the FastPath engine, which builds the commands.
pub const FASTPATH: &Row = &fastpath::ROW;
/// Physical page access, with the FTL on the host.
pub const HOST_FLASH: &Row = &host_flash::ROW;
/// NVM Express with garbage collection directed by the host.
pub const HOST_GC: &Row = &host_gc::ROW;
/// NVM Express with the map of flash on the host.
pub const HOST_MAP: &Row = &host_map::ROW;
/// NVM Express behind a SCSI face.
pub const SCSI: &Row = &scsi::ROW;
/// An array of NVMe drives.
pub const NVME_ARRAY: &Row = &nvme::ARRAY;
/// An array of NVMe drives whose collections the host directs, each by a collector of its own.
pub const HOST_GC_ARRAY: &Row = &host_gc::ARRAY;
/// An array of raw flash drives with the FTL on the host.
pub const HOST_FLASH_ARRAY: &Row = &host_flash::ARRAY;

/// Interfaces of this crate that the command line accepts. Arrays are selected by the plan.
const OWN: &[&Row] = &[NVME, DCX, BLOCK, FASTPATH, HOST_FLASH, HOST_GC, HOST_MAP];

static ADDED: RwLock<Vec<&'static Row>> = RwLock::new(Vec::new());

/// The interfaces that the command line accepts, built-in ones first.
pub fn all() -> Vec<&'static Row> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(added.iter()).copied().collect()
}

/// The interface of this name, or of this [placement](Placement::parse) of flash software.
///
/// # Errors
/// The name is unknown; the error lists the known ones.
pub fn named(name: &str) -> Result<&'static Row, UnknownInterface> {
    if let Some(row) = Placement::parse(name).and_then(Placement::row) {
        return Ok(row);
    }
    let all = all();
    all.iter().find(|row| row.name == name).copied().ok_or_else(|| UnknownInterface {
        found: name.to_owned(),
        known: all.iter().map(|row| row.name).collect(),
    })
}

/// Registers an external interface. A name that is already registered keeps its first interface.
pub fn add(row: &'static Row) {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if !OWN.iter().chain(added.iter()).any(|known| known.name == row.name) {
        added.push(row);
    }
}
