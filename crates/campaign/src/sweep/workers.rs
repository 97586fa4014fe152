//! Points on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use report::model::SweepPoint;

use super::error::SweepError;
use super::memory::Limit;
use super::results::Results;
use super::saved::Saved;
use super::spec::Sweep;

#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Threads that run points; results do not depend on it.
    pub workers: usize,
    /// Memory of the points that run at once, by estimate, bytes. One point always runs.
    pub memory_bytes: u64,
}

/// Points that are done, all points, and those that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub of: u64,
    pub failed: u64,
}

pub(super) struct Runner<'s> {
    sweep: &'s Sweep,
    limit: Limit,
    saved: Saved,
}

impl<'s> Runner<'s> {
    pub fn new(sweep: &'s Sweep, memory_bytes: u64, points: impl Iterator<Item = u64>) -> Self {
        let mut counts = vec![0; sweep.states()];
        for point in points {
            if let Some(state) = sweep.checked[point as usize].state {
                counts[state] += 1;
            }
        }
        Runner { sweep, limit: Limit::new(memory_bytes), saved: Saved::new(&counts) }
    }

    /// Runs a point when there is memory for it.
    pub fn run(&self, point: u64) -> SweepPoint {
        let checked = &self.sweep.checked[point as usize];
        let kept = match checked.state {
            Some(state) if self.saved.count(state) => checked.state_bytes,
            _ => 0,
        };
        self.limit.enter(checked.bytes, kept);
        let line = self.sweep.line(point, &self.saved);
        self.limit.leave(checked.bytes);
        self.discount(point);
        line
    }

    /// A point will not be run.
    pub fn give_up(&self, point: u64) {
        if let Some(state) = self.sweep.checked[point as usize].state {
            self.saved.give_up(state);
            self.discount(point);
        }
    }

    fn discount(&self, point: u64) {
        let checked = &self.sweep.checked[point as usize];
        if checked.state.is_some_and(|state| self.saved.discount(state)) {
            self.limit.free(checked.state_bytes);
        }
    }
}

impl Sweep {
    /// Runs all points that the results lack, then puts the results in order. Returns all points, without
    /// their documents.
    ///
    /// # Errors
    /// The results cannot be written. A point that fails is a result.
    pub fn run(
        &self,
        results: &mut Results,
        effort: Effort,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), SweepError> {
        let mut pending: Vec<u64> =
            (0..self.space.points).filter(|point| !results.has(*point)).collect();
        // Points of a state after one another, so that few states are in memory at once.
        pending.sort_by_key(|point| (self.checked[*point as usize].state, *point));
        let runner = Runner::new(self, effort.memory_bytes, pending.iter().copied());
        let next = AtomicUsize::new(0);
        let (sender, lines) = mpsc::channel();
        let mut report = |results: &Results| {
            let (done, failed) = results.counts();
            progress(Progress { done, of: self.space.points, failed });
        };
        report(results);
        std::thread::scope(|scope| {
            for _ in 0..effort.workers.clamp(1, pending.len().max(1)) {
                let (sender, runner, next, pending) = (sender.clone(), &runner, &next, &pending);
                scope.spawn(move || {
                    while let Some(point) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
                        // Without a receiver the sweep has failed.
                        if sender.send(runner.run(*point)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for line in lines {
                results.append(line)?;
                report(results);
            }
            Ok::<(), SweepError>(())
        })?;
        results.finish()
    }
}
