//! Several operations at the same time.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;

use runtime::beside_others;

use crate::IoError;

type Done = Result<(), IoError>;

/// Carries out what `work` makes of each of these, and gives the first error in their order once all have
/// ended. One or two lie with the caller; more are boxed.
pub async fn all<T, F: Future<Output = Done>>(
    mut of: impl Iterator<Item = T>,
    work: impl Fn(T) -> F,
) -> Done {
    let Some(one) = of.next() else { return Ok(()) };
    let Some(two) = of.next() else { return work(one).await };
    match of.next() {
        None => both(one, two, work).await,
        Some(three) => many([one, two, three].into_iter().chain(of), work).await,
    }
}

async fn both<T, F: Future<Output = Done>>(one: T, two: T, work: impl Fn(T) -> F) -> Done {
    let (mut one, mut two) = (pin!(work(one)), pin!(work(two)));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(&mut beside_others(cx))
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = two.as_mut().poll(&mut beside_others(cx))
        {
            second = Some(done);
        }
        match (first, second) {
            (Some(first), Some(second)) => Poll::Ready(first.and(second)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// As [`all`], each boxed: for work that is long itself.
pub async fn many<T, F: Future<Output = Done>>(
    of: impl Iterator<Item = T>,
    work: impl Fn(T) -> F,
) -> Done {
    let boxed = |one| (None, Box::pin(work(one)));
    let mut left: Vec<(Option<Done>, Pin<Box<F>>)> = of.map(boxed).collect();
    poll_fn(|cx| {
        for (done, one) in left.iter_mut().filter(|(done, _)| done.is_none()) {
            if let Poll::Ready(ended) = one.as_mut().poll(&mut beside_others(cx)) {
                *done = Some(ended);
            }
        }
        let done = left.iter().try_fold(Ok(()), |sum: Done, (done, _)| Some(sum.and((*done)?)));
        done.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
