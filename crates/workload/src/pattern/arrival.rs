//! Due times of the operations of a direction with a rate.

use runtime::{Rng, Span};

use crate::job::RateProcess;

/// Picoseconds in a second.
const SECOND_PS: u64 = 1_000_000_000_000;

/// Arrivals of one direction; none if it has no rate.
#[derive(Clone, Debug)]
pub struct Arrivals {
    rate: Option<u64>,
    process: RateProcess,
    rng: Rng,
    taken: u64,
    next: Span,
}

impl Arrivals {
    /// Arrivals at `rate` per second. The first of a linear stream is due at time 0.
    pub fn new(rate: Option<u64>, process: RateProcess, rng: Rng) -> Arrivals {
        let mut arrivals = Arrivals { rate, process, rng, taken: 0, next: Span::ZERO };
        if let (Some(rate), RateProcess::Poisson) = (rate, process) {
            arrivals.next = arrivals.rng.exponential(Span(SECOND_PS / rate));
        }
        arrivals
    }

    /// Due time of the next arrival.
    pub fn peek(&self) -> Option<Span> {
        self.rate.map(|_| self.next)
    }

    /// Takes the next arrival and returns its due time.
    pub fn take(&mut self) -> Option<Span> {
        let rate = self.rate?;
        let due = self.next;
        self.taken += 1;
        self.next = match self.process {
            // Computed from the count, not from the previous arrival: a rate that does not divide a
            // second into whole picoseconds must not drift.
            RateProcess::Linear => {
                let ps = u128::from(self.taken) * u128::from(SECOND_PS) / u128::from(rate);
                Span(u64::try_from(ps).unwrap_or(u64::MAX))
            }
            RateProcess::Poisson => due + self.rng.exponential(Span(SECOND_PS / rate)),
        };
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_rate_not_dividing_a_second_does_not_drift() {
        let mut arrivals = Arrivals::new(Some(3), RateProcess::Linear, Rng::new(1));
        let all: Vec<Span> = (0..301).map_while(|_| arrivals.take()).collect();
        assert_eq!(all[1], Span(333_333_333_333));
        assert_eq!(all[300], Span::s(100));
    }

    #[test]
    fn poisson_arrivals_keep_mean_rate_and_vary() {
        let mut arrivals = Arrivals::new(Some(1000), RateProcess::Poisson, Rng::new(1));
        let all: Vec<Span> = (0..10_000).map_while(|_| arrivals.take()).collect();
        let last = all[9_999];
        assert!(Span::ms(9_700) < last && last < Span::ms(10_300), "{last}");
        let short = all.windows(2).filter(|pair| (pair[1] - pair[0]) < Span::us(500)).count();
        // 1 - exp(-1/2) of them: 39 %.
        assert!((3_700..4_200).contains(&short), "{short} of 9,999");
    }

    #[test]
    fn no_arrival_without_rate() {
        let mut arrivals = Arrivals::new(None, RateProcess::Linear, Rng::new(1));
        assert_eq!((arrivals.peek(), arrivals.take()), (None, None));
    }
}
