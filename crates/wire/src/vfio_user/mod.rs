//! The vfio-user protocol, between a process that implements a PCI function and one that drives it, over a
//! socket (protocol version 0.1; QEMU's docs/interop/vfio-user.rst, from here on "vfio-user", by the names
//! of its sections).
//!
//! A message is a [`Header`] and its payload. Numbers are in host byte order, which is little-endian on all
//! supported platforms. [`parse`] decodes a client's message to a [`Request`], which is complete, aligned
//! where required, and ends inside the address space.

mod message;
mod request;

pub use message::*;
pub use request::{Action, Data, Request, parse};
