//! The tasks that carry commands out, one for each slot.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use runtime::{Rt, TaskId};

/// The task of a slot, which lives as long as its front end.
#[derive(Default)]
pub(crate) struct Worker(Cell<Option<TaskId>>);

impl Worker {
    /// It has been started.
    pub fn bind(&self, task: TaskId) {
        self.0.set(Some(task));
    }

    /// The slot has been given a command, which begins now.
    #[inline]
    pub fn begin(&self, rt: &Rt) {
        self.0.get().into_iter().for_each(|task| rt.hand_over_to(task));
    }

    /// Something has changed that it waits for.
    pub fn wake(&self, rt: &Rt) {
        self.0.get().into_iter().for_each(|task| rt.wake(task));
    }
}

/// Runs a journey until it ends, or until there is a reason to cut it. It lies with the caller: a future of
/// some hundred bytes is not moved for every command.
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
