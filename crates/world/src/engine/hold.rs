//! Pause of the work until an action, such as a reset, has ended.

use std::cell::Cell;

use runtime::{Rt, Signal};

use super::progress::Progress;

/// Two thresholds in completed operations: the action starts at the first; from the second on no operation is
/// submitted until the action has ended.
#[derive(Default)]
pub struct Hold {
    due: Cell<u64>,
    limit: Cell<u64>,
    moved: Signal,
    reached: Signal,
}

impl Hold {
    /// Waits for the given number of completed operations. After `slack` more, no operation is submitted
    /// until the next call or until the hold is lifted.
    pub async fn reach(&self, rt: &Rt, progress: &Progress, operations: u64, slack: u64) {
        self.due.set(operations);
        self.move_to(rt, operations + slack);
        while progress.operations() < operations {
            self.reached.changed(rt, self.reached.version()).await;
        }
    }

    /// Ends the pause for good.
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
