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
    /// Those, and as many as were answered and have not come back yet: what a closed loop consists of.
    pub population: u32,
    /// Since the oldest of them waits and the device could have had it.
    pub waited: Span,
    /// What a block takes by itself and with each of its descriptors, as measured; none: blocks of one
    /// size alone have come so far.
    pub takes: Option<(Span, Span)>,
    /// What the last block took in all.
    pub last: Span,
    /// From a block's return until whoever was answered then had come back, as measured last.
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

    /// Ours: as the paper's, but it waits for descriptors that are about to come back, where that saves
    /// more than it takes; never longer than a block takes by itself.
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

/// In a closed loop of *P* requests the paper's rule settles into groups that take turns: while one is
/// worked on, another comes back, and which request belongs to which is left to chance. Here the number of
/// groups *g* is chosen, and their size *s = P / g*:
///
/// ```text
///   the loop takes  max(g o + P c, o + s c + t)    o: a block by itself, c: a descriptor, t: the turnaround
/// ```
///
/// All of these are measured. Of two numbers of groups that are as good, the larger means shorter waits.
/// What is less than a group waits for the rest of it, but no longer than *o*: then those who have not come
/// are no longer counted. A lone request is a group of its own, and waits for nobody.
fn gather(load: &Load, _: Setting) -> Next {
    if load.pending >= load.block_max {
        return Next::Send(load.block_max);
    }
    if load.coming > 0 {
        return Next::Wait(None);
    }
    let Some(turnaround) = load.turnaround else { return Next::Send(load.pending) };
    // Before blocks of two sizes have come, all of a block's time may be its own.
    let (own, each) = load.takes.unwrap_or((load.last, Span::ZERO));
    let population = load.population.max(load.pending);
    let loop_of = |groups: u32| {
        let size = population.div_ceil(groups);
        let busy = own.0 * u64::from(groups) + each.0 * u64::from(population);
        let around = own.0 + each.0 * u64::from(size) + turnaround.0;
        (busy.max(around), core::cmp::Reverse(groups))
    };
    let fewest = population.div_ceil(load.block_max);
    let groups =
        (fewest..=population.min(fewest + GROUPS_MAX)).min_by_key(|groups| loop_of(*groups));
    let size = population.div_ceil(groups.unwrap_or(1));
    if load.pending >= size {
        Next::Send(size)
    } else if load.waited < own {
        Next::Wait(Some(own.saturating_sub(load.waited)))
    } else {
        Next::Send(load.pending)
    }
}

/// So many more groups than there must be are thought of: more never pay, as each has a block's own time.
const GROUPS_MAX: u32 = 7;

/// What blocks have taken, and what a block takes beside its descriptors: a line through sizes and times,
/// in which older ones count less and less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
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
    pub fn note(&mut self, size: u32, took: Span) {
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

    /// What a block takes by itself, and with each descriptor.
    pub fn takes(&self) -> Option<(Span, Span)> {
        self.takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pending: u32, population: u32) -> Load {
        let (takes, turnaround) = (Some((Span::us(4), Span::us(3))), Some(Span::us(3)));
        Load { pending, population, block_max: 32, takes, turnaround, ..Load::default() }
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
        // One group: 4 + 48 + 3 us; two: 8 + 48 us.
        assert_eq!(ask(sizing, load(8, 16)), Next::Wait(Some(Span::us(4))));
        assert_eq!(ask(sizing, load(16, 16)), Next::Send(16));
        let waited = Load { waited: Span::us(4), ..load(8, 16) };
        assert_eq!(ask(sizing, waited), Next::Send(8), "not longer than a block by itself");
        let slow = |pending| Load { turnaround: Some(Span::us(5)), ..load(pending, 16) };
        assert_eq!(ask(sizing, slow(8)), Next::Send(8), "two groups, as one would take 57 us");
        assert_eq!(ask(sizing, slow(11)), Next::Send(8), "and both of one size");
        assert_eq!(ask(sizing, slow(7)), Next::Wait(Some(Span::us(4))), "the eighth is near");
        // 48 cannot be one group.
        assert_eq!(ask(sizing, load(24, 48)), Next::Send(24));
        assert_eq!(ask(sizing, load(32, 64)), Next::Send(32));
        let parts = Load { coming: 3, ..load(1, 0) };
        assert_eq!(ask(sizing, parts), Next::Wait(None), "the parts of one request go together");
    }

    /// Two requests that take turns would never show what a block takes by itself: it tries once.
    #[test]
    fn blocks_of_one_size_make_it_try_another() {
        let blind = Load { takes: None, last: Span::us(7), ..load(1, 2) };
        assert_eq!(ask(Sizing::gathering(), blind), Next::Wait(Some(Span::us(7))));
        let newborn = Load { turnaround: None, ..blind };
        assert_eq!(ask(Sizing::gathering(), newborn), Next::Send(1));
    }

    #[test]
    fn the_gauge_finds_what_a_block_takes_beside_its_descriptors() {
        let mut gauge = Gauge::default();
        gauge.note(4, Span::us(16));
        assert_eq!(gauge.takes(), None, "one size says nothing");
        for size in [1, 7, 3, 16, 2] {
            gauge.note(size, Span::us(4 + 3 * u64::from(size)));
        }
        let near = |(own, each): (Span, Span)| {
            (Span::ns(3_990)..=Span::ns(4_010)).contains(&own)
                && (Span::ns(2_990)..=Span::ns(3_010)).contains(&each)
        };
        assert!(gauge.takes().is_some_and(near), "{:?}", gauge.takes());
        for _ in 0..100 {
            gauge.note(16, Span::us(52));
        }
        assert!(gauge.takes().is_some_and(near), "one size alone changes nothing");
    }
}
