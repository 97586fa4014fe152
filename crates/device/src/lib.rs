//! The SSD: one front end per host interface, over a medium and a bus port.
//!
//! A front end knows [`bus::DevicePort`] and [`media::Media`] and nothing of the host. [`nvme`] is the
//! first, [`dcx`] stands beside it, [`block`] alone.

pub mod block;
pub mod dcx;
mod lent;
pub mod nvme;
