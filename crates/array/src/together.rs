//! Concurrent operations.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};

use runtime::{Rt, beside_others};

use host::IoError;

type Done = Result<(), IoError>;

/// Runs `work` for each item concurrently; returns the first error in item order once all have ended. One or
/// two futures are stored inline, more are boxed. Each has its own request trace; that of the last one to end
/// becomes the task's.
pub async fn all<T, F: Future<Output = Done>>(
    rt: &Rt,
    mut of: impl Iterator<Item = T>,
    work: impl Fn(T) -> F,
) -> Done {
    let Some(one) = of.next() else { return Ok(()) };
    let Some(two) = of.next() else { return work(one).await };
    match of.next() {
        None => both(rt, one, two, work).await,
        Some(three) => many(rt, [one, two, three].into_iter().chain(of), work).await,
    }
}

/// Progress of one of several operations in a task.
struct Part {
    trace: u32,
    done: Option<Done>,
}

impl Part {
    fn new(rt: &Rt) -> Part {
        rt.detach_trace();
        Part { trace: rt.trace(), done: None }
    }

    /// Polls it unless it has ended; returns its trace if it ends now.
    fn poll(
        &mut self,
        work: Pin<&mut impl Future<Output = Done>>,
        rt: &Rt,
        cx: &Context<'_>,
    ) -> Option<u32> {
        if self.done.is_some() {
            return None;
        }
        rt.attach_trace_number(self.trace);
        if let Poll::Ready(done) = work.poll(&mut beside_others(cx)) {
            self.done = Some(done);
        }
        self.trace = rt.trace();
        rt.detach_trace();
        self.done.map(|_| self.trace)
    }
}

async fn both<T, F: Future<Output = Done>>(rt: &Rt, one: T, two: T, work: impl Fn(T) -> F) -> Done {
    let (mut one, mut two) = (pin!(work(one)), pin!(work(two)));
    let (mut first, mut second) = (Part::new(rt), Part::new(rt));
    poll_fn(|cx| {
        let ended = first.poll(one.as_mut(), rt, cx);
        let ended = second.poll(two.as_mut(), rt, cx).or(ended);
        let (Some(first), Some(second)) = (first.done, second.done) else { return Poll::Pending };
        ended.into_iter().for_each(|trace| rt.attach_trace_number(trace));
        Poll::Ready(first.and(second))
    })
    .await
}

/// Like [`all`], with every future boxed: for large futures.
pub async fn many<T, F: Future<Output = Done>>(
    rt: &Rt,
    of: impl Iterator<Item = T>,
    work: impl Fn(T) -> F,
) -> Done {
    let boxed = |one| (Part::new(rt), Box::pin(work(one)));
    let mut parts: Vec<(Part, Pin<Box<F>>)> = of.map(boxed).collect();
    poll_fn(|cx| {
        let mut ended = None;
        for (part, work) in &mut parts {
            ended = part.poll(work.as_mut(), rt, cx).or(ended);
        }
        let done = parts.iter().try_fold(Ok(()), |sum: Done, (part, _)| Some(sum.and(part.done?)));
        let Some(done) = done else { return Poll::Pending };
        ended.into_iter().for_each(|trace| rt.attach_trace_number(trace));
        Poll::Ready(done)
    })
    .await
}
