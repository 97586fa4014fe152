//! How large the next block is to be: a pure function of what the driver knows, which others may replace.

use runtime::Span;

/// What the driver knows when a block could go: the device has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Descriptors in the ring that are waiting to go: at least one.
    pub pending: u32,
    /// Parts of the request at hand that follow at once.
    pub coming: u32,
    /// The most descriptors of a block.
    pub block_max: u32,
    /// Descriptors that were on their way, or waiting, when the last block came back.
    pub population: u32,
    /// Since the oldest of them waits and the device could have had it.
    pub waited: Span,
    /// What a block takes beside its descriptors, as measured; none: not known yet.
    pub overhead: Option<Span>,
    /// From a block's return until as many new descriptors had come, as measured last.
    pub turnaround: Option<Span>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Announce a block of so many descriptors: at least one, no more than are pending or than a block may
    /// have.
    Send(u32),
    /// Ask again when another descriptor has come, or after so long.
    Wait(Option<Span>),
}

/// A sizing policy: a rule, and the setting that it is asked with.
#[derive(Clone, Copy, Debug)]
pub struct Sizing {
    /// The rule. Called whenever a block could go; it must not depend on anything else.
    pub rule: fn(&Load, Setting) -> Next,
    /// What it is called with.
    pub setting: Setting,
}

/// What a rule may be set to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Descriptors.
    pub size: u32,
    /// The longest that a descriptor waits for others.
    pub linger: Span,
}

impl Sizing {
    /// Only full blocks of this size (Bougioukou et al., section IV). What is not full after `linger` goes
    /// all the same, which the paper's driver does not do: without it the last requests would never end.
    pub const fn fixed(size: u32, linger: Span) -> Sizing {
        Sizing { rule: full, setting: Setting { size, linger } }
    }

    /// The paper's: all that is pending, or the largest block (section III).
    pub const fn adaptive() -> Sizing {
        Sizing { rule: all, setting: Setting { size: 0, linger: Span::ZERO } }
    }

    /// Ours: as the paper's, but it waits for descriptors that are about to come back, where that takes
    /// less than the block that it saves.
    pub const fn gathering() -> Sizing {
        Sizing { rule: gather, setting: Setting { size: 0, linger: Span::ZERO } }
    }
}

fn full(load: &Load, setting: Setting) -> Next {
    let size = setting.size.clamp(1, load.block_max);
    if load.pending >= size {
        Next::Send(size)
    } else if load.waited >= setting.linger {
        Next::Send(load.pending)
    } else {
        Next::Wait(Some(setting.linger.saturating_sub(load.waited)))
    }
}

fn all(load: &Load, _: Setting) -> Next {
    Next::Send(load.pending.min(load.block_max))
}

/// In a closed loop of *P* requests the paper's rule settles into two groups that take turns: while one
/// is worked on, the other comes back, and every request has paid for two blocks. Waiting until all are
/// back makes it one block, of *b = min(P, largest)*, at the price of the wait *w*:
///
/// ```text
///   two groups   P requests take 2 o + P c       (o: a block's own time, c: a descriptor's)
///   one group    b requests take o + w + b c
/// ```
///
/// so that waiting is right while *(o + w) P < 2 o b*. The time from a return until as many have come
/// back is the guess for *w*; the bound that follows from the rule, *2 o b / P - o*, is at most *o*, and
/// ends the wait whatever the guess was.
fn gather(load: &Load, _: Setting) -> Next {
    let now = Next::Send(load.pending.min(load.block_max));
    if load.pending >= load.block_max {
        return now;
    }
    if load.coming > 0 {
        return Next::Wait(None);
    }
    let target = load.population.min(load.block_max);
    let (Some(overhead), Some(turnaround)) = (load.overhead, load.turnaround) else { return now };
    if load.pending >= target {
        return now;
    }
    let twice = 2 * overhead.0 * u64::from(target) / u64::from(load.population);
    let limit = Span(twice).saturating_sub(overhead);
    if turnaround <= limit && load.waited < limit {
        Next::Wait(Some(limit.saturating_sub(load.waited)))
    } else {
        now
    }
}

/// What blocks have taken, and what a block takes beside its descriptors: a line through sizes and times,
/// in which older ones count less and less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    weight: i128,
    sizes: i128,
    squares: i128,
    times: i128,
    products: i128,
    overhead: Option<Span>,
}

impl Gauge {
    /// What one block is worth; an older one loses an eighth with each.
    const ONE: i128 = 1 << 12;

    /// A block of this size has taken so long.
    pub fn note(&mut self, size: u32, took: Span) {
        let (size, took) = (i128::from(size), i128::from(took.0));
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
        if spread * 64 > self.weight * self.weight {
            let slope = self.weight * self.products - self.sizes * self.times;
            let overhead = (self.times - slope * self.sizes / spread) / self.weight;
            self.overhead = Some(Span(u64::try_from(overhead).unwrap_or(0)));
        }
    }

    /// What a block takes beside its descriptors.
    pub fn overhead(&self) -> Option<Span> {
        self.overhead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pending: u32, population: u32) -> Load {
        let (overhead, turnaround) = (Some(Span::us(4)), Some(Span::us(3)));
        Load { pending, population, block_max: 32, overhead, turnaround, ..Load::default() }
    }

    fn ask(sizing: Sizing, load: Load) -> Next {
        (sizing.rule)(&load, sizing.setting)
    }

    #[test]
    fn a_full_block_or_none_until_the_linger_is_over() {
        let sizing = Sizing::fixed(8, Span::us(100));
        assert_eq!(ask(sizing, load(8, 8)), Next::Send(8));
        assert_eq!(ask(sizing, load(20, 20)), Next::Send(8));
        let waited = |us| Load { waited: Span::us(us), ..load(7, 7) };
        assert_eq!(ask(sizing, waited(40)), Next::Wait(Some(Span::us(60))));
        assert_eq!(ask(sizing, waited(100)), Next::Send(7));
        let larger = Sizing::fixed(99, Span::ZERO);
        assert_eq!(ask(larger, load(40, 40)), Next::Send(32), "no more than the device takes");
    }

    #[test]
    fn all_that_is_pending_or_the_largest() {
        assert_eq!(ask(Sizing::adaptive(), load(1, 64)), Next::Send(1));
        assert_eq!(ask(Sizing::adaptive(), load(33, 64)), Next::Send(32));
    }

    #[test]
    fn whoever_is_about_to_come_back_is_waited_for() {
        let sizing = Sizing::gathering();
        assert_eq!(ask(sizing, load(1, 1)), Next::Send(1), "nobody else: no wait at depth 1");
        assert_eq!(ask(sizing, load(8, 16)), Next::Wait(Some(Span::us(4))));
        assert_eq!(ask(sizing, load(16, 16)), Next::Send(16));
        let waited = Load { waited: Span::us(4), ..load(8, 16) };
        assert_eq!(ask(sizing, waited), Next::Send(8), "not longer than a block's own time");
        let slow = Load { turnaround: Some(Span::us(5)), ..load(8, 16) };
        assert_eq!(ask(sizing, slow), Next::Send(8), "they take longer than what is saved");
        // 48 in blocks of 32: 2 * 4 us * 32 / 48 - 4 us = 1.33 us.
        assert_eq!(ask(sizing, load(16, 48)), Next::Send(16));
        let quick = Load { turnaround: Some(Span::us(1)), ..load(16, 48) };
        assert_eq!(ask(sizing, quick), Next::Wait(Some(Span::ps(1_333_333))));
        assert_eq!(ask(sizing, load(32, 64)), Next::Send(32));
        let parts = Load { coming: 3, ..load(1, 0) };
        assert_eq!(ask(sizing, parts), Next::Wait(None), "the parts of one request go together");
        let young = Load { overhead: None, ..load(8, 16) };
        assert_eq!(ask(sizing, young), Next::Send(8));
    }

    #[test]
    fn the_gauge_finds_what_a_block_takes_beside_its_descriptors() {
        let mut gauge = Gauge::default();
        gauge.note(4, Span::us(16));
        assert_eq!(gauge.overhead(), None, "one size says nothing");
        for size in [1, 7, 3, 16, 2] {
            gauge.note(size, Span::us(4 + 3 * u64::from(size)));
        }
        let near = |span: Span| (Span::ns(3_990)..=Span::ns(4_010)).contains(&span);
        assert!(gauge.overhead().is_some_and(near), "{:?}", gauge.overhead());
        for _ in 0..100 {
            gauge.note(16, Span::us(52));
        }
        assert!(gauge.overhead().is_some_and(near), "one size alone changes nothing");
    }
}
