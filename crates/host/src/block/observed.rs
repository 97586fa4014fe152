//! What the driver has seen of its device and of its callers: what a sizing policy is told.

use runtime::{Span, Time};

use super::sizing::Turnaround;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observed {
    blocks: Gauge,
    last: Span,
    /// The most that were with the device and pending at one time, since a wait was in vain.
    population: u32,
    timing: Option<Timing>,
    turnaround: Option<Turnaround>,
}

/// A return. Who comes is anonymous to a driver, but whoever was answered first comes first: once those who
/// were away already have come, the next are those whom this return has answered.
#[derive(Clone, Copy, Debug)]
struct Timing {
    since: Time,
    before: u32,
    answered: u32,
    missing: u32,
    first: Span,
}

impl Observed {
    /// So many descriptors came back; just before, so many were with the device or pending.
    pub fn returned(&mut self, now: Time, descriptors: u32, present: u32) {
        self.population = self.population.max(present);
        let before = self.population - present;
        if before == 0 || self.timing.is_none() {
            let (answered, missing) = (descriptors, descriptors);
            self.timing = Some(Timing { since: now, before, answered, missing, first: Span::ZERO });
        }
    }

    /// A block of this size is back, after so long.
    pub fn has_ended(&mut self, size: u32, took: Span) {
        self.last = took;
        self.blocks.note(size, took);
    }

    /// One more is pending.
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

    /// Who has not come by now is not waited for again, until it has been seen.
    pub fn gave_up(&mut self, pending: u32) {
        self.population = pending;
    }

    /// How many a closed loop seems to consist of.
    pub fn population(&self) -> u32 {
        self.population
    }

    /// What a block takes by itself, and with each descriptor.
    pub fn takes(&self) -> Option<(Span, Span)> {
        self.blocks.takes
    }

    /// What the last block took.
    pub fn last(&self) -> Span {
        self.last
    }

    /// How those who are answered come back.
    pub fn turnaround(&self) -> Option<Turnaround> {
        self.turnaround
    }
}

/// What blocks have taken, and what a block takes beside its descriptors: a line through sizes and times,
/// in which older ones count less and less.
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
    /// What one block is worth; an older one loses an eighth with each.
    const ONE: i128 = 1 << 22;

    /// A block of this size has taken so long.
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
        // Blocks of nearly one size say nothing about it: what is known stays.
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
    fn the_gauge_finds_what_a_block_takes_beside_its_descriptors() {
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
