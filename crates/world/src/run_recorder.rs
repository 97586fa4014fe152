//! Recorder of a live run: arrivals, register writes of the host, and latencies.
//!
//! The memory is allocated and touched before the run, so that an entry costs only a store. Entries that do
//! not fit are counted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::{Entry, Log, Span, Time};
use workload::pattern::{Durability, Op, OpKind};
use workload::trace::{Arrival, Recording, RegisterWrite, StageMean};

use crate::RunResult;

/// Default capacity: this number of operations and of register writes, 58 MiB in total.
pub const ENTRIES_MAX: usize = 1 << 20;

pub struct RunRecorder {
    arrivals: RefCell<Vec<(Time, Arrival)>>,
    register_writes: RefCell<Vec<(Time, RegisterWrite)>>,
    lost: Cell<u64>,
}

impl RunRecorder {
    /// An empty recorder with room for `entries` operations and `entries` register writes.
    pub fn new(entries: usize) -> Rc<RunRecorder> {
        let (at, took, durability) = (Span(1), Span(1), Durability::NONE);
        let io = Arrival { at, kind: OpKind::Flush, offset_bytes: 1, bytes: 1, durability, took };
        let write = RegisterWrite { at, register: 1, value: 1 };
        Rc::new(RunRecorder {
            arrivals: RefCell::new(touched(entries, (Time(1), io))),
            register_writes: RefCell::new(touched(entries, (Time(1), write))),
            lost: Cell::new(0),
        })
    }

    /// Records an operation that completed `took` after its arrival.
    pub fn note(&self, op: &Op, arrived: Time, took: Span) {
        let Op { kind, offset_bytes, bytes, durability, .. } = *op;
        let io = Arrival { at: Span::ZERO, kind, offset_bytes, bytes, durability, took };
        self.put(&self.arrivals, (arrived, io));
    }

    /// Event log that records the register writes of the bus.
    pub fn log(self: &Rc<RunRecorder>) -> Log {
        let run_recorder = self.clone();
        Log::To(Rc::new(move |entry| {
            if let Some((register, value)) = register_write(entry) {
                let write = RegisterWrite { at: Span::ZERO, register, value };
                run_recorder.put(&run_recorder.register_writes, (entry.at, write));
            }
        }))
    }

    fn put<T>(&self, list: &RefCell<Vec<T>>, entry: T) {
        let mut list = list.borrow_mut();
        match list.len() < list.capacity() {
            true => list.push(entry),
            false => self.lost.set(self.lost.get() + 1),
        }
    }

    /// Returns the recording with the result of the run; `run` is its description.
    pub fn finish(&self, run: String, depth: u32, run_result: &RunResult) -> Recording {
        let (mut arrivals, writes) = (self.arrivals.take(), self.register_writes.take());
        arrivals.sort_by_key(|(at, _)| *at);
        let first = arrivals.first().map(|(at, _)| *at).into_iter();
        let begin = first.chain(writes.first().map(|(at, _)| *at)).min().unwrap_or(Time::ZERO);
        Recording {
            run,
            depth,
            lost: self.lost.get(),
            arrivals: arrivals
                .into_iter()
                .map(|(at, io)| Arrival { at: at.since(begin), ..io })
                .collect(),
            register_writes: writes
                .into_iter()
                .map(|(at, write)| RegisterWrite { at: at.since(begin), ..write })
                .collect(),
            stages: stages(run_result),
        }
    }
}

/// An empty list of this capacity whose pages have all been written once.
fn touched<T: Clone>(entries: usize, with: T) -> Vec<T> {
    let mut list = vec![with; entries];
    list.clear();
    list
}

/// Register and value, if the log entry is a register write of the host.
pub fn register_write(entry: &Entry) -> Option<(u32, u32)> {
    let is_one = entry.component == "bus" && entry.what == "register";
    is_one.then_some((entry.a as u32, entry.b as u32))
}

/// Latency breakdown of each kind of operation over all jobs.
pub fn stages(run_result: &RunResult) -> Vec<StageMean> {
    let mut means = Vec::new();
    for kind in OpKind::ALL {
        let mut parts = run_result
            .jobs
            .iter()
            .filter_map(|(_, job_result)| job_result.stats.breakdowns.get(&kind));
        let Some(mut all) = parts.next().cloned() else { continue };
        parts.for_each(|part| all.merge(part));
        let mean = all.mean();
        let spent = all.names().iter().zip(&mean.stages_ps).filter(|(_, ps)| **ps >= 0.5);
        means.extend(spent.map(|(name, ps)| StageMean {
            kind,
            name: (*name).to_owned(),
            count: mean.count,
            mean_ps: ps.round() as u64,
        }));
    }
    means
}
