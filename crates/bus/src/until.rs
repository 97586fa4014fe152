//! Waiting for memory in wall time, where nothing wakes anybody.

use core::future::poll_fn;
use core::task::Poll;

use runtime::Rt;

/// Passes in which a wait has found nothing, after which it is asked once in a while: some tens of
/// microseconds.
pub(crate) const PASSES_UNTIL_PATIENT: u32 = 4_096;

/// Asks in pass after pass until there is an answer: how a port in wall time waits for memory or for a count.
///
/// # Panics
/// In virtual time, where only events change anything.
#[inline]
pub async fn until<T>(rt: &Rt, mut check: impl FnMut() -> Option<T>) -> T {
    let mut passes = 0_u32;
    poll_fn(|cx| {
        // Whoever may not go on does not look: what a check has found is never kept back, nor lost with a
        // future that is dropped.
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
