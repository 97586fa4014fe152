//! What is due when.
//!
//! Most timers are armed for soon and fire soon. So the next ones are kept in a short sorted list, in
//! which a place is found by halving, and firing is taking the first; a heap holds what
//! the list has no room for.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::Reverse;
use core::task::Waker;

use crate::rt::{OUTSIDE, Parked, TaskId};
use crate::time::Time;

/// Timers of which the list has room: a thousand words are moved as fast as a heap is searched.
const NEAR: usize = 128;

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

/// A short sorted list, the earliest first, with room at both ends: what is shorter moves.
struct Near {
    room: Box<[Timer]>,
    from: usize,
    to: usize,
}

impl Near {
    fn new() -> Near {
        let room = alloc::vec![Timer(0); 4 * NEAR].into_boxed_slice();
        Near { room, from: NEAR, to: NEAR }
    }

    #[inline]
    fn list(&self) -> &[Timer] {
        &self.room[self.from..self.to]
    }

    /// Adds a timer that was armed after all that are there.
    #[inline(always)]
    fn insert(&mut self, timer: Timer) {
        if self.from == 0 || self.to == self.room.len() {
            self.recentre();
        }
        let (list, at) = (self.list(), timer.at());
        // Of those for the same moment it is the last, so that moments are all that is compared.
        let place = list.partition_point(|other| other.at() <= at);
        if place < list.len() / 2 {
            self.from -= 1;
            let first = self.from;
            self.room.copy_within(first + 1..first + 1 + place, first);
        } else {
            self.room.copy_within(self.from + place..self.to, self.from + place + 1);
            self.to += 1;
        }
        self.room[self.from + place] = timer;
    }

    fn remove(&mut self, place: usize) {
        self.room.copy_within(self.from + place + 1..self.to, self.from + place);
        self.to -= 1;
    }

    /// The list has come to an end of its room.
    #[cold]
    fn recentre(&mut self) {
        let length = self.to - self.from;
        let from = (self.room.len() - length) / 2;
        self.room.copy_within(self.from..self.to, from);
        (self.from, self.to) = (from, from + length);
    }
}

/// The timers of an executor. The earliest fires first, and of two for the same moment that which was
/// armed first.
pub(crate) struct Timers {
    /// The next to fire.
    near: Near,
    /// The others: all of them later.
    far: BinaryHeap<Reverse<Timer>>,
    /// Wakers of foreign combinators, by the number of their timer.
    foreign: BTreeMap<u64, Waker>,
    sequence: u64,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            near: Near::new(),
            far: BinaryHeap::with_capacity(NEAR),
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
        assert!(task.0 < TASK_MASK || task == OUTSIDE, "timers wake tasks of {TASK_BITS} bits");
        let sequence = self.sequence;
        self.sequence += 1;
        assert!(sequence >> SEQUENCE_BITS == 0, "timers are numbered with {SEQUENCE_BITS} bits");
        let timer = Timer::new(at, sequence, task);
        if !self.far.is_empty() && self.near.list().last().is_none_or(|latest| timer > *latest) {
            self.far.push(Reverse(timer));
            return timer;
        }
        self.near.insert(timer);
        if self.near.to - self.near.from > NEAR {
            self.near.to -= 1;
            self.far.push(Reverse(self.near.room[self.near.to]));
        }
        timer
    }

    /// Takes a timer back. One that has fired is no more.
    pub(crate) fn disarm(&mut self, timer: Timer) {
        self.foreign.remove(&timer.sequence());
        match self.near.list().binary_search(&timer) {
            Ok(place) => self.near.remove(place),
            Err(_) => self.far.retain(|other| other.0 != timer),
        }
    }

    /// The moment of the next timer.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Time> {
        let next = self.near.list().first().or_else(|| self.far.peek().map(|timer| &timer.0));
        next.map(|timer| timer.at())
    }

    /// Fires the next timer, if it is due by `until`: its moment, its task, and the waker of a foreign
    /// combinator inside that, if any.
    #[inline]
    pub(crate) fn fire(&mut self, until: Time) -> Option<(Time, TaskId, Option<Waker>)> {
        if self.near.list().is_empty() {
            self.bring_near();
        }
        let timer = *self.near.list().first().filter(|timer| timer.at() <= until)?;
        self.near.from += 1;
        let foreign = match self.foreign.is_empty() {
            true => None,
            false => self.foreign.remove(&timer.sequence()),
        };
        Some((timer.at(), timer.task(), foreign))
    }

    /// Fills half the list from the heap.
    #[cold]
    fn bring_near(&mut self) {
        for _ in 0..NEAR / 2 {
            let Some(Reverse(timer)) = self.far.pop() else { return };
            self.near.insert(timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// Against a sorted map, with few timers and many, timers taken back, and moments that several
    /// share.
    #[test]
    fn timers_fire_as_a_sorted_map_would_have_them() {
        for seed in 0..60 {
            let mut dice = Dice::new(seed);
            let (mut timers, mut oracle) = (Timers::new(), BTreeMap::new());
            let (mut now, mut armed, mut most) = (Time::ZERO, 0_u32, 0);
            for step in 0..6_000 {
                // More are armed than fire, then fewer.
                let arms = if step / 1_000 % 2 == 0 { 5 } else { 2 };
                match dice.below(8) {
                    die if die < arms => {
                        let at = Time(now.0 + dice.below(400));
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
                        let until = Time(now.0 + dice.below(20));
                        let due = oracle.first_key_value().map(|(key, _)| *key);
                        let due = due.filter(|(at, _)| *at <= until);
                        let fired = timers.fire(until).map(|(at, task, _)| (at, task));
                        let due_task = due.map(|(at, number)| (at, TaskId(number)));
                        assert_eq!(fired, due_task, "seed {seed} step {step}");
                        if let Some(key) = due {
                            now = key.0;
                            // Taking back what has fired changes nothing.
                            timers.disarm(oracle.remove(&key).unwrap());
                        }
                    }
                }
                most = most.max(oracle.len());
                let next = oracle.first_key_value().map(|((at, _), _)| *at);
                assert_eq!(timers.next_at(), next, "seed {seed} step {step}");
            }
            assert!(most > 2 * NEAR, "seed {seed}: at most {most} at a time");
        }
    }
}
