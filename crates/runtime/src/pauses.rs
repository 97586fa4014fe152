//! Pauses of tasks in virtual time: [`Rt::pause_tasks`](crate::Rt::pause_tasks).

use alloc::boxed::Box;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;

use crate::rng::Rng;
use crate::time::Span;

/// One turn in this number begins with a pause.
const ONE_IN: u64 = 16;

/// Shortest pause: less than any step of a command takes.
const SHORTEST: Span = Span::ns(50);

/// The longest pause is as many times the shortest as two to this power: 0.4 ms.
const DOUBLINGS: u64 = 13;

/// The pause before the next turn: mostly none, else of any order of magnitude.
pub(crate) fn draw(rng: &mut Rng) -> Option<Span> {
    rng.chance(1, ONE_IN).then(|| {
        let about = SHORTEST.0 << rng.below(DOUBLINGS);
        Span(about + rng.below(about))
    })
}

/// A task that may pause before each of its turns, for as long as `next` says. An event that would wake it
/// meanwhile waits for the end of its pause.
pub(crate) async fn paused<S: Future<Output = ()>>(
    mut task: Pin<Box<dyn Future<Output = ()>>>,
    mut next: impl FnMut() -> Option<S>,
) {
    let mut pause = None;
    poll_fn(|cx| {
        if pause.is_none() {
            pause = next().map(Box::pin);
        }
        if let Some(sleep) = &mut pause {
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            pause = None;
        }
        task.as_mut().poll(cx)
    })
    .await;
}
