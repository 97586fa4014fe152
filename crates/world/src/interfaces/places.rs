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
pub struct Places<F>(Rc<Free<F>>);

type Free<F> = RefCell<Vec<Box<Place<F>>>>;

struct Place<F> {
    running: Pin<Box<Option<F>>>,
    free: Weak<Free<F>>,
}

/// An operation that runs until it has its result or is dropped.
pub struct Operation(Option<Box<dyn Running>>);

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
    /// Places that no operation is in.
    pub fn left(&self) -> usize {
        self.0.borrow().len()
    }

    /// Begins an operation in such a place, or in a new one.
    pub fn begin(&self, future: F) -> Operation {
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
