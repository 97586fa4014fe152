//! Memory besides the host's own that a device can access.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Memory;

/// Shared list, consulted by a device only after a miss in its own.
#[derive(Default)]
pub(super) struct Others {
    list: Mutex<Vec<Memory>>,
    changes: AtomicU32,
}

impl Others {
    pub fn change(&self, change: impl FnOnce(&mut Vec<Memory>)) {
        change(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Updates a device's list after changes; the first element, its host's memory, stays.
    #[cold]
    pub fn find_again(&self, known: &RefCell<Vec<Memory>>, seen: &Cell<u32>) {
        let changes = self.changes.load(Ordering::Acquire);
        if seen.replace(changes) == changes {
            return;
        }
        let mut known = known.borrow_mut();
        known.truncate(1);
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(list.iter().cloned());
    }
}
