//! Takes a live run down: what arrives, which registers the host writes, how long everything took.
//!
//! The room for it is made, and touched, before the run: while work is under way a note is a store into it.
//! What finds no room is counted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::{Entry, Log, Span, Time};
use workload::pattern::{Op, OpKind};
use workload::trace::{Arrival, Recording, RegisterWrite, StageMean};

use crate::RunResult;

/// Operations, and register writes, that a tape has room for: 58 MiB in all.
pub const ENTRIES_MAX: usize = 1 << 20;

/// What is taken down of a run.
pub struct RunRecorder {
    arrivals: RefCell<Vec<(Time, Arrival)>>,
    register_writes: RefCell<Vec<(Time, RegisterWrite)>>,
    lost: Cell<u64>,
}

impl RunRecorder {
    /// An empty one, with room for so many operations and as many register writes.
    pub fn new(entries: usize) -> Rc<RunRecorder> {
        let (at, took) = (Span(1), Span(1));
        let io = Arrival { at, kind: OpKind::Flush, offset_bytes: 1, bytes: 1, took };
        let write = RegisterWrite { at, register: 1, value: 1 };
        Rc::new(RunRecorder {
            arrivals: RefCell::new(touched(entries, (Time(1), io))),
            register_writes: RefCell::new(touched(entries, (Time(1), write))),
            lost: Cell::new(0),
        })
    }

    /// An operation has ended, `took` after it arrived.
    pub fn note(&self, op: &Op, arrived: Time, took: Span) {
        let Op { kind, offset_bytes, bytes, .. } = *op;
        let io = Arrival { at: Span::ZERO, kind, offset_bytes, bytes, took };
        self.put(&self.arrivals, (arrived, io));
    }

    /// Where the bus tells of register writes.
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

    /// What was taken down, with what the run gave; `run` says what it was.
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

/// A list of this room, every page of which has been written to.
fn touched<T: Clone>(entries: usize, with: T) -> Vec<T> {
    let mut list = vec![with; entries];
    list.clear();
    list
}

/// The register and its value, if the entry tells of a register that the host has written.
pub fn register_write(entry: &Entry) -> Option<(u32, u32)> {
    let is_one = entry.component == "bus" && entry.what == "register";
    is_one.then_some((entry.a as u32, entry.b as u32))
}

/// Where the time of each kind of operation went, over all jobs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_and_nothing_grows() {
        let run_recorder = RunRecorder::new(2);
        let op = Op { kind: OpKind::Read, offset_bytes: 4096, bytes: 512, not_before: None };
        let log = run_recorder.log();
        for at in 0..5 {
            run_recorder.note(&op, Time(10 - at), Span(at));
            let entry = Entry { at: Time(4), component: "bus", what: "register", a: 0x1000, b: at };
            log.put(&entry);
            log.put(&Entry { what: "memory", ..entry });
        }
        assert_eq!(run_recorder.arrivals.borrow().capacity(), 2);
        let recording = run_recorder.finish("x".into(), 1, &RunResult::of(Default::default()));
        assert_eq!(recording.lost, 6);
        let at: Vec<_> = recording.arrivals.iter().map(|io| io.at).collect();
        assert_eq!(at, [Span(5), Span(6)], "by their arrival, from the first of all");
        assert_eq!(recording.register_writes[1].value, 1);
    }
}
