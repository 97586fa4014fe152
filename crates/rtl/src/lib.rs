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
