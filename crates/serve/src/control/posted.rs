//! Counts and results that device threads post for the control of their drive.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use device::faults::Faults;
use device::meter::{Snapshot, Totals};
use runtime::Rt;
use world::device::DieView;

/// The latest counts and results of a device, or of one of its threads.
#[derive(Clone, Default)]
pub(super) struct Posted {
    /// Of the device that runs, or ran last.
    pub now: Snapshot,
    /// Of the devices before it: there is one for each session and reset.
    pub before: [Totals; 4],
    faults_now: BTreeMap<String, u64>,
    faults_before: BTreeMap<String, u64>,
    flushes_ignored: u64,
    flushes_ignored_before: u64,
    /// Statistics of flash, as lines of text.
    pub flash: Vec<String>,
    pub dies: Vec<DieView>,
    /// Why the last request could not be applied.
    pub failed: Option<String>,
}

impl Posted {
    pub fn injected(&self, fault: &str) -> u64 {
        let of = |counts: &BTreeMap<String, u64>| counts.get(fault).copied().unwrap_or(0);
        of(&self.faults_now) + of(&self.faults_before)
    }

    pub fn flushes_ignored(&self) -> u64 {
        self.flushes_ignored + self.flushes_ignored_before
    }

    /// Adds the commands of another thread of the device. It has no faults.
    fn add(&mut self, other: &Posted) {
        self.now.add(&other.now);
        for (before, more) in self.before.iter_mut().zip(other.before) {
            *before = before.and(more);
        }
    }
}

/// The place of one device thread in the control of its drive. Others read it only for a request.
#[derive(Default)]
pub(super) struct Place {
    /// Number of requests that the thread has applied, modulo 2^32.
    done: AtomicU32,
    posted: Mutex<Posted>,
    /// The thread, which may sleep.
    thread: Mutex<Option<Thread>>,
}

impl Place {
    pub fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, requests wake the calling thread.
    pub fn wakes_this_thread(&self) {
        let thread = Some(std::thread::current());
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = thread;
    }

    /// Wakes the thread, which then looks for requests.
    pub fn wake(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// The sum over these threads.
    pub fn sum(places: &[Place]) -> Posted {
        let mut sum = Posted::default();
        for (number, place) in places.iter().enumerate() {
            let posted = place.posted();
            match number {
                0 => sum = posted.clone(),
                _ => sum.add(&posted),
            }
        }
        sum
    }

    pub fn has_done(&self, asked: u32) -> bool {
        // Acquire: after it the counts of that request are seen.
        asked.wrapping_sub(self.done.load(Ordering::Acquire)).cast_signed() <= 0
    }

    pub fn set_done(&self, seen: u32) {
        self.done.store(seen, Ordering::Release);
    }

    /// Posts the counts of a controller.
    pub fn post(&self, rt: &Rt, faults: &Faults) {
        let mut posted = self.posted();
        posted.now = faults.meter.snapshot(rt.now());
        posted.flushes_ignored = faults.harm.flushes_ignored();
        posted.faults_now = faults.counts().into_iter().collect();
    }

    /// Adds the counts of a controller that has ended to those of its successors.
    pub fn add_to_before(&self) {
        let mut posted = self.posted();
        let Posted { now, before, .. } = &mut *posted;
        for (before, now) in before.iter_mut().zip(&mut now.kinds) {
            *before = before.and(std::mem::take(&mut now.totals));
        }
        for (name, count) in std::mem::take(&mut posted.faults_now) {
            *posted.faults_before.entry(name).or_default() += count;
        }
        posted.flushes_ignored_before += std::mem::take(&mut posted.flushes_ignored);
    }
}
