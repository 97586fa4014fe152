//! What flash software decides, as pure functions of what it sees: which superblock is collected, which
//! erased one is written next, how fast the collector works and the host may write.

use runtime::Rng;

/// How the collector chooses among superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The one with the fewest valid units: optimal while all data are equally hot.
    Greedy,
    /// The one with the greatest age × free share / twice the valid share, as the cleaner of Rosenblum
    /// and Ousterhout, "The Design and Implementation of a Log-Structured File System" (TOCS 1992).
    CostBenefit,
    /// The one with the fewest valid units among so many drawn at random (Van Houdt, "A Mean Field Model
    /// for a Class of Garbage Collection Algorithms in Flash-based Solid State Drives", 2013).
    Sample(u32),
    /// The one that was filled first.
    Oldest,
}

/// A superblock that could be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Units that must be moved.
    pub valid: u32,
    /// Units that erasing it frees.
    pub units: u32,
    /// Rows that were begun anywhere since it was filled.
    pub age: u64,
    /// How often it has been erased.
    pub erases: u32,
}

impl Candidate {
    /// Whether collecting it gains anything.
    pub fn gains(&self) -> bool {
        self.valid < self.units
    }
}

/// Which of these to collect; none if none gains space. Of equals, the first, or the one drawn first.
pub fn victim(
    choice: Choice,
    candidates: impl ExactSizeIterator<Item = Option<Candidate>> + Clone,
    rng: &mut Rng,
) -> Option<usize> {
    let gaining = || {
        candidates
            .clone()
            .enumerate()
            .filter_map(|(at, one)| Some((at, one?)).filter(|(_, c)| c.gains()))
    };
    let fewest = |(_, one): &(usize, Candidate)| one.valid;
    let best = match choice {
        Choice::Greedy => gaining().min_by_key(fewest),
        Choice::Oldest => oldest(gaining()),
        Choice::CostBenefit => {
            gaining().fold(None, |best: Option<(usize, Candidate)>, one| match best {
                Some(best) if !is_better(&one.1, &best.1) => Some(best),
                _ => Some(one),
            })
        }
        Choice::Sample(draws) => {
            let mut drawn: Option<(usize, Candidate)> = None;
            let count = candidates.len() as u64;
            for _ in 0..if count > 0 { draws.max(1) } else { 0 } {
                let at = rng.below(count) as usize;
                let one = candidates.clone().nth(at).flatten().filter(Candidate::gains);
                let better = |one: &Candidate| drawn.is_none_or(|(_, best)| one.valid < best.valid);
                if let Some(one) = one.filter(better) {
                    drawn = Some((at, one));
                }
            }
            // Nothing that gains was drawn: fall back on looking.
            drawn.or_else(|| gaining().min_by_key(fewest))
        }
    };
    best.map(|(at, _)| at)
}

/// The first of those of the greatest age.
fn oldest(of: impl Iterator<Item = (usize, Candidate)>) -> Option<(usize, Candidate)> {
    of.fold(None, |best, one| match best {
        Some(best) if best.1.age >= one.1.age => Some(best),
        _ => Some(one),
    })
}

/// Whether `one` has more benefit for its cost than `other`: age × (1 - u) / 2u, u the valid share.
fn is_better(one: &Candidate, other: &Candidate) -> bool {
    let benefit = |c: &Candidate| u128::from(c.age.max(1)) * u128::from(c.units - c.valid);
    // Cross-multiplied: nothing is rounded, and nothing divided by zero.
    benefit(one) * u128::from(other.valid) > benefit(other) * u128::from(one.valid)
        || (one.valid == 0 && other.valid > 0)
}

/// What a superblock is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// What the host writes, and what the translation layer notes meanwhile.
    Host,
    /// What the collector moves: it has proved to be colder.
    Collector,
    /// Parts of a map that is cached.
    Map,
}

/// Which erased superblock is written next, given how often each has been erased: the least worn for the
/// host, the most worn for what is cold and will rest there (dynamic wear levelling).
pub fn fresh(stream: Stream, erases: impl Iterator<Item = Option<u32>>) -> Option<usize> {
    let free = erases.enumerate().filter_map(|(at, erases)| Some((at, erases?)));
    match stream {
        Stream::Host | Stream::Map => free.min_by_key(|(_, erases)| *erases).map(|(at, _)| at),
        Stream::Collector => {
            let most = |best: Option<(usize, u32)>, one: (usize, u32)| match best {
                Some(best) if best.1 >= one.1 => Some(best),
                _ => Some(one),
            };
            free.fold(None, most).map(|(at, _)| at)
        }
    }
}

/// Whose turn it is to be moved so that wear evens out (static wear levelling): the least worn
/// superblock, if it lags behind the most worn by more than `spread` erases.
pub fn wear_victim(
    spread: u32,
    most_erases: u32,
    candidates: impl Iterator<Item = Option<Candidate>>,
) -> Option<usize> {
    let filled = candidates.enumerate().filter_map(|(at, one)| Some((at, one?)));
    let (at, least) = filled.min_by_key(|(_, one)| one.erases)?;
    (most_erases - least.erases.min(most_erases) > spread).then_some(at)
}

/// When the collector begins, beside when the host would have to wait for it: that it does whatever was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcControl {
    /// When space is about to be short.
    #[default]
    Own,
    /// No sooner than the host would have to wait.
    Held,
    /// Sooner, by so many superblocks' worth of space.
    Early(u32),
    /// At any time over superblocks that somebody names ([`Ftl::collect`](crate::Ftl::collect)), who is told
    /// when less space than so many units is left. By itself as [`Held`](Lead::Held), if who leads is silent
    /// when the host waits.
    Named(u64),
}

/// Space that can still be written, in units, and what of it must be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Left in open and erased superblocks, and what the collector has gone over in those that it will
    /// erase next. So every step of the collector counts when it is made, not when its superblock is done.
    pub left: u64,
    /// Below this the host waits.
    pub hold: u64,
    /// Below this the collector works.
    pub start: u64,
}

impl Space {
    /// Whether the host may write another `units`.
    pub fn admits(&self, units: u32) -> bool {
        self.left >= self.hold + u64::from(units)
    }

    /// How many rows of the collector may be under way, of at most `most`: from one where space begins
    /// to be short, to all where the host is about to wait.
    pub fn gc_parallelism(&self, most: u32) -> u32 {
        if self.left >= self.start {
            return 0;
        }
        let short = self.start - self.left.max(self.hold);
        let range = (self.start - self.hold).max(1);
        let gc_parallelism = (short * u64::from(most)).div_ceil(range);
        gc_parallelism.clamp(1, most.max(1).into()) as u32
    }
}

/// What patrol has seen of a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The most bits that were corrected in one code word.
    pub corrected: u32,
    /// Reads since it was erased.
    pub reads: u64,
    /// Rows that were begun anywhere since it was filled.
    pub age: u64,
}

/// Where a superblock's data are written anew, before they are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bits corrected in one code word.
    pub corrected: u32,
    /// Reads since the erase, which disturb their neighbours.
    pub reads: u64,
    /// Rows begun anywhere since it was filled.
    pub age: u64,
}

impl Limits {
    /// Whether the data should be written anew.
    pub fn are_passed(&self, seen: Health) -> bool {
        seen.corrected >= self.corrected || seen.reads >= self.reads || seen.age >= self.age
    }
}
