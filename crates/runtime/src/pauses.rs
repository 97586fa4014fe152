//! Pauses of tasks in virtual time: [`Rt::pause_tasks`].

use alloc::boxed::Box;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;

use crate::rt::Rt;
use crate::{Rng, Span};

/// One turn in this number begins with a pause.
const ONE_IN: u64 = 16;

/// Shortest pause: less than any step of a command takes.
const SHORTEST: Span = Span::ns(50);

/// The longest pause is as many times the shortest as two to this power: 0.4 ms.
const DOUBLINGS: u64 = 13;

/// The pause before the next turn: mostly none, else of any order of magnitude.
fn draw(rng: &mut Rng) -> Option<Span> {
    rng.chance(1, ONE_IN).then(|| {
        let about = SHORTEST.0 << rng.below(DOUBLINGS);
        Span(about + rng.below(about))
    })
}

/// A task that may pause before each of its turns. An event that would wake it meanwhile waits for the end of
/// its pause.
pub(crate) async fn paused(rt: Rt, mut task: Pin<Box<dyn Future<Output = ()>>>) {
    let mut pause = None;
    poll_fn(|cx| {
        if pause.is_none() {
            let span = rt.0.pauses.borrow_mut().as_mut().and_then(draw);
            pause = span.map(|span| {
                let rt = rt.clone();
                Box::pin(async move { rt.sleep(span).await })
            });
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

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;
    use core::cell::Cell;

    use super::*;
    use crate::{Log, Time};

    /// Runs 1,000 turns of 10 ns with pauses of this seed; returns the time that they took.
    fn took(seed: Option<u64>) -> Time {
        let rt = Rt::simulated(None, Log::Off);
        if let Some(seed) = seed {
            rt.pause_tasks(Rng::for_part(seed, "pauses"));
        }
        let left = Rc::new(Cell::new(1000));
        rt.spawn({
            let (rt, left) = (rt.clone(), left.clone());
            async move {
                while left.get() > 0 {
                    rt.sleep(Span::ns(10)).await;
                    left.set(left.get() - 1);
                }
            }
        });
        rt.block_on(async {
            while left.get() > 0 {
                rt.sleep(Span::ns(10)).await;
            }
        });
        let now = rt.now();
        rt.drop_tasks();
        now
    }

    #[test]
    fn paused_tasks_end_later_and_repeat_with_their_seed() {
        assert_eq!(took(None), Time(10_000_000));
        assert!(took(Some(1)) > Time(100_000_000), "{}", took(Some(1)));
        assert_eq!(took(Some(1)), took(Some(1)));
        assert_ne!(took(Some(1)), took(Some(2)));
    }
}
