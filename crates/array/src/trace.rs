//! Request traces over commands of several members, one after the other: a change of a stripe, or a
//! reconstruction. Each trace has an identifier of the array; of concurrent waits, the one that ends last is
//! recorded.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Rt, StageSums, Time};

/// Identifier space of an array's request traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// First queue number above those of the members.
    pub queue: u16,
    /// Identifiers per queue; 0: no traces.
    pub depth: u16,
    /// Number of queue numbers.
    pub queues: u16,
}

impl Numbers {
    fn count(&self) -> u16 {
        self.queues.saturating_mul(self.depth)
    }
}

/// Pool of trace identifiers.
pub struct Ways {
    numbers: Numbers,
    free: RefCell<Vec<u16>>,
}

impl Ways {
    /// Reserves the first identifiers for the change tasks.
    pub fn new(numbers: Numbers, places: u16) -> Ways {
        Ways { numbers, free: RefCell::new((places..numbers.count()).rev().collect()) }
    }

    /// Begins a trace for a change task and attaches it to the current task.
    pub fn begin_place(&self, rt: &Rt, place: u16, since: Time) {
        if place < self.numbers.count() {
            let Numbers { queue, depth, .. } = self.numbers;
            rt.begin_trace(queue + place / depth, place % depth, since);
        }
    }

    /// Begins a trace and attaches it to the current task, if an identifier is free.
    pub fn begin<'a>(&'a self, rt: &'a Rt) -> Way<'a> {
        let number = self.free.borrow_mut().pop();
        rt.detach_trace();
        if let Some(number) = number {
            self.begin_place(rt, number, rt.now());
        }
        Way { ways: self, rt, number, trace: Cell::new(rt.trace()) }
    }
}

/// A trace that collects parts.
pub struct Way<'a> {
    ways: &'a Ways,
    rt: &'a Rt,
    number: Option<u16>,
    trace: Cell<u32>,
}

impl Way<'_> {
    /// Adds the current task's trace to this one and attaches this one again. If the task was not traced,
    /// this trace ends too.
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

/// Adds the current task's trace to this one and attaches this one; returns its handle.
pub fn fold(rt: &Rt, trace: u32) -> u32 {
    if rt.trace() == trace {
        return trace;
    }
    let (mut part, of) = (StageSums::new(), rt.trace());
    let followed = rt.add_trace_to(&mut part);
    rt.detach_trace();
    if followed {
        rt.attach_trace_number(trace);
        rt.record_parts(&part, of);
    }
    rt.trace()
}
