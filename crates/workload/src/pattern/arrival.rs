//! Due times of the operations of a direction with a rate.

use runtime::{Rng, Span};

use crate::job::RateProcess;

/// Picoseconds in a second.
const SECOND_PS: u64 = 1_000_000_000_000;

/// Operations or bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Ops(u64),
    Bytes(u64),
}

impl Rate {
    /// Picoseconds of `units` operations or bytes.
    fn span(self, units: u64) -> Span {
        let (Rate::Ops(rate) | Rate::Bytes(rate)) = self;
        let ps = u128::from(units) * u128::from(SECOND_PS) / u128::from(rate);
        Span(u64::try_from(ps).unwrap_or(u64::MAX))
    }
}

/// Arrivals of one direction; none if it has no rate.
#[derive(Clone, Debug)]
pub struct Arrivals {
    rate: Option<Rate>,
    process: RateProcess,
    rng: Rng,
    /// Operations or bytes, as the rate counts.
    taken: u64,
    next: Span,
}

impl Arrivals {
    /// Arrivals at `rate`, the first at time 0. The first of a Poisson process of operations is one draw
    /// later.
    pub fn new(rate: Option<Rate>, process: RateProcess, rng: Rng) -> Arrivals {
        let mut arrivals = Arrivals { rate, process, rng, taken: 0, next: Span::ZERO };
        if let (Some(rate @ Rate::Ops(_)), RateProcess::Poisson) = (rate, process) {
            arrivals.next = arrivals.rng.exponential(rate.span(1));
        }
        arrivals
    }

    /// Due time of the next arrival.
    pub fn peek(&self) -> Option<Span> {
        self.rate.map(|_| self.next)
    }

    /// Takes the next arrival, of an operation of `bytes`, and returns its due time.
    pub fn take(&mut self, bytes: u32) -> Option<Span> {
        let rate = self.rate?;
        let due = self.next;
        let units = if matches!(rate, Rate::Bytes(_)) { bytes.into() } else { 1 };
        self.taken = self.taken.saturating_add(units);
        self.next = match self.process {
            // Computed from the count, not from the previous arrival: a rate that does not divide a
            // second into whole picoseconds must not drift.
            RateProcess::Linear => rate.span(self.taken),
            RateProcess::Poisson => due + self.rng.exponential(rate.span(units)),
        };
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_rate_not_dividing_a_second_does_not_drift() {
        let mut arrivals = Arrivals::new(Some(Rate::Ops(3)), RateProcess::Linear, Rng::new(1));
        let all: Vec<Span> = (0..301).map_while(|_| arrivals.take(4096)).collect();
        assert_eq!(all[1], Span(333_333_333_333));
        assert_eq!(all[300], Span::s(100));
    }

    #[test]
    fn poisson_arrivals_keep_mean_rate_and_vary() {
        let mut arrivals = Arrivals::new(Some(Rate::Ops(1000)), RateProcess::Poisson, Rng::new(1));
        let all: Vec<Span> = (0..10_000).map_while(|_| arrivals.take(4096)).collect();
        let last = all[9_999];
        assert!(Span::ms(9_700) < last && last < Span::ms(10_300), "{last}");
        let short = all.windows(2).filter(|pair| (pair[1] - pair[0]) < Span::us(500)).count();
        // 1 - exp(-1/2) of them: 39 %.
        assert!((3_700..4_200).contains(&short), "{short} of 9,999");
    }

    #[test]
    fn byte_rate_spaces_operations_by_their_length() {
        let mut arrivals =
            Arrivals::new(Some(Rate::Bytes(1_000_000)), RateProcess::Linear, Rng::new(1));
        let due = [1000, 3000, 500, 1].map(|bytes| arrivals.take(bytes).unwrap());
        assert_eq!(due, [Span::ZERO, Span::ms(1), Span::ms(4), Span::us(4500)]);
        let mut arrivals =
            Arrivals::new(Some(Rate::Bytes(4_096_000)), RateProcess::Poisson, Rng::new(1));
        let last = (0..10_000).map_while(|_| arrivals.take(4096)).last().unwrap();
        assert!(Span::ms(9_700) < last && last < Span::ms(10_300), "{last}");
    }

    #[test]
    fn no_arrival_without_rate() {
        let mut arrivals = Arrivals::new(None, RateProcess::Linear, Rng::new(1));
        assert_eq!((arrivals.peek(), arrivals.take(4096)), (None, None));
    }
}
