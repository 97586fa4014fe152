//! NVMe: driver for a controller that follows the NVM Express specification.
//!
//! ```text
//!   Controller ── bring-up, identify, features ──► Admin (the admin queue pair and the registers)
//!       │  queue()                                    ▲
//!       ▼                                             │ aborts, resets, shutdown
//!     Queue ── read, write, flush ──► Pair          supervisor (one task: the watchdog)
//!                                      ├ rings: entries in host memory
//!                                      ├ slots: one per command in flight
//!                                      └ completion poller (one task)
//! ```
//!
//! Bring-up follows NVMe base 2.0, 3.5; the rings follow 3.3.1 and NVMe over PCIe 1.0, 3.1.2. [`Queue::read`]
//! shows the path of one command.
//!
//! # Recovery
//!
//! The supervisor checks eight times within a time-out. It counts checks, not seconds: a host that was itself
//! stopped does not blame the device.
//!
//! ```text
//! a command was seen more than 8 times ──► Abort ──► it completes as aborted ──► submitted again
//!                       │                                                         (host.retries)
//!                       ▼ more than 16 times, or CSTS.CFS, or 64 invalid completions
//!                     reset: close queues ► CC.EN = 0 ► CSTS.RDY = 0 ► free slots, buffers ► start again
//!                       │
//!                       ▼ it does not stop, or does not start
//!                     gone: every caller gets an error; memory the device may still write is not reused
//! ```
//!
//! | moment | slot | buffer |
//! |---|---|---|
//! | before the doorbell | the caller's future | the slot, from `keep` on |
//! | in flight | the caller waits for it | the slot: the device may write |
//! | in flight, future dropped | orphan | the slot, until completion or a finished reset |
//! | completed | the caller's future | the caller |
//! | after a reset | lost; the caller submits again or fails | the slot, then the caller with the result |
//! | the device would not stop | free | quarantined: never reused |
//!
//! A dead link reads all ones, and a dead process closes its socket: both end as *gone*, and every wait is
//! bounded. Reads and writes in flight at a reset are submitted again. A write may then be carried out twice
//! with the same data, as NVMe allows.
//!
//! Completions come from an untrusted device: an invalid one is counted and not delivered (`slots.rs`).

mod abilities;
mod admin;
mod attach;
mod bar;
mod collector;
mod commands;
mod common;
mod common_spread;
mod controller;
mod deadline;
mod events;
mod external_pair;
mod fused;
mod granted;
mod guard;
mod health;
mod host_map;
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
mod spin;
mod spread;
mod state;
mod supervisor;
#[cfg(feature = "std")]
pub mod threads;

pub use attach::Identity;
pub use collector::{COLLECTOR_COSTS, Collector, CollectorCounts, CollectorOptions};
pub use common::{CommonMemory, CommonPair, CommonQueue};
pub use common_spread::{CommonSpread, CoreSpread};
pub use controller::Controller;
pub use external_pair::ExternalPair;
pub use fused::Compared;
pub use granted::{Grant, Granted, Rings};
pub use host_map::{HostMapping, MAP_COSTS, MAP_STAGES, MapCounts, PlacedDisk};
pub use pair::Counters;
pub use policy::{Chooser, Policy, SINGLE_DEPTH, Shape};
pub use protect::{GUARD_COST, Protect};
pub use queue::Queue;
pub use share::{Issuer, STAGES as SHARE_STAGES, Shared};
pub use spin::{SpinGuard, SpinLock, SpinOrder};
pub use spread::{Spread, SpreadOptions};

use runtime::Span;
use wire::Nsid;
use wire::nvme::admin::Priority;
use wire::nvme::features::{Arbitration, InterruptCoalescing};

/// Names of the host costs: building a command and ringing its doorbell; processing its completion; returning
/// to the caller after an interrupt.
pub const COSTS: &[&str] = &["submit", "complete", "context switch"];

/// Stages that this driver records: the wait for a command slot, its costs, and the time from the device's
/// last record until the caller is woken.
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

/// Largest queue depth: commands in flight that the slot bits of a command identifier can address.
pub const DEPTH_MAX: u16 = 1 << 12;

/// Low bits of a command identifier that hold its slot; the high bits count uses of the slot. A deeper queue
/// takes as many more slot bits as it needs.
pub const SLOT_BITS: u32 = crate::SLOT_BITS;

/// Memory page in bytes: CC.MPS = 0.
const PAGE_BYTES: u64 = 4096;

/// Poll interval of a register that the driver waits for.
const REGISTER_POLL: Span = Span::ms(1);

/// Checks of the watchdog per time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// Number of invalid completions after which the controller is reset.
const PROTOCOL_ERRORS_MAX: u32 = 64;

/// Options of a controller: bring-up, time-outs and features.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Namespace to use. `None`: the first active one.
    pub nsid: Option<Nsid>,
    /// Number of I/O queues to request, at least 1.
    pub queues: u16,
    /// Age at which a command is aborted; if that does not end it, the controller is reset. Zero: no limit,
    /// and a link that fails silently is not noticed.
    pub timeout: Span,
    /// Time limit of an admin command.
    pub admin_timeout: Span,
    /// Retries of a command that was lost to a time-out or a reset.
    pub retries: u32,
    /// Lower bound of the time to become ready, overriding CAP.TO.
    pub ready_floor: Span,
    /// Upper bound of the time to become ready, overriding CAP.TO. The default is the largest value of
    /// CAP.TO.
    pub ready_ceiling: Span,
    /// Upper bound of a transfer in bytes, below the controller's own limit.
    pub transfer_bytes_max: u32,
    /// Enables or disables the volatile write cache, if present. `None`: unchanged.
    pub volatile_cache: Option<bool>,
    /// Weights of weighted round robin between queue priorities. `None`: round robin.
    pub arbitration: Option<Arbitration>,
    /// Interrupt coalescing: number of completions per interrupt, and how long one waits for others. `None`:
    /// the controller's setting is unchanged.
    pub coalescing: Option<InterruptCoalescing>,
    /// Use shadow doorbells in memory, and ring only when the controller requests it. A controller without
    /// them is rejected.
    pub shadow_doorbells: bool,
    /// Buffers described by scatter gather lists, if the controller supports them.
    pub sgl: Sgl,
    /// Side that generates and checks protection information, on namespaces that have it.
    pub protect: Protect,
    /// The controller may enter power states by itself whose entry and exit take no longer than this, after
    /// fifty times as long without work. `None`, or no support: it stays in its state.
    pub power_saving: Option<Span>,
    /// Completion mode of the admin queue.
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

/// Options of an I/O queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Queue depth: commands in flight, 1 to [`DEPTH_MAX`]. The rings have one entry more.
    pub depth: u16,
    /// Completion mode.
    pub completion: Completion,
    /// When the submission doorbell is rung.
    pub doorbell: Doorbell,
    /// Priority of the queue, for controllers that arbitrate by weight.
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

/// Completion mode of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The driver polls the queue's memory.
    Polled,
    /// Hybrid polling: the driver sleeps for half the mean latency of commands of this kind, then polls; with
    /// nothing in flight it sleeps. Only NVMe and the interfaces that use its queues support it; the others
    /// poll.
    Hybrid,
    /// The device raises this interrupt vector.
    Interrupt {
        /// MSI-X vector.
        vector: u16,
    },
}

/// Buffers that a scatter gather list of one descriptor describes; PRPs describe the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// None.
    Never,
    /// Those that would need a PRP list, or that begin at an address PRPs do not allow.
    Long,
    /// All.
    Always,
}

/// When the submission queue's doorbell is rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// For each command, at once.
    Each,
    /// Once for all commands queued in one pass of the executor.
    Batched,
}
