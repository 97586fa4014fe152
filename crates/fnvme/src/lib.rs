//! libfnvme: FastPath NVMe access for applications in C and Rust.
//!
//! The library of Athanasios Stratikopoulos et al., "FastPath: Towards Wire-speed NVMe SSDs" (2018): the
//! calls of its Table I and the structure of its Listing 1 keep their names and meaning in the C API
//! ([`c`], `include/fnvme.h`). The Rust API is [`Device`] and [`Client`], without `unsafe`.
//!
//! ```
//! use fnvme::{Device, Direction};
//!
//! let device = Device::open("memory:16m")?;
//! let mine = device.alloc(1 << 20)?;
//! mine.copy_in(8192, b"hello")?;
//! mine.transfer(Direction::Write, 8192, 4096, 4096)?;
//! mine.copy_in(8192, &[0; 5])?;
//! mine.transfer(Direction::Read, 8192, 4096, 4096)?;
//! let mut seen = [0; 5];
//! mine.copy_out(8192, &mut seen)?;
//! assert_eq!(&seen, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   C, Python ─► c.rs ─► Client ── ring in shared memory ──► engine (thread or process) ── NVMe ──► drive
//!   Rust ──────────────► Client
//! ```
//!
//! This crate forms no NVMe commands. An engine does, on its own thread or in another process
//! ([`crate::engine`]).

#![warn(missing_docs)]

pub mod c;
mod device;
pub mod engine;
mod failure;

pub use device::{Device, OpenError};
pub use engine::{
    Client, Counters, Direction, Error, Function, Handle, Refusal, Refused, Request, RequestKind,
    Status, Ticket, Transfer,
};
pub use functions;
