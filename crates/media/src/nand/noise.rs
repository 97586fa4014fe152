//! Bit errors per codeword, by wear, retention, read disturb and page type.
//!
//! No floating point. The number of errors in a codeword is a Poisson draw of which only the mean changes
//! with time: a place keeps its random numbers from erase to erase. So a page gets worse over time and never
//! recovers by itself, and an immediate second read gives the same result.

use runtime::{Rng, Span};

use super::Error;

/// Seconds per year of 365 days.
pub const YEAR_S: u32 = 365 * 24 * 3600;

/// Bit errors, error correction, and permanent failures. Rates are raw bit errors in 10^12 bits read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// Rated program/erase cycles of a block.
    pub rated_cycles: u32,
    /// Rate of a freshly programmed page in a new block.
    pub fresh: u64,
    /// Added by wear at the rated cycles; grows with the square of the cycles.
    pub worn: u64,
    /// Added by a year at 40 degrees at the rated cycles; grows with the square root of time since the
    /// block's first page was programmed, and with the cycles.
    pub aged: u64,
    /// Added by a million reads of the block's pages at the rated cycles; grows with both.
    pub disturbed: u64,
    /// Rate in percent for lower, middle, upper and top pages.
    pub by_kind: [u32; 4],
    /// Data bytes per codeword: a power of two that divides a unit.
    pub codeword_bytes: u32,
    /// Correctable bit errors per codeword.
    pub corrects: u32,
    /// Maximum number of read retries with other thresholds.
    pub retries: u32,
    /// Percentage of the errors from wear, retention and reads that remains at each further retry.
    pub retry_keeps: u32,
    /// Factory bad blocks per million.
    pub factory_bad: u32,
    /// Page program failures in 10^9 when new, and the increase at the rated cycles.
    pub program_fails: [u64; 2],
    /// Erase failures in 10^9 when new, and the increase at the rated cycles.
    pub erase_fails: [u64; 2],
}

impl Errors {
    /// Flash without errors and wear.
    pub fn none() -> Errors {
        Errors {
            rated_cycles: 1,
            fresh: 0,
            worn: 0,
            aged: 0,
            disturbed: 0,
            by_kind: [100; 4],
            codeword_bytes: 512,
            corrects: 1,
            retries: 0,
            retry_keeps: 100,
            factory_bad: 0,
            program_fails: [0; 2],
            erase_fails: [0; 2],
        }
    }

    pub(super) fn check(&self, unit_bytes: u32) -> Result<(), Error> {
        let refuse = |key, found, expected| Err(Error::BadSpec { key, found, expected });
        let codeword = self.codeword_bytes;
        if !codeword.is_power_of_two() || codeword < 64 || codeword > unit_bytes {
            return refuse(
                "codeword_bytes",
                codeword.into(),
                "a power of two from 64 to unit_bytes",
            );
        }
        if self.rated_cycles == 0 {
            return refuse("rated_cycles", 0, "at least 1");
        }
        for rate in [self.fresh, self.worn, self.aged, self.disturbed] {
            if rate > ALL {
                return refuse("rate of bit errors", rate, "at most 10^12 in 10^12");
            }
        }
        if let Some(kind) = self.by_kind.iter().find(|percent| **percent > 10_000) {
            return refuse("by_kind", (*kind).into(), "at most 10000 percent");
        }
        if self.retry_keeps > 100 || self.retries > 100 {
            return refuse(
                "retry_keeps",
                self.retry_keeps.into(),
                "at most 100, and as many retries",
            );
        }
        if self.factory_bad > 500_000 {
            return refuse("factory_bad", self.factory_bad.into(), "at most 500000 in a million");
        }
        Ok(())
    }

    /// Wear in units of 1/65,536 of the rated cycles; capped at 4,096 times those.
    fn wear(&self, cycles: u32) -> u64 {
        ((u64::from(cycles) << 16) / u64::from(self.rated_cycles)).min(1 << 28)
    }

    /// Rate of raw bit errors in 10^12, at retry `step`.
    #[inline]
    pub fn rate(&self, state: Wear, kind: u8, step: u32) -> u64 {
        let wear = self.wear(state.cycles);
        let mut added = self.worn.saturating_mul((wear * wear) >> 16) >> 16;
        if self.aged > 0 && state.age_s > 0 {
            let age = ((u64::from(state.age_s) << 32) / u64::from(YEAR_S)).isqrt();
            added += self.aged.saturating_mul((wear * age) >> 16) >> 16;
        }
        let reads = u64::from(state.reads);
        added += (self.disturbed.saturating_mul(reads) / 1_000_000).saturating_mul(wear) >> 16;
        for _ in 0..step {
            added = added * u64::from(self.retry_keeps) / 100;
        }
        let percent = u64::from(self.by_kind[usize::from(kind)]);
        (self.fresh.saturating_add(added).saturating_mul(percent) / 100).min(ALL)
    }

    /// Bit errors in a codeword of `bytes` bytes, with the RNG seed `place`.
    pub fn draw(&self, rate: u64, bytes: u32, place: u64) -> u32 {
        self.count(rate, bytes, place, self.corrects.saturating_mul(4))
    }

    /// Bit errors in a codeword; `None` if there are more than can be corrected. As [`Errors::draw`], but
    /// stops counting there: a torn page has thousands.
    pub(super) fn correctable(&self, rate: u64, place: u64) -> Option<u32> {
        let errors = self.count(rate, self.codeword_bytes, place, self.corrects);
        (errors <= self.corrects).then_some(errors)
    }

    /// Bit errors in a codeword, counted up to `most`.
    fn count(&self, rate: u64, bytes: u32, place: u64, most: u32) -> u32 {
        // Mean number of errors, in millionths: below 10^12 * 2^17 / 10^6.
        let mean = (u128::from(rate) * u128::from(bytes) * 8 / 1_000_000) as u64;
        if mean <= self.quiet() {
            return (mean / 1_000_000) as u32;
        }
        let mut rng = Rng::new(place);
        let (mut errors, mut sum) = (0, 0_u64);
        while errors <= most {
            // Errors occur along the mean like arrivals of a Poisson process in time.
            #[cfg(test)]
            DRAWS.set(DRAWS.get() + 1);
            sum = sum.saturating_add(rng.exponential(Span(1_000_000)).0);
            if sum > mean {
                break;
            }
            errors += 1;
        }
        errors
    }

    /// The greatest rate at which no draw is needed: see [`Errors::quiet`].
    pub(super) fn quiet_rate(&self) -> u64 {
        let bits = u128::from(self.codeword_bytes) * 8;
        (u128::from(self.quiet()) * 1_000_000 / bits).try_into().unwrap_or(u64::MAX)
    }

    /// Mean number of bit errors in a codeword at this rate, rounded down.
    #[inline]
    pub(super) fn mean(&self, rate: u64) -> u32 {
        (rate.saturating_mul(u64::from(self.codeword_bytes) * 8) / ALL) as u32
    }

    /// The mean, in millionths, up to which a codeword is uncorrectable less than once in 2^64 draws, so that
    /// the draw is skipped. By Chernoff's bound on a Poisson tail: at a mean of c / r, c errors are less
    /// likely than exp(-c (ln r - 1)).
    fn quiet(&self) -> u64 {
        let c = u64::from(self.corrects) + 1;
        let ratio = match c {
            42.. => 8,
            20.. => 32,
            9.. => 512,
            _ => return 0,
        };
        c * 1_000_000 / ratio
    }

    /// The least rate at which no codeword is correctable: see [`Errors::hopeless`].
    pub(super) fn hopeless_rate(&self) -> u64 {
        let bits = u128::from(self.codeword_bytes) * 8;
        (self.hopeless() * 1_000_000).div_ceil(bits).try_into().unwrap_or(u64::MAX)
    }

    /// The mean, in millionths, from which on a codeword is correctable less than once in 2^64 draws, so that
    /// the draw is skipped. By Chernoff's bound on a Poisson tail: at a mean of r c, c errors or fewer are
    /// less likely than exp(-c (r - 1 - ln r)).
    fn hopeless(&self) -> u128 {
        let c = u128::from(self.corrects) + 1;
        let ratio = match c {
            42.. => 4,
            20.. => 5,
            9.. => 9,
            _ => 60,
        };
        c * ratio * 1_000_000
    }

    /// Draws an event with these odds in 10^9 (new, and added by wear) at this place.
    pub(super) fn happens(&self, odds: [u64; 2], cycles: u32, place: u64) -> bool {
        if odds == [0; 2] {
            return false;
        }
        let wear = self.wear(cycles);
        let odds = odds[0].saturating_add(odds[1].saturating_mul((wear * wear) >> 16) >> 16);
        Rng::new(place).chance(odds.min(BILLION), BILLION)
    }
}

#[cfg(test)]
thread_local! {
    /// Number of random numbers drawn for bit errors on this thread.
    pub(super) static DRAWS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

const ALL: u64 = 1_000_000_000_000;
const BILLION: u64 = 1_000_000_000;

/// Wear state of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Number of erases.
    pub cycles: u32,
    /// Reads of its pages since the last erase.
    pub reads: u32,
    /// Seconds since its first page was programmed.
    pub age_s: u32,
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::*;

    fn errors() -> Errors {
        Errors {
            rated_cycles: 1000,
            fresh: 1_000_000,
            worn: 4_000_000,
            aged: 8_000_000,
            disturbed: 16_000_000,
            by_kind: [100, 200, 50, 100],
            retry_keeps: 50,
            ..Errors::none()
        }
    }

    #[test]
    fn bit_error_rate_by_wear_retention_reads_and_page_type() {
        let rate = |cycles, reads, age_s, kind, step| {
            errors().rate(Wear { cycles, reads, age_s }, kind, step) / 1000
        };
        assert_eq!(rate(0, 0, 0, 0, 0), 1_000);
        assert_eq!(rate(1000, 0, 0, 0, 0), 5_000);
        assert_eq!(rate(500, 0, 0, 0, 0), 2_000, "the square of the wear");
        assert_eq!(rate(1000, 0, YEAR_S, 0, 0), 13_000);
        assert_eq!(rate(1000, 0, YEAR_S / 4, 0, 0), 9_000, "the root of the time");
        assert_eq!(rate(500, 0, YEAR_S, 0, 0), 6_000, "and half the wear");
        assert_eq!(rate(1000, 500_000, 0, 0, 0), 13_000);
        assert_eq!(rate(0, 500_000, YEAR_S, 0, 0), 1_000, "new cells hold");
        assert_eq!(rate(1000, 0, YEAR_S, 1, 0), 26_000);
        assert_eq!(rate(1000, 0, YEAR_S, 2, 0), 6_500);
        assert_eq!(rate(1000, 0, YEAR_S, 0, 1), 7_000, "half of what was added");
        assert_eq!(rate(1000, 0, YEAR_S, 0, 2), 4_000);
    }

    /// Probability of more than `c` arrivals at this mean.
    fn poisson_tail(mean: f64, c: u32) -> f64 {
        let mut term = (-mean).exp();
        let mut below = term;
        for k in 1..=c {
            term *= mean / f64::from(k);
            below += term;
        }
        1.0 - below
    }

    #[test]
    fn bit_error_counts_match_poisson_distribution() {
        let errors = Errors { corrects: 40, ..Profile::test().errors };
        for (rate, bytes) in [(4_000_000_000, 1024), (5_000_000_000, 1024), (1_000_000_000, 4096)] {
            let mean = rate as f64 * 8.0 * f64::from(bytes) / 1e12;
            let draws = 5_000_u64;
            let mut rng = Rng::for_part(1, "errors test");
            let seen: Vec<u32> =
                (0..draws).map(|_| errors.draw(rate, bytes, rng.next_u64())).collect();
            let average = seen.iter().map(|n| f64::from(*n)).sum::<f64>() / draws as f64;
            let off = (average - mean) / (mean / draws as f64).sqrt();
            assert!(off.abs() < 4.0, "mean {average}, expected {mean}");
            let lost = seen.iter().filter(|n| **n > 40).count() as f64 / draws as f64;
            let expected = poisson_tail(mean, 40);
            let deviation = (expected * (1.0 - expected) / draws as f64).sqrt();
            assert!((lost - expected).abs() < 4.0 * deviation, "{lost} lost, expected {expected}");
        }
    }

    #[test]
    fn skipped_draws_at_low_rates_are_negligible() {
        for corrects in 0..400 {
            let errors = Errors { corrects, ..errors() };
            let mean = errors.quiet() as f64 / 1e6;
            // The first uncorrectable term bounds the tail, being at least half of it.
            let c = f64::from(corrects) + 1.0;
            let ln_factorial: f64 = (1..=corrects + 1).map(|k| f64::from(k).ln()).sum();
            let ln_term = if mean == 0.0 { f64::MIN } else { c * mean.ln() - mean - ln_factorial };
            assert!(ln_term + 2_f64.ln() < -64.0 * 2_f64.ln(), "{corrects}: e^{ln_term}");
        }
    }

    #[test]
    fn skipped_draws_at_high_rates_are_negligible() {
        for corrects in 0..400 {
            let errors = Errors { corrects, ..errors() };
            let (mean, c) = (errors.hopeless() as f64 / 1e6, f64::from(corrects));
            // The last correctable term bounds the tail: those below it shrink by c / mean.
            let ln_factorial: f64 = (1..=corrects).map(|k| f64::from(k).ln()).sum();
            let ln_term = c * mean.ln() - mean - ln_factorial - (1.0 - c / mean).ln();
            assert!(ln_term < -64.0 * 2_f64.ln(), "{corrects}: e^{ln_term}");
        }
    }

    #[test]
    fn early_stopped_error_count_agrees_with_full_count() {
        for profile in Profile::all() {
            let errors = profile.errors;
            let (quiet, hopeless) = (errors.quiet_rate(), errors.hopeless_rate());
            let steps = 40;
            for step in 0..=steps {
                let rate = quiet + (hopeless - quiet) / steps * step;
                for place in 0..50 {
                    let whole = errors.draw(rate, errors.codeword_bytes, place);
                    let expected = (whole <= errors.corrects).then_some(whole);
                    assert_eq!(errors.correctable(rate, place), expected, "{rate} {place}");
                }
            }
        }
    }

    #[test]
    fn bit_errors_of_a_codeword_grow_monotonically_with_rate() {
        let errors = Errors { corrects: 100, ..errors() };
        for place in 0..100 {
            let drawn = |rate: u64| errors.draw(rate * 1_000_000_000, 1024, place);
            let counts: Vec<u32> = (2..30).map(drawn).collect();
            assert!(counts.is_sorted(), "place {place}: {counts:?}");
            assert!(counts[0] < counts[27]);
        }
    }

    #[test]
    fn failure_rate_matches_configured_odds() {
        let errors = Errors { rated_cycles: 100, ..Errors::none() };
        let failed = |cycles| {
            let mut rng = Rng::for_part(3, "failures test");
            let odds = [10_000_000, 40_000_000];
            (0..10_000).filter(|_| errors.happens(odds, cycles, rng.next_u64())).count()
        };
        assert!((60..140).contains(&failed(0)), "1 %: {}", failed(0));
        assert!((420..580).contains(&failed(100)), "5 %: {}", failed(100));
    }
}
