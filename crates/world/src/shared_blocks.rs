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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;
    use runtime::{Log, Rt};

    use super::*;

    const BLOCK: u32 = 512;
    const BLOCKS: u64 = 40;

    fn contents(medium: &SharedMedium, at: Extent) -> Vec<u8> {
        let mut found = vec![0xee; (at.blocks * BLOCK) as usize];
        let put = &mut |offset: u32, run: &[u8]| {
            found[offset as usize..][..run.len()].copy_from_slice(run);
        };
        medium.runs(at, put).expect("blocks of the medium");
        found
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u32, u8),
        AtOnce(u64, u32, u8),
        Deallocate(u64, u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let extent = || (0..BLOCKS - 20, 1..=20_u32);
        let step = prop_oneof![
            (extent(), 1..=255_u8).prop_map(|((at, blocks), byte)| Step::Write(at, blocks, byte)),
            (extent(), 1..=255_u8).prop_map(|((at, blocks), byte)| Step::AtOnce(at, blocks, byte)),
            extent().prop_map(|(at, blocks)| Step::Deallocate(at, blocks)),
        ];
        prop::collection::vec(step, 1..30)
    }

    proptest! {
        /// One thread writes and another one reads, in turns.
        #[test]
        fn shared_blocks_are_an_array(steps in steps()) {
            let rt = Rt::simulated(None, Log::Off);
            let blocks = SharedBlocks::new(BLOCKS, BLOCK).expect("addresses");
            let (writer, reader) = (blocks.medium(), blocks.medium());
            let mut expected = vec![0; BLOCKS as usize * BLOCK as usize];
            for step in steps {
                let (block, blocks, byte) = match step {
                    Step::Write(block, blocks, byte) | Step::AtOnce(block, blocks, byte) => {
                        (block, blocks, byte)
                    }
                    Step::Deallocate(block, blocks) => (block, blocks, 0),
                };
                let at = Extent { block, blocks };
                let data = vec![byte; (blocks * BLOCK) as usize];
                let done = match step {
                    Step::Write(..) => rt.block_on(writer.write(at, &data)),
                    Step::AtOnce(..) => {
                        writer.write_at_once(at, &mut |_, run| run.fill(byte)).map(|_| ())
                    }
                    Step::Deallocate(..) => rt.block_on(writer.deallocate(at)),
                };
                prop_assert!(done.is_ok());
                let begin = block as usize * BLOCK as usize;
                expected[begin..begin + data.len()].fill(byte);
            }
            let all = Extent { block: 0, blocks: BLOCKS as u32 };
            prop_assert!(contents(&reader, all) == expected);
        }
    }

    #[test]
    fn blocks_past_the_end_are_refused() {
        let medium = SharedBlocks::new(BLOCKS, BLOCK).expect("addresses").medium();
        for (block, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 2), (0, 0)] {
            let at = Extent { block, blocks };
            assert_eq!(medium.runs(at, &mut |_, _| ()), Err(MediaError::Range), "{at:?}");
        }
    }

    #[test]
    fn data_that_is_not_filled_in_is_not_of_an_earlier_command() {
        let medium = SharedBlocks::new(BLOCKS, BLOCK).expect("addresses").medium();
        let (first, second) = (Extent { block: 0, blocks: 8 }, Extent { block: 8, blocks: 8 });
        assert_eq!(medium.write_at_once(first, &mut |_, run| run.fill(7)), Ok(true));
        assert_eq!(medium.write_at_once(second, &mut |_, _| ()), Ok(true));
        assert!(contents(&medium, second).iter().all(|byte| *byte == 0));
    }

    /// Two threads write pages of one value each, and two read them: every page is of one write. Without the
    /// second look at the version, or without the odd one, pages of two values are read.
    #[test]
    fn page_is_read_as_one_write_left_it() {
        let (writes, pages) = if cfg!(miri) { (20, 1) } else { (300_000, 1) };
        let blocks = SharedBlocks::new(8 * pages, BLOCK).expect("addresses");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (medium, mut seen) = (blocks.medium(), 0_u64);
                        while !done.load(Ordering::Relaxed) {
                            for page in 0..pages {
                                let found =
                                    contents(&medium, Extent { block: 8 * page, blocks: 8 });
                                assert!(found.iter().all(|byte| *byte == found[0]), "a torn page");
                                seen += u64::from(found[0] > 0);
                            }
                        }
                        seen
                    })
                })
                .collect();
            let writers: Vec<_> = (0..2_u8)
                .map(|writer| {
                    let blocks = &blocks;
                    scope.spawn(move || {
                        let medium = blocks.medium();
                        for number in 0..writes {
                            let byte = 1 + 2 * (number % 100) as u8 + writer;
                            let at = Extent { block: 8 * (number % pages), blocks: 8 };
                            let wrote = medium.write_at_once(at, &mut |_, run| run.fill(byte));
                            assert_eq!(wrote, Ok(true));
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            done.store(true, Ordering::Relaxed);
            let seen: u64 =
                readers.into_iter().map(|reader| reader.join().expect("no torn page")).sum();
            assert!(cfg!(miri) || seen > 0, "written pages were read");
        });
    }
}
