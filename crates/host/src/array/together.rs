//! Several operations at the same time.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;

use crate::IoError;

type Done = Result<(), IoError>;

/// Carries all of these out, and gives the first error in their order once all have ended. One or two are
/// boxed nowhere.
pub async fn all<F: Future<Output = Done>>(mut work: impl Iterator<Item = F>) -> Done {
    let (first, second, third) = (work.next(), work.next(), work.next());
    match (first, second, third) {
        (None, ..) => Ok(()),
        (Some(one), None, _) => one.await,
        (Some(one), Some(two), None) => both(one, two).await,
        (Some(one), Some(two), Some(three)) => {
            many([one, two, three].into_iter().chain(work)).await
        }
    }
}

async fn both<F: Future<Output = Done>>(one: F, two: F) -> Done {
    let (mut one, mut two) = (pin!(one), pin!(two));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(cx)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = two.as_mut().poll(cx)
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

async fn many<F: Future<Output = Done>>(work: impl Iterator<Item = F>) -> Done {
    let mut left: Vec<(Option<Done>, Pin<Box<F>>)> =
        work.map(|one| (None, Box::pin(one))).collect();
    poll_fn(|cx| {
        for (done, one) in left.iter_mut().filter(|(done, _)| done.is_none()) {
            if let Poll::Ready(ended) = one.as_mut().poll(cx) {
                *done = Some(ended);
            }
        }
        let done = left.iter().try_fold(Ok(()), |sum: Done, (done, _)| Some(sum.and((*done)?)));
        done.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
