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
    /// The most that were with the device and pending at one time, lately: what a closed loop consists of.
    pub population: u32,
    /// Since the oldest of them waits and the device could have had it.
    pub waited: Span,
    /// What a block takes by itself and with each of its descriptors, as measured; none: blocks of one
    /// size alone have come so far.
    pub takes: Option<(Span, Span)>,
    /// What the last block took in all.
    pub last: Span,
    /// How those who are answered come back, as measured last.
    pub turnaround: Option<Turnaround>,
}

/// How those whose block has returned come back, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turnaround {
    /// From the block's return until the first of them has.
    pub first: Span,
    /// From each to the next.
    pub each: Span,
}

impl Turnaround {
    /// Until all of so many have come back.
    pub fn of(&self, descriptors: u32) -> Span {
        self.first + self.each * u64::from(descriptors.saturating_sub(1))
    }
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
    /// more than it takes; never longer than they took the last time and what two blocks take by themselves.
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

/// In a closed loop of *P* callers the paper's rule settles into groups that take turns: while one is worked
/// on, another comes back, and which caller belongs to which is left to chance. Here a size *s* is chosen and
/// kept to. First come, first served, the last of a block was answered by the *q*th block before it, as the
/// *r*th there, and must have come back:
///
/// ```text
///   q = ceil((P + 1) / s) - 1,  r = (q + 1) s - P
///   from block to block: D(s) = max(o + s c, (o + s c + t(r)) / q)    o: a block by itself, c: a descriptor,
///                                                                    t: until so many have come back
/// ```
///
/// All of these are measured, and the least *D(s) / s* is the best rate that any fixed size has. Of two that
/// are as good the smaller means shorter waits. What is less than *s* waits for the rest, as long as *D(s)*
/// has room for and *2 o* longer: then those who have not come are no longer counted. A lone caller is a
/// block of its own, and waits for nobody.
fn gather(load: &Load, _: Setting) -> Next {
    let all = load.pending.min(load.block_max);
    if load.coming > 0 {
        return if all == load.block_max { Next::Send(all) } else { Next::Wait(None) };
    }
    let Some(turnaround) = load.turnaround else { return Next::Send(all) };
    // Before blocks of two sizes have come, all of a block's time may be its own.
    let (own, each) = load.takes.unwrap_or((load.last, Span::ZERO));
    let population = load.population.max(load.pending);
    let period = |size: u32| {
        let takes = own + each * u64::from(size);
        let before = (population + 1).div_ceil(size) - 1;
        let last = (before + 1) * size - population;
        takes.max((takes + turnaround.of(last)) / u64::from(before))
    };
    let better = |a: u32, b: u32| {
        let (of_a, of_b) = (period(a) * u64::from(b), period(b) * u64::from(a));
        if of_b < of_a { b } else { a }
    };
    let size = (1..=population.min(load.block_max)).reduce(better).unwrap_or(1);
    let room = period(size).saturating_sub(own + each * u64::from(size));
    let longest = room + own * 2;
    if load.pending >= size {
        Next::Send(size)
    } else if load.waited < longest {
        Next::Wait(Some(longest.saturating_sub(load.waited)))
    } else {
        Next::Send(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pending: u32, population: u32) -> Load {
        let (takes, turnaround) = (Some((Span::us(4), Span::us(3))), after(3));
        Load { pending, population, block_max: 32, takes, turnaround, ..Load::default() }
    }

    fn after(us: u64) -> Option<Turnaround> {
        Some(Turnaround { first: Span::us(us), each: Span::ZERO })
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
        // Blocks of 16: 4 + 48 + 3 us each; of 8: 4 + 24 us for half of them.
        assert_eq!(ask(sizing, load(8, 16)), Next::Wait(Some(Span::us(3 + 2 * 4))));
        assert_eq!(ask(sizing, load(16, 16)), Next::Send(16));
        let waited = Load { waited: Span::us(11), ..load(8, 16) };
        assert_eq!(ask(sizing, waited), Next::Send(8), "no longer than that");
        let slow = |pending| Load { turnaround: after(5), ..load(pending, 16) };
        assert_eq!(ask(sizing, slow(8)), Next::Send(8), "two groups, as one would take 57 us");
        assert_eq!(ask(sizing, slow(11)), Next::Send(8), "and both of one size");
        assert_eq!(ask(sizing, slow(7)), Next::Wait(Some(Span::us(8))), "the eighth is near");
        // 48 cannot be one group.
        assert_eq!(ask(sizing, load(24, 48)), Next::Send(24));
        assert_eq!(ask(sizing, load(32, 64)), Next::Send(32));
        let parts = Load { coming: 3, ..load(1, 0) };
        assert_eq!(ask(sizing, parts), Next::Wait(None), "the parts of one request go together");
        assert_eq!(ask(sizing, Load { coming: 3, ..load(32, 0) }), Next::Send(32));
    }

    /// Two requests that take turns would never show what a block takes by itself: it tries once.
    #[test]
    fn blocks_of_one_size_make_it_try_another() {
        let blind = Load { takes: None, last: Span::us(7), ..load(1, 2) };
        assert_eq!(ask(Sizing::gathering(), blind), Next::Wait(Some(Span::us(3 + 2 * 7))));
        let newborn = Load { turnaround: None, ..blind };
        assert_eq!(ask(Sizing::gathering(), newborn), Next::Send(1));
    }
}
