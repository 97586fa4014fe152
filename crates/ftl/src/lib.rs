//! Flash translation layer: presents randomly writable logical blocks on NAND flash, whose pages are
//! programmed once, in order, until their whole block is erased.
//!
//! It reaches flash only through the trait [`Pages`]. It has no notion of commands, nor of how pages are
//! implemented: in a device they are modelled chips (`flash::chips`), on a host commands to bare flash
//! (`host_flash`).
//!
//! ```text
//!    write ─► slot of the buffer ─► superpage ─► die ─► map          checkpoint ─► root
//!    read  ─► map ─► page                        ▲                        ▲
//!    trim  ─► map, trim record      collector ───┘      mount ◄───────────┘ spare bytes, map parts
//! ```
//!
//! # Terms
//!
//! A *mapping unit* is the granularity of the map, usually 4 KiB. A *superpage* is written by one program
//! operation: the pages of a word line in all planes of a die ([`Row`]). A *superblock* is the blocks of one
//! number in all planes of all dies; it is written superpage by superpage, die after die, and erased as a
//! whole. A block that fails leaves its superblock, which continues smaller: there is no table of
//! substitutes.
//!
//! # Writes
//!
//! A write goes into a slot of the write buffer (`buffer.rs`). Slots form a superpage when they fill one, or
//! when a flush requests it (`write.rs`); a task per die programs its superpages. Data do not pass through
//! this crate: slots belong to [`Pages`], which knows how much of them is stored. The map changes when the
//! superpage has been programmed, so a power cut never finds the map ahead of the flash.
//!
//! # Order
//!
//! Superpages are numbered when they are formed, and carry the number in their spare bytes. After a power cut
//! the copy with the highest number counts. These rules keep that correct:
//! - the collector copies no unit whose newer version is already in a superpage: the copy would get the
//!   higher number;
//! - a trim record holds the number before which the trim came, and no superblock is erased before the
//!   records of the trims that emptied it are on flash: otherwise an older version would reappear;
//! - a flush that waits for a write that is trimmed meanwhile waits for the trim record instead;
//! - a superblock is not collected while a program to it is in flight;
//! - if the pages of a word line are programmed one by one ([`Shape::reach`]), a superpage is in flight until
//!   the pages are programmed whose failure could destroy it; filler superpages do that if a request waits
//!   (`close.rs`).
//!
//! A deallocated block reads as zeros at once. After a flush it does so permanently; before, a power cut may
//! restore the data that were trimmed, and nothing older. (NVMe would also allow the old contents.)
//!
//! # Cached map
//!
//! Map parts have superblocks of their own, as two half spaces: a checkpoint rewrites all parts, and those
//! written in between are used until the next power cut. So the proof of space changes only by a number of
//! superblocks. When space is nearly exhausted, the collector reads the parts of all stale changes first, so
//! that the units counted as valid are (`map.rs`, `parts.rs`).
//!
//! # Map on the host
//!
//! A caller that keeps the map of a drive with a cached one passes locations with its reads, which are
//! checked and not trusted (`placed.rs`), and learns of moves from a ring (`moves.rs`).
//!
//! # Checkpoints
//!
//! A checkpoint is fuzzy: it records the oldest superpage in flight, writes the changed parts of the map
//! among the host's data, then a root in a reserved block. A mount reads the newest whole root, the map, and
//! the spare bytes of all superpages from the recorded one on; without a root, of all. Then it writes padding
//! behind pages that the power cut may have damaged, and continues in the same superblocks.
//!
//! # Space
//!
//! The collector works when less than two and a half superblocks are left, with more superpages at the same
//! time the less there is; the host waits below two. Units already collected count as space at once, so both
//! proceed in small steps. One superblock, the *reserve superblock*, holds no live data at any moment and
//! after any power cut. [`space`] states the rules, proves them, and gives the required over-provisioning; a
//! plan with less is rejected. `tests/it/space.rs` explores every state of small drives.
//!
//! # Lost data
//!
//! A unit that the collector cannot read is marked as lost, and reads as an error from then on. A page that
//! cannot be read at a mount, and that no checkpoint covers, may let an older version appear.
//!
//! # Decisions
//!
//! Decisions (victim, next erased superblock, pace, endangered data) are pure functions in [`policy`]. Under
//! host-directed GC the host requests a superblock, and requests are hints within the rules of space
//! (`named.rs`).
//!
//! ```
//! use ftl::policy::{Candidate, Choice, victim};
//! use runtime::Rng;
//!
//! let full = Candidate { valid: 96, units: 96, age: 9, erases: 3 };
//! let half = Candidate { valid: 48, units: 96, age: 2, erases: 3 };
//! let mut rng = Rng::for_part(1, "victims");
//! let chosen = victim(Choice::Greedy, [Some(full), None, Some(half)].into_iter(), &mut rng);
//! assert_eq!(chosen, Some(2)); // the fewest valid units
//! ```
#![no_std]
#![warn(missing_docs)]
extern crate alloc;

mod asleep;
mod bits;
mod blame;
mod buffer;
mod close;
mod closing;
mod collect;
mod content;
mod entries;
mod flush;
mod ftl;
mod hints;
mod job;
mod layout;
mod map;
mod mapping;
mod mount;
mod moves;
mod named;
mod nearby;
mod options;
mod pages;
mod parts;
mod placed;
pub mod policy;
mod precondition;
mod purge;
mod read;
mod region;
mod request;
mod reserve_copy;
mod root;
mod slot;
pub mod space;
mod state;
mod stats;
mod streams;
mod supers;
mod trim;
mod write;

pub use asleep::Asleep;
pub use blame::STAGES;
pub use ftl::{Ftl, Run};
pub use hints::RANGES_MAX as HINTED_RANGES_MAX;
pub use mount::mount_time;
pub use options::{Cache, Error, Mistakes, MountError, Options, Processing};
pub use pages::{
    Blocks, Erase, Failed, Header, LOST, META, MountTimes, Order, Page, PageRead, Pages, Part,
    Place, Row, Shape, Source, Steps, Tag, Unit, Unkept,
};
pub use purge::purge_time;
pub use request::NotCollected;
pub use stats::{Counters, Histogram, Stats};
