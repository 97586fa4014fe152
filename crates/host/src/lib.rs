//! The host's side of an SSD: portable drivers that run wherever there is a [`bus::HostPort`].
//!
//! What this crate is not: it has no thread, no operating system, no clock of its own and no
//! `unsafe`. It never sees a device; it writes registers and memory, and believes nothing that
//! comes back before it has judged it. One executor thread runs a driver, so nothing here is
//! locked.
//!
//! ```text
//!   caller ─ read(lba, buffer) ─► Queue ─ entry, then doorbell ─► the bus ─► a device
//!          ◄─ (buffer, result) ─  slot  ◄─ completion, judged ─           ◄─
//! ```
//!
//! Every driver has one face, [`BlockDevice`]; [`Blocking`] is that face for callers who wait. A
//! [`Buffer`] is given away for the time of a command and comes back with its result, so a future
//! may be dropped at any moment: what the device may still write stays with the command's slot.
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

use alloc::rc::Rc;
use core::future::Future;

pub use blocking::Blocking;
pub use bus::{Buffer, OutOfMemory};
pub use error::{InitError, IoError, Kind};
use wire::Lba;

/// The shape of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Its capacity, in blocks: LBAs run from 0 to one less.
    pub blocks: u64,
    /// Bytes of one block: a power of two.
    pub block_bytes: u32,
    /// The longest transfer of one command, in bytes: a multiple of the block.
    pub transfer_bytes_max: u32,
    /// Buffers begin at multiples of so many bytes: 1 or 4.
    pub buffer_align: u32,
    /// Whether a completed write may wait in a cache that loses it with the power, until a flush.
    pub volatile_cache: bool,
}

impl Geometry {
    /// The number of blocks that a transfer of all of `buffer` has, if one command could do it.
    ///
    /// # Errors
    /// No command could: what is wrong with it.
    pub fn validate(&self, lba: Lba, buffer: &Buffer) -> Result<u32, IoError> {
        let refuse = |kind, why| Err(IoError::refused(kind, lba, why));
        let bytes = buffer.bytes() as u64;
        // A block is a power of two, and a division takes longer than all else here.
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

    /// Whether there are blocks, and all of them are below the capacity.
    ///
    /// # Errors
    /// What is wrong with them.
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

/// What blocks read as that were taken back by [`BlockDevice::deallocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deallocated {
    /// The device, or the way to it, has no such command.
    Unsupported,
    /// Zeros, ones, what they held before: the device does not say.
    Unknown,
    /// Zeros.
    Zeros,
}

/// Gives up a buffer's place for good: a device may write to it for ever.
pub fn quarantine(buffer: &Buffer) {
    core::mem::forget(buffer.part(0, buffer.bytes()));
}

/// The face that every interface's driver has.
///
/// All operations may be dropped at any await. The command is then left to itself: its buffer
/// and its slot are taken until the device has completed it, or can no longer write.
pub trait BlockDevice {
    /// Its shape, which stays as it is while the device is in use.
    fn geometry(&self) -> Geometry;

    /// A buffer of `bytes` bytes that the device may reach.
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;

    /// Reads blocks from `lba` on until `into` is full.
    fn read(&self, lba: Lba, into: Buffer) -> impl Future<Output = (Buffer, Result<(), IoError>)>;

    /// Writes all of `from` to the blocks from `lba` on. With `fua`, the medium itself holds it
    /// then.
    fn write(
        &self,
        lba: Lba,
        from: Buffer,
        fua: bool,
    ) -> impl Future<Output = (Buffer, Result<(), IoError>)>;

    /// Makes durable what was written and completed before.
    fn flush(&self) -> impl Future<Output = Result<(), IoError>>;

    /// What [`deallocate`](Self::deallocate) leaves behind, if it can be asked for.
    fn deallocated(&self) -> Deallocated {
        Deallocated::Unsupported
    }

    /// Gives `blocks` blocks from `lba` on back to the device, any number of them at once: what they hold
    /// is not needed any more. As a write it is durable after a flush; until then a power cut may bring
    /// back what they held.
    fn deallocate(&self, lba: Lba, blocks: u32) -> impl Future<Output = Result<(), IoError>> {
        let _ = blocks;
        let why = "an interface with a command for it";
        core::future::ready(Err(IoError::refused(Kind::Unsupported, lba, why)))
    }
}

/// Hands the named calls of a [`BlockDevice`] on: `carried_out!(self => self.next(), read, write, flush)`.
/// What names `self` itself has methods of its own with these names.
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
}

impl<D: BlockDevice> BlockDevice for Rc<D> {
    carried_out!(self => (**self), geometry, buffer, read, write, flush, deallocated, deallocate);
}
