//! Polling in wall time.

use core::future::poll_fn;
use core::task::Poll;

use runtime::Rt;

/// Fruitless passes of a wait, some tens of microseconds, after which it is polled less often.
pub(crate) const PASSES_UNTIL_PATIENT: u32 = 4_096;

/// Polls `check` in every pass until it returns `Some`: the wait for memory or a count of ports in wall
/// time.
///
/// # Panics
/// In virtual time, where only events change state.
#[inline]
pub async fn until<T>(rt: &Rt, mut check: impl FnMut() -> Option<T>) -> T {
    let mut passes = 0_u32;
    poll_fn(|cx| {
        // A task whose turn is over does not run the check: a result is never held back, nor lost with a
        // dropped future.
        let looks = if passes > 0 || rt.may_go_on() { rt.looks() } else { 0 };
        for _ in 0..looks {
            if let Some(found) = check() {
                rt.progress();
                if passes == 0 {
                    rt.goes_on();
                }
                return Poll::Ready(found);
            }
        }
        passes = passes.saturating_add(1);
        rt.poll_again(cx, passes > PASSES_UNTIL_PATIENT);
        Poll::Pending
    })
    .await
}
