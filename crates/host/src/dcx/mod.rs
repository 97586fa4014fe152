//! DC Express: reads without doorbell, completion entry or interrupt.
//!
//! ```text
//!   Queue::read ── marks the buffer, stores the command ──► the device finds it by itself
//!        │                                                         │ data: the tags vanish
//!      slots   one for each command the device may have            ▼
//!        ▲                                              poller (one task: tags, reports)
//!        └── time-outs, fences, resets ── watchdog (one task)
//! ```
//!
//! Dejan Vučinić et al., "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over PCI
//! Express" (FAST 2014). [`Queue::read`] shows the path of one command. Flushes, and writes unless enabled
//! here, use another driver of the same device.
//!
//! # Guarantee of a tag
//!
//! The driver stores the tag, then the command, whose last word it stores with release. The device loads that
//! word with acquire before it writes any data, so no tag is stored over data. It stores the last word of
//! each packet with release, after the rest of the packet; the driver loads it with acquire, so a word other
//! than the tag means that the packet is visible. `tests/it/dcx_order.rs` uses loom to check every order that
//! the language allows.
//!
//! # Limits of a time-out
//!
//! A read that took too long may have collided (its data ends with the tag), may still be in flight, or the
//! host was away and its data are there. Time does not tell these apart, so a time-out ends no read: it sends
//! a fence. The slot and the buffer stay with the read until
//! * its tags vanish after all, or a report arrives;
//! * a fence that was sent after it is reported: if its tags are still there, it is retried with another tag;
//! * the queue has been disabled.
//!
//! So the buffer that was given comes back, and the device no longer writes to it: the caller may keep parts
//! of it ([`bus::Buffer::part`]).
//!
//! # Requirements on other crates
//!
//! - A device that polls the ring must know that an entry is whole: [`bus::DevicePort::fetch`] is the mirror
//!   of [`publish`](bus::DevicePort::publish).
//! - A host that watches its buffers needs a flag at the end of each packet, stored after the rest of the
//!   packet, also on a medium that keeps only stamps: [`bus::Posting::flags`]. One flag is enough if the
//!   whole transfer arrives in order: [`bus::HostPort::arrival`]; but a device may ask for more, whose own
//!   writes overtake one another (`GRAIN.packet_log2`).

mod pair;
mod queue;
mod rings;
mod slots;
mod tags;
mod watchdog;

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::HostPort;
use runtime::Span;
use wire::dcx::registers::{GRAIN, Grain, ID, LIMITS, Limits, MAGIC, PACKET_LOG2};

pub use crate::nvme::Completion;
pub use pair::Counters;
pub use queue::Queue;
pub use tags::Tags;

use crate::lifecycle::HasLifecycle;
use crate::{BlockDevice, InitError};
use pair::{Pair, PairSpec};

/// Names of the host costs.
pub const COSTS: &[&str] = &["mark", "submit", "complete", "context switch"];

/// Stages recorded in addition to the costs.
pub const STAGES: &[&str] = &["slot wait", "tag retry", "arrival", "poll", "interrupt"];

/// Largest queue depth.
pub const DEPTH_MAX: u16 = 1 << SLOT_BITS;

/// Low bits of a command's name that hold its slot; the high bits count uses of the slot.
const SLOT_BITS: u32 = 10;

/// Checks of the watchdog per read time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// Number of invalid reports after which the queue is reset.
const PROTOCOL_ERRORS_MAX: u32 = 64;

/// Options of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Commands in flight: 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// Completion mode of reads.
    pub completion: Completion,
    /// Source of tags.
    pub tags: Tags,
    /// Only the last packet's part of a buffer is marked. For experiments: on a transport whose packets
    /// overtake
    /// one another, reads then end before their data have arrived.
    pub marks_last: bool,
    /// Longest service time of the device for one read. The read time-out is this times the depth (Vučinić et
    /// al., section 3.1).
    pub max_latency: Span,
    /// Retries of a lost read with other tags, before it is sent through the other driver.
    pub retries: u32,
    /// Time-out of a write, of a fence, and, if it is longer than half a second, of enabling or disabling the
    /// queue.
    pub timeout: Span,
    /// True if the device may stop polling when idle; the driver then rings a doorbell.
    pub may_sleep: bool,
    /// True if writes use this queue too.
    pub writes: bool,
    /// Trace identifier space of the queue.
    pub traces: u16,
}

impl QueueOptions {
    /// Age at which a read times out; up to an eighth more.
    pub fn read_timeout(&self) -> Span {
        Span(self.max_latency.0.saturating_mul(u64::from(self.depth)))
    }
}

/// DC Express side of a device.
pub struct Driver<P: HostPort> {
    block: u32,
    limits: Limits,
    grain: Grain,
    next: Cell<u16>,
    pairs: RefCell<Vec<Rc<Pair<P>>>>,
}

impl<P: HostPort> Driver<P> {
    /// Probes the register block at offset `block` of the device's window. `beneath` is the other driver of
    /// the same device.
    ///
    /// # Errors
    /// No such block, or an unsupported device.
    pub async fn start(
        port: &P,
        block: u32,
        beneath: &impl BlockDevice,
    ) -> Result<Driver<P>, InitError> {
        let id = port.read32(block + ID).await;
        if port.is_gone() || id == u32::MAX {
            return Err(InitError::Gone { register: "ID" });
        }
        if id != MAGIC {
            let expected = "the letters DCX1: a register block of DC Express";
            return Err(InitError::Unsupported { what: "ID", found: u64::from(id), expected });
        }
        let limits = Limits::from_bits(port.read32(block + LIMITS).await);
        let grain = Grain::from_bits(port.read32(block + GRAIN).await);
        if grain.packet_log2() != 0 && !PACKET_LOG2.contains(&grain.packet_log2()) {
            return Err(InitError::Unsupported {
                what: "GRAIN.packet_log2",
                found: u64::from(grain.packet_log2()),
                expected: "0, or packets of 128 bytes to 4 KiB",
            });
        }
        let geometry = beneath.geometry();
        if geometry.block_bytes != 1u32.checked_shl(limits.block_log2().into()).unwrap_or(0) {
            return Err(InitError::Unsupported {
                what: "LIMITS.block_log2",
                found: u64::from(limits.block_log2()),
                expected: "the block of the ordinary path",
            });
        }
        Ok(Driver { block, limits, grain, next: Cell::new(0), pairs: RefCell::default() })
    }

    /// Creates a queue on `port`, over the other driver's disk.
    ///
    /// # Errors
    /// The device has no queue left, or does not enable it in time.
    pub async fn queue_on<W: BlockDevice>(
        &self,
        port: &P,
        beneath: W,
        options: QueueOptions,
    ) -> Result<Rc<Queue<P, W>>, InitError> {
        let number = self.next.get();
        if number >= u16::from(self.limits.queues()) {
            return Err(InitError::TooFewQueues {
                asked: u32::from(number) + 1,
                granted: u32::from(self.limits.queues()),
            });
        }
        let spec = PairSpec {
            number,
            block: self.block,
            grain: self.grain,
            entries_log2_max: self.limits.entries_log2(),
            transfer_log2: self.limits.transfer_log2(),
            options,
        };
        let pair = Pair::start(port, &spec)?;
        port.rt().spawn(watchdog::watch(pair.clone()));
        self.next.set(number + 1);
        self.pairs.borrow_mut().push(pair.clone());
        pair.enable().await?;
        Ok(Rc::new(Queue::new(pair, beneath)))
    }

    /// Resets every queue with its commands in flight.
    ///
    /// # Errors
    /// The device does not respond in time.
    pub async fn reset(&self) -> Result<(), InitError> {
        let pairs = self.pairs.borrow().clone();
        for pair in pairs {
            pair.reset().await?;
        }
        Ok(())
    }

    /// Disables every queue and ends their tasks.
    ///
    /// # Errors
    /// The device does not respond in time.
    pub async fn stop(&self) -> Result<(), InitError> {
        let pairs = self.pairs.borrow().clone();
        for pair in pairs {
            pair.shut_down().await?;
        }
        Ok(())
    }
}
