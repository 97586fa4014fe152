//! Descriptor blocks: one ring, exchanged with the device in blocks of adaptive size.
//!
//! ```text
//!  callers ─► I/O Requests Handler ─► ring: bios, descriptors ─► New Descriptors Block Processor
//!                                        ▲     (Bios Array)            │ announces, one at a time
//!                                        │                             ▼
//!  callers ◄─ I/O Responses Generator ◄──┴─── a block comes back: interrupt, or memory
//! ```
//!
//! Eleni Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device
//! Driver for PCIe-based SSDs" (RSP 2014); the three parts and the array have the paper's names.
//! [`Disk::read`] shows the path of one request. Flushes and writes through a cache are ours: the paper has
//! neither.
//!
//! # Ownership of descriptors
//!
//! The driver stores a descriptor, then its last word, with release, which passes ownership to the device;
//! then it writes the register that announces the block. The device stores a group of results, then the
//! group's last word, with release; the driver loads that word with acquire. `tests/it/block_order.rs` uses
//! loom to check every order that the language allows. A descriptor that its owner did not leave that way is
//! a protocol error: it is counted, and the ring is reset.

mod bios;
mod blocks;
#[cfg(test)]
mod closed_loop;
mod observed;
mod requests;
mod responses;
mod ring;
mod shape;
mod sizing;
mod state;
mod watchdog;

use alloc::rc::Rc;

use bus::HostPort;
use runtime::Span;
use wire::block::registers::{
    CAPACITY, ID, LIMITS, Limits, MAGIC, MEDIUM, Medium, READ_NS, WRITE_NS,
};

pub use crate::nvme::Completion;
pub use requests::Disk;
pub use ring::Counters;
pub use sizing::{Load, Next, Setting, Sizing, Turnaround};

use crate::lifecycle::HasLifecycle;
use crate::{Geometry, InitError};
use ring::{Ring, Spec};
use shape::Reported;

/// Names of the host costs.
pub const COSTS: &[&str] = &["submit", "announce", "complete", "context switch"];

/// Stages recorded in addition to the costs.
pub const STAGES: &[&str] =
    &["slot wait", "block wait", "completion", "poll", "interrupt", "order wait"];

/// Longest request in bytes.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Checks of the watchdog per time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// Options of the driver.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Minimum number of descriptors of the ring. It is rounded up to a power of two, and to two or four of
    /// the device's largest blocks by what the device reports of its medium, if the device allows that; a
    /// device of fewer pages has a shorter ring.
    pub depth: u32,
    /// Completion mode.
    pub completion: Completion,
    /// Policy for the size of blocks.
    pub sizing: Sizing,
    /// Age at which a block is lost and the ring is reset; up to an eighth more.
    pub timeout: Span,
    /// Resets in a row, without an answer in between, after which the requests in the ring fail.
    pub retries: u32,
}

/// Driver of a descriptor-block device.
pub struct Driver<P: HostPort> {
    ring: Rc<Ring<P>>,
}

impl<P: HostPort> Driver<P> {
    /// Starts a device; interrupts and blocks are handled on the core of `port`.
    ///
    /// # Errors
    /// No such device, it is not supported, or it does not become ready in time.
    pub async fn start(port: &P, options: Options) -> Result<Driver<P>, InitError> {
        let id = port.read32(ID).await;
        if port.is_gone() || id == u32::MAX {
            return Err(InitError::Gone { register: "ID" });
        }
        let refuse = |what, found, expected| {
            Err(InitError::Unsupported { what, found: u64::from(found), expected })
        };
        if id != MAGIC {
            return refuse("ID", id, "the letters ADB1: a device of descriptor blocks");
        }
        let limits = Limits::from_bits(port.read32(LIMITS).await);
        let medium = Medium::from_bits(port.read32(MEDIUM).await);
        let (low, high) = (port.read32(CAPACITY).await, port.read32(CAPACITY + 4).await);
        let largest = u32::from(limits.block_max());
        if !(1..=15).contains(&limits.entries_log2()) || largest > 1 << limits.entries_log2() {
            return refuse("LIMITS", limits.into_bits(), "a ring that holds the largest block");
        }
        if largest == 0 || limits.group() == 0 || u32::from(limits.group()) > largest {
            return refuse("LIMITS", limits.into_bits(), "groups that are parts of a block");
        }
        if !(9..=12).contains(&medium.block_log2()) {
            return refuse("MEDIUM", medium.into_bits(), "blocks of 512 bytes to 4 KiB");
        }
        let geometry = Geometry {
            blocks: u64::from(high) << 32 | u64::from(low),
            block_bytes: 1 << medium.block_log2(),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            buffer_align: 4,
            volatile_cache: true,
        };
        let (read_ns, write_ns) = (port.read32(READ_NS).await, port.read32(WRITE_NS).await);
        let blocks = geometry.blocks;
        let entries = Reported { limits, medium, blocks, read_ns, write_ns }.entries(options.depth);
        let ring = Ring::new(port, Spec { limits, geometry, entries, options })?;
        port.rt().spawn(blocks::process(ring.clone()));
        port.rt().spawn(responses::generate(ring.clone()));
        port.rt().spawn(watchdog::watch(ring.clone()));
        ring.enable().await?;
        Ok(Driver { ring })
    }

    /// Creates a disk for a caller on the core of `port`.
    pub fn disk(&self, port: &P) -> Disk<P> {
        Disk::new(self.ring.clone(), port)
    }

    /// Statistics.
    pub fn counters(&self) -> Counters {
        self.ring.counters.get()
    }

    /// Resets the ring. Requests in flight are announced again.
    ///
    /// # Errors
    /// The device does not respond in time.
    pub async fn reset(&self) -> Result<(), InitError> {
        self.ring.reset().await
    }

    /// Disables the ring and ends its tasks.
    ///
    /// # Errors
    /// The device does not respond in time.
    pub async fn stop(&self) -> Result<(), InitError> {
        self.ring.shut_down().await
    }
}
