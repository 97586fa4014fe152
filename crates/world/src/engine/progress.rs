//! Progress of a run, and its stop from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of completed operations of the engines on one thread, which other threads read. Aligned to avoid
/// false sharing between counting threads.
#[derive(Default)]
#[repr(align(128))]
pub struct Progress {
    operations: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Progress of a run that begins no further operation once `stop` is set. Its result is then of the
    /// operations until there.
    pub fn stopped_by(stop: &Arc<AtomicBool>) -> Progress {
        Progress { operations: AtomicU64::new(0), stop: stop.clone() }
    }

    /// Progress of another thread of the same run.
    pub(crate) fn of_another_thread(&self) -> Progress {
        Progress::stopped_by(&self.stop)
    }

    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Sets the number. Only one thread writes it, so no atomic addition is needed.
    pub fn set(&self, operations: u64) {
        self.operations.store(operations, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
