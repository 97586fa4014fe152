//! Timer queue.
//!
//! Most timers are armed for soon and fire soon. Time is cut into stretches, and each of the next
//! `STRETCHES` has a list of its timers, earliest first. A list nearly always has few timers, so insertion
//! takes one or two comparisons, and firing takes the head of the first list. This is a calendar queue
//! (Brown, "Calendar Queues: A Fast O(1) Priority Queue Implementation for the Simulation Event Set
//! Problem") of one year; a heap holds later timers.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::task::Waker;

use crate::task::{OUTSIDE, Parked, TaskId};
use crate::time::Time;

/// Length of a stretch of time, as a power of two of picoseconds: 66 ns, in which a busy link has a few
/// events.
const STRETCH_LOG2: u32 = 16;

/// Number of stretches that have lists: together 67 us, longer than the read of a flash page.
const STRETCHES: usize = 1024;

/// Index that ends a list of nodes.
const NO_NODE: u32 = u32::MAX;

/// A timer. It is cancelled by its time and its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    at: Time,
    sequence: u64,
    task: TaskId,
}

/// A timer, and the next node of its list.
struct Node {
    timer: Timer,
    next: u32,
}

/// Timers of the next stretches, and late ones.
struct Near {
    /// First node of each stretch, indexed by stretch number modulo `STRETCHES`.
    first: [u32; STRETCHES],
    /// One bit for each stretch that has timers.
    used: [u64; STRETCHES / 64],
    /// Number of the earliest stretch that has a list. Timers armed for an earlier time are in its list,
    /// before all others.
    from: u64,
    nodes: Vec<Node>,
    /// Head of the list of free nodes.
    free: u32,
}

impl Near {
    fn new() -> Near {
        Near {
            first: [NO_NODE; STRETCHES],
            used: [0; STRETCHES / 64],
            from: 0,
            nodes: Vec::with_capacity(64),
            free: NO_NODE,
        }
    }

    /// Index of the stretch of the given time, if it has a list.
    #[inline]
    fn place(&self, at: Time) -> Option<usize> {
        let number = (at.0 >> STRETCH_LOG2).max(self.from);
        (number - self.from < STRETCHES as u64).then_some(number as usize % STRETCHES)
    }

    /// Time of the first timer.
    #[inline]
    fn next_at(&self) -> Option<Time> {
        let begin = self.from as usize % STRETCHES;
        let rest = self.used[begin / 64] >> (begin % 64);
        let place = match rest {
            0 => self.used_behind(begin / 64)?,
            rest => (begin + rest.trailing_zeros() as usize) % STRETCHES,
        };
        Some(self.nodes[self.first[place] as usize].timer.at)
    }

    /// Index of the first stretch that has timers, if the rest of the word `begin` has none.
    fn used_behind(&self, begin: usize) -> Option<usize> {
        let words = self.used.len();
        (1..=words).find_map(|ahead| {
            let word = (begin + ahead) % words;
            let bits = self.used[word];
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        })
    }

    #[inline(always)]
    fn insert(&mut self, place: usize, timer: Timer) {
        if self.free == NO_NODE {
            self.grow();
        }
        let (here, mut next) = (self.free, self.first[place]);
        if next == NO_NODE {
            self.first[place] = here;
            self.used[place / 64] |= 1 << (place % 64);
        } else if self.nodes[next as usize].timer.at > timer.at {
            self.first[place] = here;
        } else {
            // Of two timers for the same time, the one in the list was armed earlier and stays first.
            let mut before = next;
            loop {
                next = self.nodes[before as usize].next;
                if next == NO_NODE || self.nodes[next as usize].timer.at > timer.at {
                    break;
                }
                before = next;
            }
            self.nodes[before as usize].next = here;
        }
        let node = &mut self.nodes[here as usize];
        self.free = node.next;
        node.timer = timer;
        node.next = next;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.free = self.nodes.len() as u32;
        self.nodes.push(Node {
            timer: Timer { at: Time::ZERO, sequence: 0, task: OUTSIDE },
            next: NO_NODE,
        });
    }

    /// Removes a timer from its list, if present.
    fn remove(&mut self, place: usize, sequence: u64) {
        let (mut before, mut here) = (NO_NODE, self.first[place]);
        while here != NO_NODE && self.nodes[here as usize].timer.sequence != sequence {
            (before, here) = (here, self.nodes[here as usize].next);
        }
        if here != NO_NODE && before == NO_NODE {
            self.take_first(place);
        } else if here != NO_NODE {
            self.nodes[before as usize].next = self.nodes[here as usize].next;
            self.nodes[here as usize].next = self.free;
            self.free = here;
        }
    }

    /// Removes the first timer of a non-empty list.
    #[inline]
    fn take_first(&mut self, place: usize) -> Timer {
        let here = self.first[place];
        let node = &mut self.nodes[here as usize];
        let next = core::mem::replace(&mut node.next, self.free);
        let timer = node.timer;
        (self.free, self.first[place]) = (here, next);
        if next == NO_NODE {
            self.used[place / 64] &= !(1 << (place % 64));
        }
        timer
    }

    /// Removes the first timer of all; `place` is the index of the first stretch that has timers.
    #[inline]
    fn take(&mut self, place: usize) -> Timer {
        let timer = self.take_first(place);
        self.from = self.from.max(timer.at.0 >> STRETCH_LOG2);
        timer
    }
}

/// Timers of an executor. The earliest fires first; timers for the same time fire in the order in which
/// they were armed.
pub(crate) struct Timers {
    /// Timers of stretches that have lists.
    near: Near,
    /// Later timers, all in stretches that have no list yet.
    far: BinaryHeap<Reverse<Timer>>,
    /// Number of the first stretch in `far`.
    far_from: u64,
    /// Wakers of foreign combinators, by sequence number of their timer.
    foreign: BTreeMap<u64, Waker>,
    sequence: u64,
    /// Time of the next timer, or [`Time::NEVER`].
    next_at: Time,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            near: Near::new(),
            far: BinaryHeap::with_capacity(64),
            far_from: u64::MAX,
            foreign: BTreeMap::new(),
            sequence: 0,
            next_at: Time::NEVER,
        }
    }

    /// Arms a timer and returns its sequence number.
    #[inline]
    pub(crate) fn arm(&mut self, at: Time, whom: Parked) -> u64 {
        let (task, foreign) = whom.into_parts();
        if let Some(waker) = foreign {
            self.foreign.insert(self.sequence, waker);
        }
        self.arm_task(at, task)
    }

    /// Same as [`arm`](Timers::arm), for a task. Out of line, so that profilers can count it.
    #[inline(never)]
    pub(crate) fn arm_task(&mut self, at: Time, task: TaskId) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        self.next_at = self.next_at.min(at);
        let timer = Timer { at, sequence, task };
        match self.near.place(at) {
            Some(place) => self.near.insert(place, timer),
            None => self.push_far(timer),
        }
        sequence
    }

    #[inline(never)]
    fn push_far(&mut self, timer: Timer) {
        self.far.push(Reverse(timer));
        self.note_far();
    }

    fn note_far(&mut self) {
        self.far_from = self.far.peek().map_or(u64::MAX, |first| first.0.at.0 >> STRETCH_LOG2);
    }

    /// Cancels a timer. Has no effect on one that has fired.
    pub(crate) fn disarm(&mut self, at: Time, sequence: u64) {
        self.foreign.remove(&sequence);
        match self.near.place(at) {
            Some(place) => self.near.remove(place, sequence),
            None => {
                self.far.retain(|timer| timer.0.sequence != sequence);
                self.note_far();
            }
        }
        self.note_next();
    }

    /// Time of the next timer, or [`Time::NEVER`].
    #[inline]
    pub(crate) fn next_at(&self) -> Time {
        self.next_at
    }

    #[inline]
    fn note_next(&mut self) {
        self.next_at = match self.near.next_at() {
            Some(at) => at,
            None => self.far.peek().map_or(Time::NEVER, |timer| timer.0.at),
        };
    }

    /// Fires the next timer, if it is due by `until`. Returns its time, its task, and the waker of a
    /// foreign combinator inside that, if any.
    #[inline(always)]
    pub(crate) fn fire(&mut self, until: Time) -> Option<(Time, TaskId, Option<Waker>)> {
        if self.next_at > until {
            return None;
        }
        let timer = match self.near.place(self.next_at) {
            Some(place) => self.near.take(place),
            None => self.take_far()?,
        };
        if self.far_from < self.near.from + STRETCHES as u64 {
            self.bring_near();
        }
        self.note_next();
        let foreign = match self.foreign.is_empty() {
            true => None,
            false => self.foreign.remove(&timer.sequence),
        };
        Some((timer.at, timer.task, foreign))
    }

    /// Takes the next timer if none is near. From then on the lists begin at its stretch.
    #[cold]
    fn take_far(&mut self) -> Option<Timer> {
        let Reverse(timer) = self.far.pop()?;
        self.near.from = timer.at.0 >> STRETCH_LOG2;
        Some(timer)
    }

    /// Moves timers whose stretches now have lists from the heap to these lists.
    #[inline(never)]
    fn bring_near(&mut self) {
        while let Some(Reverse(timer)) = self.far.peek()
            && let Some(place) = self.near.place(timer.at)
        {
            self.near.insert(place, *timer);
            self.far.pop();
        }
        self.note_far();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Compares with a sorted map: few and many timers; near, far and late ones; cancelled timers; shared
    /// times.
    #[test]
    fn timer_queue_matches_sorted_map() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let (mut timers, mut oracle) = (Timers::new(), BTreeMap::new());
            let (mut now, mut armed, mut most) = (Time::ZERO, 0_u32, 0);
            for step in 0..6_000 {
                // First more timers are armed than fire, then fewer.
                let arms = if step / 1_000 % 2 == 0 { 5 } else { 2 };
                // Times within one stretch, within the stretches that have lists, and beyond them.
                let unit = [0, STRETCH_LOG2 - 4, STRETCH_LOG2, STRETCH_LOG2 + 6];
                let unit = unit[rng.below(4) as usize];
                match rng.below(8) {
                    die if die < arms => {
                        let late = if rng.chance(1, 50) { 30 << unit } else { 0 };
                        let at = Time((now.0 + (rng.below(400) << unit)).saturating_sub(late));
                        let sequence = timers.arm(at, Parked::new(TaskId(armed), None));
                        oracle.insert((at, armed), sequence);
                        armed += 1;
                    }
                    7 if !oracle.is_empty() => {
                        let nth = rng.below(oracle.len() as u64) as usize;
                        let (&key, &sequence) = oracle.iter().nth(nth).unwrap();
                        oracle.remove(&key);
                        timers.disarm(key.0, sequence);
                    }
                    _ => {
                        let until = Time(now.0 + (rng.below(20) << unit));
                        let due = oracle.first_key_value().map(|(key, _)| *key);
                        let due = due.filter(|(at, _)| *at <= until);
                        let fired = timers.fire(until).map(|(at, task, _)| (at, task));
                        let due_task = due.map(|(at, number)| (at, TaskId(number)));
                        assert_eq!(fired, due_task, "seed {seed} step {step}");
                        if let Some(key) = due {
                            now = now.max(key.0);
                            // Cancelling a fired timer changes nothing.
                            timers.disarm(key.0, oracle.remove(&key).unwrap());
                        }
                    }
                }
                most = most.max(oracle.len());
                let next = oracle.first_key_value().map(|((at, _), _)| *at);
                assert_eq!(
                    timers.next_at(),
                    next.unwrap_or(Time::NEVER),
                    "seed {seed} step {step}"
                );
            }
            assert!(most > 256, "seed {seed}: at most {most} at a time");
        }
    }
}
