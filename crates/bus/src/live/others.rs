//! Memory of others that a device reaches too, beside its host's.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Memory;

/// The list, which a device looks at only for what it does not find in what it knows.
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

    /// Brings up to date what a device knows, its host's memory first, if it has seen fewer changes than
    /// there were.
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
