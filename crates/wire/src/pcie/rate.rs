//! Link rates: time per byte.

/// Link generation, up to the last without flit mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// 2.5 GT/s, 8b/10b.
    Gen1,
    /// 5 GT/s, 8b/10b.
    Gen2,
    /// 8 GT/s, 128b/130b.
    Gen3,
    /// 16 GT/s, 128b/130b.
    Gen4,
    /// 32 GT/s, 128b/130b.
    Gen5,
}

impl Generation {
    /// All generations, in order.
    pub const ALL: [Generation; 5] =
        [Generation::Gen1, Generation::Gen2, Generation::Gen3, Generation::Gen4, Generation::Gen5];

    /// Transfer rate of a lane, in MT/s; each transfer carries one coded bit.
    pub const fn megatransfers(self) -> u32 {
        match self {
            Generation::Gen1 => 2_500,
            Generation::Gen2 => 5_000,
            Generation::Gen3 => 8_000,
            Generation::Gen4 => 16_000,
            Generation::Gen5 => 32_000,
        }
    }

    /// Line code: data bits and coded bits of a symbol (PCIe base 5.0, 4.2.1 and 4.2.2).
    pub const fn coding(self) -> (u32, u32) {
        match self {
            Generation::Gen1 | Generation::Gen2 => (8, 10),
            Generation::Gen3 | Generation::Gen4 | Generation::Gen5 => (128, 130),
        }
    }
}

/// Time of one byte on a link of `lanes` lanes, in picoseconds, as a reduced fraction. Multiply by the
/// bytes of a whole transfer, then round once.
///
/// # Panics
/// If `lanes` is zero.
pub const fn byte_time(generation: Generation, lanes: u8) -> (u64, u64) {
    assert!(lanes > 0, "a link has lanes");
    let (data, coded) = generation.coding();
    // Eight bits per byte, coded; a million picoseconds per microsecond.
    let num = 8 * coded as u64 * 1_000_000;
    let den = data as u64 * generation.megatransfers() as u64 * lanes as u64;
    let divisor = gcd(num, den);
    (num / divisor, den / divisor)
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_time_matches_link_rate_tables() {
        // One lane: 250 MB/s, 500 MB/s, 8/1.015625 Gb/s and twice that per further generation.
        assert_eq!(byte_time(Generation::Gen1, 1), (4_000, 1));
        assert_eq!(byte_time(Generation::Gen2, 1), (2_000, 1));
        assert_eq!(byte_time(Generation::Gen3, 1), (8_125, 8));
        assert_eq!(byte_time(Generation::Gen2, 4), (500, 1));
        assert_eq!(byte_time(Generation::Gen5, 4), (8_125, 128));
        assert_eq!(byte_time(Generation::Gen1, 12), (1_000, 3));
    }

    #[test]
    fn byte_time_scales_with_generation_and_lanes() {
        for pair in Generation::ALL.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].megatransfers() < pair[1].megatransfers());
            for lanes in [1, 2, 4, 8, 16] {
                let (num, den) = byte_time(pair[0], lanes);
                let (faster_num, faster_den) = byte_time(pair[1], lanes);
                assert!(num * faster_den > faster_num * den);
                let (twice_num, twice_den) = byte_time(pair[0], 2 * lanes);
                assert_eq!(num * twice_den, 2 * twice_num * den);
            }
        }
    }
}
