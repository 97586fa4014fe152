//! Policies as pure functions: which superblock is collected, which erased one is written next, how fast the
//! collector works and the host may write.

use runtime::{Rng, Span, Time};

/// Victim selection policy of the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Fewest valid units: optimal while all data are equally hot.
    Greedy,
    /// Greatest age × free share / (2 × valid share), as in Rosenblum and Ousterhout, "The Design and
    /// Implementation of a Log-Structured File System" (TOCS 1992).
    CostBenefit,
    /// Fewest valid units among the given number of random superblocks (Van Houdt, "A Mean Field Model for a
    /// Class of Garbage Collection Algorithms in Flash-based Solid State Drives", 2013).
    Sample(u32),
    /// Filled first.
    Oldest,
}

/// A superblock that can be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Valid units, which must be moved.
    pub valid: u32,
    /// Units that its erase frees.
    pub units: u32,
    /// Superpages begun on the drive since it was filled.
    pub age: u64,
    /// Erase count.
    pub erases: u32,
}

impl Candidate {
    /// Returns true if collecting it frees space.
    pub fn gains(&self) -> bool {
        self.valid < self.units
    }
}

/// Index of the victim; `None` if no candidate frees space. Ties go to the first, or to the first drawn.
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
            // No drawn candidate frees space: search all.
            drawn.or_else(|| gaining().min_by_key(fewest))
        }
    };
    best.map(|(at, _)| at)
}

/// The first candidate of the greatest age.
fn oldest(of: impl Iterator<Item = (usize, Candidate)>) -> Option<(usize, Candidate)> {
    of.fold(None, |best, one| match best {
        Some(best) if best.1.age >= one.1.age => Some(best),
        _ => Some(one),
    })
}

/// Returns true if `one` has the better benefit-to-cost ratio: age × (1 - u) / 2u, where u is the valid
/// share.
fn is_better(one: &Candidate, other: &Candidate) -> bool {
    let benefit = |c: &Candidate| u128::from(c.age.max(1)) * u128::from(c.units - c.valid);
    // Cross-multiplied to avoid rounding and division by zero.
    benefit(one) * u128::from(other.valid) > benefit(other) * u128::from(one.valid)
        || (one.valid == 0 && other.valid > 0)
}

/// Purpose for which a superblock is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Host data, and metadata written meanwhile.
    Host,
    /// Data moved by the collector, which have proved to be colder.
    Collector,
    /// Host data that are hinted to be hot, and copies of them.
    Hot,
    /// Host data that are hinted to be cold, and copies of them.
    Cold,
    /// Parts of a cached map.
    Map,
}

impl Stream {
    pub(crate) const COUNT: usize = 5;
    /// Streams that the host writes to.
    pub(crate) const OF_HOST: [Stream; 3] = [Stream::Host, Stream::Hot, Stream::Cold];
    pub(crate) const DATA: [Stream; 4] =
        [Stream::Host, Stream::Collector, Stream::Hot, Stream::Cold];

    /// Stream for host data of this heat.
    pub(crate) fn of_host(heat: Heat) -> Stream {
        match heat {
            Heat::Typical => Stream::Host,
            Heat::Hot => Stream::Hot,
            Heat::Cold => Stream::Cold,
        }
    }
}

/// Expected frequency of writes to some data, compared with other data of the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heat {
    /// Nothing is known, or it is typical.
    #[default]
    Typical,
    /// Frequent writes.
    Hot,
    /// Infrequent writes.
    Cold,
}

impl Heat {
    /// In the order of their numbers.
    pub(crate) const ALL: [Heat; 3] = [Heat::Typical, Heat::Hot, Heat::Cold];
}

/// Index of the erased superblock to write next, by erase count: the least worn for the host, the most worn
/// for cold data, which will stay there (dynamic wear levelling).
pub fn fresh(stream: Stream, erases: impl Iterator<Item = Option<u32>>) -> Option<usize> {
    let free = erases.enumerate().filter_map(|(at, erases)| Some((at, erases?)));
    match stream {
        Stream::Host | Stream::Hot | Stream::Map => {
            free.min_by_key(|(_, erases)| *erases).map(|(at, _)| at)
        }
        Stream::Collector | Stream::Cold => {
            let most = |best: Option<(usize, u32)>, one: (usize, u32)| match best {
                Some(best) if best.1 >= one.1 => Some(best),
                _ => Some(one),
            };
            free.fold(None, most).map(|(at, _)| at)
        }
    }
}

/// Index of the wear-levelling victim (static wear levelling): the least worn superblock, if it is more than
/// `spread` erases behind the most worn.
pub fn wear_victim(
    spread: u32,
    most_erases: u32,
    candidates: impl Iterator<Item = Option<Candidate>>,
) -> Option<usize> {
    let filled = candidates.enumerate().filter_map(|(at, one)| Some((at, one?)));
    let (at, least) = filled.min_by_key(|(_, one)| one.erases)?;
    (most_erases - least.erases.min(most_erases) > spread).then_some(at)
}

/// Start condition of the collector. It also starts, in every mode, when the host would have to wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcControl {
    /// When space is about to be short.
    #[default]
    Own,
    /// Not before the host would have to wait.
    Held,
    /// Earlier, by this many superblocks' worth of space.
    Early(u32),
    /// Host-directed GC: at any time on superblocks that the host requests
    /// ([`Ftl::collect`](crate::Ftl::collect)). The host is notified when fewer than this many units are
    /// left. If it does not respond while a write waits, the collector starts on its own as with
    /// [`Held`](GcControl::Held).
    Named(u64),
}

/// Windows of time in which one of several drives collects ahead of need. Outside of them it collects only if
/// writes would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Begin of the first one.
    pub begin: Span,
    /// Length of each.
    pub length: Span,
    /// From begin to begin.
    pub cycle: Span,
    /// Number of superblocks' worth of space by which it starts earlier in a window.
    pub early: u32,
}

impl Window {
    /// True if a window is open now, and the time of the next change.
    pub fn at(&self, now: Time) -> (bool, Time) {
        let (begin, length, cycle) = (self.begin.0, self.length.0, self.cycle.0);
        let since = (now.0 % cycle + cycle - begin) % cycle;
        match since < length {
            // One member alone has all of the time.
            true => (true, Time(now.0 + length - since)),
            false => (false, Time(now.0 + cycle - since)),
        }
    }
}

/// Space that can still be written, in mapping units, and its thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Space in open and erased superblocks, plus the collected share of those to be erased next. So each
    /// step of the collector counts at once, not only when its superblock is done.
    pub left: u64,
    /// Below this the host waits.
    pub hold: u64,
    /// Below this the collector works.
    pub start: u64,
}

impl Space {
    /// Returns true if the host may write another `units`.
    pub fn admits(&self, units: u32) -> bool {
        self.left >= self.hold + u64::from(units)
    }

    /// GC parallelism: superpages of the collector in flight, at most `most`. It grows from one, where space
    /// begins to be short, to `most`, where the host is about to wait.
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

/// Health of a superblock as seen by patrol reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Most bits corrected in one code word.
    pub corrected: u32,
    /// Reads since its erase.
    pub reads: u64,
    /// Superpages begun on the drive since it was filled.
    pub age: u64,
}

/// Thresholds at which a superblock's data are refreshed, before they are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bits corrected in one code word.
    pub corrected: u32,
    /// Reads since the erase: reads disturb neighbouring cells.
    pub reads: u64,
    /// Superpages begun on the drive since it was filled.
    pub age: u64,
}

impl Limits {
    /// Returns true if the data should be refreshed.
    pub fn are_passed(&self, seen: Health) -> bool {
        seen.corrected >= self.corrected || seen.reads >= self.reads || seen.age >= self.age
    }
}
