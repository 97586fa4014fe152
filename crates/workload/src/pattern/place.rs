//! Offsets of operations within a job's region, in bytes from its beginning.

use runtime::{Permutation, Rng};

use super::skew::SkewedPlaces;
use super::{PatternError, Region};
use crate::job::Distribution;

/// Generator of offsets for one direction.
#[derive(Clone, Debug)]
pub enum Places {
    /// Sequential; starts over at the end of the region.
    Sequential {
        /// End of the operation before; 0: there was none.
        next: u64,
        /// Bytes from there to the next one.
        distance: i64,
    },
    /// Uniform independent draws of multiples of `align`.
    Uniform {
        /// The alignment, in bytes.
        align: u64,
    },
    /// A draw of the zone, then of a multiple of `align` within it.
    Zoned {
        /// In order of offset; `access_until` of the last is 100.
        zones: Vec<Zone>,
        /// The alignment, in bytes.
        align: u64,
    },
    /// Skewed draws of multiples of `align`.
    Skewed { places: SkewedPlaces, align: u64 },
}

/// A part of the region with its share of the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Percent of the accesses that fall in this zone or an earlier one.
    pub access_until: u8,
    /// First byte, from the region's beginning.
    pub from: u64,
    pub to: u64,
}

impl Places {
    /// Random offsets by `distribution` within `region`, at multiples of `align` bytes. `key` selects the
    /// hot places of a skewed distribution.
    pub fn random(
        distribution: &Distribution,
        region: Region,
        align: u64,
        key: u64,
    ) -> Result<Places, PatternError> {
        let zones: Vec<(u8, u64)> = match distribution {
            Distribution::Uniform => return Ok(Places::Uniform { align }),
            Distribution::Zoned(zones) => by_percent(zones, region.bytes),
            Distribution::ZonedBytes(zones) => zones.clone(),
            Distribution::Skewed(skew) => {
                let places = SkewedPlaces::new(skew, (region.bytes / align).max(1), key);
                return Ok(Places::Skewed { places, align });
            }
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

    /// Offset of the next operation and its length, at most `bytes`.
    pub fn next(&mut self, rng: &mut Rng, region: Region, bytes: u32) -> (u64, u32) {
        let wanted = u64::from(bytes);
        let place = match self {
            Places::Sequential { next, distance: 0 } => {
                let place = if *next + wanted > region.bytes { 0 } else { *next };
                *next = place + wanted;
                place
            }
            Places::Sequential { next, distance } => {
                let place = apart(*next, *distance, region.bytes, wanted);
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
            Places::Skewed { places, align } => places.next(rng) * *align,
        };
        (place, wanted.min(region.bytes - place) as u32)
    }
}

/// Place of an operation `distance` from the end of the one before, at `end`. As in fio, going back starts
/// over at the region's end, and going on at its start.
fn apart(end: u64, distance: i64, region_bytes: u64, wanted: u64) -> u64 {
    let (back, last) = (distance < 0, region_bytes - wanted);
    let place = match (end, back) {
        (0, true) => region_bytes.checked_sub(distance.unsigned_abs()),
        (0, false) => Some(0),
        _ => end.checked_add_signed(distance),
    };
    match place.filter(|place| *place <= last) {
        Some(place) => place,
        None if back => region_bytes.saturating_sub(distance.unsigned_abs()).min(last),
        None => 0,
    }
}

/// Bytes of each zone: the differences of the rounded-down running sums, so that no byte is lost.
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

/// Draws a multiple of `align` within `from..to`, which must contain one. `wanted` bytes fit there, if
/// they fit at any.
fn draw(rng: &mut Rng, from: u64, to: u64, align: u64, wanted: u64) -> u64 {
    let first = from.div_ceil(align);
    let last = to.saturating_sub(wanted) / align;
    if last >= first {
        return (first + rng.below(last - first + 1)) * align;
    }
    // The zone is shorter than the operation, which begins in it and may end beyond it.
    first * align
}

/// Random map: each offset once per pass, in an order that changes from pass to pass. Reads and
/// writes of a mixed job share one map, as in fio.
#[derive(Clone, Debug)]
pub struct Map {
    unit: u64,
    order: Permutation,
    position: u64,
}

impl Map {
    /// A map of the complete `unit`s of the region, in bytes.
    pub fn new(region: Region, unit: u32, rng: &mut Rng) -> Map {
        let unit = u64::from(unit);
        let order = Permutation::new(region.bytes / unit, rng.next_u64());
        Map { unit, order, position: 0 }
    }

    /// Offset and length of the next operation, which is cut at the region's end if larger than the unit.
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
    fn zone_percentages_cover_every_byte_of_odd_region() {
        let zones = by_percent(&[(50, 33), (30, 33), (20, 34)], 1001);
        assert_eq!(zones.iter().map(|&(_, bytes)| bytes).sum::<u64>(), 1001);
    }

    #[test]
    fn distance_leaves_holes_and_goes_backwards_as_in_fio() {
        let region = Region { from: 0, bytes: 32 << 10 };
        let places = |distance, count| -> Vec<u64> {
            let mut places = Places::Sequential { next: 0, distance };
            let mut rng = Rng::new(1);
            (0..count).map(|_| places.next(&mut rng, region, 4096).0 >> 10).collect()
        };
        assert_eq!(places(8 << 10, 4), [0, 12, 24, 0]);
        assert_eq!(places(-8 << 10, 8), [24, 20, 16, 12, 8, 4, 0, 24]);
        assert_eq!(places(-4 << 10, 2), [28, 28], "the same block again");
        assert_eq!(places(i64::MIN, 2), [0, 0]);
        assert_eq!(places(i64::MAX, 2), [0, 0]);
    }

    #[test]
    fn zones_get_their_share_of_accesses() {
        let zoned = Distribution::Zoned(vec![(80, 20), (20, 80)]);
        let mut places = Places::random(&zoned, REGION, 4096, 1).unwrap();
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
    fn zones_too_long_or_too_small_are_rejected() {
        let long = Distribution::ZonedBytes(vec![(100, REGION.bytes + 1)]);
        assert!(matches!(
            Places::random(&long, REGION, 4096, 1),
            Err(PatternError::ZonesTooLong { .. })
        ));
        let tiny = Distribution::ZonedBytes(vec![(50, 4608), (50, 512)]);
        assert!(matches!(
            Places::random(&tiny, REGION, 4096, 1),
            Err(PatternError::ZoneTooSmall { bytes: 512, align: 4096 })
        ));
    }

    #[test]
    fn uniform_draw_reaches_both_ends() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[(draw(&mut rng, 0, 4 * 4096, 4096, 4096) / 4096) as usize] = true;
        }
        assert_eq!(seen, [true; 4]);
    }
}
