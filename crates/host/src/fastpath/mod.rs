//! FastPath: an engine that forms NVMe commands for others.
//!
//! ```text
//!   callers                Control                  Submit, Complete            drive
//!   Request ── ring ──►  judge by the table ──►  form the command, tail, ──►  an I/O queue pair
//!   Response ◄───────    count down        ◄──   head, latency           ◄──  of host::nvme
//! ```
//!
//! The parts are those of Athanasios Stratikopoulos et al., "FastPath: Towards Wire-speed NVMe SSDs"
//! (2018), section III.D, in software. Control takes requests, judges them against its table of handles,
//! cuts them into commands and counts these down. Each engine is a Submit and a Complete with a queue pair
//! of its own; there may be several, all of which take their commands from the one Control. Rings,
//! doorbells, time-outs, aborts and resets are those of [`nvme`](crate::nvme): the ordinary driver may
//! use the same drive beside it, by queues of its own.
//!
//! # What a caller can reach
//!
//! A [handle](Handle) names an area of the drive and a piece of memory. Only who owns the engine makes
//! handles ([`Engine::open`]); a request names one, and says where in its area and where in its memory.
//! An engine forms no command for anything else. Callers in other processes have a [ring] in
//! memory of their own, and no way to a submission queue.
//!
//! # Functions
//!
//! A handle's blocks may pass a [`Function`] on their way ([`Engine::pass_through`]): encryption, a seal, a
//! filter. The drive's DMA then ends in memory of the engine's.
//!
//! # Turns
//!
//! Control gives one command to an engine at a time, of one handle after the other: whoever asks for
//! 1 MiB holds nobody up for longer than whoever asks for 4 KiB.

mod areas;
mod control;
mod disk;
mod engine;
mod function;
pub mod ring;
mod serve;
mod table;

pub use disk::Disk;
pub use engine::{Engine, Latency, Options};
pub use function::{Function, Refused, Shared};
pub use serve::Serving;
pub use table::{Area, Handle, OpenError};

/// The costs that a port is asked for: on the caller's core, handing a request to Control and taking in
/// its response; on the engine's, judging it, answering it, and 512 bytes of a block that passes a function.
/// The costs of each command are those of [`nvme`](crate::nvme::COSTS).
pub const COSTS: &[&str] = &["request", "control", "function", "respond", "take response"];

/// The stages that this driver marks beside its costs: the wait for a place in Control and for the turn
/// of the last command, and for commands that end after that one.
pub const STAGES: &[&str] = &["request wait", "turn wait", "count down"];

/// Handles at most, at a time.
pub const HANDLES_MAX: usize = 1024;
