//! Journeys that go over commands of several members, one after the other: a change of a stripe, or what is
//! made of all others. Each has a number of the array's own; what it waits for at once is told by that of
//! the waits that ended last.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Rt, StageSums, Time};

/// Where an array's journeys are in the world's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The first queue number that no member has.
    pub queue: u16,
    /// Commands of a queue; none: no journeys.
    pub depth: u16,
    /// Queue numbers from there on.
    pub queues: u16,
}

impl Numbers {
    fn count(&self) -> u16 {
        self.queues.saturating_mul(self.depth)
    }
}

/// The numbers, and which of them nobody has.
pub struct Ways {
    numbers: Numbers,
    free: RefCell<Vec<u16>>,
}

impl Ways {
    /// The first of them belong to the desk's places.
    pub fn new(numbers: Numbers, places: u16) -> Ways {
        Ways { numbers, free: RefCell::new((places..numbers.count()).rev().collect()) }
    }

    /// The current task takes along the journey of a place of the desk, which begins.
    pub fn begin_place(&self, rt: &Rt, place: u16, since: Time) {
        if place < self.numbers.count() {
            let Numbers { queue, depth, .. } = self.numbers;
            rt.begin_trace(queue + place / depth, place % depth, since);
        }
    }

    /// The current task takes along a new journey, if a number is left.
    pub fn begin<'a>(&'a self, rt: &'a Rt) -> Way<'a> {
        let number = self.free.borrow_mut().pop();
        rt.detach_trace();
        if let Some(number) = number {
            self.begin_place(rt, number, rt.now());
        }
        Way { ways: self, rt, number, trace: Cell::new(rt.trace()) }
    }
}

/// A journey that parts are added to.
pub struct Way<'a> {
    ways: &'a Ways,
    rt: &'a Rt,
    number: Option<u16>,
    trace: Cell<u32>,
}

impl Way<'_> {
    /// What was waited for was the journey that the current task has along, and is this one's now, which the
    /// task takes along again. If that was not followed, nor is this.
    pub fn passed(&self) {
        self.trace.set(fold(self.rt, self.trace.get()));
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.ways.free.borrow_mut().push(number);
        }
    }
}

/// Adds the current task's journey to this one, which the task takes along; gives what it has then.
pub fn fold(rt: &Rt, trace: u32) -> u32 {
    if rt.trace() == trace {
        return trace;
    }
    let mut part = StageSums::new();
    let followed = rt.add_trace_to(&mut part);
    rt.detach_trace();
    if followed {
        rt.attach_trace_number(trace);
        rt.record_parts(&part);
    }
    rt.trace()
}
