//! Intervals of 32-bit values in which no granule of the device ends: the source of the next tag.
//!
//! "Additional computing resources can be provided in the device to monitor writes to keep track of
//! intervals of values not present in the currently stored data so that the selection of a new tag can
//! always complete in constant time" (Vučinić et al., "DC Express", FAST 2014, section 3.1).
//!
//! The values are divided into 2^k equal intervals, each with a count of the granules that end in it. With
//! more intervals than granules one is always empty, whatever the contents; with fewer, one is empty unless
//! the contents were spread deliberately. A bit tree finds it in at most five steps.

use zerocopy::IntoBytes;

/// Maximum number of intervals, log2: 64 MiB of counts.
const COUNT_LOG2_MAX: u32 = 24;

/// Granule counts of all intervals.
pub struct Intervals {
    log2: u32,
    counts: Vec<u32>,
    /// One bit per empty interval, 64 to a word. Each higher level has one bit per non-zero word below.
    levels: Vec<Vec<u64>>,
}

impl Intervals {
    /// Creates the intervals of a device of `granules` granules, all of which end with the word zero.
    pub fn new(granules: u64) -> Intervals {
        Intervals::with_log2(granules, Intervals::log2(granules))
    }

    fn log2(granules: u64) -> u32 {
        (granules + 2).next_power_of_two().ilog2().clamp(6, COUNT_LOG2_MAX)
    }

    /// Memory for the intervals of this number of granules: counts, and the tree of bits.
    pub fn memory_bytes(granules: u64) -> u64 {
        let (mut bits, mut tree) = (1u64 << Intervals::log2(granules), 0);
        let counts = 4 * bits;
        loop {
            bits = bits.div_ceil(64);
            tree += 8 * bits;
            if bits == 1 {
                return counts + tree;
            }
        }
    }

    fn with_log2(granules: u64, log2: u32) -> Intervals {
        let mut levels = Vec::new();
        let mut bits = 1usize << log2;
        loop {
            let words = bits.div_ceil(64);
            let last = bits - 64 * (words - 1);
            let mut level = vec![u64::MAX; words];
            level[words - 1] = u64::MAX >> (64 - last);
            levels.push(level);
            if words == 1 {
                break;
            }
            bits = words;
        }
        let mut intervals = Intervals { log2, counts: vec![0; 1 << log2], levels };
        intervals.set(0, u32::try_from(granules).unwrap_or(u32::MAX));
        intervals
    }

    fn of(&self, word: u32) -> usize {
        (word >> (32 - self.log2)) as usize
    }

    /// Hint: this word will be added or removed.
    #[inline]
    pub fn prefetch(&self, word: u32) {
        let interval = self.of(word);
        runtime::prefetch(self.counts[interval..=interval].as_bytes());
        runtime::prefetch(self.levels[0][interval / 64..=interval / 64].as_bytes());
    }

    fn set(&mut self, interval: usize, count: u32) {
        let was_empty = self.counts[interval] == 0;
        self.counts[interval] = count;
        if was_empty == (count == 0) {
            return;
        }
        let mut bit = interval;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            let before = *word;
            match count == 0 {
                true => *word |= 1 << (bit % 64),
                false => *word &= !(1 << (bit % 64)),
            }
            if (before == 0) == (*word == 0) {
                return;
            }
            bit /= 64;
        }
    }

    /// Counts a granule that now ends with this word. A count that reaches `u32::MAX` stays there, so that
    /// its interval is never considered empty again.
    pub fn add(&mut self, word: u32) {
        let interval = self.of(word);
        self.set(interval, self.counts[interval].saturating_add(1));
    }

    /// Removes a granule that no longer ends with this word.
    ///
    /// # Panics
    /// If the interval's count is zero.
    pub fn remove(&mut self, word: u32) {
        let interval = self.of(word);
        let count = self.counts[interval];
        assert!(count > 0, "no granule ends in the interval of {word:#x}");
        if count < u32::MAX {
            self.set(interval, count - 1);
        }
    }

    /// A word in an empty interval, if there is one: the first at or after that of `near`, and round.
    pub fn absent(&self, near: u32) -> Option<u32> {
        let from = self.of(near);
        let found = self.first_empty(from).or_else(|| self.first_empty(0))?;
        Some((found as u32) << (32 - self.log2) | near & (u32::MAX >> self.log2))
    }

    /// First empty interval at or after `from`: up the tree to a level with a set bit, then down.
    fn first_empty(&self, from: usize) -> Option<usize> {
        let mut bit = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(bit / 64)?;
            let here = word & (u64::MAX << (bit % 64));
            if here != 0 {
                let found = bit / 64 * 64 + here.trailing_zeros() as usize;
                return Some(self.levels[..height].iter().rev().fold(found, |above, level| {
                    64 * above + level[above].trailing_zeros() as usize
                }));
            }
            bit = bit / 64 + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn absent_word_exists_with_fewer_granules_than_intervals() {
        let mut intervals = Intervals::new(1000);
        for granule in 0..1000u32 {
            intervals.remove(0);
            intervals.add(granule << 22);
            let tag = intervals.absent(granule).expect("one is always empty");
            assert_eq!(intervals.counts[intervals.of(tag)], 0);
        }
    }

    #[test]
    fn memory_of_intervals_is_that_of_their_parts() {
        for granules in [1, 1000, 1 << 20] {
            let intervals = Intervals::new(granules);
            let tree: usize = intervals.levels.iter().map(|level| 8 * level.len()).sum();
            let held = 4 * intervals.counts.len() + tree;
            assert_eq!(Intervals::memory_bytes(granules), held as u64);
        }
    }

    #[test]
    fn absent_is_none_when_all_intervals_taken() {
        let mut intervals = Intervals::with_log2(1, 6);
        (1..64).for_each(|interval| intervals.add(interval << 26));
        assert_eq!(intervals.absent(7), None);
        intervals.remove(5 << 26);
        assert_eq!(intervals.absent(7 << 26 | 3), Some(5 << 26 | 3));
    }

    proptest! {
        /// Compares with a map that counts words, and a linear search.
        #[test]
        fn intervals_match_map_model(words in prop::collection::vec((any::<u32>(), any::<bool>()), 1..400),
                          near in any::<u32>(), log2 in 6u32..13) {
            let mut intervals = Intervals::with_log2(0, log2);
            let mut model = BTreeMap::<u32, u32>::new();
            for (word, adds) in words {
                let count = model.entry(word >> (32 - log2)).or_default();
                if adds {
                    intervals.add(word);
                    *count += 1;
                } else if *count > 0 {
                    intervals.remove(word);
                    *count -= 1;
                }
            }
            let empty = |interval: &u32| model.get(interval).is_none_or(|count| *count == 0);
            let from = near >> (32 - log2);
            let all = (from..1 << log2).chain(0..from);
            let expected = all.clone().find(empty);
            prop_assert_eq!(intervals.absent(near).map(|word| word >> (32 - log2)), expected);
        }
    }
}
