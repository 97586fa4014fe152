//! Flash translation layer: presents randomly writable logical blocks on NAND flash, whose pages are
//! programmed once, in order, until their whole block is erased.
//!
//! It reaches flash only through the trait [`Pages`]. It has no notion of commands, nor of how pages are
//! implemented. Its decisions are pure functions in [`policy`].
#![no_std]
#![warn(missing_docs)]
extern crate alloc;

mod asleep;
mod blame;
mod buffer;
mod close;
mod collect;
mod ftl;
mod layout;
mod map;
mod mount;
mod named;
mod options;
mod pages;
mod parts;
pub mod policy;
mod precondition;
mod purge;
mod reserve_copy;
mod root;
pub mod space;
mod state;
mod stats;
mod supers;
mod trim;
mod write;

pub use asleep::Asleep;
pub use blame::STAGES;
pub use ftl::Ftl;
pub use mount::mount_time;
pub use named::NotCollected;
pub use options::{Cache, Error, Mistakes, MountError, Options};
pub use pages::{
    Blocks, Erase, Failed, Header, LOST, META, MountTimes, Page, PageRead, Pages, Part, Place, Row,
    Shape, Source, Steps, Tag, Unit, Unkept,
};
pub use purge::purge_time;
pub use stats::{Counters, Histogram, Stats};
