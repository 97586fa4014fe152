//! What a device keeps its data in: contents, and the time that reaching them takes.
//!
//! A medium knows blocks, banks and bytes; it knows neither commands nor the bus. [`contents`] remember
//! without any time; [`Banked`] gives them that of DRAM or PCM, [`Disks`] that of disks that rotate;
//! [`Faulty`] spoils any of them.

#![warn(missing_docs)]

pub mod contents;

mod banked;
pub mod disks;
mod faulty;
pub mod files;
mod layer;
pub mod nand;

use core::fmt;
use core::future::Future;
use core::pin::Pin;

use runtime::{Span, Time};

pub use banked::{Banked, Pace, STAGES, Timing};
pub use blocks::Blocks;
pub use contents::Contents;
pub use disks::Disks;
pub use faulty::{Faulty, Flip, Harm, flipped};
pub use layer::Layer;

#[doc(hidden)]
pub use ::runtime;

/// What is written where nothing better is known: some blocks at a time, of every size there is.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// What lies beside a block.
pub type Metadata = [u8; contents::METADATA_BYTES];

/// The media whose blocks are [`Contents`], by kind. In a module of its own, where [`Layer`], which has the
/// methods of [`Media`], is not in scope.
mod blocks {
    use std::rc::Rc;

    use crate::{Banked, Contents, Disks};

    /// A medium whose blocks are [`Contents`], of any kind. A kind is a variant, and a line of each of the
    /// two lists below.
    #[derive(Clone)]
    pub enum Blocks {
        /// DRAM, PCM.
        Banked(Rc<Banked>),
        /// Disks that rotate.
        Disks(Rc<Disks>),
    }

    crate::either!(Blocks, medium:
        Blocks::Banked(medium),
        Blocks::Disks(medium));

    impl Blocks {
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
    /// The first.
    pub block: u64,
    /// How many.
    pub blocks: u32,
}

/// A medium that keeps only the head of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes kept of each.
    pub bytes: u32,
    /// Bytes of a block.
    pub of: u32,
}

/// Why a medium could not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MediaError {
    /// Blocks that it does not have.
    Range,
    /// What was written there cannot be read.
    Unreadable,
    /// It could not be written.
    WriteFault,
    /// Behind it, the space has run out.
    Full,
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
            MediaError::Full => "no space is left behind the medium",
        })
    }
}

impl core::error::Error for MediaError {}

/// A medium, as a device uses it. Reads and writes take time; between their awaits none passes.
///
/// A plain medium has blocks that are read, written and flushed. What else some can do has a default that
/// says that this one can't; what only few front ends ask for is a capability of its own: [`Labels`],
/// [`BlockMetadata`], [`Purge`].
pub trait Media: 'static {
    /// Its length in blocks.
    fn blocks(&self) -> u64;

    /// Bytes of a block.
    fn block_bytes(&self) -> u32;

    /// Reaches these blocks. Returns when their first byte can leave, and says when the last can: a
    /// transfer that begins now and ends no earlier never runs dry. Zero: it takes no time.
    fn read(&self, at: Extent) -> impl Future<Output = Result<Time, MediaError>>;

    /// Lends the bytes of these blocks, run by run. What no run covers reads as zeros and need not be
    /// moved.
    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError>;

    /// Writes whole blocks; returns when they are written, though not beyond a power cut.
    fn write(&self, at: Extent, data: &[u8]) -> impl Future<Output = Result<(), MediaError>>;

    /// Returns when all that was written before survives a power cut.
    fn flush(&self) -> impl Future<Output = Result<(), MediaError>>;

    /// What of a block is kept; none: all of it.
    fn head(&self) -> Option<Head> {
        None
    }

    /// Returns when it can be used: flash software has to find out first what lies where.
    fn ready(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// How long [`ready`](Media::ready) takes at most; none: no time.
    fn ready_within(&self) -> Option<Span> {
        None
    }

    /// Whether reaching blocks takes no time now. [`read`](Media::read) would return at once then, with zero
    /// for all blocks that there are, and who goes on to [`runs`](Media::runs) need not ask it.
    fn is_immediate(&self) -> bool {
        false
    }

    /// As [`read`](Media::read), for the first `bytes` bytes of them alone, where the medium can reach
    /// less than a block.
    fn read_head(&self, at: Extent, bytes: u32) -> impl Future<Output = Result<Time, MediaError>> {
        let _ = bytes;
        self.read(at)
    }

    /// Takes back blocks that hold nothing of use any more: from then on they read as zeros. As with a
    /// write, not beyond a power cut. A medium that knows nothing better writes zeros.
    fn deallocate(&self, at: Extent) -> impl Future<Output = Result<(), MediaError>> {
        write_zeros(self, at)
    }

    /// How many blocks from this one on were never written and read as zeros, as far as the medium knows
    /// without reading them.
    fn blank_from(&self, block: u64) -> u64 {
        let _ = block;
        0
    }

    /// What it keeps beside the blocks, if it can.
    fn labels(&self) -> Option<&dyn Labels> {
        None
    }

    /// What it keeps beside each block, if it can.
    fn metadata(&self) -> Option<&dyn BlockMetadata> {
        None
    }

    /// What leaves nothing anywhere of what it has held.
    fn purge(&self) -> Purge<'_> {
        Purge::ByBlock
    }
}

/// A medium that keeps a few bytes beside its blocks.
pub trait Labels {
    /// The bytes last set; none at first.
    fn label(&self) -> Vec<u8>;

    /// Keeps these in the place of those before, at most [`contents::LABEL_BYTES_MAX`]. They survive a power
    /// cut.
    fn set_label(&self, label: &[u8]) -> Result<(), MediaError>;
}

/// A medium that keeps [`contents::METADATA_BYTES`] bytes beside each block.
pub trait BlockMetadata {
    /// The metadata of a block, which are reached with it: all ones, unless they were set since it was last
    /// written or taken back.
    fn metadata_of(&self, block: u64) -> Result<Metadata, MediaError>;

    /// Sets the metadata of a block that was just written: part of that write, for whose time it is.
    fn set_metadata(&self, block: u64, metadata: Metadata) -> Result<(), MediaError>;
}

/// What leaves nothing anywhere of what a medium has held.
#[derive(Clone, Copy)]
pub enum Purge<'a> {
    /// Writing a block anew, or taking it back, does for that block.
    ByBlock,
    /// Erasing the whole medium.
    Whole(&'a dyn Erase),
    /// Nothing that it can do.
    Unsupported,
}

impl<'a> Purge<'a> {
    /// What erases the whole medium, if that is what it takes.
    pub fn whole(self) -> Option<&'a dyn Erase> {
        if let Purge::Whole(whole) = self { Some(whole) } else { None }
    }
}

/// A medium that erases the whole of itself at once.
pub trait Erase {
    /// How long that takes, if it is known.
    fn erase_time(&self) -> Option<Span>;

    /// Erases everything, also what no block shows any more: then every block is as if it had been taken
    /// back, beyond a power cut. Nobody uses the medium meanwhile. After a power cut in the midst of it
    /// blocks hold anything, and it is to be called again. `progress` is told how many steps of how many are
    /// done.
    fn erase<'a>(&'a self, progress: &'a mut dyn FnMut(u32, u32)) -> Erasing<'a>;
}

/// An erasure under way: once in a drive's life, so that it may be boxed.
pub type Erasing<'a> = Pin<Box<dyn Future<Output = Result<(), MediaError>> + 'a>>;

/// Takes blocks back by writing zeros.
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
