//! FastPath: an engine that builds NVMe commands on behalf of callers.
//!
//! ```text
//!   callers                Control                  Submit, Complete            drive
//!   Request ── ring ──►  check the table  ───►  build the command, tail, ─►  an I/O queue pair
//!   Response ◄───────    count down        ◄──   head, latency           ◄──  of host::nvme
//! ```
//!
//! The parts are those of Athanasios Stratikopoulos et al., "FastPath: Towards Wire-speed NVMe SSDs" (2018),
//! section III.D, in software. Control takes requests, validates them against its table of handles, splits
//! them into commands and counts these down. An engine is a Submit and a Complete with a queue pair of its
//! own; several engines take commands from the same Control. Rings, doorbells, time-outs, aborts and resets
//! are those of [`nvme`](crate::nvme), whose driver can use the same drive at the same time through its own
//! queues.
//!
//! # Access control
//!
//! A [handle](Handle) stands for an area of the drive and a range of memory. Only the engine's owner creates
//! handles ([`Engine::open`]); a request names a handle and offsets into its area and its memory. The engine
//! builds no command for anything else. Callers in other processes have a [ring] in their own memory, and no
//! access to a submission queue.
//!
//! # Functions
//!
//! A handle's blocks may pass through a [`Function`] ([`Engine::pass_through`]): encryption, authentication,
//! filters. The drive's DMA then uses the engine's staging memory.
//!
//! # Fairness
//!
//! Control issues one command at a time, round robin over the handles: a request of 1 MiB delays another
//! handle no longer than one of 4 KiB. [`Options::schedule`] replaces that order: by weights, by deadlines,
//! or by a rule of the caller's.
//!
//! # Structure
//!
//! `engine.rs` is Control, Submit and Complete as tasks. `control.rs` (scheduling) and `table.rs` (access
//! control) are pure. The engine uses `host::nvme` through one function, `Queue::carry_out`. `device` has no
//! front end for it, because the engine sends NVMe commands.
//!
//! The engine is not a processor of the host: `own_cores` of the interface in `world` are cores in addition
//! to the host's, and `adjust` replaces the costs of a driver by the engine's cycles.
//!
//! The table holds memory by bus address, not as a [`Buffer`](crate::Buffer), because a caller in another
//! process brings its own. A buffer given to the engine stays with the request, or with the handle, until the
//! drive is done.

mod areas;
mod control;
mod disk;
mod engine;
mod function;
mod reserved;
pub mod ring;
mod schedule;
mod serve;
mod table;

pub use disk::Disk;
pub use engine::{Engine, Latency, Options};
pub use function::{Function, Refused, Shared};
pub use schedule::{SCALE, Schedule, Share, Waiting};
pub use serve::Serving;
pub use table::{Area, Handle, OpenError};

/// Names of the host costs: on the caller's core, submitting a request to Control and taking its response; on
/// the engine's core, validating it, answering it, and passing 512 bytes through a function. Each command has
/// the costs of [`nvme`](crate::nvme::COSTS).
pub const COSTS: &[&str] = &["request", "control", "function", "respond", "take response"];

/// Stages recorded in addition to the costs: the waits for a slot in Control and for the turn of the last
/// command, and for commands that end after it.
pub const STAGES: &[&str] = &["request wait", "turn wait", "count down"];

/// Most handles open at once.
pub const HANDLES_MAX: usize = 1024;
