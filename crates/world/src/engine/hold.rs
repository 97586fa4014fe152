//! Work that is held up until somebody has acted in the midst of it.

use std::cell::Cell;

use runtime::{Rt, Signal};

use super::Progress;

/// Two marks in the work: at one somebody is to act, and beyond the other nothing is begun until they have.
#[derive(Default)]
pub struct Hold {
    due: Cell<u64>,
    limit: Cell<u64>,
    moved: Signal,
    reached: Signal,
}

impl Hold {
    /// Waits until so many operations have ended. Once `slack` more have, no others are begun until this is
    /// called again, or the hold is lifted.
    pub async fn reach(&self, rt: &Rt, progress: &Progress, operations: u64, slack: u64) {
        self.due.set(operations);
        self.move_to(rt, operations + slack);
        while progress.operations() < operations {
            self.reached.changed(rt, self.reached.version()).await;
        }
    }

    /// Nothing is held up any more.
    pub fn lift(&self, rt: &Rt) {
        self.move_to(rt, u64::MAX);
    }

    fn move_to(&self, rt: &Rt, limit: u64) {
        self.limit.set(limit);
        self.moved.notify(rt);
    }

    pub(super) async fn passed(&self, rt: &Rt, progress: &Progress) {
        while progress.operations() >= self.limit.get() {
            self.moved.changed(rt, self.moved.version()).await;
        }
    }

    pub(super) fn ended(&self, rt: &Rt, operations: u64) {
        if operations == self.due.get() {
            self.reached.notify(rt);
        }
    }
}
