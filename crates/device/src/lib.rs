//! The SSD: one front end per host interface, over a medium and a bus port.
//!
//! A front end knows [`bus::DevicePort`] and [`media::Media`] and nothing of the host. [`nvme`] is the
//! first, [`dcx`] stands beside it, [`block`] alone; [`pages`] has no medium but bare chips. [`faults`]
//! says what goes wrong on purpose. [`flash`] is what a translation layer runs on, [`drive`] the medium that
//! comes of both, [`bridge`] several of them as one, and [`collections`] what a host may lead of it.

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
