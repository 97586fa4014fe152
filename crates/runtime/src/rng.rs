//! Seeded RNG: xoshiro256++ (Blackman and Vigna), seeded by splitmix64.
//!
//! The generator is in the tree, with its published test vectors, so that a seed always gives the same run
//! on any machine. Draws use no floating point.

use crate::time::Span;

/// A random stream.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

const fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of the given seed.
    pub fn new(seed: u64) -> Rng {
        let mut s = seed;
        Rng { state: core::array::from_fn(|_| splitmix64(&mut s)) }
    }

    /// One stream per named part, so that a new consumer never shifts an old one's draws.
    pub fn for_part(seed: u64, part: &str) -> Rng {
        let name = part.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Rng::new(seed ^ name)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let t = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= t;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A uniform draw from `0..n` (Lemire's multiplication with rejection, so exactly uniform).
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a draw needs at least one outcome");
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            // The bound of what is drawn again, 2^64 mod n, is below n: most draws need no division.
            if wide as u64 >= n || wide as u64 >= n.wrapping_neg() % n {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Returns true with probability `part / whole`.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// An exponentially distributed span with the given mean: the time to the next arrival of a Poisson
    /// process. Integer arithmetic only; the relative error of the logarithm is below 1e-6.
    pub fn exponential(&mut self, mean: Span) -> Span {
        // u in (0, 1] as u / 2^64; -ln(u / 2^64) = (64 - log2 u) ln 2.
        let u = self.next_u64().max(1);
        let minus_log2_q32 = (64_u64 << 32) - log2_q32(u);
        const LN2_Q32: u128 = 2_977_044_472; // ln 2 * 2^32, rounded
        let minus_ln_q32 = (u128::from(minus_log2_q32) * LN2_Q32) >> 32;
        Span(((u128::from(mean.0) * minus_ln_q32) >> 32) as u64)
    }
}

/// `log2(x)` in 32.32 fixed point, by repeated squaring of the mantissa.
fn log2_q32(x: u64) -> u64 {
    let whole = 63 - x.leading_zeros();
    // The mantissa in [1, 2) as 1.63 fixed point.
    let mut mantissa = x << (63 - whole);
    let mut result = u64::from(whole) << 32;
    for bit in (0..32).rev() {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        if square >> 64 != 0 {
            result |= 1 << bit;
            mantissa = (square >> 1) as u64;
        } else {
            mantissa = square as u64;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro256_plus_plus_matches_published_vectors() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        for want in expected {
            assert_eq!(rng.next_u64(), want);
        }
    }

    #[test]
    fn splitmix64_matches_published_vectors() {
        let mut state = 1_234_567;
        assert_eq!(splitmix64(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(splitmix64(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn rng_streams_of_parts_differ() {
        assert_ne!(Rng::for_part(7, "media").next_u64(), Rng::for_part(7, "link").next_u64());
        assert_eq!(Rng::for_part(7, "media").next_u64(), Rng::for_part(7, "media").next_u64());
    }

    #[test]
    fn rng_below_three_is_uniform() {
        let mut rng = Rng::new(1);
        let mut seen = [0_u32; 3];
        for _ in 0..30_000 {
            seen[rng.below(3) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_700..10_300).contains(&n)), "{seen:?}");
    }

    #[test]
    fn exponential_spans_have_expected_mean_and_median() {
        let mut rng = Rng::new(2);
        let mean = Span::us(10);
        let (mut sum, mut below_median) = (0_u64, 0);
        for _ in 0..100_000 {
            let span = rng.exponential(mean);
            sum += span.0;
            below_median += u32::from(span.0 < mean.0 * 693_147 / 1_000_000);
        }
        let average = sum / 100_000;
        assert!((9_900_000..10_100_000).contains(&average), "mean {average} ps");
        assert!((49_500..50_500).contains(&below_median), "{below_median} below the median");
    }

    #[test]
    fn log2_is_exact_at_powers_of_two() {
        for bit in 0..64 {
            assert_eq!(log2_q32(1 << bit), u64::from(bit as u32) << 32);
        }
    }
}
