//! Media made of flash: chips, flash software over them, and several media as one.
//!
//! ```text
//!   Media ─┬─ drive:  ftl over chips ─► media::nand
//!          └─ bridge: several media behind a bridge
//! ```
//!
//! - [`chips`]: timing, channels and write buffer of flash chips; [`drive`]: a translation layer over them,
//!   as a medium; [`bridge`]: several media as one.
//! - [`collections`]: a host selects what is collected; [`mapping`]: a host has the map.
//!
//! Controllers, queues and the bus are not known here.

#![warn(missing_docs)]

pub mod bridge;
pub mod chips;
pub mod collections;
pub mod drive;
pub mod mapping;
