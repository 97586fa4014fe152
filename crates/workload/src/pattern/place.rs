//! Where operations fall within a job's region, in bytes from its beginning.

use runtime::Rng;

use super::permutation::Permutation;
use super::{PatternError, Region};
use crate::job::Distribution;

/// The next place of one direction.
#[derive(Clone, Debug)]
pub enum Places {
    /// One after the other; starts over at the end.
    Sequential {
        /// Where the next operation begins.
        next: u64,
    },
    /// Anywhere, independently, at multiples of `align`.
    Uniform {
        /// The alignment, in bytes.
        align: u64,
    },
    /// By zone, then anywhere in the zone, at multiples of `align`.
    Zoned {
        /// Percent of the accesses below this zone's end; the last is 100.
        zones: Vec<Zone>,
        /// The alignment, in bytes.
        align: u64,
    },
}

/// A part of the region with its share of the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Percent of the accesses that fall here or in an earlier zone.
    pub access_until: u8,
    /// Where it begins, in bytes from the region's beginning.
    pub from: u64,
    pub to: u64,
}

impl Places {
    /// Places by `distribution` within `region`, at multiples of `align`.
    pub fn random(
        distribution: &Distribution,
        region: Region,
        align: u64,
    ) -> Result<Places, PatternError> {
        let zones: Vec<(u8, u64)> = match distribution {
            Distribution::Uniform => return Ok(Places::Uniform { align }),
            Distribution::Zoned(zones) => by_percent(zones, region.bytes),
            Distribution::ZonedBytes(zones) => zones.clone(),
        };
        let mut result = Vec::with_capacity(zones.len());
        let (mut access_until, mut from) = (0_u8, 0_u64);
        for (access, bytes) in zones {
            let to = from.saturating_add(bytes);
            if to > region.bytes {
                return Err(PatternError::ZonesTooLong { to, region: region.bytes });
            }
            access_until += access;
            if access > 0 && from.div_ceil(align) * align >= to {
                return Err(PatternError::ZoneTooSmall { bytes, align });
            }
            result.push(Zone { access_until, from, to });
            from = to;
        }
        Ok(Places::Zoned { zones: result, align })
    }

    /// Where an operation of at most `bytes` begins, and how many bytes it may have there.
    pub fn next(&mut self, rng: &mut Rng, region: Region, bytes: u32) -> (u64, u32) {
        let wanted = u64::from(bytes);
        let place = match self {
            Places::Sequential { next } => {
                let place = if *next + wanted > region.bytes { 0 } else { *next };
                *next = place + wanted;
                place
            }
            Places::Uniform { align } => draw(rng, 0, region.bytes, *align, wanted),
            Places::Zoned { zones, align } => {
                let die = rng.below(100) as u8;
                let zone = zones.iter().find(|zone| die < zone.access_until);
                let zone = zone.expect("the accesses of the zones add to 100");
                draw(rng, zone.from, zone.to, *align, wanted)
            }
        };
        (place, wanted.min(region.bytes - place) as u32)
    }
}

/// Each zone's bytes: the differences of the rounded-down running sums, so that nothing is lost.
fn by_percent(zones: &[(u8, u8)], region_bytes: u64) -> Vec<(u8, u64)> {
    let share = |percent: u64| (u128::from(region_bytes) * u128::from(percent) / 100) as u64;
    let mut sum = 0_u64;
    let sizes = zones.iter().map(|&(access, size)| {
        let from = share(sum);
        sum += u64::from(size);
        (access, share(sum) - from)
    });
    sizes.collect()
}

/// A multiple of `align` within `from..to`, which holds one, at which `wanted` bytes still fit if
/// there is such a place.
fn draw(rng: &mut Rng, from: u64, to: u64, align: u64, wanted: u64) -> u64 {
    let first = from.div_ceil(align);
    let last = to.saturating_sub(wanted) / align;
    if last >= first {
        return (first + rng.below(last - first + 1)) * align;
    }
    // A zone shorter than the operation: it begins there and may leave the zone.
    first * align
}

/// Places that are each visited once a pass, in an order that changes from pass to pass. Reads and
/// writes of a mixed job share one, as they share fio's random map.
#[derive(Clone, Debug)]
pub struct Map {
    unit: u64,
    order: Permutation,
    position: u64,
}

impl Map {
    /// A map of the whole `unit`s of the region.
    pub fn new(region: Region, unit: u32, rng: &mut Rng) -> Map {
        let unit = u64::from(unit);
        let order = Permutation::new(region.bytes / unit, rng.next_u64());
        Map { unit, order, position: 0 }
    }

    /// The next place. Operations that are larger than the unit are cut at the region's end.
    pub fn next(&mut self, rng: &mut Rng, region: Region, bytes: u32) -> (u64, u32) {
        if self.position == self.order.places() {
            self.order = Permutation::new(self.order.places(), rng.next_u64());
            self.position = 0;
        }
        let place = self.order.at(self.position) * self.unit;
        self.position += 1;
        (place, u64::from(bytes).min(region.bytes - place) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region { from: 0, bytes: 1 << 20 };

    #[test]
    fn percentages_of_an_odd_region_lose_no_byte() {
        let zones = by_percent(&[(50, 33), (30, 33), (20, 34)], 1001);
        assert_eq!(zones.iter().map(|&(_, bytes)| bytes).sum::<u64>(), 1001);
    }

    #[test]
    fn zones_get_their_share_of_the_accesses() {
        let zoned = Distribution::Zoned(vec![(80, 20), (20, 80)]);
        let mut places = Places::random(&zoned, REGION, 4096).unwrap();
        let mut rng = Rng::new(5);
        let border = REGION.bytes / 5;
        let hot = (0..10_000)
            .filter(|_| {
                let (place, bytes) = places.next(&mut rng, REGION, 4096);
                assert!(place % 4096 == 0 && place + u64::from(bytes) <= REGION.bytes);
                place < border
            })
            .count();
        assert!((7_800..8_200).contains(&hot), "{hot} of 10,000 in the hot fifth");
    }

    #[test]
    fn zones_that_cannot_be_are_refused() {
        let long = Distribution::ZonedBytes(vec![(100, REGION.bytes + 1)]);
        assert!(matches!(
            Places::random(&long, REGION, 4096),
            Err(PatternError::ZonesTooLong { .. })
        ));
        let tiny = Distribution::ZonedBytes(vec![(50, 4608), (50, 512)]);
        assert!(matches!(
            Places::random(&tiny, REGION, 4096),
            Err(PatternError::ZoneTooSmall { bytes: 512, align: 4096 })
        ));
    }

    #[test]
    fn a_draw_reaches_both_ends() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[(draw(&mut rng, 0, 4 * 4096, 4096, 4096) / 4096) as usize] = true;
        }
        assert_eq!(seen, [true; 4]);
    }
}
