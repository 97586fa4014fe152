//! Blocks in memory that several device threads reach at once.
//!
//! ```text
//!   pages      | 4 KiB | 4 KiB | …        contents, mapped at once; written ones alone take memory
//!   versions   | 64 B  | 64 B  | …        a word for each page, on a cache line of its own
//! ```
//!
//! A page has a version: 0 while it was never written, odd while it is being written. A reader copies the
//! page and repeats that if the version was odd or has changed: it writes no memory that another thread
//! reads. A writer makes the version odd, copies, and makes it even, so that a read returns each block as
//! one write left it. Two threads write the same line only if they write the same page.
//!
//! Data pass through a page of the thread's own: memory that another thread may write is never a slice.

use std::cell::RefCell;
use std::sync::atomic::{Ordering, fence};

use bus::Memory;
use media::{Extent, Media, MediaError, Soon};
use runtime::Time;
use wire::BusAddr;

/// Bytes of a page: those that are written at once.
const PAGE: usize = 4096;
/// Bytes between two versions: a cache line.
const BETWEEN: u64 = 64;
/// Attempts to read or write a page before the thread offers its core to others.
const ATTEMPTS: u32 = 1_000;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// The blocks. Clones, one for each thread, are the same blocks.
#[derive(Clone)]
pub struct SharedBlocks {
    pages: Memory,
    versions: Memory,
    blocks: u64,
    block_bytes: u32,
}

impl SharedBlocks {
    /// Blocks that were never written, and read as zeros.
    ///
    /// # Errors
    /// The process has no addresses left for them.
    pub fn new(blocks: u64, block_bytes: u32) -> std::io::Result<SharedBlocks> {
        let too_large = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let bytes = blocks.checked_mul(block_bytes.into()).ok_or_else(too_large)?;
        let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
        let versions = bytes.div_ceil(PAGE) * BETWEEN as usize;
        let (pages, versions) = (Memory::anonymous(bytes)?, Memory::anonymous(versions)?);
        Ok(SharedBlocks { pages, versions, blocks, block_bytes })
    }

    /// The medium of one thread.
    pub fn medium(&self) -> SharedMedium {
        SharedMedium { of: self.clone(), page: RefCell::new(Box::new([0; PAGE])) }
    }

    fn version_at(page: u64) -> BusAddr {
        BusAddr(page * BETWEEN)
    }

    fn version(&self, page: u64) -> u64 {
        self.versions.load_u64(SharedBlocks::version_at(page)).expect("a version for each page")
    }

    /// Copies a part of a page as one write left it. Returns false if the page was never written.
    fn read(&self, piece: Piece, to: &mut [u8]) -> bool {
        for attempt in 0.. {
            let before = self.version(piece.page);
            if before == 0 {
                return false;
            }
            if before.is_multiple_of(2) {
                self.pages.read(piece.at(), to).expect("a piece of the pages");
                // The bytes were read before the version is, again.
                fence(Ordering::Acquire);
                if self.version(piece.page) == before {
                    return true;
                }
            }
            wait(attempt);
        }
        unreachable!("attempts do not end");
    }

    fn write(&self, piece: Piece, from: &[u8]) {
        let at = SharedBlocks::version_at(piece.page);
        for attempt in 0.. {
            let before = self.version(piece.page);
            if before.is_multiple_of(2)
                && self.versions.exchange_u64(at, before, before + 1) == Ok(true)
            {
                // A reader that sees one of the bytes sees the odd version.
                fence(Ordering::Release);
                self.pages.write(piece.at(), from).expect("a piece of the pages");
                self.versions.store_u64(at, before + 2).expect("a version for each page");
                return;
            }
            wait(attempt);
        }
    }
}

/// Waits for a thread that writes the page: some hundred nanoseconds, unless it has lost its core.
#[cold]
fn wait(attempt: u32) {
    match attempt % ATTEMPTS {
        0 if attempt > 0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

/// A part of a page, with the offset of its first byte in the access.
#[derive(Clone, Copy)]
struct Piece {
    page: u64,
    from: usize,
    bytes: usize,
    offset: usize,
}

impl Piece {
    fn at(self) -> BusAddr {
        BusAddr(self.page * PAGE as u64 + self.from as u64)
    }

    fn range(self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.bytes
    }
}

/// [`SharedBlocks`] as the medium of one thread, without timing.
pub struct SharedMedium {
    of: SharedBlocks,
    /// A page of this thread alone.
    page: RefCell<Box<[u8; PAGE]>>,
}

impl SharedMedium {
    /// The pieces of these blocks, by page.
    #[inline]
    fn pieces(&self, at: Extent) -> Result<impl Iterator<Item = Piece> + use<>, MediaError> {
        let inside = at.blocks > 0
            && at.block <= self.of.blocks
            && u64::from(at.blocks) <= self.of.blocks - at.block;
        if !inside {
            return Err(MediaError::Range);
        }
        let first = at.block * u64::from(self.of.block_bytes);
        let (bytes, mut offset) = (at.blocks as usize * self.of.block_bytes as usize, 0);
        Ok(std::iter::from_fn(move || {
            let here = first + offset as u64;
            let from = (here % PAGE as u64) as usize;
            let length = (PAGE - from).min(bytes - offset);
            let piece = Piece { page: here / PAGE as u64, from, bytes: length, offset };
            offset += length;
            (length > 0).then_some(piece)
        }))
    }
}

impl Media for SharedMedium {
    fn blocks(&self) -> u64 {
        self.of.blocks
    }

    fn block_bytes(&self) -> u32 {
        self.of.block_bytes
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.pieces(at).map(|_| Time::ZERO)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        let mut page = self.page.borrow_mut();
        for piece in self.pieces(at)? {
            let copy = &mut page[..piece.bytes];
            match self.of.read(piece, copy) {
                true => put(piece.offset as u32, copy),
                false => put(piece.offset as u32, &ZEROS[..piece.bytes]),
            }
        }
        Ok(())
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        self.pieces(at)?.for_each(|piece| self.of.write(piece, &data[piece.range()]));
        Ok(())
    }

    /// The page is cleared first: what `fill` leaves out is zeros, and not the data of an earlier command.
    fn write_at_once(
        &self,
        at: Extent,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        let mut page = self.page.borrow_mut();
        for piece in self.pieces(at)? {
            let copy = &mut page[..piece.bytes];
            copy.fill(0);
            fill(piece.offset as u32, copy);
            self.of.write(piece, copy);
        }
        Ok(true)
    }

    async fn flush(&self) -> Result<(), MediaError> {
        Ok(())
    }

    fn is_immediate(&self) -> bool {
        true
    }

    #[inline]
    fn prefetch(&self, at: Extent, soon: Soon) {
        if at.block < self.of.blocks {
            let first = at.block * u64::from(self.of.block_bytes) + u64::from(soon.from);
            let (pages, versions) = (&self.of.pages, &self.of.versions);
            let version = SharedBlocks::version_at(first / PAGE as u64);
            if soon.to_write {
                versions.prefetch(version, 8);
                pages.prefetch(BusAddr(first), soon.bytes as usize);
            } else {
                versions.prefetch_to_read(version, 8);
                pages.prefetch_to_read(BusAddr(first), soon.bytes as usize);
            }
        }
    }

    /// Pages that were never written stay without memory; others keep theirs until the drive ends.
    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        for piece in self.pieces(at)? {
            if self.of.version(piece.page) != 0 {
                self.of.write(piece, &ZEROS[..piece.bytes]);
            }
        }
        Ok(())
    }
}
