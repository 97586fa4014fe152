//! A part of a medium, for one of several clients: it begins at block 0 and has nothing beyond its end.
//!
//! [`Media`] is implemented here method by method and not as a [`Layer`](crate::Layer): a method that is
//! added to media later has its harmless default on a part, and is not passed on with the client's numbers.

use core::cell::Cell;
use std::rc::Rc;

use runtime::Time;

use crate::contents::Fill;
use crate::{
    Blank, Capabilities, Extent, Head, Heat, Hints, Media, MediaError, Purge, Refusals, Soon,
};

/// A range of a medium's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block on the medium.
    pub from: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Range {
    /// The first block after the range. `None` if it has no number.
    pub fn end(self) -> Option<u64> {
        self.from.checked_add(self.blocks)
    }

    /// Returns true if the ranges have a block in common.
    pub fn overlaps(self, other: Range) -> bool {
        let starts_in =
            |one: Range, two: Range| one.from >= two.from && one.from - two.from < two.blocks;
        self.blocks > 0 && other.blocks > 0 && (starts_in(self, other) || starts_in(other, self))
    }
}

/// Commands that named blocks past the end of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Number of such commands.
    pub commands: u64,
    /// First block and number of blocks of the latest, as its client numbers them.
    pub latest: (u64, u64),
}

/// A part of the medium `M`. It has no label, no metadata and no purge: those are of the whole medium.
pub struct Part<M> {
    of: Rc<M>,
    range: Range,
    refused: Cell<Refused>,
    first_refused: Cell<Option<(u64, u64)>>,
}

impl<M: Media> Part<M> {
    /// The blocks of `range`.
    ///
    /// # Errors
    /// They are not all on the medium.
    pub fn new(of: Rc<M>, range: Range) -> Result<Part<M>, MediaError> {
        match range.end() {
            Some(end) if end <= of.blocks() => {
                Ok(Part { of, range, refused: Cell::default(), first_refused: Cell::default() })
            }
            _ => Err(MediaError::Range),
        }
    }

    /// The blocks of the medium that this part has.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Commands that were refused so far.
    pub fn refused(&self) -> Refused {
        self.refused.get()
    }

    /// First block and number of blocks of the first command that was refused since the last call.
    pub fn take_first_refused(&self) -> Option<(u64, u64)> {
        self.first_refused.take()
    }

    /// The place of these blocks on the medium. The controllers validate a command's blocks when they
    /// parse it. This check does not depend on theirs: no caller reaches the medium without it.
    #[inline]
    fn place(&self, at: Extent) -> Result<Extent, MediaError> {
        let inside =
            at.block <= self.range.blocks && u64::from(at.blocks) <= self.range.blocks - at.block;
        if !inside {
            return Err(MediaError::Range);
        }
        Ok(Extent { block: self.range.from + at.block, ..at })
    }
}

impl<M: Media> Media for Part<M> {
    fn blocks(&self) -> u64 {
        self.range.blocks
    }

    fn block_bytes(&self) -> u32 {
        self.of.block_bytes()
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.of.read(self.place(at)?).await
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        self.of.runs(self.place(at)?, put)
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        self.of.write(self.place(at)?, data).await
    }

    /// Of the whole medium: earlier writes of all clients survive a power cut.
    async fn flush(&self) -> Result<(), MediaError> {
        self.of.flush().await
    }

    fn head(&self) -> Option<Head> {
        self.of.head()
    }

    fn is_immediate(&self) -> bool {
        self.of.is_immediate()
    }

    fn prefetch(&self, at: Extent, soon: Soon) {
        if let Ok(at) = self.place(at) {
            self.of.prefetch(at, soon);
        }
    }

    fn write_at_once(
        &self,
        at: Extent,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        self.of.write_at_once(self.place(at)?, fill)
    }

    async fn read_head(&self, at: Extent, bytes: u32) -> Result<Time, MediaError> {
        self.of.read_head(self.place(at)?, bytes).await
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        self.of.deallocate(self.place(at)?).await
    }

    /// There is neither label nor metadata, and no purge, which would erase the parts of other clients.
    fn capabilities(&self) -> Capabilities<'_> {
        let below = self.of.capabilities();
        Capabilities {
            start: below.start,
            hints: below.hints.map(|_| self as _),
            blank: below.blank.map(|_| self as _),
            purge: Purge::Unsupported,
            refusals: Some(self),
            ..Capabilities::default()
        }
    }
}

impl<M: Media> Hints for Part<M> {
    fn hint(&self, block: u64, blocks: u64, heat: Heat) {
        let all = self.range.blocks;
        if block <= all && blocks <= all - block {
            let hints = self.of.capabilities().hints.into_iter();
            hints.for_each(|of| of.hint(self.range.from + block, blocks, heat));
        }
    }
}

impl<M: Media> Blank for Part<M> {
    fn blank_from(&self, block: u64) -> u64 {
        // Blank blocks of a part are zeros: where they are not on the medium, none is called blank.
        let blank = self.of.capabilities().blank.filter(|blank| blank.fill().is_none());
        match (blank, self.range.blocks.checked_sub(block)) {
            (Some(of), Some(rest)) => of.blank_from(self.range.from + block).min(rest),
            _ => 0,
        }
    }

    fn fill(&self) -> Option<Fill> {
        None
    }
}

impl<M: Media> Refusals for Part<M> {
    fn out_of_range(&self, block: u64, blocks: u64) {
        let commands = self.refused.get().commands.saturating_add(1);
        self.refused.set(Refused { commands, latest: (block, blocks) });
        self.first_refused.set(self.first_refused.get().or(Some((block, blocks))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::{Backing, Keep, Spec};
    use crate::{Banked, Contents, Pace};
    use proptest::prelude::*;
    use runtime::{Log, Rt};

    const BLOCKS: u64 = 64;

    fn medium(rt: &Rt) -> Rc<Banked> {
        medium_on(rt, Backing::Memory)
    }

    fn medium_on(rt: &Rt, backing: Backing) -> Rc<Banked> {
        let spec = Spec {
            capacity_bytes: BLOCKS * 512,
            block_bytes: 512,
            keep: Keep::Everything,
            backing,
        };
        let contents = Contents::new(spec).expect("contents in memory");
        Rc::new(Banked::new(rt, contents, Pace::Immediate))
    }

    /// A part's blank blocks are zeros, and those of random contents are not.
    #[test]
    fn part_of_random_contents_has_no_blank_blocks() {
        let rt = Rt::simulated(None, Log::Off);
        let range = Range { from: 16, blocks: 32 };
        let blank = |backing| {
            let part = Part::new(medium_on(&rt, backing), range).expect("on the medium");
            (part.blank_from(0), part.fill())
        };
        assert_eq!(blank(Backing::Memory), (32, None));
        assert_eq!(blank(Backing::Random(7)), (0, None));
    }

    fn byte(medium: &impl Media, block: u64) -> Result<u8, MediaError> {
        let mut first = 0;
        medium.runs(Extent { block, blocks: 1 }, &mut |offset, run| {
            if offset == 0 {
                first = run[0];
            }
        })?;
        Ok(first)
    }

    /// Every way to the medium, tried at `at`, with data of 9: the methods that did not refuse.
    async fn reached(part: &Part<Banked>, at: Extent) -> Vec<&'static str> {
        let data = vec![9; 512 * at.blocks.min(128) as usize];
        let mut all = Vec::new();
        let mut note = |name, reached: bool| all.extend(reached.then_some(name));
        note("read", part.read(at).await.is_ok());
        note("read_head", part.read_head(at, 64).await.is_ok());
        note("runs", part.runs(at, &mut |_, _| ()).is_ok());
        note("write", part.write(at, &data).await.is_ok());
        note("write_at_once", part.write_at_once(at, &mut |_, run| run.fill(9)).is_ok());
        note("deallocate", part.deallocate(at).await.is_ok());
        all
    }

    proptest! {
        /// Blocks outside a part stay, and all methods agree on which are inside.
        #[test]
        fn no_method_reaches_blocks_outside_the_part(
            from in 0..BLOCKS, length in 0..BLOCKS, far in any::<bool>(),
            block in 0..2 * BLOCKS, blocks in 1..2 * BLOCKS as u32,
        ) {
            let rt = Rt::simulated(None, Log::Off);
            let (whole, range) = (medium(&rt), Range { from, blocks: length.min(BLOCKS - from) });
            let part = Part::new(whole.clone(), range).expect("blocks on the medium");
            // A block number near 2^64 wraps if it is added to the part's first.
            let block = if far { u64::MAX - block } else { block };
            let at = Extent { block, blocks };
            rt.block_on(async {
                whole.write(Extent { block: 0, blocks: BLOCKS as u32 }, &[7; 512 * BLOCKS as usize])
                    .await.expect("a write");
                let inside = block.checked_add(blocks.into()).is_some_and(|end| end <= range.blocks);
                let reached = reached(&part, at).await;
                prop_assert_eq!(reached.len(), if inside { 6 } else { 0 }, "{:?}", reached);
                for block in (0..BLOCKS).filter(|b| *b < from || *b >= from + range.blocks) {
                    prop_assert_eq!(byte(&*whole, block), Ok(7), "block {}", block);
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn part_past_the_medium_is_refused() {
        let rt = Rt::simulated(None, Log::Off);
        let whole = medium(&rt);
        for (from, blocks) in [(0, BLOCKS + 1), (BLOCKS, 1), (u64::MAX, 2), (2, u64::MAX)] {
            let part = Part::new(whole.clone(), Range { from, blocks });
            assert!(part.is_err(), "{blocks} blocks from {from}");
        }
    }

    #[test]
    fn overlap_is_of_blocks_in_common() {
        let range = |from, blocks| Range { from, blocks };
        assert!(range(0, 4).overlaps(range(3, 4)));
        assert!(range(3, 4).overlaps(range(0, 4)));
        assert!(range(0, 8).overlaps(range(2, 1)));
        assert!(range(u64::MAX, 2).overlaps(range(u64::MAX, 1)));
        assert!(!range(0, 4).overlaps(range(4, 4)));
        assert!(!range(2, 0).overlaps(range(0, 8)));
    }

    #[test]
    fn refused_commands_are_counted_with_the_latest() {
        let rt = Rt::simulated(None, Log::Off);
        let part = Part::new(medium(&rt), Range { from: 8, blocks: 8 }).expect("a part");
        part.out_of_range(8, 1);
        part.out_of_range(u64::MAX, 2);
        assert_eq!(part.refused(), Refused { commands: 2, latest: (u64::MAX, 2) });
        assert_eq!((part.take_first_refused(), part.take_first_refused()), (Some((8, 1)), None));
    }
}
