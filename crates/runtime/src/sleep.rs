//! Waits for a moment, and where one needs no timer.

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use crate::rt::{OURS, Rt};
use crate::time::Time;

/// What tasks are polled with: who waits for a moment with it, and would be the next to run, may go on in
/// place (see [`Rt::pass_time`]). It is never called, as a wait notes a number.
#[cfg(feature = "std")]
pub(crate) fn straight() -> &'static Waker {
    // Not empty: the waker points to it, and a leak checker takes a pointer to the end of what was
    // allocated for none.
    struct Nobody {
        _place: u8,
    }
    impl alloc::task::Wake for Nobody {
        fn wake(self: alloc::sync::Arc<Nobody>) {}
    }
    static WAKER: std::sync::LazyLock<Waker> =
        std::sync::LazyLock::new(|| Waker::from(alloc::sync::Arc::new(Nobody { _place: 0 })));
    &WAKER
}

/// Nothing to keep such a waker in: every wait takes its turn.
#[cfg(not(feature = "std"))]
pub(crate) fn straight() -> &'static Waker {
    OURS
}

/// The context for a future that is polled beside others by the same task: while it waits, the others have
/// yet to be asked, so time must not pass in place. The last to be asked may have the task's own context.
pub fn beside_others<'a>(cx: &'a Context<'_>) -> Context<'a> {
    let alone = cx.waker().will_wake(straight());
    Context::from_waker(if alone { OURS } else { cx.waker() })
}

impl Rt {
    /// Lets virtual time pass in place: true, and the clock stands at `until`, if a timer armed now for
    /// that moment would be the next thing to happen, and wake nobody but the task that is being polled.
    /// What would have been armed, fired and polled anew then costs a comparison; it is a timed event all
    /// the same. Who is polled beside others of its task ([`beside_others`]), by another combinator, or by
    /// [`Rt::block_on`] itself, takes its turn.
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

    /// Wakes who is polling at a moment; the number disarms the timer.
    #[inline]
    pub(crate) fn arm_here(&self, at: Time, cx: &Context<'_>) -> u64 {
        if self.is_ours(cx) {
            self.note_timer(at);
            return self.0.timers.borrow_mut().arm_task(at, self.0.current.0.get());
        }
        self.arm(at, self.park(cx))
    }
}

/// A wait for a moment. Dropping it takes its timer back.
pub struct Sleep<'a> {
    rt: &'a Rt,
    until: Time,
    /// The number of its timer, once it has one.
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
    /// Out of line, so that looking whether the moment has come is small.
    #[inline(never)]
    fn begin(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.rt.pass_time(self.until, cx) {
            return Poll::Ready(());
        }
        self.timer = Some(self.rt.arm_here(self.until, cx));
        Poll::Pending
    }

    pub(crate) fn new(rt: &'a Rt, until: Time) -> Sleep<'a> {
        Sleep { rt, until, timer: None }
    }
}

/// Which of two futures came first.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first did.
    First(A),
    /// The second did.
    Second(B),
}

/// Waits for whichever comes first and drops the other; the first wins a tie.
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
