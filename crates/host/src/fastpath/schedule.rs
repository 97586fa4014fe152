//! Choice of the handle whose command Control gives out next: a pure function of the handles that wait.
//! Users can supply others.

use runtime::{Span, Time};

/// A handle that has a command to give out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The handle's index.
    pub fp_id: u16,
    /// Its share, as set.
    pub share: Share,
    /// Commands given to it, times [`SCALE`], by its weight. A handle that was away begins where the others
    /// are, so that it cannot make up for its absence.
    pub served: u64,
    /// When its oldest request came.
    pub since: Time,
}

/// Entitlement of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Commands for each command of a handle of weight 1, by [`Schedule::WEIGHTED`]; at least 1.
    pub weight: u16,
    /// Time within which a request should end, by [`Schedule::DEADLINE`].
    pub within: Span,
}

impl Default for Share {
    fn default() -> Share {
        Share { weight: 1, within: Span::ms(1) }
    }
}

/// Divisible by small weights without a remainder.
pub const SCALE: u64 = 720_720;

/// Order in which commands are given out.
#[derive(Clone, Copy, Debug)]
pub enum Schedule {
    /// One command of each handle in turn, in constant time.
    RoundRobin,
    /// Index of the handle that is next among those that wait, of which there is at least one. They are in
    /// round-robin order: 0 for everything is round robin. An index past the end is taken for 0. Called for
    /// each command.
    By(fn(&[Waiting]) -> usize),
}

impl Schedule {
    /// Commands in proportion to the weights of the handles that wait. No handle starves.
    pub const WEIGHTED: Schedule = Schedule::By(least_served);
    /// The handle whose oldest request should end first. A handle starves if others' deadlines always come
    /// first: deadlines are an administrator's to give.
    pub const DEADLINE: Schedule = Schedule::By(earliest_deadline);
}

fn least_served(waiting: &[Waiting]) -> usize {
    first_least(waiting, |handle| handle.served)
}

fn earliest_deadline(waiting: &[Waiting]) -> usize {
    first_least(waiting, |handle| handle.since.0.saturating_add(handle.share.within.0))
}

fn first_least(waiting: &[Waiting], of: impl Fn(&Waiting) -> u64) -> usize {
    let least = waiting.iter().enumerate().min_by_key(|(_, handle)| of(handle));
    least.map_or(0, |(at, _)| at)
}
