//! Measurements of the device and the callers: input of a sizing policy.

use runtime::{Span, Time};

use super::sizing::Turnaround;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observed {
    blocks: Gauge,
    last: Span,
    /// Most descriptors in flight and pending at one time, since the last wait that timed out.
    population: u32,
    timing: Option<Timing>,
    turnaround: Option<Turnaround>,
}

/// Measurement of one return. The driver does not know which caller a request comes from. It assumes that
/// callers return in the order in which they were answered: first those already away, then those answered by
/// this return.
#[derive(Clone, Copy, Debug)]
struct Timing {
    since: Time,
    before: u32,
    answered: u32,
    missing: u32,
    first: Span,
}

impl Observed {
    /// Records the return of `descriptors` descriptors; `present` were in flight or pending just before.
    pub fn returned(&mut self, now: Time, descriptors: u32, present: u32) {
        self.population = self.population.max(present);
        let before = self.population - present;
        if before == 0 || self.timing.is_none() {
            let (answered, missing) = (descriptors, descriptors);
            self.timing = Some(Timing { since: now, before, answered, missing, first: Span::ZERO });
        }
    }

    /// Records the end of a block of this size.
    pub fn has_ended(&mut self, size: u32, took: Span) {
        self.last = took;
        self.blocks.note(size, took);
    }

    /// Records a new pending descriptor.
    pub fn came(&mut self, now: Time) {
        let Some(timing) = &mut self.timing else { return };
        if timing.before > 0 {
            timing.before -= 1;
            return;
        }
        let after = now.since(timing.since);
        if timing.missing == timing.answered {
            timing.first = after;
        }
        timing.missing -= 1;
        if timing.missing == 0 {
            let before = self.turnaround.map_or(Span::ZERO, |before| before.each);
            let each = match timing.answered {
                1 => before,
                more => after.saturating_sub(timing.first) / u64::from(more - 1),
            };
            self.turnaround = Some(Turnaround { first: timing.first, each });
            self.timing = None;
        }
    }

    /// Records a wait that timed out: missing callers are not counted until they are seen again.
    pub fn gave_up(&mut self, pending: u32) {
        self.population = pending;
    }

    /// Estimated number of callers of a closed loop.
    pub fn population(&self) -> u32 {
        self.population
    }

    /// Time of a block without descriptors, and per descriptor; `None` if unknown.
    pub fn takes(&self) -> Option<(Span, Span)> {
        self.blocks.takes
    }

    /// Time of the last block.
    pub fn last(&self) -> Span {
        self.last
    }

    /// Measured return times of answered callers.
    pub fn turnaround(&self) -> Option<Turnaround> {
        self.turnaround
    }
}

/// Linear regression of block times over block sizes, with exponential decay.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    weight: i128,
    sizes: i128,
    squares: i128,
    times: i128,
    products: i128,
    takes: Option<(Span, Span)>,
}

impl Gauge {
    /// Weight of one block; it decays by an eighth with each later block.
    const ONE: i128 = 1 << 22;

    /// Adds a block of this size and time.
    fn note(&mut self, size: u32, took: Span) {
        let (size, took) = (i128::from(size), i128::from(took.min(Span::s(1)).0));
        for (sum, new) in [
            (&mut self.weight, 1),
            (&mut self.sizes, size),
            (&mut self.squares, size * size),
            (&mut self.times, took),
            (&mut self.products, size * took),
        ] {
            *sum = *sum - *sum / 8 + new * Gauge::ONE;
        }
        // Blocks of nearly one size cannot separate the two: the old estimate stays.
        let spread = self.weight * self.squares - self.sizes * self.sizes;
        if spread * 8 > self.weight * self.weight {
            let slope = self.weight * self.products - self.sizes * self.times;
            let own = (self.times - slope * self.sizes / spread) / self.weight;
            let span = |value: i128| Span(u64::try_from(value).unwrap_or(0));
            self.takes = Some((span(own), span(slope / spread)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_separates_block_and_descriptor_time() {
        let mut gauge = Gauge::default();
        gauge.note(4, Span::us(16));
        assert_eq!(gauge.takes, None, "one size says nothing");
        for size in [1, 7, 3, 16, 2] {
            gauge.note(size, Span::us(4 + 3 * u64::from(size)));
        }
        let near = |(own, each): (Span, Span)| {
            (Span::ns(3_990)..=Span::ns(4_010)).contains(&own)
                && (Span::ns(2_990)..=Span::ns(3_010)).contains(&each)
        };
        assert!(gauge.takes.is_some_and(near), "{:?}", gauge.takes);
        for _ in 0..100 {
            gauge.note(16, Span::us(52));
        }
        assert!(gauge.takes.is_some_and(near), "one size alone changes nothing");
    }
}
