//! Sizing policies: the size of the next block as a pure function of the load. Users can supply others.

use runtime::Span;

/// Load when a block could be announced: the device has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Pending descriptors in the ring, at least one.
    pub pending: u32,
    /// Parts of the current request that follow at once.
    pub coming: u32,
    /// Most descriptors of a block.
    pub block_max: u32,
    /// Recent maximum of descriptors in flight and pending at one time: the population of a closed loop.
    pub population: u32,
    /// Time for which the oldest of them has waited while the device could have had it.
    pub waited: Span,
    /// Measured time of a block without descriptors, and per descriptor. `None` if all blocks so far had one
    /// size.
    pub takes: Option<(Span, Span)>,
    /// Total time of the last block.
    pub last: Span,
    /// Measured return times of answered callers, most recent.
    pub turnaround: Option<Turnaround>,
}

/// Return times of the callers of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turnaround {
    /// Time from the block's return to the first caller's.
    pub first: Span,
    /// Time between two callers.
    pub each: Span,
}

impl Turnaround {
    /// Time until `descriptors` callers have returned.
    pub fn of(&self, descriptors: u32) -> Span {
        self.first + self.each * u64::from(descriptors.saturating_sub(1))
    }
}

/// Decision of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Announce a block of this many descriptors, at least one and at most the pending ones and the largest
    /// block.
    Send(u32),
    /// Decide again at the next descriptor, or after this time.
    Wait(Option<Span>),
}

/// A sizing policy: a rule and its setting.
#[derive(Clone, Copy, Debug)]
pub struct Sizing {
    /// The rule, called whenever a block could be announced. It must be a pure function.
    pub rule: fn(&Load, Setting) -> Next,
    /// Argument of the rule.
    pub setting: Setting,
}

/// Setting of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Size in descriptors.
    pub size: u32,
    /// Longest time for which a descriptor waits for others.
    pub linger: Span,
}

impl Sizing {
    /// Only full blocks of this size (Bougioukou et al., section IV). A partial block is sent after `linger`,
    /// unlike in the paper's driver, where the last requests would never end.
    pub const fn fixed(size: u32, linger: Span) -> Sizing {
        Sizing { rule: full, setting: Setting { size, linger } }
    }

    /// The paper's policy: all pending descriptors, up to the largest block (section III).
    pub const fn adaptive() -> Sizing {
        Sizing { rule: all, setting: Setting { size: 0, linger: Span::ZERO } }
    }

    /// Our policy: as the paper's, but it waits for descriptors that are about to return if that saves more
    /// than it costs; at most their last return time plus twice a block's own time.
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

/// In a closed loop of *P* callers the paper's rule settles into groups that alternate: while one is in
/// flight, another returns, and the assignment of callers to groups is random. This rule chooses a size *s*
/// and keeps it. In FIFO order, the last caller of a block was answered by the *q*th block before it, as the
/// *r*th there, and must have returned:
///
/// ```text
///   q = ceil((P + 1) / s) - 1,  r = (q + 1) s - P
///   from block to block: D(s) = max(o + s c, (o + s c + t(r)) / q)    o: a block by itself, c: a descriptor,
///                                                                    t: return time of r callers
/// ```
///
/// All of these are measured, and the minimum of *D(s) / s* is the best rate of any fixed size. Of two
/// equally good sizes the smaller one has shorter waits. Fewer than *s* descriptors wait for the rest, for
/// the slack of *D(s)* plus *2 o*; after that the missing callers are no longer counted. A lone caller forms
/// blocks of its own and never waits.
fn gather(load: &Load, _: Setting) -> Next {
    let all = load.pending.min(load.block_max);
    if load.coming > 0 {
        return if all == load.block_max { Next::Send(all) } else { Next::Wait(None) };
    }
    let Some(turnaround) = load.turnaround else { return Next::Send(all) };
    // Until blocks of two sizes have been seen, all of a block's time may be fixed.
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
    fn fixed_sizing_waits_for_full_block_or_linger() {
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
    fn adaptive_sizing_sends_all_pending() {
        assert_eq!(ask(Sizing::adaptive(), load(1, 64)), Next::Send(1));
        assert_eq!(ask(Sizing::adaptive(), load(33, 64)), Next::Send(32));
    }

    #[test]
    fn gathering_waits_for_returning_callers() {
        let sizing = Sizing::gathering();
        assert_eq!(ask(sizing, load(1, 1)), Next::Send(1), "a lone request: no wait at depth 1");
        // Blocks of 16: 4 + 48 + 3 us each; of 8: 4 + 24 us for half of them.
        assert_eq!(ask(sizing, load(8, 16)), Next::Wait(Some(Span::us(3 + 2 * 4))));
        assert_eq!(ask(sizing, load(16, 16)), Next::Send(16));
        let waited = Load { waited: Span::us(11), ..load(8, 16) };
        assert_eq!(ask(sizing, waited), Next::Send(8), "no longer than that");
        let slow = |pending| Load { turnaround: after(5), ..load(pending, 16) };
        assert_eq!(ask(sizing, slow(8)), Next::Send(8), "two groups, as one would take 57 us");
        assert_eq!(ask(sizing, slow(11)), Next::Send(8), "and both of one size");
        assert_eq!(ask(sizing, slow(7)), Next::Wait(Some(Span::us(8))), "the eighth is near");
        // 48 callers cannot form one group.
        assert_eq!(ask(sizing, load(24, 48)), Next::Send(24));
        assert_eq!(ask(sizing, load(32, 64)), Next::Send(32));
        let parts = Load { coming: 3, ..load(1, 0) };
        assert_eq!(ask(sizing, parts), Next::Wait(None), "the parts of one request go together");
        assert_eq!(ask(sizing, Load { coming: 3, ..load(32, 0) }), Next::Send(32));
    }

    /// Two requests that alternate would never show a block's fixed time: the rule tries another size once.
    #[test]
    fn gathering_tries_second_size_if_block_time_unknown() {
        let blind = Load { takes: None, last: Span::us(7), ..load(1, 2) };
        assert_eq!(ask(Sizing::gathering(), blind), Next::Wait(Some(Span::us(3 + 2 * 7))));
        let newborn = Load { turnaround: None, ..blind };
        assert_eq!(ask(Sizing::gathering(), newborn), Next::Send(1));
    }
}
