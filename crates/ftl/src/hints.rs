//! Hints of the host: how often units will be written. A unit is placed by its hint, so that units that
//! become invalid together share superblocks, and the collector finds fewer valid ones to copy.
//!
//! Each class has a stream of its own: the host's writes of hot units, those of cold ones, and those of units
//! without a hint. The collector's copies of a hinted unit go back to the stream of its class; only copies
//! of other units go to the collector's stream.
//!
//! Hints are advice. They are in memory alone: a power cut forgets them, and changes nothing but where later
//! units go. If space is short, a unit goes to whatever superblock is open (`streams.rs`), so the proof in
//! [`space`](crate::space) does not depend on them.

use alloc::vec::Vec;

use crate::policy::Heat;

/// Maximum number of hinted ranges. One more replaces the one that was given first.
pub const RANGES_MAX: usize = 1024;

/// Units from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hinted {
    first: u32,
    end: u32,
    heat: Heat,
    /// Later hints have greater numbers.
    given: u64,
}

/// Hinted ranges, disjoint and in ascending order.
#[derive(Clone, Default)]
pub(crate) struct Hints {
    ranges: Vec<Hinted>,
    given: u64,
}

impl Hints {
    /// Without memory if hints are not used.
    pub fn new(used: bool) -> Hints {
        // A new range may divide an older one before the bound is applied.
        Hints { ranges: Vec::with_capacity(if used { RANGES_MAX + 2 } else { 0 }), given: 0 }
    }

    /// Memory of the table, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.ranges.capacity() * size_of::<Hinted>()) as u64
    }

    /// Number of hinted ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    #[inline]
    pub fn heat(&self, unit: u32) -> Heat {
        let at = self.ranges.partition_point(|one| one.end <= unit);
        let found = self.ranges.get(at).filter(|one| one.first <= unit);
        found.map_or(Heat::Typical, |one| one.heat)
    }

    /// Replaces what was known of these units.
    pub fn set(&mut self, first: u32, end: u32, heat: Heat) {
        if first >= end {
            return;
        }
        self.clear(first, end);
        if heat == Heat::Typical {
            return;
        }
        let mut new = Hinted { first, end, heat, given: self.given };
        self.given += 1;
        let mut at = self.ranges.partition_point(|one| one.end <= first);
        if let Some(next) = self.ranges.get(at).filter(|one| one.first == end && one.heat == heat) {
            new.end = next.end;
            self.ranges.remove(at);
        }
        let before = at.checked_sub(1).map(|before| self.ranges[before]);
        if let Some(before) = before.filter(|one| one.end == first && one.heat == heat) {
            at -= 1;
            new.first = before.first;
            self.ranges.remove(at);
        }
        self.ranges.insert(at, new);
        while self.ranges.len() > RANGES_MAX {
            let oldest = (0..self.ranges.len()).min_by_key(|at| self.ranges[*at].given);
            self.ranges.remove(oldest.expect("there are some"));
        }
    }

    fn clear(&mut self, first: u32, end: u32) {
        let mut at = self.ranges.partition_point(|one| one.end <= first);
        if let Some(one) = self.ranges.get(at).copied().filter(|one| one.first < first) {
            self.ranges[at].end = first;
            at += 1;
            if one.end > end {
                self.ranges.insert(at, Hinted { first: end, ..one });
                return;
            }
        }
        let gone = self.ranges[at..].partition_point(|one| one.end <= end);
        self.ranges.drain(at..at + gone);
        if let Some(next) = self.ranges.get_mut(at) {
            next.first = next.first.max(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Rng;

    /// Against a table with an entry for each unit.
    #[test]
    fn hint_table_matches_flat_model() {
        for seed in 0..40 {
            let (mut rng, mut hints) = (Rng::for_part(seed, "hints"), Hints::new(true));
            let mut flat = [Heat::Typical; 64];
            for _ in 0..200 {
                let first = rng.below(64) as u32;
                let end = first + rng.below(64 - u64::from(first) + 1) as u32;
                let heat = [Heat::Typical, Heat::Hot, Heat::Cold][rng.below(3) as usize];
                hints.set(first, end, heat);
                flat[first as usize..end as usize].fill(heat);
                for unit in 0..64 {
                    assert_eq!(hints.heat(unit), flat[unit as usize], "unit {unit} of {seed}");
                }
                let apart = hints.ranges.windows(2).all(|two| {
                    two[0].end < two[1].first
                        || (two[0].end == two[1].first && two[0].heat != two[1].heat)
                });
                assert!(apart && hints.ranges.iter().all(|one| one.first < one.end));
            }
        }
    }

    /// The oldest ranges go, and no memory is added.
    #[test]
    fn hint_table_is_bounded() {
        let mut hints = Hints::new(true);
        let bytes = hints.bytes();
        for at in 0..4 * RANGES_MAX as u32 {
            hints.set(2 * at, 2 * at + 1, Heat::Hot);
        }
        assert_eq!((hints.len(), hints.bytes()), (RANGES_MAX, bytes));
        assert_eq!(
            (hints.heat(0), hints.heat(8 * RANGES_MAX as u32 - 2)),
            (Heat::Typical, Heat::Hot)
        );
        // One range of all units, divided again and again.
        hints.set(0, u32::MAX, Heat::Cold);
        for at in 0..4 * RANGES_MAX as u32 {
            hints.set(5 * at + 1, 5 * at + 2, Heat::Hot);
            assert!(hints.len() <= RANGES_MAX && hints.bytes() == bytes);
        }
    }
}
