//! Media made of flash: chips, flash software over them, and several media as one.
//!
//! ```text
//!   Media ─┬─ drive:  ftl over chips ─► media::nand
//!          └─ bridge: several media behind a bridge
//! ```
//!
//! - [`chips`]: timing, channels and write buffer of flash chips; [`drive`]: a translation layer over them,
//!   as a medium; [`bridge`]: several media as one.
//! - [`collections`]: a host selects what is collected; [`mapping`]: a host has the map; [`trial`]: whether
//!   flash can be mounted.
//!
//! Controllers, queues and the bus are not known here.
//!
//! ```
//! use std::rc::Rc;
//!
//! use flash::bridge::{Bridge, Options};
//! use media::contents::{Backing, Contents, Keep, Spec};
//! use media::{Banked, Media, Pace};
//! use runtime::{Log, Rt};
//!
//! let rt = Rt::simulated(None, Log::Off);
//! let spec = || {
//!     let backing = Backing::Memory;
//!     Spec { capacity_bytes: 1 << 20, block_bytes: 512, keep: Keep::Everything, backing }
//! };
//! let one = || Ok(Rc::new(Banked::new(&rt, Contents::new(spec())?, Pace::Immediate)));
//! let controllers: Vec<_> = (0..3).map(|_| one()).collect::<Result<_, media::contents::Error>>()?;
//! let options = Options { stripe_bytes: 8192, queue: 32, small_bytes: None, timing: None };
//! assert_eq!(Bridge::new(&rt, controllers, options).blocks(), 3 * 2048);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod bridge;
pub mod chips;
pub mod collections;
pub mod drive;
pub mod mapping;
pub mod trial;
