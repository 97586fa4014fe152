//! FastPath in hardware on the simulated bus: the block of `rtl/`, compiled by Verilator, drives an NVMe
//! controller in virtual time.
//!
//! ```text
//!   Engine ─ AXI4-Lite ─► Block ─ AXI ─► host memory, posted register writes of a HostPort
//!            one clock: a cycle is a timed event; the clock stops while there is nothing to do
//! ```
//!
//! This crate creates no queues and resets no drive. Its owner creates an I/O queue pair and passes its
//! location to the [`Engine`].
//!
//! The block, in `rtl/`, shares bytes with `wire` (the golden file of requests and responses, and the
//! register map, which a test compares) and no code. Its writes are bytes in host memory and posted register
//! writes. A cycle is a timed event of 8 ns. The driver lends the queue pair (`host::nvme::ExternalPair`) and
//! does not touch it from then on. The SystemVerilog avoids what Debian's tools do not support: structures,
//! packages in headers, interfaces. `rtl/formal` holds the proofs; benches, with deliberately broken variants
//! that must fail, cover the rest (docs/fastpath-rtl.md).
//!
//! ```no_run
//! use bus::HostPort;
//! use rtl::pins::Block;
//! use rtl::{BusError, Engine, Setup, Timing};
//!
//! async fn cycles(port: impl HostPort, block: impl Block + 'static, setup: Setup) -> Result<u64, BusError> {
//!     let engine = Engine::start(port, block, &setup, Timing { write: 30, read: 60 }).await?;
//!     engine.status().await?;
//!     Ok(engine.cycles())
//! }
//! ```
//!
//! The feature `verilated` adds the block itself. It needs Verilator 5 and a C++ compiler, so it is off by
//! default.
#![no_std]
extern crate alloc;

mod axi;
mod disk;
mod engine;
pub mod pins;
#[cfg(feature = "verilated")]
mod verilated;

pub use axi::Timing;
pub use disk::Disk;
pub use engine::{BusError, Engine, STAGES, Setup};
#[cfg(feature = "verilated")]
pub use verilated::Verilated;
