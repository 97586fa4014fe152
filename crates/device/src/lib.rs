//! The SSD: one front end per host interface, over a medium and a bus port.
//!
//! A front end knows [`bus::DevicePort`] and [`media::Media`] and nothing of the host. [`nvme`] is the
//! first, [`dcx`] stands beside it. [`flash`] is what a translation layer runs on.

pub mod dcx;
pub mod flash;
mod lent;
pub mod nvme;
