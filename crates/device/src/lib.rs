//! The SSD: one controller per host interface, over a medium and a bus port.
//!
//! The controllers use [`bus::DevicePort`] and [`media::Media`] and have no dependency on the host side or on
//! the link.
//!
//! ```text
//!                  nvme, dcx, block ─► media::Media
//!    DevicePort ─┤
//!                  pages ─► flash::chips
//! ```
//!
//! - [`nvme`]: the NVMe controller; [`dcx`] runs alongside it, [`block`] on its own.
//! - [`pages`]: raw flash pages without a medium, for flash software on the host.
//! - [`faults`]: fault injection; [`meter`]: counts and latencies.
//!
//! ```
//! use std::rc::Rc;
//!
//! use bus::HostPort;
//! use bus::live::Shared;
//! use device::nvme::{Controller, Options};
//! use media::contents::{Backing, Contents, Keep, Spec};
//! use media::{Banked, Pace};
//! use runtime::{Log, Rt, STD_CLOCK};
//! use wire::BusAddr;
//! use wire::nvme::registers::{VERSION_1_4, VS};
//!
//! let rt = Rt::live(&STD_CLOCK, None, Log::Off);
//! let options = Options::default();
//! let shared = Shared::between_threads(1 << 20, BusAddr(1 << 32), options.register_bytes())?;
//! let backing = Backing::Memory;
//! let spec = Spec { capacity_bytes: 1 << 20, block_bytes: 512, keep: Keep::Everything, backing };
//! let medium = Rc::new(Banked::new(&rt, Contents::new(spec)?, Pace::Immediate));
//! let controller = Controller::start(shared.device(&rt), medium, options);
//! assert_eq!(rt.block_on(shared.host(&rt).read32(VS)), VERSION_1_4);
//! controller.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod ahead;
pub mod block;
mod counters;
pub mod dcx;
pub mod energy;
pub mod faults;
pub mod life;
pub mod meter;
mod moved;
pub mod nvme;
pub mod pages;
mod scratch_guard;
mod worker;
