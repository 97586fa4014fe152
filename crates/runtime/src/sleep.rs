//! Waits for a time, and when they need no timer.

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};

use crate::rt::Rt;
use crate::task::{OURS, straight};
use crate::time::{Span, Time};

/// The context for a future that one task polls together with others: while it waits, the others have yet
/// to be polled, so time must not pass in place. The last to be polled may get the task's own context.
pub fn beside_others<'a>(cx: &'a Context<'_>) -> Context<'a> {
    let alone = cx.waker().will_wake(straight());
    Context::from_waker(if alone { OURS } else { cx.waker() })
}

impl Rt {
    /// Sleeps until the given time.
    pub fn sleep_until(&self, until: Time) -> Sleep<'_> {
        Sleep::new(self, until)
    }

    /// Sleeps for a span.
    pub fn sleep(&self, span: Span) -> Sleep<'_> {
        self.sleep_until(self.now() + span)
    }

    /// Lets virtual time pass in place. Returns true, with the clock at `until`, if a timer armed now for
    /// `until` would be the next event and would wake only the current task. A comparison then replaces
    /// arming, firing and polling again; it still counts as a timed event. Futures polled together with
    /// others of their task ([`beside_others`]), by another combinator, or by [`Rt::block_on`] itself,
    /// always use a timer.
    #[inline]
    pub(crate) fn pass_time(&self, until: Time, cx: &Context<'_>) -> bool {
        let core = &*self.0;
        let next = core.next_timer.get() > until
            && core.in_place
            && core.ready.borrow().is_empty()
            && core.timed_events.get() < core.watched_event.get()
            && cx.waker().will_wake(core.straight);
        if next {
            core.now.set(until);
            core.timed_events.set(core.timed_events.get() + 1);
        }
        next
    }

    /// Arms a timer for the current task; the returned number disarms it.
    #[inline]
    pub(crate) fn arm_here(&self, at: Time, cx: &Context<'_>) -> u64 {
        if self.is_ours(cx) {
            self.note_timer(at);
            return self.0.timers.borrow_mut().arm_task(at, self.0.current.0.get());
        }
        self.arm(at, self.park(cx))
    }
}

/// A wait until a time. Dropping it cancels its timer.
pub struct Sleep<'a> {
    rt: &'a Rt,
    until: Time,
    /// Number of its timer, if armed.
    timer: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.until {
            return Poll::Ready(());
        }
        match self.timer {
            None => self.begin(cx),
            Some(_) => Poll::Pending,
        }
    }
}

impl Drop for Sleep<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(timer) = self.timer
            && self.rt.now() < self.until
        {
            self.rt.disarm(self.until, timer);
        }
    }
}

impl<'a> Sleep<'a> {
    /// Out of line, so that the check of the time stays small.
    #[inline(never)]
    fn begin(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.rt.pass_time(self.until, cx) {
            return Poll::Ready(());
        }
        self.timer = Some(self.rt.arm_here(self.until, cx));
        Poll::Pending
    }

    fn new(rt: &'a Rt, until: Time) -> Sleep<'a> {
        Sleep { rt, until, timer: None }
    }
}

/// The result of the first of two futures to complete.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first future completed.
    First(A),
    /// The second future completed.
    Second(B),
}

/// Waits for the first of two futures and drops the other. The first wins a tie.
pub async fn race<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    core::future::poll_fn(|cx| {
        if let Poll::Ready(output) = a.as_mut().poll(&mut beside_others(cx)) {
            return Poll::Ready(Either::First(output));
        }
        b.as_mut().poll(cx).map(Either::Second)
    })
    .await
}
