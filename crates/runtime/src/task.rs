//! Numbers of tasks, and their wakers.

use core::task::Waker;

/// Task number in its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u32);

/// The future given to [`Rt::block_on`](crate::Rt::block_on).
pub(crate) const MAIN: TaskId = TaskId(0);
/// Polled from outside, by another executor; its waker is then kept.
pub(crate) const OUTSIDE: TaskId = TaskId(u32::MAX);

/// Waker of futures that are polled step by step; other tasks run between two polls. It is a single static:
/// wakers are compared by address, and each crate that uses the no-op waker gets its own copy.
pub(crate) static OURS: &Waker = Waker::noop();

/// The waker of tasks. A task that waits for a time with it, and would be the next to run, may continue in
/// place (see `Rt::pass_time`). It is never called, as a wait records a task number.
#[cfg(feature = "std")]
pub(crate) fn straight() -> &'static Waker {
    // Not zero-sized: the waker points to it, and a leak checker takes a pointer to the end of an
    // allocation for no pointer to it.
    struct NoWake {
        _place: u8,
    }
    impl alloc::task::Wake for NoWake {
        fn wake(self: alloc::sync::Arc<NoWake>) {}
    }
    static WAKER: std::sync::LazyLock<Waker> =
        std::sync::LazyLock::new(|| Waker::from(alloc::sync::Arc::new(NoWake { _place: 0 })));
    &WAKER
}

/// Without `std` there is no place for such a waker: every wait arms a timer.
#[cfg(not(feature = "std"))]
pub(crate) fn straight() -> &'static Waker {
    OURS
}

/// A waiting task, and the waker of the foreign combinator inside it, if any.
#[derive(Debug)]
pub struct Parked {
    pub(crate) task: TaskId,
    pub(crate) foreign: Option<Waker>,
}

impl Parked {
    pub(crate) fn new(task: TaskId, foreign: Option<Waker>) -> Parked {
        Parked { task, foreign }
    }

    pub(crate) fn into_parts(self) -> (TaskId, Option<Waker>) {
        (self.task, self.foreign)
    }
}
