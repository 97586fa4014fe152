//! Skewed draws of places: `random_distribution=zipf`, `pareto` and `normal`.
//!
//! A draw is a rank; the most frequent rank is 0. Without a centre, a permutation scatters the ranks over the
//! region, as fio does with a hash; the permutation has no collisions, so each place keeps the share of its
//! rank. With a centre, the ranks stay next to each other, from the centre on, and wrap at the region's end.
//!
//! The functions of `libm` are used, not those of the system: a seed gives the same places on every machine.

use runtime::{Permutation, Rng};

use crate::job::{Decimal, Skew};

/// Draws places out of `0..n`.
#[derive(Clone, Debug)]
pub struct SkewedPlaces {
    n: u64,
    ranks: Ranks,
    order: Order,
}

#[derive(Clone, Debug)]
enum Ranks {
    Zipf(Zipf),
    /// Rank `(n - 1) * u^power`.
    Pareto {
        power: f64,
    },
    /// Standard deviation in places; a draw is a distance from the middle.
    Normal {
        deviation: f64,
    },
}

#[derive(Clone, Debug)]
enum Order {
    Scattered(Permutation),
    /// Place of rank 0.
    From(u64),
}

impl SkewedPlaces {
    /// Draws of `n` places. `key` selects the permutation: streams of one key have the same hot places.
    pub fn new(skew: &Skew, n: u64, key: u64) -> SkewedPlaces {
        let ranks = match skew {
            Skew::Zipf { theta, .. } => Ranks::Zipf(Zipf::new(n, theta.to_f64())),
            Skew::Pareto { h, .. } => {
                let h = h.to_f64();
                Ranks::Pareto { power: libm::log(h) / libm::log(1.0 - h) }
            }
            Skew::Normal { percent, .. } => {
                Ranks::Normal { deviation: n as f64 * percent.to_f64() / 100.0 }
            }
        };
        let from = |centre: &Decimal| Order::From(((n as f64 * centre.to_f64()) as u64).min(n - 1));
        let order = match skew {
            Skew::Zipf { centre: None, .. } | Skew::Pareto { centre: None, .. } => {
                Order::Scattered(Permutation::new(n, key))
            }
            Skew::Normal { centre: None, .. } => Order::From(n / 2),
            Skew::Zipf { centre: Some(centre), .. }
            | Skew::Pareto { centre: Some(centre), .. }
            | Skew::Normal { centre: Some(centre), .. } => from(centre),
        };
        SkewedPlaces { n, ranks, order }
    }

    pub fn next(&self, rng: &mut Rng) -> u64 {
        let rank = match &self.ranks {
            Ranks::Zipf(zipf) => zipf.next(rng) - 1,
            Ranks::Pareto { power } => ((self.n - 1) as f64 * libm::pow(unit(rng), *power)) as u64,
            // The sum of twelve uniform draws has a variance of 1 (Irwin and Hall), as in fio.
            Ranks::Normal { deviation } => {
                let sum: f64 = (0..12).map(|_| unit(rng)).sum();
                ((sum - 6.0) * deviation).rem_euclid(self.n as f64) as u64
            }
        };
        let rank = rank.min(self.n - 1);
        match &self.order {
            Order::Scattered(order) => order.at(rank),
            Order::From(first) => {
                ((u128::from(*first) + u128::from(rank)) % u128::from(self.n)) as u64
            }
        }
    }
}

/// A uniform draw from `[0, 1)`, in steps of 2^-53.
fn unit(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Zipf's distribution over `1..=n` by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to
/// generate variates from monotone discrete distributions", 1996): exact for every exponent, without sums
/// over `n`.
#[derive(Clone, Debug)]
struct Zipf {
    n: f64,
    theta: f64,
    /// Integral of the density up to 1.5, less the first probability; and up to `n + 0.5`.
    ends: (f64, f64),
    /// A candidate no further than this below its rank is accepted at once.
    accept: f64,
}

impl Zipf {
    fn new(n: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { n: n as f64, theta, ends: (0.0, 0.0), accept: 0.0 };
        zipf.ends = (zipf.integral(1.5) - 1.0, zipf.integral(zipf.n + 0.5));
        zipf.accept = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn next(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.ends.1 + unit(rng) * (self.ends.0 - self.ends.1);
            let x = self.inverse(u);
            let rank = libm::round(x).clamp(1.0, self.n);
            if rank - x <= self.accept || u >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        libm::pow(x, -self.theta)
    }

    /// Integral of the density from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.theta;
        (libm::pow(x, power) - 1.0) / power
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.theta;
        libm::pow((1.0 + area * power).max(0.0), 1.0 / power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(skew: &str, n: u64, draws: u64) -> Vec<u64> {
        let places = SkewedPlaces::new(&skew.parse().unwrap(), n, 7);
        let mut rng = Rng::new(3);
        let mut counts = vec![0; n as usize];
        (0..draws).for_each(|_| counts[places.next(&mut rng) as usize] += 1);
        counts
    }

    #[test]
    fn zipf_shares_match_generalised_harmonic_numbers() {
        for (skew, theta) in [("zipf:1.2", 1.2_f64), ("zipf:0.8", 0.8), ("zipf:2.5", 2.5)] {
            let mut counts = counts(skew, 1000, 1_000_000);
            counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            let harmonic: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-theta)).sum();
            for rank in [1_usize, 2, 3, 10] {
                let want = (rank as f64).powf(-theta) / harmonic * 1e6;
                let got = counts[rank - 1] as f64;
                assert!(
                    (got - want).abs() < 5.0 * want.sqrt() + 1.0,
                    "{skew}, rank {rank}: {got} of {want}"
                );
            }
        }
    }

    #[test]
    fn pareto_h_gives_one_minus_h_of_accesses_to_h_of_places() {
        let mut counts = counts("pareto:0.2", 10_000, 1_000_000);
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let hot: u64 = counts[..2_000].iter().sum();
        assert!((795_000..806_000).contains(&hot), "{hot} of a million in a fifth");
    }

    #[test]
    fn normal_is_centred_with_deviation_in_percent_of_region() {
        for (skew, centre) in [("normal:5", 500.0), ("normal:5:0.25", 250.0)] {
            let counts = counts(skew, 1000, 400_000);
            let of = |value: &dyn Fn(f64) -> f64| -> f64 {
                let all =
                    counts.iter().enumerate().map(|(at, count)| value(at as f64) * *count as f64);
                all.sum::<f64>() / 400_000.0
            };
            let mean = of(&|at| at);
            let deviation = of(&|at| (at - mean).powi(2)).sqrt();
            assert!(
                (mean - centre).abs() < 1.0 && (deviation - 50.0).abs() < 1.0,
                "{mean}, {deviation}"
            );
        }
    }

    #[test]
    fn centre_keeps_ranks_adjacent_and_none_scatters_them() {
        let adjacent = counts("zipf:1.2:0.25", 1000, 100_000);
        assert!(adjacent.windows(2).skip(250).take(5).all(|pair| pair[0] > pair[1]));
        let scattered = counts("zipf:1.2", 1000, 100_000);
        let top = (0..1000).max_by_key(|at| scattered[*at]).unwrap();
        let second = (0..1000).filter(|at| *at != top).max_by_key(|at| scattered[*at]).unwrap();
        assert!(top.abs_diff(second) > 1);
    }

    #[test]
    fn draws_of_one_place_and_of_very_many_are_in_range() {
        for skew in [
            "zipf:0.01",
            "zipf:1.01",
            "zipf:20",
            "pareto:0.001",
            "pareto:0.99",
            "normal:100",
            "normal:0",
        ] {
            for n in [1, 2, 1 << 40] {
                let places = SkewedPlaces::new(&skew.parse().unwrap(), n, 1);
                let mut rng = Rng::new(9);
                assert!((0..1000).all(|_| places.next(&mut rng) < n), "{skew} of {n}");
            }
        }
    }
}
