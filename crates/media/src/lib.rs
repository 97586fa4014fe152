//! Media: the contents of a device, and models of the time to access them.
//!
//! A medium has blocks, banks and bytes. It is independent of commands and of the bus, and has no flash
//! translation layer: that is `ftl`, over [`nand`] as `device` drives it.
//!
//! ```text
//!    device ─► Media ─┬─ Faulty ─► any medium    injected faults
//!                     ├─ Part ───► any medium    the blocks of one of several clients
//!                     ├─ Banked ─┐               DRAM, PCM: channels, banks, rows
//!                     ├─ Disks  ─┴► Contents     rotating disks: arms, platters, read-ahead
//!                     └─ flash::drive ─► nand   cells, pages, blocks: rules, errors, wear
//! ```
//!
//! [`contents`] stores data without timing: in memory or in a raw image file, whole or as stamps. A plain
//! medium implements `blocks`, `block_bytes`, `read`, `runs`, `write` and `flush` of [`Media`]. Features that
//! only some media have are traits of their own, which [`Media::capabilities`] hands out. A medium on top of
//! another is a [`Layer`], and names the methods that it changes. Blocks can be deallocated
//! ([`Media::deallocate`]); they read as zeros until they are written. That takes no time: the table in which
//! a real medium records it is not modelled.
//!
//! A live plan lets the medium take its modelled time (`pace = "modelled"`) or not (`"immediate"`).
//!
//! ```
//! use media::contents::{Backing, Contents, Keep, Spec};
//! use media::{Banked, Extent, Media, Pace, Timing};
//! use runtime::{Log, Rt, Span, Time};
//!
//! let backing = Backing::Memory;
//! let spec = Spec { capacity_bytes: 1 << 20, block_bytes: 4096, keep: Keep::Everything, backing };
//! let timing = Timing {
//!     channels: 2,
//!     banks: 8,
//!     row_bytes: 4096,
//!     first_byte: Span::ns(50),
//!     next_row: Span::ns(10),
//!     bytes_per_s: 4_096_000_000, // a row takes 1 us
//!     write_factor: 1,
//!     ..Timing::default()
//! };
//! let rt = Rt::simulated(None, Log::Off);
//! let medium = Banked::new(&rt, Contents::new(spec)?, Pace::Modelled(timing));
//! let last_byte = rt.block_on(medium.read(Extent { block: 3, blocks: 1 }))?;
//! assert_eq!(rt.now(), Time::ZERO + Span::ns(50)); // the first byte is there
//! assert_eq!(last_byte, Time::ZERO + Span::ns(1050));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod contents;

mod banked;
mod capabilities;
pub mod disks;
mod faulty;
pub mod files;
mod huge;
mod layer;
pub mod nand;
mod part;

use core::fmt;
use core::future::Future;

use runtime::Time;

pub use banked::{Banked, Pace, STAGES, Timing};
pub use blocks::Blocks;
pub use capabilities::{
    Blank, BlockMetadata, Boxed, Capabilities, Erase, Heat, Hints, Labels, Metadata, Placed, Purge,
    Refusals, Start, Wear, WriteThrough, ready,
};
pub use contents::Contents;
pub use disks::Disks;
pub use faulty::{Faulty, Flip, Harm, flipped};
pub use layer::Layer;
pub use part::{Part, Range, Refused};

#[doc(hidden)]
pub use ::runtime;

/// Source of zeros for media without a faster way to deallocate: a whole number of blocks of any size.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Media whose blocks are [`Contents`], by kind. In its own module because [`Layer`], whose methods have the
/// names of those of [`Media`], must not be in scope.
mod blocks {
    use std::rc::Rc;

    use crate::{Banked, Contents, Disks};

    /// A medium whose blocks are [`Contents`], of any kind. A kind is a variant, and a line of each of the
    /// two lists below.
    #[derive(Clone)]
    pub enum Blocks {
        /// DRAM, PCM.
        Banked(Rc<Banked>),
        /// Rotating disks.
        Disks(Rc<Disks>),
    }

    crate::either!(Blocks, medium:
        Blocks::Banked(medium),
        Blocks::Disks(medium));

    impl Blocks {
        /// Accesses its contents, beside the commands.
        pub fn with_contents<T>(&self, access: impl FnOnce(&mut Contents) -> T) -> T {
            match self {
                Blocks::Banked(medium) => medium.with_contents(access),
                Blocks::Disks(medium) => medium.with_contents(access),
            }
        }

        /// Its contents, as after a power cut or for another device. None while another reference to it
        /// exists.
        pub fn into_contents(self) -> Option<Contents> {
            match self {
                Blocks::Banked(medium) => Rc::into_inner(medium).map(Banked::into_contents),
                Blocks::Disks(medium) => Rc::into_inner(medium).map(Disks::into_contents),
            }
        }
    }
}

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// Part of an access that is about to begin: a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soon {
    /// Distance of its first byte from the first of the access, in bytes.
    pub from: u32,
    /// Number of bytes.
    pub bytes: u32,
    /// The access is a write.
    pub to_write: bool,
}

/// Part of each block that a medium stores, from its first byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes stored of each block.
    pub bytes: u32,
    /// Bytes of a block.
    pub of: u32,
}

/// Failure of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MediaError {
    /// Blocks beyond the end of the medium.
    Range,
    /// The data there cannot be read.
    Unreadable,
    /// The write failed.
    WriteFault,
    /// No space left in the file system that backs the medium.
    Full,
    /// The data are not at the place that the reader named.
    Stale,
}

impl MediaError {
    fn of_write(error: &contents::Error) -> MediaError {
        if error.is_full() { MediaError::Full } else { MediaError::WriteFault }
    }
}

impl fmt::Display for MediaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediaError::Range => "blocks past the end of the medium",
            MediaError::Unreadable => "the medium cannot be read there",
            MediaError::WriteFault => "the medium cannot be written there",
            MediaError::Stale => "the data are not at the place that was named",
            MediaError::Full => "no space is left behind the medium",
        })
    }
}

impl core::error::Error for MediaError {}

/// A medium as used by a device. Time passes only at awaits.
///
/// A plain medium implements six methods; the others have a default. Features that not every medium has
/// are its [`Capabilities`].
pub trait Media: 'static {
    /// Length in blocks.
    fn blocks(&self) -> u64;

    /// Bytes of a block.
    fn block_bytes(&self) -> u32;

    /// Accesses these blocks. Completes when the first byte is available, and returns the time at which the
    /// last is: a transfer that starts at once and ends no earlier never stalls. Zero if the access takes no
    /// time.
    fn read(&self, at: Extent) -> impl Future<Output = Result<Time, MediaError>>;

    /// Passes the bytes of these blocks to `put`, run by run, with their offsets. Bytes outside all runs are
    /// zero and need not be moved.
    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError>;

    /// Writes whole blocks. On completion they are readable, but do not survive a power cut.
    fn write(&self, at: Extent, data: &[u8]) -> impl Future<Output = Result<(), MediaError>>;

    /// Completes when all earlier writes survive a power cut.
    fn flush(&self) -> impl Future<Output = Result<(), MediaError>>;

    /// Part of each block that is stored. `None` if all of it.
    fn head(&self) -> Option<Head> {
        None
    }

    /// Returns true if accesses take no time now. [`read`](Media::read) would then return zero at once for
    /// every valid block, and a caller may go straight to [`runs`](Media::runs).
    fn is_immediate(&self) -> bool {
        false
    }

    /// Hint: this part of these blocks will be accessed soon. The default does nothing.
    fn prefetch(&self, at: Extent, soon: Soon) {
        let _ = (at, soon);
    }

    /// Writes whole blocks at once: `fill` receives them run by run, with their offsets, and must fill each
    /// run. Returns false, without a call of `fill`, if the medium cannot: use [`write`](Media::write). Only
    /// media that are [immediate](Media::is_immediate) can.
    ///
    /// # Errors
    /// As [`write`](Media::write).
    fn write_at_once(
        &self,
        at: Extent,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        let _ = (at, fill);
        Ok(false)
    }

    /// As [`read`](Media::read), for the first `bytes` bytes only, if the medium can access less than a
    /// block.
    fn read_head(&self, at: Extent, bytes: u32) -> impl Future<Output = Result<Time, MediaError>> {
        let _ = bytes;
        self.read(at)
    }

    /// Deallocates blocks: they read as zeros. As with a write, this may be lost in a power cut. The default
    /// writes zeros.
    fn deallocate(&self, at: Extent) -> impl Future<Output = Result<(), MediaError>> {
        write_zeros(self, at)
    }

    /// Features that not every medium has.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }
}

/// Deallocates blocks by writing zeros.
///
/// # Errors
/// As [`Media::write`].
pub async fn write_zeros<M: Media + ?Sized>(medium: &M, at: Extent) -> Result<(), MediaError> {
    let most = (ZEROS.len() as u32 / medium.block_bytes()).max(1);
    let end = at.block.checked_add(at.blocks.into()).ok_or(MediaError::Range)?;
    let mut block = at.block;
    while block < end {
        let blocks = (end - block).min(most.into()) as u32;
        let bytes = (blocks * medium.block_bytes()) as usize;
        medium.write(Extent { block, blocks }, &ZEROS[..bytes]).await?;
        block += u64::from(blocks);
    }
    Ok(())
}
