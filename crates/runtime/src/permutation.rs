//! A keyed permutation of `0..n` without a table: random order, each number once.
//!
//! A Feistel network over the smallest power of two that holds `n`, and cycle-walking: an output
//! outside `0..n` is fed back until one falls inside. Both steps are bijections, so the whole is one
//! (Black and Rogaway, "Ciphers with Arbitrary Finite Domains"). The power of two is less than
//! twice `n`, so a lookup takes fewer than two walks on average. It is not cryptographic: it only
//! has to look random to a device.

const ROUNDS: usize = 6;

/// A permutation of `0..n`.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..n` selected by `key`.
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn new(n: u64, key: u64) -> Permutation {
        assert!(n > 0, "a permutation needs at least one place");
        let bits = 64 - (n - 1).leading_zeros();
        let low_bits = bits.div_ceil(2);
        let mut state = key;
        let keys = core::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        let ones = |bits: u32| (1_u64 << bits) - 1;
        let (low_mask, high_mask) = (ones(low_bits), ones(bits - low_bits));
        Permutation { n, low_bits, low_mask, high_mask, keys }
    }

    /// The size of the domain, `n`.
    pub fn places(&self) -> u64 {
        self.n
    }

    /// The image of `at`.
    ///
    /// # Panics
    /// If `at` is not below `n`.
    #[inline]
    pub fn at(&self, at: u64) -> u64 {
        assert!(at < self.n, "position {at} of {}", self.n);
        let mut place = self.round_trip(at);
        while place >= self.n {
            place = self.round_trip(place);
        }
        place
    }

    fn round_trip(&self, x: u64) -> u64 {
        let mut low = x & self.low_mask;
        let mut high = x >> self.low_bits;
        for pair in self.keys.chunks_exact(2) {
            low ^= mix(high ^ pair[0]) & self.low_mask;
            high ^= mix(low ^ pair[1]) & self.high_mask;
        }
        high << self.low_bits | low
    }
}

/// splitmix64's finaliser (Steele, Lea and Flood): every input bit affects every output bit.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn is_bijection(n: u64, key: u64) -> bool {
        let permutation = Permutation::new(n, key);
        let mut seen = vec![false; n as usize];
        (0..n).all(|at| !core::mem::replace(&mut seen[permutation.at(at) as usize], true))
    }

    #[test]
    fn permutation_is_bijection_for_small_sizes() {
        for n in 1..=130 {
            assert!(is_bijection(n, 7), "{n}");
        }
    }

    #[test]
    fn permutation_of_u64_max_stays_in_domain() {
        let permutation = Permutation::new(u64::MAX, 3);
        assert_ne!(permutation.at(0), permutation.at(u64::MAX - 1));
        assert!(permutation.at(u64::MAX - 1) < u64::MAX);
    }

    #[test]
    fn permutation_scatters_neighbours() {
        let n = 1 << 20;
        let permutation = Permutation::new(n, 9);
        let near = (1..10_000)
            .filter(|&at| permutation.at(at).abs_diff(permutation.at(at - 1)) < n / 100)
            .count();
        // About 2 % of independent draws fall within 1 % on either side.
        assert!((100..300).contains(&near), "{near} of 9,999 are near");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn permutation_is_bijection_for_any_size_and_key(n in 1_u64..20_000, key: u64) {
            prop_assert!(is_bijection(n, key));
        }
    }
}
