//! SCSI: a target that presents block devices as logical units, and a class driver for logical units.
//!
//! ```text
//!   caller: BlockDevice ►  Disk          class driver: INQUIRY, READ CAPACITY, READ(16), WRITE(16)
//!                           │  Transport: bytes of a command, a buffer; a status with sense
//!                           ▼
//!                          Target        units by number, REPORT LUNS
//!                           ▼
//!                          Unit          validates and executes; its own pages
//!                           ▼
//!                          BlockDevice   an NVMe queue, or any other driver
//! ```
//!
//! Both ends meet only at [`Transport`]: a target with commands from a network calls [`Target::execute`], an
//! initiator for a remote target implements the trait. Parsing is in [`wire::scsi`], independent of devices;
//! execution is independent of command bytes. An initiator's command is copied once and parsed once; any
//! bytes give a status with sense.
//!
//! An NVM Express namespace is presented as a logical unit, as in the NVM Express: SCSI Translation
//! Reference.
//!
//! It is not a network target or initiator, and holds no data. In `world` the interface `Scsi` puts both ends
//! between callers and NVMe queues, which `host::nvme::Spread` selects by policy (docs/vortex.md).
//!
//! ```no_run
//! use std::rc::Rc;
//!
//! use host::BlockDevice;
//! use scsi::{AttachError, Disk, Target, Unit, of_nvme};
//! use wire::nvme::identify::{IdentifyController, IdentifyNamespace};
//! use wire::scsi::lun::Lun;
//!
//! /// An NVMe namespace as a SCSI disk.
//! async fn as_scsi<D: BlockDevice + 'static>(
//!     queue: D,
//!     controller: &IdentifyController,
//!     namespace: &IdentifyNamespace,
//! ) -> Result<Disk<Target<D>>, AttachError> {
//!     let unit = Unit::new(queue, of_nvme(controller, namespace));
//!     Disk::attach(Rc::new(Target::new(vec![unit])), Lun::of(0)).await
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
extern crate alloc;

mod disk;
mod identity;
mod sense;
mod target;
mod unit;

use core::future::Future;

use bus::{Buffer, OutOfMemory};
pub use disk::{AttachError, Disk};
pub use identity::of_nvme;
pub use target::Target;
pub use unit::Unit;
use wire::scsi::cdb::Cdb;
use wire::scsi::lun::Lun;
use wire::scsi::sense::Sense;
use wire::scsi::status::Status;

/// Result of a command.
#[derive(Debug)]
pub struct Reply {
    /// Buffer that came with the command.
    pub buffer: Option<Buffer>,
    /// Status byte.
    pub status: Status,
    /// Sense data; valid with CHECK CONDITION.
    pub sense: Sense,
    /// Bytes transferred to or from the beginning of the buffer.
    pub moved: usize,
}

impl Reply {
    /// Reply of a successful command.
    fn good(buffer: Option<Buffer>, moved: usize) -> Reply {
        Reply { buffer, status: Status::Good, sense: Sense::NONE, moved }
    }

    /// Reply of a rejected command.
    fn check(buffer: Option<Buffer>, sense: Sense) -> Reply {
        Reply { buffer, status: Status::CheckCondition, sense, moved: 0 }
    }
}

/// Connection to a target.
pub trait Transport {
    /// Executes a command. The buffer receives or holds its data, depending on the command, and comes back.
    /// If it is shorter than the allocation length, the transfer is limited to the buffer.
    fn execute(&self, lun: Lun, cdb: &Cdb, buffer: Option<Buffer>) -> impl Future<Output = Reply>;

    /// Allocates a buffer of `bytes` bytes that the target can access.
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;
}
