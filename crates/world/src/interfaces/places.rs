//! Operations of unnamed types behind one type, without an allocation for each.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bus::Buffer;
use host::IoError;

/// Result of a read or a write.
type Moved = (Buffer, Result<(), IoError>);

/// Places of operations of one kind. One that has ended, or was dropped, leaves its place to the next.
pub(super) struct Places<F>(Rc<Free<F>>);

type Free<F> = RefCell<Vec<Box<Place<F>>>>;

struct Place<F> {
    running: Pin<Box<Option<F>>>,
    free: Weak<Free<F>>,
}

/// An operation that runs until it has its result or is dropped.
pub(super) struct Operation(Option<Box<dyn Running>>);

trait Running {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Moved>;

    /// Drops the operation, and leaves its place.
    fn leave(self: Box<Self>);
}

impl<F> Default for Places<F> {
    fn default() -> Places<F> {
        Places(Rc::default())
    }
}

impl<F: Future<Output = Moved> + 'static> Places<F> {
    pub(super) fn begin(&self, future: F) -> Operation {
        let left = self.0.borrow_mut().pop();
        let mut place = left.unwrap_or_else(|| {
            Box::new(Place { running: Box::pin(None), free: Rc::downgrade(&self.0) })
        });
        place.running.set(Some(future));
        Operation(Some(place))
    }
}

impl<F: Future<Output = Moved> + 'static> Running for Place<F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Moved> {
        self.running.as_mut().as_pin_mut().expect("it has begun").poll(cx)
    }

    fn leave(mut self: Box<Self>) {
        self.running.set(None);
        if let Some(free) = self.free.upgrade() {
            free.borrow_mut().push(self);
        }
    }
}

impl Future for Operation {
    type Output = Moved;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Moved> {
        self.0.as_mut().expect("it has a place until it is dropped").poll(cx)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            running.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn operations_use_the_places_that_others_left() {
        let places = Places::default();
        let free = |number| assert_eq!(places.0.borrow().len(), number);
        let alive = Rc::new(());
        let begin = || {
            let alive = alive.clone();
            places.begin(async move {
                let _alive = alive;
                pending().await
            })
        };
        let (one, two) = (begin(), begin());
        free(0);
        assert_eq!(Rc::strong_count(&alive), 3);
        drop(one);
        free(1);
        assert_eq!(Rc::strong_count(&alive), 2, "a dropped operation ends at once");
        let three = begin();
        free(0);
        drop((two, three));
        free(2);
        assert_eq!(Rc::strong_count(&alive), 1);
    }
}
