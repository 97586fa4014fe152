//! Allocation of a drive's blocks: areas, first fit.

use alloc::vec::Vec;

use wire::Lba;

/// Allocator of areas. Free blocks are the gaps between allocated areas.
pub(super) struct Areas {
    from: u64,
    end: u64,
    /// First block and number of blocks of each allocated area, in ascending order.
    taken: Vec<(u64, u64)>,
}

impl Areas {
    /// Manages the blocks from `from` to below `end`.
    pub fn new(from: u64, end: u64) -> Areas {
        Areas { from, end: end.max(from), taken: Vec::new() }
    }

    /// Allocates `blocks` contiguous blocks. The error is the length of the longest free area.
    pub fn take(&mut self, blocks: u64) -> Result<Lba, u64> {
        let (mut at, mut longest) = (self.from, 0);
        for index in 0..=self.taken.len() {
            let (next, length) = self.taken.get(index).copied().unwrap_or((self.end, 0));
            if next - at >= blocks {
                self.taken.insert(index, (at, blocks));
                return Ok(Lba(at));
            }
            longest = longest.max(next - at);
            at = next + length;
        }
        Err(longest)
    }

    /// Allocates these blocks. Returns false if one of them is not free.
    pub fn take_at(&mut self, first: Lba, blocks: u64) -> bool {
        let Some(end) = first.0.checked_add(blocks).filter(|end| *end <= self.end) else {
            return false;
        };
        let index = self.taken.partition_point(|(at, _)| *at < first.0);
        let before = index.checked_sub(1).map_or(self.from, |n| self.taken[n].0 + self.taken[n].1);
        let after = self.taken.get(index).map_or(self.end, |(at, _)| *at);
        let free = blocks > 0 && before <= first.0 && end <= after;
        if free {
            self.taken.insert(index, (first.0, blocks));
        }
        free
    }

    /// Frees the area that begins at `first`.
    pub fn give(&mut self, first: Lba) {
        self.taken.retain(|(at, _)| *at != first.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_first_fit_disjoint_and_reusable() {
        let mut areas = Areas::new(8, 108);
        assert_eq!(areas.take(40), Ok(Lba(8)));
        assert_eq!(areas.take(40), Ok(Lba(48)));
        assert_eq!(areas.take(40), Err(20));
        assert_eq!(areas.take(20), Ok(Lba(88)));
        assert_eq!(areas.take(1), Err(0));
        areas.give(Lba(48));
        assert_eq!(areas.take(30), Ok(Lba(48)));
        assert_eq!(areas.take(11), Err(10));
        areas.give(Lba(8));
        assert_eq!(areas.take(40), Ok(Lba(8)));
        assert_eq!(areas.take(10), Ok(Lba(78)));
        assert_eq!(areas.take(1), Err(0));
    }

    #[test]
    fn take_at_keeps_areas_disjoint() {
        let mut areas = Areas::new(8, 108);
        assert!(areas.take_at(Lba(20), 10));
        for (first, blocks) in
            [(0, 8), (7, 2), (19, 2), (20, 1), (29, 1), (15, 30), (100, 9), (u64::MAX, 2), (40, 0)]
        {
            assert!(!areas.take_at(Lba(first), blocks), "{first}, {blocks}");
        }
        assert!(areas.take_at(Lba(8), 12) && areas.take_at(Lba(98), 10));
        assert_eq!(areas.take(68), Ok(Lba(30)));
        assert_eq!(areas.take(1), Err(0));
        areas.give(Lba(20));
        assert!(areas.take_at(Lba(25), 5));
        assert_eq!(areas.take(5), Ok(Lba(20)));
    }

    #[test]
    fn area_from_empty_drive_fails() {
        assert_eq!(Areas::new(10, 5).take(1), Err(0));
    }
}
