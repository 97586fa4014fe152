//! Host side of an SSD: portable drivers over any [`bus::HostPort`].
//!
//! The crate has no thread, no operating system, no clock of its own and no `unsafe`. A driver never accesses
//! a device directly: it writes registers and memory, and validates everything that comes back before it uses
//! it. One executor thread runs a driver, so nothing is locked.
//!
//! ```text
//!   caller ─ read(lba, buffer) ─► Queue ─ entry, then doorbell ─► the bus ─► a device
//!          ◄─ (buffer, result) ─  slot  ◄─ checked completion ─           ◄─
//! ```
//!
//! - [`nvme`]: the NVMe driver, its recovery, queues for threads and cores. [`fastpath`] puts an engine in
//!   front of it.
//! - [`dcx`] and [`block`]: the drivers of DC Express and of descriptor blocks.
//! - [`pci`]: enumeration and interrupt routing without firmware.
//!
//! Every driver implements [`BlockDevice`]; [`Blocking`] wraps one for synchronous callers. A [`Buffer`] is
//! given away for the time of a command and comes back with its result, so a future may be dropped at any
//! await: memory that the device may still write stays with the command's slot.
//!
//! ```no_run
//! use bus::HostPort;
//! use host::BlockDevice;
//! use host::nvme::{Controller, Options, QueueOptions};
//! use wire::Lba;
//!
//! async fn first_block(port: impl HostPort) -> Result<[u8; 512], Box<dyn std::error::Error>> {
//!     let controller = Controller::start(port, Options::default()).await?;
//!     let queue = controller.queue(QueueOptions::default()).await?;
//!     let (buffer, read) = queue.read(Lba(0), queue.buffer(4096)?).await;
//!     read?;
//!     let mut block = [0; 512];
//!     buffer.copy_out(0, &mut block);
//!     controller.shutdown().await?;
//!     Ok(block)
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod block;
mod blocking;
pub mod dcx;
mod error;
pub mod fastpath;
mod lifecycle;
pub mod nvme;
pub mod pci;
pub mod register;
mod slot_bits;

use alloc::rc::Rc;
use core::future::Future;

pub use blocking::Blocking;
pub use bus::{Buffer, OutOfMemory};
pub use error::{InitError, IoError, Kind};
pub use slot_bits::{SLOT_BITS, slot_bits};
use wire::Lba;
use wire::nvme::dsm::Context;

/// Geometry and limits of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity in blocks: LBAs run from 0 to `blocks - 1`.
    pub blocks: u64,
    /// Bytes of one block, a power of two.
    pub block_bytes: u32,
    /// Longest transfer of one command in bytes, a multiple of the block.
    pub transfer_bytes_max: u32,
    /// Alignment of buffers in bytes: 1 or 4.
    pub buffer_align: u32,
    /// True if a completed write may wait in a cache that loses it at a power cut, until a flush.
    pub volatile_cache: bool,
}

impl Geometry {
    /// Validates a transfer of all of `buffer` at `lba` by one command; returns its length in blocks.
    ///
    /// # Errors
    /// [`Kind::Refused`] or [`Kind::OutOfRange`]; `why` is the rule that the transfer breaks.
    #[inline]
    pub fn validate(&self, lba: Lba, buffer: &Buffer) -> Result<u32, IoError> {
        let refuse = |kind, why| Err(IoError::refused(kind, lba, why));
        let bytes = buffer.bytes() as u64;
        // Shift and mask: a block is a power of two, and a division would dominate this function.
        if bytes == 0 || bytes & u64::from(self.block_bytes - 1) != 0 {
            return refuse(Kind::Refused, "one or more whole blocks");
        }
        if bytes > u64::from(self.transfer_bytes_max) {
            return refuse(Kind::Refused, "no more than the longest transfer of one command");
        }
        if buffer.at().0 & u64::from(self.buffer_align - 1) != 0 {
            return refuse(Kind::Refused, "a buffer that begins at a multiple of 4 bytes");
        }
        let blocks = bytes >> self.block_bytes.trailing_zeros();
        self.validate_range(lba, blocks)?;
        Ok(blocks as u32)
    }

    /// Checks that there is at least one block and that all are below the capacity.
    ///
    /// # Errors
    /// [`Kind::Refused`] for zero blocks, [`Kind::OutOfRange`] beyond the capacity.
    pub fn validate_range(&self, lba: Lba, blocks: u64) -> Result<(), IoError> {
        let refuse = |kind, why| Err(IoError::refused(kind, lba, why));
        if blocks == 0 {
            return refuse(Kind::Refused, "one or more blocks");
        }
        if lba.0.checked_add(blocks).is_none_or(|end| end > self.blocks) {
            return refuse(Kind::OutOfRange, "blocks below the capacity");
        }
        Ok(())
    }
}

/// Contents of blocks after [`BlockDevice::deallocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deallocated {
    /// The device, or the path to it, has no such command.
    Unsupported,
    /// Not specified by the device: zeros, ones or the old contents.
    Unknown,
    /// Zeros.
    Zeros,
}

/// Never returns a buffer's memory to its arena: a device may still write to it.
pub fn quarantine(buffer: &Buffer) {
    core::mem::forget(buffer.part(0, buffer.bytes()));
}

/// A block device: the interface of every driver.
///
/// A read or a write returns the buffer that it was given, and the device no longer accesses it: callers may
/// keep [parts](Buffer::part) of it. After [`Kind::Gone`] the device may still write to it.
///
/// All futures may be dropped at any await. The command then continues without an owner: its buffer and its
/// slot stay in use until the device has completed it, or can no longer write. Until then callers must not
/// use parts of that buffer.
pub trait BlockDevice {
    /// Geometry, constant while the device is in use.
    fn geometry(&self) -> Geometry;

    /// Allocates a buffer of `bytes` bytes that the device can access.
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;

    /// Reads blocks from `lba` until `into` is full.
    fn read(&self, lba: Lba, into: Buffer) -> impl Future<Output = (Buffer, Result<(), IoError>)>;

    /// Writes all of `from` to the blocks from `lba`. With `fua` the data is on the medium at completion.
    fn write(
        &self,
        lba: Lba,
        from: Buffer,
        fua: bool,
    ) -> impl Future<Output = (Buffer, Result<(), IoError>)>;

    /// Makes all writes durable that completed before.
    fn flush(&self) -> impl Future<Output = Result<(), IoError>>;

    /// Contents of blocks after [`deallocate`](Self::deallocate), if the device supports it.
    fn deallocated(&self) -> Deallocated {
        Deallocated::Unsupported
    }

    /// Tells the device what to expect of `blocks` blocks from `lba`: a hint, which it may ignore.
    fn hint(
        &self,
        lba: Lba,
        blocks: u32,
        context: Context,
    ) -> impl Future<Output = Result<(), IoError>> {
        let _ = (blocks, context);
        let why = "an interface with hints";
        core::future::ready(Err(IoError::refused(Kind::Unsupported, lba, why)))
    }

    /// Deallocates `blocks` blocks from `lba`, with no limit on their number: their contents are no longer
    /// needed. Like a write it is durable after a flush; until then a power cut may bring back the old
    /// contents.
    fn deallocate(&self, lba: Lba, blocks: u32) -> impl Future<Output = Result<(), IoError>> {
        let _ = blocks;
        let why = "an interface with a command for it";
        core::future::ready(Err(IoError::refused(Kind::Unsupported, lba, why)))
    }
}

/// Forwards the named methods of a [`BlockDevice`]: `carried_out!(self => self.next(), read, write, flush)`.
/// A type that names `self` itself as the target needs inherent methods of these names.
#[macro_export]
macro_rules! carried_out {
    ($self:ident => $to:expr, $($call:ident),+) => {
        $($crate::carried_out!(@$call $self, $to);)+
    };
    (@geometry $self:ident, $to:expr) => {
        fn geometry(&$self) -> $crate::Geometry {
            $to.geometry()
        }
    };
    (@buffer $self:ident, $to:expr) => {
        fn buffer(&$self, bytes: usize) -> Result<bus::Buffer, bus::OutOfMemory> {
            $to.buffer(bytes)
        }
    };
    (@read $self:ident, $to:expr) => {
        fn read(
            &$self,
            lba: wire::Lba,
            into: bus::Buffer,
        ) -> impl Future<Output = (bus::Buffer, Result<(), $crate::IoError>)> {
            $to.read(lba, into)
        }
    };
    (@write $self:ident, $to:expr) => {
        fn write(
            &$self,
            lba: wire::Lba,
            from: bus::Buffer,
            fua: bool,
        ) -> impl Future<Output = (bus::Buffer, Result<(), $crate::IoError>)> {
            $to.write(lba, from, fua)
        }
    };
    (@flush $self:ident, $to:expr) => {
        fn flush(&$self) -> impl Future<Output = Result<(), $crate::IoError>> {
            $to.flush()
        }
    };
    (@deallocated $self:ident, $to:expr) => {
        fn deallocated(&$self) -> $crate::Deallocated {
            $to.deallocated()
        }
    };
    (@deallocate $self:ident, $to:expr) => {
        fn deallocate(
            &$self,
            lba: wire::Lba,
            blocks: u32,
        ) -> impl Future<Output = Result<(), $crate::IoError>> {
            $to.deallocate(lba, blocks)
        }
    };
    (@hint $self:ident, $to:expr) => {
        fn hint(
            &$self,
            lba: wire::Lba,
            blocks: u32,
            context: wire::nvme::dsm::Context,
        ) -> impl Future<Output = Result<(), $crate::IoError>> {
            $to.hint(lba, blocks, context)
        }
    };
}

impl<D: BlockDevice> BlockDevice for Rc<D> {
    carried_out!(self => (**self), geometry, buffer, read, write, flush, deallocated, deallocate, hint);
}
