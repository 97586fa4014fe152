//! Sizes of operations.

use runtime::Rng;

use crate::job::BlockSizes;

/// Generator of sizes, in bytes.
#[derive(Clone, Debug)]
pub enum Sizes {
    One(u32),
    /// `min` times a factor from 1 to `steps`.
    Range {
        min: u32,
        steps: u64,
    },
    /// Each size with the cumulative percentage of draws up to and including it.
    Split(Vec<(u32, u8)>),
}

impl Sizes {
    pub fn new(sizes: &BlockSizes) -> Sizes {
        match sizes {
            BlockSizes::One(size) => Sizes::One(*size),
            BlockSizes::Range { min, max } => {
                Sizes::Range { min: *min, steps: u64::from(max / min) }
            }
            BlockSizes::Split(sizes) => {
                let mut until = 0;
                let sums = sizes.iter().map(|&(size, percent)| {
                    until += percent;
                    (size, until)
                });
                Sizes::Split(sums.collect())
            }
        }
    }

    pub fn next(&self, rng: &mut Rng) -> u32 {
        match self {
            Sizes::One(size) => *size,
            Sizes::Range { min, steps } => min * (1 + rng.below(*steps) as u32),
            Sizes::Split(sizes) => {
                let die = rng.below(100) as u8;
                let drawn = sizes.iter().find(|&&(_, until)| die < until);
                drawn.expect("the weights add to 100").0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bsrange_draws_both_ends_and_only_multiples() {
        let sizes = Sizes::new(&BlockSizes::Range { min: 4096, max: 16384 });
        let mut rng = Rng::new(3);
        let mut seen: Vec<u32> = (0..200).map(|_| sizes.next(&mut rng)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [4096, 8192, 12288, 16384]);
    }

    #[test]
    fn bssplit_follows_its_weights() {
        let sizes = Sizes::new(&BlockSizes::Split(vec![(4096, 60), (512, 0), (65536, 40)]));
        let mut rng = Rng::new(4);
        let (mut small, mut never) = (0, 0);
        for _ in 0..10_000 {
            match sizes.next(&mut rng) {
                4096 => small += 1,
                512 => never += 1,
                _ => {}
            }
        }
        assert!((5_800..6_200).contains(&small), "{small} of 10,000");
        assert_eq!(never, 0);
    }
}
