//! SCSI: any block device shown as a logical unit, and a class driver for logical units.
//!
//! ```text
//!   caller: BlockDevice ►  Disk          class driver: INQUIRY, READ CAPACITY, READ(16), WRITE(16)
//!                           │  Transport: bytes of a command, a buffer; a status with sense
//!                           ▼
//!                          Target        units by number, REPORT LUNS
//!                           ▼
//!                          Unit          parse, judge, execute; pages of its own making
//!                           ▼
//!                          BlockDevice   an NVMe queue, or any other driver
//! ```
//!
//! Both ends are here, and know each other only by [`Transport`]: a target whose commands come over a network
//! calls [`Target::execute`], an initiator whose target is elsewhere implements the trait. Parsing is
//! [`wire::scsi`]'s and knows no device; execution knows no bytes of commands. What an initiator sends is
//! copied once and parsed once; no bytes are too strange for a status with sense.
//!
//! A NVM Express namespace is a logical unit, as in the NVM Express: SCSI Translation Reference.
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

/// How a command ended.
#[derive(Debug)]
pub struct Reply {
    /// The buffer that came with the command.
    pub buffer: Option<Buffer>,
    /// The status byte.
    pub status: Status,
    /// Why, where the status asks that question.
    pub sense: Sense,
    /// Bytes that were moved to or from the buffer's beginning.
    pub moved: usize,
}

impl Reply {
    fn good(buffer: Option<Buffer>, moved: usize) -> Reply {
        Reply { buffer, status: Status::Good, sense: Sense::NONE, moved }
    }

    fn check(buffer: Option<Buffer>, sense: Sense) -> Reply {
        Reply { buffer, status: Status::CheckCondition, sense, moved: 0 }
    }
}

/// The way to a target.
pub trait Transport {
    /// Carries a command out. The buffer receives data or holds them, whichever way the command moves them,
    /// and comes back; with less room than an allocation length says, no more is moved than it has.
    fn execute(&self, lun: Lun, cdb: &Cdb, buffer: Option<Buffer>) -> impl Future<Output = Reply>;

    /// A buffer of `bytes` bytes that the target may reach.
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;
}
