//! Checksums of written data, kept in host memory and checked on reads.

use std::collections::{BTreeMap, VecDeque};

use host::fastpath::{Function, Refused};

use crate::UNIT;

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of written data, kept in host memory and checked on reads.
/// Detects a drive that reports success and returns other data.
///
/// A read that overlaps writes in time may return any version that the unit had while the read was in flight,
/// and is checked against the sums of all of them. Units that were not written through this function pass
/// unchecked, as do units after a failed write, since their contents are unknown.
#[derive(Default)]
pub struct Seal {
    /// Units with one version, which is known.
    settled: BTreeMap<u64, u32>,
    /// Other units that were written, since a read in flight began.
    racing: BTreeMap<u64, Racing>,
    /// Reads in flight: place and bytes, and when each began, in this order.
    reads: Vec<(u64, usize, u64)>,
    /// Units in `racing` at which writes have ended, and when, in this order.
    ended: VecDeque<(u64, u64)>,
    /// Commands that have begun or ended.
    now: u64,
}

struct Racing {
    versions: Vec<Version>,
    /// Number of writes in flight.
    open: u32,
    /// One of the writes since `open` was zero has failed.
    failed: bool,
}

/// Contents that a unit has or had.
struct Version {
    /// `None`: unknown.
    sum: Option<u32>,
    begun: u64,
    /// When its write ended, and those that overlapped with it; [`NEVER`] before.
    ended: u64,
    /// When a later write replaced it, or [`NEVER`].
    until: u64,
}

const NEVER: u64 = u64::MAX;

fn units(place: u64, bytes: usize) -> impl Iterator<Item = u64> {
    let first = place / UNIT as u64;
    first..first + bytes as u64 / UNIT as u64
}

impl Racing {
    /// Ends a write. Writes in flight at the same time may have taken effect in any order, so all of them
    /// remain as versions; those that had ended before the first of them began do not.
    fn end(&mut self, now: u64, good: bool) {
        self.failed |= !good;
        self.open = self.open.saturating_sub(1);
        if self.open > 0 {
            return;
        }
        let failed = std::mem::take(&mut self.failed);
        let of_open = self.versions.iter().filter(|version| version.ended == NEVER);
        let first = of_open.map(|version| version.begun).min().unwrap_or(NEVER);
        for version in &mut self.versions {
            if version.ended == NEVER {
                version.ended = now;
                version.sum = version.sum.filter(|_| !failed);
            } else if version.ended < first && version.until == NEVER {
                version.until = now;
            }
        }
    }
}

impl Seal {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Forgets a read in flight. Returns when it began; the earliest of equal reads, which allows the most
    /// versions, so the last of them is forgotten.
    fn end_read(&mut self, place: u64, bytes: usize) -> Option<u64> {
        let equal = |read: &&(u64, usize, u64)| (read.0, read.1) == (place, bytes);
        let begun = self.reads.iter().find(equal)?.2;
        let last = self.reads.iter().rposition(|read| equal(&read))?;
        self.reads.remove(last);
        Some(begun)
    }

    /// Forgets versions that no read in flight can return.
    fn settle(&mut self) {
        let oldest = self.reads.first().map_or(self.now, |read| read.2);
        while let Some((_, unit)) = self.ended.pop_front_if(|(at, _)| *at <= oldest) {
            let Some(racing) = self.racing.get_mut(&unit) else { continue };
            racing.versions.retain(|version| version.until > oldest);
            if racing.open == 0 && racing.versions.len() == 1 {
                self.settled.extend(racing.versions[0].sum.map(|sum| (unit, sum)));
                self.racing.remove(&unit);
            }
        }
    }

    /// Whether a unit may have this sum for a read that began at `begun`.
    fn may_have(&self, unit: u64, begun: u64, sum: u32) -> bool {
        match (self.racing.get(&unit), self.settled.get(&unit)) {
            (Some(racing), _) => {
                let mut seen = racing.versions.iter().filter(|version| version.until > begun);
                seen.any(|version| version.sum.is_none_or(|of_version| of_version == sum))
            }
            (None, Some(settled)) => *settled == sum,
            (None, None) => true,
        }
    }
}

impl Function for Seal {
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        let begun = self.tick();
        for (unit, data) in units(place, block.len()).zip(block.chunks_exact(UNIT)) {
            let settled = self.settled.remove(&unit);
            let racing = self.racing.entry(unit).or_insert_with(|| Racing {
                versions: vec![Version { sum: settled, begun: 0, ended: 0, until: NEVER }],
                open: 0,
                failed: false,
            });
            racing.open += 1;
            let sum = Some(crc32c::crc32c(data));
            racing.versions.push(Version { sum, begun, ended: NEVER, until: NEVER });
        }
        Ok(())
    }

    fn written(&mut self, place: u64, bytes: usize, good: bool) {
        let now = self.tick();
        for unit in units(place, bytes) {
            let Some(racing) = self.racing.get_mut(&unit) else { continue };
            racing.end(now, good);
            self.ended.push_back((now, unit));
        }
        self.settle();
    }

    fn reading(&mut self, place: u64, bytes: usize) {
        let begun = self.tick();
        self.reads.push((place, bytes, begun));
    }

    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        let begun = self.end_read(place, block.len()).unwrap_or(self.now);
        let mut all = units(place, block.len()).zip(block.chunks_exact(UNIT));
        let good = all.all(|(unit, data)| self.may_have(unit, begun, crc32c::crc32c(data)));
        self.settle();
        if good { Ok(()) } else { Err(Refused) }
    }

    fn unread(&mut self, place: u64, bytes: usize) {
        self.end_read(place, bytes);
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(seed: u8) -> Vec<u8> {
        (0..4096_u32).map(|n| ((n * 31) >> 3) as u8 ^ seed).collect()
    }

    #[test]
    fn crc32c_seal_detects_single_bit_flip() {
        let mut seal = Seal::default();
        let mut data = block(1);
        assert_eq!(seal.inward(4096, &mut data), Ok(()), "never written");
        seal.outward(4096, &mut data).unwrap();
        let mut older = block(9);
        assert_eq!(seal.inward(4096, &mut older), Ok(()), "the write is under way");
        seal.written(4096, 4096, true);
        assert_eq!(seal.inward(4096, &mut data), Ok(()));
        for bit in [0, 4095 * 8, 17_000] {
            let mut broken = data.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(seal.inward(4096, &mut broken), Err(Refused));
        }
        assert_eq!(seal.inward(4096, &mut older), Err(Refused), "the write before");
        // The contents of the drive are unknown after a failed write.
        seal.outward(4096, &mut older).unwrap();
        seal.written(4096, 4096, false);
        for mut any in [block(1), block(9), block(5)] {
            assert_eq!(seal.inward(4096, &mut any), Ok(()));
        }
    }

    #[test]
    fn crc32c_seal_accepts_either_of_racing_writes() {
        let mut seal = Seal::default();
        let (mut one, mut other) = (block(1), block(2));
        seal.outward(0, &mut one).unwrap();
        seal.outward(0, &mut other).unwrap();
        seal.written(0, 4096, true);
        seal.written(0, 4096, true);
        assert_eq!((seal.inward(0, &mut one), seal.inward(0, &mut other)), (Ok(()), Ok(())));
        seal.outward(0, &mut one).unwrap();
        seal.written(0, 4096, true);
        assert_eq!((seal.inward(0, &mut one), seal.inward(0, &mut other)), (Ok(()), Err(Refused)));
    }

    /// A read returns a version that the block had while it was in flight, and no other.
    #[test]
    fn crc32c_seal_accepts_versions_of_the_time_of_a_read() {
        // The read begins before the second write, and ends during the third.
        let during_read = |seed| {
            let mut seal = Seal::default();
            seal.outward(0, &mut block(1)).unwrap();
            seal.written(0, 4096, true);
            seal.reading(0, 4096);
            seal.outward(0, &mut block(2)).unwrap();
            seal.written(0, 4096, true);
            seal.outward(0, &mut block(3)).unwrap();
            (seal.inward(0, &mut block(seed)), seal)
        };
        assert_eq!([1, 2, 3].map(|seed| during_read(seed).0), [Ok(()); 3]);
        let (found, mut seal) = during_read(4);
        assert_eq!(found, Err(Refused), "no version of the block");
        // A read that begins now can't return the first.
        for (seed, found) in [(1, Err(Refused)), (2, Ok(())), (3, Ok(()))] {
            seal.reading(0, 4096);
            assert_eq!(seal.inward(0, &mut block(seed)), found, "{seed}");
        }
        seal.written(0, 4096, true);
        seal.reading(0, 4096);
        assert_eq!(seal.inward(0, &mut block(2)), Err(Refused));
        assert!(seal.racing.is_empty() && seal.ended.is_empty() && seal.reads.is_empty());
        assert_eq!(seal.settled.len(), 8, "one sum for each unit");
    }
}
