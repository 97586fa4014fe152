//! NVMe: the driver of a controller that follows the NVM Express specification.
//!
//! ```text
//!   Controller ── bring-up, identify, features ──► Admin (the admin queue pair and the registers)
//!       │  queue()                                    ▲
//!       ▼                                             │ aborts, resets, shutdown
//!     Queue ── read, write, flush ──► Pair          supervisor (one task: the watchdog)
//!                                      ├ rings: entries in host memory
//!                                      ├ slots: one per command in flight
//!                                      └ pump (one task: completions)
//! ```
//!
//! Bring-up follows NVMe base 2.0, 3.5; the rings, 3.3.1 and NVMe over PCIe 1.0, 3.1.2.
//! [`Queue::read`] tells the story of one command.

mod admin;
mod bar;
mod collector;
mod commands;
mod controller;
mod deadline;
mod events;
mod external_pair;
mod fused;
mod granted;
mod health;
mod hybrid_polling;
mod lists;
mod pair;
mod policy;
mod power;
mod protect;
mod queue;
mod ring;
mod shadow;
mod share;
mod slots;
mod spread;
mod supervisor;
#[cfg(feature = "std")]
pub mod threads;

pub use collector::{COLLECTOR_COSTS, Collector, CollectorCounts, CollectorOptions};
pub use controller::{Controller, Identity};
pub use external_pair::ExternalPair;
pub use fused::Compared;
pub use granted::{Grant, Granted, Rings};
pub use pair::Counters;
pub use policy::{Chooser, Policy, SINGLE_DEPTH, Shape};
pub use protect::{GUARD_COST, Protect};
pub use queue::Queue;
pub use share::{Issuer, Shared};
pub use spread::{Spread, SpreadOptions};

use runtime::Span;
use wire::Nsid;
use wire::nvme::admin::Priority;
use wire::nvme::features::{Arbitration, InterruptCoalescing};

/// The costs that a port is asked for: building a command and ringing for it, taking in its
/// completion, and, if an interrupt told of it, getting back to the caller.
pub const COSTS: &[&str] = &["submit", "complete", "context switch"];

/// The stages that this driver marks: the wait for a command slot, its costs, and the time from the
/// device's last mark until the caller was woken.
pub const STAGES: &[&str] = &[
    "slot wait",
    "guard",
    "submit",
    "complete",
    "context switch",
    "completion",
    "poll",
    "interrupt",
];

/// The most commands that one queue has in flight: what the slot's bits in a command's number can
/// name.
pub const DEPTH_MAX: u16 = 1 << 12;

/// The low bits of a command's number name its slot; the others tell one use of it from the next. A queue
/// that is deeper than these can name takes as many more as it needs.
pub const SLOT_BITS: u32 = runtime::SLOT_BITS;

/// The memory page, in bytes: CC.MPS = 0.
const PAGE_BYTES: u64 = 4096;

/// How often a register is asked while the driver waits for it.
const REGISTER_POLL: Span = Span::ms(1);

/// The watchdog looks this many times within a time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// So many completions that make no sense, and the controller is reset.
const PROTOCOL_ERRORS_MAX: u32 = 64;

/// How a controller is started and watched over.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The namespace to use; none: the first active one.
    pub nsid: Option<Nsid>,
    /// I/O queues to ask the controller for, at least 1.
    pub queues: u16,
    /// A command that takes longer is aborted, and if that doesn't help the controller is reset.
    /// Zero: commands take as long as they take, and a link that dies in silence is not noticed.
    pub timeout: Span,
    /// An admin command that takes longer has failed.
    pub admin_timeout: Span,
    /// How often a command that was lost to a time-out or a reset is submitted again.
    pub retries: u32,
    /// The least that the controller is given to become ready, whatever CAP.TO says.
    pub ready_floor: Span,
    /// The most that the controller is given to become ready, whatever CAP.TO says; the default is the most
    /// that this can say.
    pub ready_ceiling: Span,
    /// No transfer is longer than this, in bytes, even if the controller could.
    pub transfer_bytes_max: u32,
    /// Turns the volatile write cache on or off, where there is one; none: as it is.
    pub volatile_cache: Option<bool>,
    /// Weighted round robin between the classes of queues, by these weights; none: round robin.
    pub arbitration: Option<Arbitration>,
    /// Completions that share an interrupt, and how long one waits for others; none: the controller is
    /// left as it is.
    pub coalescing: Option<InterruptCoalescing>,
    /// Doorbells have shadows in memory, and are rung only where the controller asks for it. A controller
    /// that has none is refused.
    pub shadow_doorbells: bool,
    /// Which buffers scatter gather lists describe, where the controller has them.
    pub sgl: Sgl,
    /// Who makes and checks protection information, where blocks have it.
    pub protect: Protect,
    /// The controller may go by itself to power states that are left and entered within this, after fifty
    /// times as long without work; none, or one that can't: it stays where it is.
    pub power_saving: Option<Span>,
    /// How completions of admin commands are noticed.
    pub admin_completion: Completion,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nsid: None,
            queues: 1,
            timeout: Span::s(5),
            admin_timeout: Span::s(5),
            retries: 3,
            ready_floor: Span::s(1),
            ready_ceiling: Span::ms(127_500),
            transfer_bytes_max: 1 << 20,
            volatile_cache: None,
            arbitration: None,
            coalescing: None,
            shadow_doorbells: false,
            sgl: Sgl::Never,
            protect: Protect::Device,
            power_saving: None,
            admin_completion: Completion::Polled,
        }
    }
}

/// What an I/O queue is like.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Commands in flight at most: 1 to [`DEPTH_MAX`]. The rings have one entry more.
    pub depth: u16,
    /// How completions are noticed.
    pub completion: Completion,
    /// When the device is told of new commands.
    pub doorbell: Doorbell,
    /// The queue's class, for controllers that arbitrate by weight.
    pub priority: Priority,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            depth: 128,
            completion: Completion::Polled,
            doorbell: Doorbell::Each,
            priority: Priority::Medium,
        }
    }
}

/// How completions are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The driver watches the queue's memory.
    Polled,
    /// It sleeps for half the time that commands of the kind have taken, and watches then; with nothing in
    /// flight it sleeps until there is. Of interfaces beside NVMe only those that use its queues do so; the
    /// others watch.
    Hybrid,
    /// The device signals this vector.
    Interrupt {
        /// The MSI-X vector.
        vector: u16,
    },
}

/// Which buffers scatter gather lists describe, of one descriptor each; PRPs describe the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// None.
    Never,
    /// Those for which PRPs would take a list, or which begin where PRPs can't.
    Long,
    /// All.
    Always,
}

/// When the submission queue's doorbell is rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// For each command, at once.
    Each,
    /// Once for all commands that were queued in one pass of the executor.
    Batched,
}
