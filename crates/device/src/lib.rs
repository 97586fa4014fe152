//! The SSD: one controller per host interface, over a medium and a bus port.
//!
//! The controllers use [`bus::DevicePort`] and [`media::Media`] and have no dependency on the host side.
//! - [`nvme`]: the NVMe controller; [`dcx`] runs alongside it, [`block`] on its own.
//! - [`pages`]: raw flash pages without a medium, for flash software on the host.
//! - [`faults`]: fault injection.
//! - [`flash`]: the chips under a flash translation layer; [`drive`]: both together as a medium; [`bridge`]:
//!   several media as one; [`collections`]: host-directed GC.

#![warn(missing_docs)]

pub mod block;
pub mod bridge;
pub mod collections;
pub mod dcx;
pub mod drive;
pub mod faults;
pub mod flash;
mod moved;
pub mod nvme;
pub mod pages;
mod scratch_guard;
mod worker;
