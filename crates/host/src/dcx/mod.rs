//! DC Express: reads without doorbell, completion entry or interrupt.
//!
//! ```text
//!   Queue::read ── marks the buffer, stores the command ──► the device finds it by itself
//!        │                                                         │ data: the tags vanish
//!      slots   one for each command the device may have            ▼
//!        ▲                                              pump (one task: tags, reports)
//!        └── time-outs, fences, resets ── watchdog (one task)
//! ```
//!
//! Dejan Vučinić et al., "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over
//! PCI Express" (FAST 2014). [`Queue::read`] tells the story of one command. Flushes, and writes unless
//! they are wanted here too, take the ordinary path beneath: another driver of the same device.
//!
//! # What a tag proves
//!
//! The driver stores the tag, then the command, whose last word it stores with release. The device loads
//! that word with acquire before it writes any data, so no tag is stored over data. It stores the last
//! word of each packet with release, after the rest of the packet; the driver loads it with acquire, so
//! whoever finds another word there than the tag sees the packet. `tests/it/dcx_order.rs` lets loom try every
//! order that the language allows.
//!
//! # What a time-out does not prove
//!
//! A read that took too long may have collided (its data end with the tag) or may still be on its way.
//! Its buffer stays with its slot, and the next try takes another, until
//! * its tags vanish after all, or it is reported;
//! * a fence is reported that was sent after it;
//! * the queue has been disabled.

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
use wire::dcx::registers::{GRAIN, ID, LIMITS, Limits, MAGIC};

pub use crate::nvme::Completion;
pub use pair::Counters;
pub use queue::Queue;
pub use tags::Tags;

use crate::lifecycle::HasLifecycle;
use crate::{BlockDevice, InitError};
use pair::{Pair, PairSpec};

/// The costs that a port is asked for.
pub const COSTS: &[&str] = &["mark", "submit", "complete", "context switch"];

/// The stages that this driver marks, beside its costs.
pub const STAGES: &[&str] = &["slot wait", "tag retry", "arrival", "poll", "interrupt"];

/// The most commands that one queue has in flight.
pub const DEPTH_MAX: u16 = 1 << SLOT_BITS;

/// The low bits of a command's place name its slot; the others tell one use of it from the next.
const SLOT_BITS: u32 = 10;

/// The watchdog looks this many times within a read's time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// So many reports that make no sense, and the queue is reset.
const PROTOCOL_ERRORS_MAX: u32 = 64;

/// What a queue is like.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Commands in flight at most: 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// How the end of a read is noticed.
    pub completion: Completion,
    /// Where tags come from.
    pub tags: Tags,
    /// The most that the device takes for one read. A read has timed out after this times the depth
    /// (Vučinić et al., section 3.1).
    pub max_latency: Span,
    /// How often a read that timed out is tried again with another tag before it takes the ordinary
    /// path.
    pub retries: u32,
    /// What a write, a fence, and enabling or disabling the queue may take.
    pub timeout: Span,
    /// The device may stop polling when nothing comes; the driver then rings a doorbell.
    pub may_sleep: bool,
    /// Writes go through this queue too.
    pub writes: bool,
    /// The number of the queue's journeys.
    pub traces: u16,
}

impl QueueOptions {
    /// A read that takes longer than this, or up to an eighth more, has timed out.
    pub fn read_timeout(&self) -> Span {
        Span(self.max_latency.0.saturating_mul(u64::from(self.depth)))
    }
}

/// The front end of a device.
pub struct Driver<P: HostPort> {
    block: u32,
    limits: Limits,
    grain: u32,
    next: Cell<u16>,
    pairs: RefCell<Vec<Rc<Pair<P>>>>,
}

impl<P: HostPort> Driver<P> {
    /// Finds the register block at this offset of the window of a device, to which `beneath` is the
    /// ordinary path.
    ///
    /// # Errors
    /// There is none, or its device cannot be served.
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
        let grain = port.read32(block + GRAIN).await;
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

    /// A queue on this port, with the ordinary path of this disk.
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
        self.next.set(number + 1);
        self.pairs.borrow_mut().push(pair.clone());
        pair.enable().await?;
        Ok(Rc::new(Queue::new(pair, beneath)))
    }

    /// Resets every queue, with whatever is in flight.
    ///
    /// # Errors
    /// The device does not answer in time.
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
    /// The device does not answer in time.
    pub async fn stop(&self) -> Result<(), InitError> {
        let pairs = self.pairs.borrow().clone();
        for pair in pairs {
            pair.shut_down().await?;
        }
        Ok(())
    }
}
