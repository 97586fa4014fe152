//! Descriptor blocks: one ring, exchanged with the device block by block, whose size follows the load.
//!
//! ```text
//!  callers ─► I/O Requests Handler ─► ring: bios, descriptors ─► New Descriptors Block Processor
//!                                        ▲     (Bios Array)            │ announces, one at a time
//!                                        │                             ▼
//!  callers ◄─ I/O Responses Generator ◄──┴─── a block comes back: interrupt, or memory
//! ```
//!
//! Eleni Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device
//! Driver for PCIe-based SSDs" (RSP 2014), whose names the three parts and the array have. [`Disk::read`]
//! tells the story of one request. Flushes and writes through a cache are ours: the paper has neither.
//!
//! # Whose a descriptor is
//!
//! The driver stores a descriptor and then its last word, with release, which makes it the device's; then
//! the register, which announces it. The device stores what it returns and then the last word of the group,
//! with release; the driver loads that word with acquire. `tests/it/block_order.rs` lets loom try every order
//! that the language allows. A descriptor that is not as its owner left it is a protocol error: it is
//! counted, and the ring is reset.

mod bios;
mod blocks;
#[cfg(test)]
mod closed_loop;
mod observed;
mod requests;
mod responses;
mod ring;
mod sizing;
mod state;
mod watchdog;

use alloc::rc::Rc;

use bus::HostPort;
use runtime::Span;
use wire::block::registers::{CAPACITY, ID, LIMITS, Limits, MAGIC, MEDIUM, Medium};

pub use crate::nvme::Completion;
pub use requests::Disk;
pub use ring::Counters;
pub use sizing::{Load, Next, Setting, Sizing, Turnaround};

use crate::lifecycle::HasLifecycle;
use crate::{Geometry, InitError};
use ring::{Ring, Spec};

/// The costs that a port is asked for.
pub const COSTS: &[&str] = &["submit", "announce", "complete", "context switch"];

/// The stages that this driver marks, beside its costs.
pub const STAGES: &[&str] =
    &["slot wait", "block wait", "completion", "poll", "interrupt", "order wait"];

/// The most bytes of one request.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The watchdog looks this many times within a time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// How a device is driven.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Descriptors of the ring, at least; a power of two is taken, of no less than two of the device's
    /// largest blocks if it allows that.
    pub depth: u32,
    /// How returned blocks are noticed.
    pub completion: Completion,
    /// How large blocks are.
    pub sizing: Sizing,
    /// A block that takes longer, or up to an eighth more, is lost, and the ring is reset.
    pub timeout: Span,
    /// How often the ring may be reset in a row without an answer in between, before what is in it fails.
    pub retries: u32,
}

/// The driver of a device.
pub struct Driver<P: HostPort> {
    ring: Rc<Ring<P>>,
}

impl<P: HostPort> Driver<P> {
    /// Starts a device; interrupts and blocks are handled on this port's core.
    ///
    /// # Errors
    /// There is none, it cannot be served, or it does not become ready in time.
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
        let entries = options.depth.max(2 * largest).next_power_of_two();
        let entries = entries.min(1 << limits.entries_log2());
        let ring = Ring::start(port, Spec { limits, geometry, entries, options })?;
        ring.enable().await?;
        Ok(Driver { ring })
    }

    /// The disk, for a caller on this port's core.
    pub fn disk(&self, port: &P) -> Disk<P> {
        Disk::new(self.ring.clone(), port)
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        self.ring.counters.get()
    }

    /// Resets the ring, with whatever is in flight: that is announced again.
    ///
    /// # Errors
    /// The device does not answer in time.
    pub async fn reset(&self) -> Result<(), InitError> {
        self.ring.reset().await
    }

    /// Disables the ring and ends its tasks.
    ///
    /// # Errors
    /// The device does not answer in time.
    pub async fn stop(&self) -> Result<(), InitError> {
        self.ring.shut_down().await
    }
}
