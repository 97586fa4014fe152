//! Features that not every medium has: a trait for each, and the value by which a medium hands them out.

use core::future::Future;
use core::pin::Pin;

use runtime::{Span, Time};

use crate::contents::{self, Fill};
use crate::{Extent, Media, MediaError};

/// Metadata of a block.
pub type Metadata = [u8; contents::METADATA_BYTES];

/// A future of a rare operation.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Features of a medium. By default it is ready at once and has none.
#[derive(Clone, Copy, Default)]
pub struct Capabilities<'a> {
    /// It takes time to start.
    pub start: Option<&'a dyn Start>,
    /// Its blocks have places that a reader may name.
    pub placed: Option<&'a dyn Placed>,
    /// It takes hints.
    pub hints: Option<&'a dyn Hints>,
    /// It stores a label.
    pub labels: Option<&'a dyn Labels>,
    /// It stores metadata of each block.
    pub metadata: Option<&'a dyn BlockMetadata>,
    /// Means to purge all data.
    pub purge: Purge<'a>,
    /// It knows blocks that were never written.
    pub blank: Option<&'a dyn Blank>,
    /// It wears.
    pub wear: Option<&'a dyn Wear>,
    /// It counts commands that were refused.
    pub refusals: Option<&'a dyn Refusals>,
}

/// A medium that cannot be used at once: an FTL has to rebuild its map first.
pub trait Start {
    /// Completes when the medium can be used.
    fn ready(&self) -> Boxed<'_, ()>;

    /// Upper bound of [`ready`](Start::ready).
    fn ready_within(&self) -> Span;
}

/// Completes when this medium can be used.
pub async fn ready(medium: &impl Media) {
    if let Some(start) = medium.capabilities().start {
        start.ready().await;
    }
}

/// A medium whose mapping units have places on flash, of which a reader may keep a record.
pub trait Placed {
    /// As [`Media::read`], by these places of the blocks' mapping units.
    ///
    /// # Errors
    /// [`MediaError::Stale`]: a place is wrong. Otherwise as for `read`.
    fn read_placed<'a>(
        &'a self,
        at: Extent,
        places: &'a [u32],
    ) -> Boxed<'a, Result<Time, MediaError>>;

    /// As [`Media::runs`], of blocks that were read by these places.
    ///
    /// # Errors
    /// As for `runs`.
    fn runs_placed(
        &self,
        at: Extent,
        places: &[u32],
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), MediaError>;
}

/// A medium with a buffer that a write may pass by.
pub trait WriteThrough: Media {
    /// As [`Media::write`], but completes when the medium itself holds the data, whatever buffer it has.
    fn write_through(
        &self,
        at: Extent,
        data: &[u8],
    ) -> impl Future<Output = Result<(), MediaError>> {
        async move {
            self.write(at, data).await?;
            self.flush().await
        }
    }
}

/// A medium that takes hints.
pub trait Hints {
    /// Tells how often these blocks will be written. They exist.
    fn hint(&self, block: u64, blocks: u64, heat: Heat);
}

/// A medium that knows blocks that were never written.
pub trait Blank {
    /// Number of blocks from this one on that were never written, as far as is known without reading them.
    /// They read as zeros, or as its [`fill`](Blank::fill).
    fn blank_from(&self, block: u64) -> u64;

    /// Contents of the blocks that were never written. `None`: zeros.
    fn fill(&self) -> Option<Fill>;
}

/// A medium that wears.
pub trait Wear {
    /// Wear in percent of what the medium is rated for, up to 255.
    fn percent_used(&self) -> u8;
}

/// A medium that counts commands that were refused.
pub trait Refusals {
    /// A command was refused because it names blocks past the end.
    fn out_of_range(&self, block: u64, blocks: u64);
}

/// Expected frequency of writes to some blocks, compared with others of the same medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heat {
    /// Nothing is known, or it is typical.
    Typical,
    /// Frequent writes.
    Hot,
    /// Infrequent writes.
    Cold,
}

/// A medium that stores a label of a few bytes.
pub trait Labels {
    /// The label last set; empty at first.
    fn label(&self) -> Vec<u8>;

    /// Replaces the label, of at most [`contents::LABEL_BYTES_MAX`] bytes. It survives a power cut.
    fn set_label(&self, label: &[u8]) -> Result<(), MediaError>;
}

/// A medium that stores [`contents::METADATA_BYTES`] bytes of metadata per block.
pub trait BlockMetadata {
    /// Metadata of a block, accessed together with it: all ones unless set since the block was last written
    /// or deallocated.
    fn metadata_of(&self, block: u64) -> Result<Metadata, MediaError>;

    /// Sets the metadata of a block that was just written. Part of that write: takes no further time.
    fn set_metadata(&self, block: u64, metadata: Metadata) -> Result<(), MediaError>;
}

/// Means to purge all data of a medium.
#[derive(Clone, Copy, Default)]
pub enum Purge<'a> {
    /// Writing or deallocating a block purges it.
    #[default]
    ByBlock,
    /// Erasing the whole medium.
    Whole(&'a dyn Erase),
    /// Not supported.
    Unsupported,
}

impl<'a> Purge<'a> {
    /// The eraser of the whole medium, if purging needs it.
    pub fn whole(self) -> Option<&'a dyn Erase> {
        if let Purge::Whole(whole) = self { Some(whole) } else { None }
    }
}

/// A medium that can erase all of itself.
pub trait Erase {
    /// Duration, if known.
    fn erase_time(&self) -> Option<Span>;

    /// Erases everything, stale copies included. Then all blocks are deallocated, and stay so after a power
    /// cut. The medium must not be used meanwhile. A power cut during the erase leaves undefined blocks: call
    /// it again. `progress` receives the number of completed steps and of all steps.
    fn erase<'a>(
        &'a self,
        progress: &'a mut dyn FnMut(u32, u32),
    ) -> Boxed<'a, Result<(), MediaError>>;
}
