//! The vfio-user protocol: what a process that has a PCI function and one that drives it say to each
//! other over a socket (protocol version 0.1; QEMU's docs/interop/vfio-user.rst, from here on
//! "vfio-user", by the names of its sections).
//!
//! A message is a [`Header`] and what follows it. Numbers are those of the host, which is little-endian
//! wherever this is built. [`parse`] makes a [`Request`] of what a client has sent; what it lets through
//! is whole, aligned where it has to be and ends inside the address space.

mod message;
mod request;

pub use message::*;
pub use request::{Action, Data, Request, parse};
