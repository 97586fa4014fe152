//! Points on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use report::model::SweepPoint;

use super::error::SweepError;
use super::memory::Limit;
use super::results::{Results, line_of};
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
    /// `stays`: see [`Saved::new`].
    pub fn new(
        sweep: &'s Sweep,
        memory_bytes: u64,
        points: impl Iterator<Item = u64>,
        stays: bool,
    ) -> Self {
        let mut counts = vec![0; sweep.states()];
        for point in points {
            if let Some(state) = sweep.checked[point as usize].state {
                counts[state] += 1;
            }
        }
        Runner { sweep, limit: Limit::new(memory_bytes), saved: Saved::new(&counts, stays) }
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
    /// The results cannot be written, or the sweep was stopped: then they have the points that ended. A point
    /// that fails is a result.
    pub fn run(
        &self,
        results: &mut Results,
        effort: Effort,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), SweepError> {
        let mut report = |results: &Results| {
            let (done, failed) = results.counts();
            progress(Progress { done, of: self.space.points, failed });
        };
        report(results);
        self.each(&self.missing(results), effort, false, &mut |line| {
            results.append(line)?;
            report(results);
            Ok(())
        })?;
        results.finish()
    }

    /// Points that the results lack, those of a saved state one after the other, so that few states are in
    /// memory at once.
    fn missing(&self, results: &Results) -> Vec<u64> {
        let mut missing: Vec<u64> =
            (0..self.space.points).filter(|point| !results.has(*point)).collect();
        missing.sort_by_key(|point| (self.checked[*point as usize].state, *point));
        missing
    }

    /// The points that the results lack, in batches of at most `most` for other processes. Points of a batch
    /// begin from the same saved state, or from none.
    pub fn batches(&self, results: &Results, most: usize) -> Vec<Vec<u64>> {
        let missing = self.missing(results);
        let state = |point: &u64| self.checked[*point as usize].state;
        let of_a_state = missing.chunk_by(|one, next| state(one) == state(next));
        of_a_state.flat_map(|points| points.chunks(most.max(1)).map(<[u64]>::to_vec)).collect()
    }

    /// Runs these points, in any order. The lines are as [`Sweep::run`] writes them. The drive that they
    /// begin from stays in memory for the next call, which may be of another part of the sweep.
    ///
    /// # Errors
    /// The sweep was stopped.
    pub fn lines(&self, points: &[u64], effort: Effort) -> Result<Vec<String>, SweepError> {
        let mut lines = Vec::new();
        self.each(points, effort, true, &mut |line| {
            lines.push(String::from_utf8(line_of(&line)).expect("JSON is UTF-8"));
            Ok(())
        })?;
        Ok(lines)
    }

    /// Runs points on several threads, and gives their lines to `put` on this one.
    fn each(
        &self,
        points: &[u64],
        effort: Effort,
        stays: bool,
        put: &mut dyn FnMut(SweepPoint) -> Result<(), SweepError>,
    ) -> Result<(), SweepError> {
        let runner = Runner::new(self, effort.memory_bytes, points.iter().copied(), stays);
        let next = AtomicUsize::new(0);
        let (sender, lines) = mpsc::channel();
        let is_stopped = || self.stop.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..effort.workers.clamp(1, points.len().max(1)) {
                let (sender, runner, next) = (sender.clone(), &runner, &next);
                scope.spawn(move || {
                    while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if is_stopped() {
                            return;
                        }
                        let line = runner.run(*point);
                        // Without a receiver the sweep has failed. A point that was stopped is not whole.
                        if is_stopped() || sender.send(line).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            lines.into_iter().try_for_each(put)
        })?;
        if is_stopped() { Err(SweepError::Stopped) } else { Ok(()) }
    }
}
