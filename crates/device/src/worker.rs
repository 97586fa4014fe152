//! Tasks that execute commands, one per slot.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use runtime::{Rt, TaskId};

/// The task of a slot; it lives as long as its controller.
#[derive(Default)]
pub(crate) struct Worker(Cell<Option<TaskId>>);

impl Worker {
    /// Sets the task of the slot.
    pub fn bind(&self, task: TaskId) {
        self.0.set(Some(task));
    }

    /// Runs the task: its slot has a new command.
    #[inline]
    pub fn begin(&self, rt: &Rt) {
        self.0.get().into_iter().for_each(|task| rt.hand_over_to(task));
    }

    /// Wakes the task: a condition that it waits for may have changed.
    pub fn wake(&self, rt: &Rt) {
        self.0.get().into_iter().for_each(|task| rt.wake(task));
    }
}

/// Polls a command's future until it ends or `cut` returns a reason to cancel it. The future stays pinned
/// with the caller: it has some hundred bytes, and is not moved per command.
#[inline]
pub(crate) async fn or_cut<T, C>(
    cut: impl Fn() -> Option<C>,
    mut trace: Pin<&mut impl Future<Output = T>>,
) -> Result<T, C> {
    poll_fn(|cx| match cut() {
        Some(why) => Poll::Ready(Err(why)),
        None => trace.as_mut().poll(cx).map(Ok),
    })
    .await
}
