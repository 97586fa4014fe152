//! Sources of tags that no granule of the device ends with.
//!
//! The paper has two (Vučinić et al., "DC Express", FAST 2014, section 3.1): values picked at random and
//! compared with the contents, at power-up and whenever a write brings the one in force; and intervals
//! of absent values, from which the next tag comes in constant time. Each is exact: what it returns ends
//! no granule.
//!
//! | | memory | a write | the next tag |
//! |---|---|---|---|
//! | intervals | 4 bytes an interval | reads the ends that it replaces, counts both | a few steps |
//! | compared | 8 bytes a value | compares its ends | one of the values; without any, a scan |

use runtime::Rng;

use super::intervals::Intervals;

/// Bits of the filter in front of the values, log2.
const FILTER_LOG2: u32 = 16;

/// Memory of compared values: the values, and the filter.
pub(super) fn memory_bytes(values: u32) -> u64 {
    8 * u64::from(values) + (1 << FILTER_LOG2) / 8
}

/// Tags of the device's choice. All values are the ends of granules: their last eight bytes, of which a
/// tag is the last `bits` bits.
pub(super) struct Absent {
    pub bits: u32,
    source: Source,
}

enum Source {
    Intervals(Intervals),
    Compared(Compared),
}

impl Absent {
    /// Counts the ends of `granules` granules, all zero now.
    pub fn intervals(bits: u32, granules: u64) -> Absent {
        Absent { bits, source: Source::Intervals(Intervals::new(granules)) }
    }

    /// Compares up to `values` values with the ends that it is shown. None is absent before
    /// [`finish`](Absent::finish).
    pub fn compared(bits: u32, values: u32, seed: u64) -> Absent {
        let mut compared = Compared::new(bits, values as usize, seed);
        compared.draw();
        Absent { bits, source: Source::Compared(compared) }
    }

    /// True if a write replaces ends that this source has counted.
    pub fn counts_old(&self) -> bool {
        matches!(self.source, Source::Intervals(_))
    }

    /// True if this end has the tag.
    #[inline]
    pub fn is_in(&self, tag: u64, end: u64) -> bool {
        (tag ^ end) >> (64 - self.bits) == 0
    }

    /// A granule's end as the medium has it at power-up, or found by a scan.
    #[inline]
    pub fn found(&mut self, end: u64) {
        match &mut self.source {
            Source::Intervals(intervals) => {
                let word = (end >> 32) as u32;
                if word != 0 {
                    intervals.remove(0);
                    intervals.add(word);
                }
            }
            Source::Compared(compared) => compared.strike(end),
        }
    }

    /// Hint: these ends will be [added](Absent::add) or [removed](Absent::remove). The counts of random data
    /// are all over a table larger than the caches; fetched one by one, each is a wait for memory.
    #[inline]
    pub fn prefetch(&self, ends: impl Iterator<Item = u64>) {
        if let Source::Intervals(intervals) = &self.source {
            ends.for_each(|end| intervals.prefetch((end >> 32) as u32));
        }
    }

    /// A granule is about to end with this.
    pub fn add(&mut self, end: u64) {
        match &mut self.source {
            Source::Intervals(intervals) => intervals.add((end >> 32) as u32),
            Source::Compared(compared) => compared.strike(end),
        }
    }

    /// A granule no longer ends with this. A value that has been struck stays so: other granules may have it.
    pub fn remove(&mut self, end: u64) {
        if let Source::Intervals(intervals) = &mut self.source {
            intervals.remove((end >> 32) as u32);
        }
    }

    /// A value that ends no granule, if one is known.
    pub fn absent(&self, near: u64) -> Option<u64> {
        match &self.source {
            Source::Intervals(intervals) => {
                let word = intervals.absent((near >> 32) as u32)?;
                Some((u64::from(word) << 32 | near & 0xffff_ffff) & !0 << (64 - self.bits))
            }
            Source::Compared(compared) => compared.compared.last().copied(),
        }
    }

    /// True if a scan of the medium is due, because few values are left.
    pub fn wants_scan(&self) -> bool {
        match &self.source {
            Source::Intervals(_) => false,
            Source::Compared(compared) => compared.compared.len() <= compared.wanted / 4,
        }
    }

    /// Begins a scan with new values, which the writes from now on are compared with too.
    pub fn begin(&mut self) {
        if let Source::Compared(compared) = &mut self.source {
            compared.draw();
        }
    }

    /// Ends a scan that was shown every granule: the values that are left end none.
    pub fn finish(&mut self) {
        if let Source::Compared(compared) = &mut self.source {
            compared.compared.append(&mut compared.pending);
        }
    }
}

struct Compared {
    bits: u32,
    wanted: usize,
    rng: Rng,
    /// Values that end no granule; writes that bring one strike it. The last is taken first.
    compared: Vec<u64>,
    /// Values that a scan is comparing.
    pending: Vec<u64>,
    /// One bit for each hash of a value, so that nearly every end is dismissed by one load.
    filter: Vec<u64>,
}

impl Compared {
    fn new(bits: u32, wanted: usize, seed: u64) -> Compared {
        Compared {
            bits,
            wanted,
            rng: Rng::for_part(seed, "device tags"),
            compared: Vec::new(),
            pending: Vec::new(),
            filter: vec![0; 1 << (FILTER_LOG2 - 6)],
        }
    }

    fn hash(value: u64) -> usize {
        (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_LOG2)) as usize
    }

    fn draw(&mut self) {
        self.pending.clear();
        while self.compared.len() + self.pending.len() < self.wanted {
            // Zero is how blocks end that were never written, or were deallocated.
            let value = self.rng.next_u64() << (64 - self.bits);
            if value != 0 {
                self.pending.push(value);
            }
        }
        self.filter.fill(0);
        for value in self.compared.iter().chain(&self.pending) {
            let hash = Compared::hash(*value);
            self.filter[hash / 64] |= 1 << (hash % 64);
        }
    }

    #[inline]
    fn strike(&mut self, end: u64) {
        let value = end & !0 << (64 - self.bits);
        let hash = Compared::hash(value);
        if self.filter[hash / 64] >> (hash % 64) & 1 != 0 {
            self.compared.retain(|known| *known != value);
            self.pending.retain(|known| *known != value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of few bits, so that contents have many of them: what is returned was never shown.
    #[test]
    fn compared_values_end_no_granule() {
        for seed in 0..50 {
            let mut absent = Absent::compared(33, 16, seed);
            let mut rng = Rng::for_part(seed, "contents");
            // Ends that the source itself is about to pick, and others.
            let picks: Vec<u64> = {
                let Source::Compared(compared) = &absent.source else { unreachable!() };
                compared.pending.clone()
            };
            let shown: Vec<u64> =
                picks.iter().filter(|_| rng.below(2) == 0).map(|end| end | 0x7f).collect();
            shown.iter().for_each(|end| absent.found(*end));
            assert_eq!(absent.absent(0), None, "not before the whole medium has been seen");
            absent.finish();
            let mut left = picks.len() - shown.len();
            while let Some(tag) = absent.absent(0) {
                assert!(!shown.iter().any(|end| absent.is_in(tag, *end)));
                absent.add(tag | 1);
                left -= 1;
            }
            assert_eq!(left, 0);
            assert!(absent.wants_scan());
        }
    }

    #[test]
    fn wide_tags_of_intervals_are_in_empty_intervals() {
        let mut absent = Absent::intervals(48, 4);
        [1u64 << 63, 3 << 60, 1, 0].iter().for_each(|end| absent.found(*end));
        let tag = absent.absent(0x8000_0000_1234_5678).expect("one is empty");
        assert_eq!(tag & 0xffff, 0, "48 bits");
        assert!(tag >> 58 != 1 << 5 && tag >> 58 != 3 << 2 && tag >> 58 != 0, "{tag:#x}");
    }
}
