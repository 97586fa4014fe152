//! Marks of Write Uncorrectable (NVM command set 1.0, 3.2.7): blocks that are unreadable until written.
//!
//! The marks are kept here and in the medium's label: stored immediately when a block is marked; removed
//! after a write, once the written data are durable. A power cut may therefore restore a mark, but never the
//! contents of before it.

use std::cell::{Cell, RefCell};

use media::Extent;
use wire::nvme::status::Status;

use super::UNCORRECTABLE_BYTES_MAX;

/// Blocks per window; windows are aligned.
const WINDOW: u64 = 128;
/// Maximum number of windows with marked blocks.
pub(super) const WINDOWS_MAX: usize = 144;
/// Window record in the label, bytes: number and marks.
pub(super) const KEPT_BYTES: usize = 24;

const _: () =
    assert!(UNCORRECTABLE_BYTES_MAX as u64 / 512 <= WINDOW, "at most two windows a command");

/// Adjacent blocks, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    number: u64,
    /// Unreadable blocks.
    marked: u128,
    /// Marks in the stored label: all that are marked, and those written since it was last stored.
    kept: u128,
}

impl Window {
    /// Mask of the blocks of the range in this window.
    fn bits(number: u64, (start, end): (u64, u64)) -> u128 {
        let (first, past) = (number * WINDOW, (number + 1) * WINDOW);
        let (low, high) = (start.max(first), end.min(past));
        match high.saturating_sub(low) {
            0 => 0,
            blocks => u128::MAX >> (WINDOW - blocks) << (low - first),
        }
    }
}

/// The first block, and the one after the last.
fn range(at: Extent) -> (u64, u64) {
    (at.block, at.block.saturating_add(at.blocks.into()))
}

/// All marked blocks of the medium, in ascending order of windows.
#[derive(Default)]
pub(super) struct Marks {
    windows: RefCell<Vec<Window>>,
    /// True if there are windows; usually the only check of a read.
    any: Cell<bool>,
}

/// Marks that a flush makes obsolete: per window, the blocks written before it began.
pub(super) struct Written(Vec<(u64, u128)>);

impl Marks {
    /// Returns true if one of these blocks is marked.
    #[inline]
    pub fn hold(&self, at: Extent) -> bool {
        self.any.get() && self.hold_any(range(at))
    }

    fn hold_any(&self, range: (u64, u64)) -> bool {
        let windows = self.windows.borrow();
        windows.iter().any(|window| window.marked & Window::bits(window.number, range) != 0)
    }

    /// Clears the marks of blocks that were written or deallocated.
    #[inline]
    pub fn clear(&self, at: Extent) {
        if self.any.get() {
            let range = range(at);
            for window in self.windows.borrow_mut().iter_mut() {
                window.marked &= !Window::bits(window.number, range);
            }
        }
    }

    /// Clears all marks, after an erase of the medium.
    pub fn clear_all(&self) {
        self.windows.borrow_mut().iter_mut().for_each(|window| window.marked = 0);
    }

    /// Marks these blocks, if the label has space.
    pub fn mark(&self, at: Extent) -> Result<(), Status> {
        let range = range(at);
        let numbers = range.0 / WINDOW..=(range.1 - 1) / WINDOW;
        let mut windows = self.windows.borrow_mut();
        let is_new = |number: &u64| !windows.iter().any(|window| window.number == *number);
        if windows.len() + numbers.clone().filter(is_new).count() > WINDOWS_MAX {
            return Err(Status::CAPACITY_EXCEEDED);
        }
        for number in numbers {
            let bits = Window::bits(number, range);
            let place = match windows.binary_search_by_key(&number, |window| window.number) {
                Ok(place) => place,
                Err(place) => {
                    windows.insert(place, Window { number, marked: 0, kept: 0 });
                    place
                }
            };
            windows[place].marked |= bits;
            windows[place].kept |= bits;
        }
        self.any.set(true);
        Ok(())
    }

    /// Blocks that a flush beginning now makes durable. `None` if no marked block was written.
    pub fn written(&self) -> Option<Written> {
        if !self.any.get() {
            return None;
        }
        let windows = self.windows.borrow();
        let written = windows.iter().filter(|window| window.kept != window.marked);
        let written: Vec<_> =
            written.map(|window| (window.number, window.kept & !window.marked)).collect();
        (!written.is_empty()).then_some(Written(written))
    }

    /// After that flush: removes these marks from the label, unless set again.
    pub fn settle(&self, written: Written) {
        let mut windows = self.windows.borrow_mut();
        for (number, bits) in written.0 {
            if let Some(window) = windows.iter_mut().find(|window| window.number == number) {
                window.kept &= !bits | window.marked;
            }
        }
        windows.retain(|window| window.kept != 0);
        self.any.set(!windows.is_empty());
    }

    /// Writes the marks to a label: number of windows, and each.
    pub fn store(&self, label: &mut Vec<u8>) {
        let windows = self.windows.borrow();
        label.push(windows.len() as u8);
        for window in windows.iter() {
            label.extend(window.number.to_le_bytes());
            label.extend(window.kept.to_le_bytes());
        }
    }

    /// Reads the marks from a label, if they are valid for a medium of `blocks` blocks. Returns the rest of
    /// the label. Older labels have no marks.
    pub fn recall<'a>(&self, label: &'a [u8], blocks: u64) -> Option<&'a [u8]> {
        let Some((count, rest)) = label.split_first() else { return Some(label) };
        let count = usize::from(*count);
        if count > WINDOWS_MAX {
            return None;
        }
        let mut windows: Vec<Window> = Vec::with_capacity(count);
        let (kept, rest) = rest.split_at_checked(count * KEPT_BYTES)?;
        for bytes in kept.chunks_exact(KEPT_BYTES) {
            let (number, kept) = bytes.split_first_chunk()?;
            let number = u64::from_le_bytes(*number);
            let kept = u128::from_le_bytes(kept.try_into().ok()?);
            let rises = windows.last().is_none_or(|before| before.number < number);
            let inside = number < blocks.div_ceil(WINDOW);
            if !rises || !inside || kept & !Window::bits(number, (0, blocks)) != 0 {
                return None;
            }
            windows.push(Window { number, marked: kept, kept });
        }
        self.any.set(!windows.is_empty());
        self.windows.replace(windows);
        Some(rest)
    }

    /// All windows, for [`as_before`](Self::as_before).
    pub fn windows(&self) -> Vec<Window> {
        self.windows.borrow().clone()
    }

    /// Takes back marks that were not stored.
    pub fn as_before(&self, windows: Vec<Window>) {
        self.any.set(!windows.is_empty());
        self.windows.replace(windows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Mark(u64, u32),
        Clear(u64, u32),
        Begin,
        End,
        Restart,
    }

    const BLOCKS: u64 = 2000;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let extent = || (0..BLOCKS - 128, 1_u32..=128);
        let step = prop_oneof![
            3 => extent().prop_map(|(block, blocks)| Step::Mark(block, blocks)),
            4 => extent().prop_map(|(block, blocks)| Step::Clear(block, blocks)),
            1 => Just(Step::Begin),
            1 => Just(Step::End),
            1 => Just(Step::Restart),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        /// Compares with two sets of blocks: unreadable ones, and those in the label.
        #[test]
        fn uncorrectable_marks_match_set_model(steps in steps()) {
            let mut marks = Marks::default();
            let (mut marked, mut kept) = (BTreeSet::new(), BTreeSet::new());
            let mut flush: Option<(Option<Written>, BTreeSet<u64>)> = None;
            for step in steps {
                match step {
                    Step::Mark(block, blocks) => {
                        let noted = marks.mark(Extent { block, blocks });
                        prop_assert!(noted.is_ok());
                        marked.extend(block..block + u64::from(blocks));
                        kept.extend(block..block + u64::from(blocks));
                    }
                    Step::Clear(block, blocks) => {
                        marks.clear(Extent { block, blocks });
                        (block..block + u64::from(blocks)).for_each(|one| { marked.remove(&one); });
                    }
                    Step::Begin => {
                        flush = Some((marks.written(), kept.difference(&marked).copied().collect()));
                    }
                    Step::End => {
                        let Some((written, gone)) = flush.take() else { continue };
                        written.into_iter().for_each(|written| marks.settle(written));
                        kept.retain(|one| !gone.contains(one) || marked.contains(one));
                    }
                    Step::Restart => {
                        let mut label = Vec::new();
                        marks.store(&mut label);
                        marks = Marks::default();
                        prop_assert!(marks.recall(&label, BLOCKS).is_some());
                        marked.clone_from(&kept);
                        flush = None;
                    }
                }
                for block in 0..BLOCKS {
                    let found = marks.hold(Extent { block, blocks: 1 });
                    prop_assert_eq!(found, marked.contains(&block), "block {}", block);
                }
            }
        }

        /// Labels are untrusted.
        #[test]
        fn recall_survives_any_label(label in prop::collection::vec(any::<u8>(), 0..200), blocks in 1_u64..) {
            let marks = Marks::default();
            if marks.recall(&label, blocks).is_some() {
                let mut again = Vec::new();
                marks.store(&mut again);
                prop_assert!(label.is_empty() || label.starts_with(&again));
            }
        }
    }

    #[test]
    fn write_uncorrectable_fails_beyond_windows_max() {
        let marks = Marks::default();
        for window in 0..WINDOWS_MAX as u64 {
            assert_eq!(marks.mark(Extent { block: window * 256, blocks: 1 }), Ok(()));
        }
        let more = Extent { block: 128, blocks: 1 };
        assert_eq!(marks.mark(more), Err(Status::CAPACITY_EXCEEDED));
        assert!(!marks.hold(more), "nothing was noted");
        assert_eq!(
            marks.mark(Extent { block: 1, blocks: 100 }),
            Ok(()),
            "in a window that there is"
        );
    }
}
