//! What is due when.
//!
//! Most timers are armed for soon and fire soon. So time is cut into stretches, and for each of the next ones
//! there is a list of what is due in it, the earliest first: nearly always a few timers, so that a place is
//! found by a look or two, and firing is taking the first of the first list. This is a calendar queue (Brown,
//! "Calendar Queues: A Fast O(1) Priority Queue Implementation for the Simulation Event Set Problem") of one
//! year; a heap holds the years behind it.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::task::Waker;

use crate::rt::{OUTSIDE, Parked, TaskId};
use crate::time::Time;

/// The length of a stretch of time, as a power of two of picoseconds: 66 ns, in which a busy link has a few
/// events.
const STRETCH_LOG2: u32 = 16;

/// Stretches that have lists: what a flash page takes to be read lies in them.
const STRETCHES: usize = 1024;

/// Of a list: there is no other.
const NOBODY: u32 = u32::MAX;

/// Bits of a timer's number: at a hundred million a second, three hours of work.
const SEQUENCE_BITS: u32 = 40;
const TASK_BITS: u32 = 24;
const TASK_MASK: u32 = (1 << TASK_BITS) - 1;

/// A timer in one word to compare: its moment, its number, its task. It is taken back by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timer(u128);

impl Timer {
    fn new(at: Time, sequence: u64, task: TaskId) -> Timer {
        let low = sequence << TASK_BITS | u64::from(task.0 & TASK_MASK);
        Timer(u128::from(at.0) << 64 | u128::from(low))
    }

    fn at(self) -> Time {
        Time((self.0 >> 64) as u64)
    }

    fn sequence(self) -> u64 {
        self.0 as u64 >> TASK_BITS
    }

    fn task(self) -> TaskId {
        let task = self.0 as u32 & TASK_MASK;
        // A task from outside keeps its number.
        if task == TASK_MASK { OUTSIDE } else { TaskId(task) }
    }
}

/// Out of line, so that what checks is small.
#[cold]
#[inline(never)]
fn too_many() -> ! {
    panic!("timers are numbered with {SEQUENCE_BITS} bits, and wake tasks of {TASK_BITS}");
}

/// A timer, and the next in its list.
struct Node {
    timer: Timer,
    next: u32,
}

/// The timers of the next stretches of time, and those that are late.
struct Near {
    /// The first timer of each stretch, which has its place by its number.
    first: [u32; STRETCHES],
    /// A bit for each stretch that has timers.
    used: [u64; STRETCHES / 64],
    /// The number of the earliest stretch that has a list. What was armed for a moment before it is in its
    /// list, before all others.
    from: u64,
    nodes: Vec<Node>,
    /// The first of the nodes that are free.
    free: u32,
}

impl Near {
    fn new() -> Near {
        Near {
            first: [NOBODY; STRETCHES],
            used: [0; STRETCHES / 64],
            from: 0,
            nodes: Vec::with_capacity(64),
            free: NOBODY,
        }
    }

    /// The place of the stretch that a moment lies in, if it has a list.
    #[inline]
    fn place(&self, at: Time) -> Option<usize> {
        let number = (at.0 >> STRETCH_LOG2).max(self.from);
        (number - self.from < STRETCHES as u64).then_some(number as usize % STRETCHES)
    }

    /// The place and the number of the first stretch that has timers.
    #[inline]
    fn next(&self) -> Option<(usize, u64)> {
        let begin = self.from as usize % STRETCHES;
        let (word, bit) = (begin / 64, begin % 64);
        let rest = self.used[word] >> bit;
        if rest != 0 {
            let ahead = rest.trailing_zeros();
            return Some((begin + ahead as usize, self.from + u64::from(ahead)));
        }
        self.next_behind(begin)
    }

    /// The same, where none of its word's rest has any.
    fn next_behind(&self, begin: usize) -> Option<(usize, u64)> {
        let words = self.used.len();
        (1..=words).find_map(|ahead| {
            let word = (begin / 64 + ahead) % words;
            let bits = self.used[word];
            let place = word * 64 + bits.trailing_zeros() as usize;
            let number = self.from + ((place + STRETCHES - begin) % STRETCHES) as u64;
            (bits != 0).then_some((place, number))
        })
    }

    #[inline]
    fn first(&self) -> Option<Timer> {
        let (place, _) = self.next()?;
        Some(self.nodes[self.first[place] as usize].timer)
    }

    /// The link to the first timer of a list that is no earlier than this, and what it links to.
    #[inline]
    fn find(&self, place: usize, timer: Timer) -> (Option<u32>, u32) {
        let (mut before, mut here) = (None, self.first[place]);
        while here != NOBODY && self.nodes[here as usize].timer < timer {
            (before, here) = (Some(here), self.nodes[here as usize].next);
        }
        (before, here)
    }

    #[inline]
    fn link(&mut self, place: usize, before: Option<u32>, to: u32) {
        match before {
            Some(node) => self.nodes[node as usize].next = to,
            None => self.first[place] = to,
        }
    }

    #[inline(always)]
    fn insert(&mut self, place: usize, timer: Timer) {
        let (before, next) = self.find(place, timer);
        let node = Node { timer, next };
        if self.free == NOBODY {
            self.grow();
        }
        let here = self.free;
        self.free = core::mem::replace(&mut self.nodes[here as usize], node).next;
        self.link(place, before, here);
        self.used[place / 64] |= 1 << (place % 64);
    }

    /// Makes a free node.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.free = self.nodes.len() as u32;
        self.nodes.push(Node { timer: Timer(0), next: NOBODY });
    }

    /// Takes a timer out of its list, if it is there.
    fn remove(&mut self, place: usize, timer: Timer) {
        let (before, here) = self.find(place, timer);
        if here != NOBODY && self.nodes[here as usize].timer == timer {
            self.unlink(place, before, here);
        }
    }

    #[inline]
    fn unlink(&mut self, place: usize, before: Option<u32>, here: u32) {
        let next = core::mem::replace(&mut self.nodes[here as usize].next, self.free);
        self.free = here;
        self.link(place, before, next);
        if self.first[place] == NOBODY {
            self.used[place / 64] &= !(1 << (place % 64));
        }
    }

    /// Takes the first timer, if it is due.
    #[inline]
    fn take(&mut self, until: Time) -> Option<Timer> {
        let (place, number) = self.next()?;
        let here = self.first[place];
        let timer = self.nodes[here as usize].timer;
        if timer.at() > until {
            return None;
        }
        self.unlink(place, None, here);
        self.from = number;
        Some(timer)
    }
}

/// The timers of an executor. The earliest fires first, and of two for the same moment that which was
/// armed first.
pub(crate) struct Timers {
    /// The next to fire.
    near: Near,
    /// The others: all of them in stretches that have no list yet.
    far: BinaryHeap<Reverse<Timer>>,
    /// Wakers of foreign combinators, by the number of their timer.
    foreign: BTreeMap<u64, Waker>,
    sequence: u64,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            near: Near::new(),
            far: BinaryHeap::with_capacity(64),
            foreign: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Arms a timer.
    ///
    /// # Panics
    /// After 2^40 timers, or for a task whose number has more than 24 bits.
    #[inline]
    pub(crate) fn arm(&mut self, at: Time, whom: Parked) -> Timer {
        let (task, foreign) = whom.into_parts();
        if let Some(waker) = foreign {
            self.foreign.insert(self.sequence, waker);
        }
        self.arm_task(at, task)
    }

    /// As [`arm`](Timers::arm), for a task.
    pub(crate) fn arm_task(&mut self, at: Time, task: TaskId) -> Timer {
        let sequence = self.sequence;
        self.sequence += 1;
        if sequence >> SEQUENCE_BITS != 0 || (task.0 >= TASK_MASK && task != OUTSIDE) {
            too_many();
        }
        let timer = Timer::new(at, sequence, task);
        match self.near.place(at) {
            Some(place) => self.near.insert(place, timer),
            None => self.far.push(Reverse(timer)),
        }
        timer
    }

    /// Takes a timer back. One that has fired is no more.
    pub(crate) fn disarm(&mut self, timer: Timer) {
        self.foreign.remove(&timer.sequence());
        match self.near.place(timer.at()) {
            Some(place) => self.near.remove(place, timer),
            None => self.far.retain(|other| other.0 != timer),
        }
    }

    /// The moment of the next timer.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Time> {
        let next = self.near.first().or_else(|| self.far.peek().map(|timer| timer.0));
        next.map(Timer::at)
    }

    /// Fires the next timer, if it is due by `until`: its moment, its task, and the waker of a foreign
    /// combinator inside that, if any.
    #[inline(always)]
    pub(crate) fn fire(&mut self, until: Time) -> Option<(Time, TaskId, Option<Waker>)> {
        let timer = match self.near.take(until) {
            Some(timer) => timer,
            None => self.fire_far(until)?,
        };
        if !self.far.is_empty() {
            self.bring_near();
        }
        let foreign = match self.foreign.is_empty() {
            true => None,
            false => self.foreign.remove(&timer.sequence()),
        };
        Some((timer.at(), timer.task(), foreign))
    }

    /// The same, if none is near. The lists begin where it was due from then on.
    #[cold]
    fn fire_far(&mut self, until: Time) -> Option<Timer> {
        if self.near.next().is_some() || self.far.peek()?.0.at() > until {
            return None;
        }
        let Reverse(timer) = self.far.pop()?;
        self.near.from = timer.at().0 >> STRETCH_LOG2;
        Some(timer)
    }

    /// Stretches have come near: what is due in them goes into their lists.
    fn bring_near(&mut self) {
        while let Some(Reverse(timer)) = self.far.peek()
            && let Some(place) = self.near.place(timer.at())
        {
            self.near.insert(place, *timer);
            self.far.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// Against a sorted map, with few timers and many, near ones, far ones and late ones, timers taken back,
    /// and moments that several share.
    #[test]
    fn timers_fire_as_a_sorted_map_would_have_them() {
        for seed in 0..60 {
            let mut dice = Dice::new(seed);
            let (mut timers, mut oracle) = (Timers::new(), BTreeMap::new());
            let (mut now, mut armed, mut most) = (Time::ZERO, 0_u32, 0);
            for step in 0..6_000 {
                // More are armed than fire, then fewer.
                let arms = if step / 1_000 % 2 == 0 { 5 } else { 2 };
                // Moments of one stretch, of those that have lists, and of those behind them.
                let unit = [0, STRETCH_LOG2 - 4, STRETCH_LOG2, STRETCH_LOG2 + 6];
                let unit = unit[dice.below(4) as usize];
                match dice.below(8) {
                    die if die < arms => {
                        let late = if dice.chance(1, 50) { 30 << unit } else { 0 };
                        let at = Time((now.0 + (dice.below(400) << unit)).saturating_sub(late));
                        let timer = timers.arm(at, Parked::new(TaskId(armed), None));
                        oracle.insert((at, armed), timer);
                        armed += 1;
                    }
                    7 if !oracle.is_empty() => {
                        let nth = dice.below(oracle.len() as u64) as usize;
                        let (&key, &timer) = oracle.iter().nth(nth).unwrap();
                        oracle.remove(&key);
                        timers.disarm(timer);
                    }
                    _ => {
                        let until = Time(now.0 + (dice.below(20) << unit));
                        let due = oracle.first_key_value().map(|(key, _)| *key);
                        let due = due.filter(|(at, _)| *at <= until);
                        let fired = timers.fire(until).map(|(at, task, _)| (at, task));
                        let due_task = due.map(|(at, number)| (at, TaskId(number)));
                        assert_eq!(fired, due_task, "seed {seed} step {step}");
                        if let Some(key) = due {
                            now = now.max(key.0);
                            // Taking back what has fired changes nothing.
                            timers.disarm(oracle.remove(&key).unwrap());
                        }
                    }
                }
                most = most.max(oracle.len());
                let next = oracle.first_key_value().map(|((at, _), _)| *at);
                assert_eq!(timers.next_at(), next, "seed {seed} step {step}");
            }
            assert!(most > 256, "seed {seed}: at most {most} at a time");
        }
    }
}
