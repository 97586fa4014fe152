//! Contents of a medium, without timing.
//!
//! ```text
//!                    keep: everything        keep: stamps (8 bytes of each block)
//! backing: memory    sparse array            sparse array, 64 or 512 times smaller
//! backing: file      raw image               refused: a raw image has every byte
//! ```
//!
//! Not here: latency, wear, injected errors, and the effects of a power cut. Other parts of the medium model
//! them; this one stores exactly the data that it receives.
//!
//! Stamps let a plan have terabytes; moving them takes the time of moving everything. With `keep = "auto"` a
//! plan keeps stamps for runs of jobs, whose contents follow from them, and every byte in a file and for
//! clients: `serve::plan_for_clients` gives each front end the plan as served, and rejects one of stamps.

mod beside;
mod copy;
mod error;
mod filled;
mod image;
mod label;
mod slabs;
mod sparse;
mod stamps;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

use crate::files::Files;
use beside::Beside;
pub use copy::{Chunk, Copied, write_image};
pub use error::Error;
pub use filled::Fill;
use filled::Filled;
use image::Image;
use label::Label;
use sparse::Sparse;
use stamps::Stamps;

/// Bytes stored of each block with [`Keep::Stamps`].
pub const STAMP_BYTES: usize = 8;

/// Bytes of metadata per block.
pub const METADATA_BYTES: usize = 8;

/// Maximum length of a label in bytes.
pub const LABEL_BYTES_MAX: usize = 12 << 10;

/// Maximum capacity: 1 PiB, above any SSD, and small enough that the pointers allocated with the contents
/// stay below 64 MiB and every offset fits a file offset.
pub const CAPACITY_BYTES_MAX: u64 = 1 << 50;

const _: () = {
    // A run of stamps never crosses a leaf, nor does a block in memory.
    assert!(slabs::LEAF_BYTES.is_multiple_of(4096));
    assert!(slabs::LEAF_BYTES.is_multiple_of(STAMP_BYTES));
    assert!(CAPACITY_BYTES_MAX <= i64::MAX as u64);
};

/// Specification of the contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Length of the medium in bytes: whole blocks, at least one, at most [`CAPACITY_BYTES_MAX`].
    pub capacity_bytes: u64,
    /// Bytes per block: 512 or 4096.
    pub block_bytes: u32,
    /// Amount of each block to store.
    pub keep: Keep,
    /// Backing store.
    pub backing: Backing,
}

/// Amount of each block that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Every byte.
    Everything,
    /// The first [`STAMP_BYTES`] bytes, where a workload writes its stamp; the rest reads as zeros.
    Stamps,
}

/// Backing store of the contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory of this process. Only written data take memory.
    Memory,
    /// As [`Memory`](Backing::Memory), but what was never written is random bytes, generated from this seed
    /// by [`Fill`]. Discarded blocks read as zeros, and take memory.
    Random(u64),
    /// A regular file of exactly the capacity, the raw image of the medium. A missing or empty file is
    /// created, sparse; any other is used as it is and never resized. The file is locked against all other
    /// users that request its lock, until the contents are dropped. Written blocks remain allocated:
    /// discarding zeroes them, but the standard library has no call that returns them to the file system.
    File(PathBuf),
    /// As [`Backing::File`], with memory in front of the file: what is in it is accessed without a system
    /// call, and written when it makes room or at a flush. A process that is killed loses what was not
    /// flushed.
    Bounded {
        /// The file.
        path: PathBuf,
        /// Most memory for contents, in bytes.
        resident_bytes: u64,
    },
}

enum Store {
    Everything(Sparse),
    Stamps(Stamps),
    Filled(Filled),
    Image(Box<Image>),
}

/// The contents of a medium. Every access covers whole blocks; blocks that were never written, or were
/// discarded, read as zeros.
pub struct Contents {
    store: Store,
    label: Label,
    /// `None` until metadata are first set.
    metadata: Option<Beside>,
    /// A copy of the contents that is being made.
    copy: Option<Box<copy::Copying>>,
    capacity_bytes: u64,
    block_bytes: u32,
}

impl Contents {
    /// Creates the contents, or opens those in the file.
    ///
    /// # Errors
    /// [`Error::BadSpec`], [`Error::StampsInFile`], and for a file [`Error::NotRegular`],
    /// [`Error::InUse`], [`Error::WrongSize`] and [`Error::Prepare`].
    pub fn new(spec: Spec) -> Result<Contents, Error> {
        Contents::with_files(spec, &Files::default())
    }

    /// As [`Contents::new`], with all file accesses through `files`.
    ///
    /// # Errors
    /// As [`Contents::new`].
    pub fn with_files(spec: Spec, files: &Files) -> Result<Contents, Error> {
        let Spec { capacity_bytes, block_bytes, keep, backing } = spec;
        if block_bytes != 512 && block_bytes != 4096 {
            return Err(Error::BadSpec {
                key: "block_bytes",
                found: block_bytes.into(),
                expected: "512 or 4096",
            });
        }
        let whole = capacity_bytes.is_multiple_of(block_bytes.into());
        if !whole || !(1..=CAPACITY_BYTES_MAX).contains(&capacity_bytes) {
            return Err(Error::BadSpec {
                key: "capacity_bytes",
                found: capacity_bytes,
                expected: "a whole number of blocks, at least one, at most 1 PiB",
            });
        }
        let mut label = Label::in_memory();
        let store = match (keep, backing) {
            (Keep::Everything, Backing::Memory) => Store::Everything(Sparse::new(capacity_bytes)),
            (Keep::Everything, Backing::Random(seed)) => {
                Store::Filled(Filled::new(capacity_bytes, seed))
            }
            (Keep::Stamps, Backing::Random(_)) => return Err(Error::StampsOfRandom),
            (Keep::Stamps, Backing::Memory) => {
                Store::Stamps(Stamps::new(capacity_bytes, block_bytes))
            }
            (Keep::Everything, Backing::File(path)) => {
                let image = Image::open(files, &path, capacity_bytes, None)?;
                label = Label::of_image(files, &path)?;
                Store::Image(Box::new(image))
            }
            (Keep::Everything, Backing::Bounded { path, resident_bytes }) => {
                let image = Image::open(files, &path, capacity_bytes, Some(resident_bytes))?;
                label = Label::of_image(files, &path)?;
                Store::Image(Box::new(image))
            }
            (Keep::Stamps, Backing::File(path) | Backing::Bounded { path, .. }) => {
                return Err(Error::StampsInFile { path });
            }
        };
        Ok(Contents { store, label, metadata: None, copy: None, capacity_bytes, block_bytes })
    }

    /// The last label that was set; empty at first.
    pub fn label(&self) -> &[u8] {
        self.label.bytes()
    }

    /// Replaces the label. For a file it is durable when this returns.
    ///
    /// # Errors
    /// [`Error::Prepare`]: the label is unchanged.
    ///
    /// # Panics
    /// If it is longer than [`LABEL_BYTES_MAX`].
    pub fn set_label(&mut self, label: &[u8]) -> Result<(), Error> {
        self.label.set(label)
    }

    /// Contents of the blocks that were never written; zeros without.
    pub fn fill(&self) -> Option<Fill> {
        match &self.store {
            Store::Filled(filled) => Some(filled.fill()),
            _ => None,
        }
    }

    /// Number of consecutive blocks from this one that were never written, as far as known without reading
    /// them.
    pub fn blank_from(&self, block: u64) -> u64 {
        let at = self.block_offset(block);
        match &self.store {
            Store::Everything(sparse) => sparse.blank_from(at) / u64::from(self.block_bytes),
            Store::Filled(filled) => filled.blank_from(at) / u64::from(self.block_bytes),
            Store::Stamps(_) | Store::Image(_) => 0,
        }
    }

    /// Returns true if metadata can be stored: only with whole blocks in memory, because a raw image has no
    /// space for them.
    pub fn keeps_metadata(&self) -> bool {
        matches!(self.store, Store::Everything(_))
    }

    /// Metadata of a block: all FFh, unless they were set since its data were last written.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn metadata(&self, block: u64) -> Result<[u8; METADATA_BYTES], Error> {
        self.check(self.block_offset(block), self.block_bytes.into())?;
        let unwritten = [0xff; METADATA_BYTES];
        Ok(self.metadata.as_ref().map_or(unwritten, |metadata| metadata.get(block)))
    }

    /// Sets the metadata of a block; its data are unchanged.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If metadata [cannot be stored](Self::keeps_metadata).
    pub fn set_metadata(
        &mut self,
        block: u64,
        metadata: [u8; METADATA_BYTES],
    ) -> Result<(), Error> {
        assert!(self.keeps_metadata(), "contents without metadata");
        self.check(self.block_offset(block), self.block_bytes.into())?;
        let blocks = self.capacity_bytes / u64::from(self.block_bytes);
        self.metadata.get_or_insert_with(|| Beside::new(blocks)).set(block, metadata);
        Ok(())
    }

    /// Before these bytes are written or discarded: a copy in progress takes the old ones, and the metadata
    /// of their blocks are reset.
    #[inline]
    fn will_change(&mut self, offset_bytes: u64, bytes: u64) {
        if self.copy.is_some() {
            self.copy_before(offset_bytes, bytes);
        }
        if let Some(metadata) = &mut self.metadata {
            let block = u64::from(self.block_bytes);
            metadata.forget(offset_bytes / block, bytes / block);
        }
    }

    /// Length of the medium in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes per block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Amount of each block that is stored.
    pub fn keep(&self) -> Keep {
        if matches!(self.store, Store::Stamps(_)) { Keep::Stamps } else { Keep::Everything }
    }

    /// Bytes of memory held for the contents and their directory. For a file this is a buffer and one byte
    /// per 64 MiB of capacity, regardless of the data.
    pub fn allocated_bytes(&self) -> u64 {
        let beside = self.metadata.as_ref().map_or(0, Beside::allocated_bytes);
        beside
            + match &self.store {
                Store::Everything(sparse) => sparse.allocated_bytes(),
                Store::Stamps(stamps) => stamps.allocated_bytes(),
                Store::Filled(filled) => filled.allocated_bytes(),
                Store::Image(image) => image.allocated_bytes(),
            }
    }

    /// Fills `dst` with the contents from `offset_bytes`.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::OutOfRange`]: `dst` is untouched. [`Error::Read`]: `dst` may
    /// be partly filled.
    pub fn read_into(&self, offset_bytes: u64, dst: &mut [u8]) -> Result<(), Error> {
        let bytes = dst.len() as u64;
        self.check(offset_bytes, bytes)?;
        match &self.store {
            Store::Everything(sparse) => sparse.runs(offset_bytes, bytes, &mut |at, run| {
                dst[at as usize..][..run.len()].copy_from_slice(run);
            }),
            Store::Filled(filled) => filled.runs(offset_bytes, bytes, &mut |at, run| {
                dst[at as usize..][..run.len()].copy_from_slice(run);
            }),
            Store::Stamps(stamps) => {
                dst.fill(0);
                stamps.runs(offset_bytes, bytes, &mut |at, stamp| {
                    dst[at as usize..][..STAMP_BYTES].copy_from_slice(stamp);
                });
            }
            Store::Image(image) => image.read_into(offset_bytes, dst)?,
        }
        Ok(())
    }

    /// Passes the stored part of `bytes` bytes from `offset_bytes` to `f`, in order, run by run: each run's
    /// distance from `offset_bytes`, and its bytes. All other bytes read as zeros. With [`Keep::Everything`]
    /// all bytes are passed, in runs of at most 64 KiB; with [`Keep::Stamps`] one run of [`STAMP_BYTES`] per
    /// block. Memory is passed without a copy.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::OutOfRange`]: no run was passed. [`Error::Read`]: some runs may have
    /// been.
    #[inline]
    pub fn runs(
        &self,
        offset_bytes: u64,
        bytes: u32,
        f: &mut impl FnMut(u32, &[u8]),
    ) -> Result<(), Error> {
        let bytes = u64::from(bytes);
        self.check(offset_bytes, bytes)?;
        // Distances fit, being less than `bytes`.
        let mut f = |at: u64, run: &[u8]| f(at as u32, run);
        match &self.store {
            Store::Everything(sparse) => sparse.runs(offset_bytes, bytes, &mut f),
            Store::Stamps(stamps) => stamps.runs(offset_bytes, bytes, &mut f),
            Store::Filled(filled) => filled.runs(offset_bytes, bytes, &mut f),
            Store::Image(image) => image.runs(offset_bytes, bytes, &mut f)?,
        }
        Ok(())
    }

    /// Hint: the bytes from `offset_bytes` will soon be read, or written if `to_write`.
    #[inline]
    pub fn prefetch(&self, offset_bytes: u64, bytes: usize, to_write: bool) {
        if let Store::Everything(sparse) = &self.store
            && offset_bytes < self.capacity_bytes
        {
            sparse.prefetch(offset_bytes, bytes, to_write);
        }
    }

    /// Writes `src` at `offset_bytes`. With [`Keep::Stamps`] only the stamps are read.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::OutOfRange`]: no data were written. [`Error::Write`]: part of the
    /// request may have been; bytes outside it are unchanged.
    pub fn write(&mut self, offset_bytes: u64, src: &[u8]) -> Result<(), Error> {
        let bytes = src.len() as u64;
        self.check(offset_bytes, bytes)?;
        self.will_change(offset_bytes, bytes);
        match &mut self.store {
            Store::Everything(sparse) => sparse.runs_mut(offset_bytes, bytes, &mut |at, run| {
                run.copy_from_slice(&src[at as usize..][..run.len()]);
            }),
            Store::Filled(filled) => filled.runs_mut(offset_bytes, bytes, &mut |at, run| {
                run.copy_from_slice(&src[at as usize..][..run.len()]);
            }),
            Store::Stamps(stamps) => stamps.runs_mut(offset_bytes, bytes, &mut |at, stamp| {
                stamp.copy_from_slice(&src[at as usize..][..STAMP_BYTES]);
            }),
            Store::Image(image) => image.write(offset_bytes, src)?,
        }
        Ok(())
    }

    /// Passes the stored part of `bytes` bytes from `offset_bytes` to `f` to be overwritten, in the same runs
    /// as [`Contents::runs`], so that the data need only one copy. `f` must fill every run; bytes that it
    /// leaves alone are old or zero.
    /// # Errors
    /// As [`Contents::write`]; on [`Error::Write`] the runs after the failed one were not passed.
    #[inline]
    pub fn write_runs(
        &mut self,
        offset_bytes: u64,
        bytes: u32,
        f: &mut impl FnMut(u32, &mut [u8]),
    ) -> Result<(), Error> {
        let bytes = u64::from(bytes);
        self.check(offset_bytes, bytes)?;
        self.will_change(offset_bytes, bytes);
        let mut f = |at: u64, run: &mut [u8]| f(at as u32, run);
        match &mut self.store {
            Store::Everything(sparse) => sparse.runs_mut(offset_bytes, bytes, &mut f),
            Store::Stamps(stamps) => stamps.runs_mut(offset_bytes, bytes, &mut f),
            Store::Filled(filled) => filled.runs_mut(offset_bytes, bytes, &mut f),
            Store::Image(image) => image.runs_mut(offset_bytes, bytes, &mut f)?,
        }
        Ok(())
    }

    /// First [`STAMP_BYTES`] bytes of a block.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Read`].
    #[inline]
    pub fn read_stamp(&self, block: u64) -> Result<[u8; STAMP_BYTES], Error> {
        let mut stamp = [0; STAMP_BYTES];
        self.runs(self.block_offset(block), self.block_bytes, &mut |at, run| {
            if at == 0 {
                stamp.copy_from_slice(&run[..STAMP_BYTES]);
            }
        })?;
        Ok(stamp)
    }

    /// Writes a block that consists of this stamp and zeros.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Write`].
    #[inline]
    pub fn write_stamp(&mut self, block: u64, stamp: [u8; STAMP_BYTES]) -> Result<(), Error> {
        // A block is one run: it never crosses a leaf, nor fills the image's buffer.
        self.write_runs(self.block_offset(block), self.block_bytes, &mut |_, run| {
            let (first, rest) = run.split_at_mut(STAMP_BYTES);
            first.copy_from_slice(&stamp);
            rest.fill(0);
        })
    }

    /// Makes `bytes` bytes from `offset_bytes` read as zeros, and frees the memory that only they took. A
    /// file keeps its blocks; see [`Backing::File`].
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::OutOfRange`]: unchanged. [`Error::Read`], [`Error::Write`]: part of the
    /// range may be zeros already.
    pub fn discard(&mut self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        self.check(offset_bytes, bytes)?;
        self.will_change(offset_bytes, bytes);
        match &mut self.store {
            Store::Everything(sparse) => sparse.discard(offset_bytes, bytes),
            Store::Stamps(stamps) => stamps.discard(offset_bytes, bytes),
            Store::Filled(filled) => filled.discard(offset_bytes, bytes),
            Store::Image(image) => image.discard(offset_bytes, bytes, self.capacity_bytes)?,
        }
        Ok(())
    }

    /// Returns when all data written so far survive a power cut of the machine that holds the file;
    /// immediately for memory.
    ///
    /// # Errors
    /// [`Error::Flush`], permanently once it has been returned.
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.store {
            Store::Everything(_) | Store::Stamps(_) | Store::Filled(_) => Ok(()),
            Store::Image(image) => image.flush(),
        }
    }

    /// Offset of a block, or the last aligned offset, which is also out of range.
    #[inline]
    fn block_offset(&self, block: u64) -> u64 {
        let last = u64::MAX - (u64::from(self.block_bytes) - 1);
        block.checked_mul(self.block_bytes.into()).unwrap_or(last)
    }

    #[inline]
    fn check(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        let aligned = (offset_bytes | bytes) & (u64::from(self.block_bytes) - 1) == 0;
        let end = offset_bytes.checked_add(bytes);
        if aligned && end.is_some_and(|end| end <= self.capacity_bytes) {
            return Ok(());
        }
        Err(self.refusal(aligned, offset_bytes, bytes))
    }

    #[cold]
    fn refusal(&self, aligned: bool, offset_bytes: u64, bytes: u64) -> Error {
        let Contents { capacity_bytes, block_bytes, .. } = *self;
        if aligned {
            Error::OutOfRange { offset_bytes, bytes, capacity_bytes }
        } else {
            Error::Unaligned { offset_bytes, bytes, block_bytes, capacity_bytes }
        }
    }
}

impl fmt::Debug for Contents {
    /// Prints the specification, not the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents")
            .field("capacity_bytes", &self.capacity_bytes)
            .field("block_bytes", &self.block_bytes)
            .field("keep", &self.keep())
            .field("allocated_bytes", &self.allocated_bytes())
            .finish_non_exhaustive()
    }
}
