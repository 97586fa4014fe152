//! Mailbox of an array's change tasks: changes run to their end, even if the caller's future is dropped.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::Poll;

use bus::Buffer;
use runtime::{Parked, Pool, Rt, TaskId};
use wire::Lba;

use super::trace::Ways;
use host::IoError;

/// Change of stripes that a caller requests.
pub enum Asked {
    /// Write of `from` to the blocks from `lba`.
    Write { number: usize, lba: Lba, from: Buffer, fua: bool },
    /// Deallocation of `blocks` blocks from `lba`.
    Deallocate { number: usize, lba: Lba, blocks: u32 },
}

/// One place per change task.
pub struct Mailbox {
    places: Vec<Place>,
    free: Pool<u16>,
}

#[derive(Default)]
struct Place {
    task: Cell<Option<TaskId>>,
    asked: RefCell<Option<Asked>>,
    trace: Cell<u32>,
    done: Cell<Option<Result<(), IoError>>>,
    /// Waiting caller; `None` if the caller is not waiting.
    caller: Cell<Option<Parked>>,
    abandoned: Cell<bool>,
}

impl Mailbox {
    pub fn new(places: u16) -> Mailbox {
        let free = Pool::new((0..places).rev());
        Mailbox { places: (0..places).map(|_| Place::default()).collect(), free }
    }

    pub fn places(&self) -> usize {
        self.places.len()
    }

    pub fn belongs_to(&self, number: usize, task: TaskId) {
        self.places[number].task.set(Some(task));
    }

    /// Passes a change to the next free task and waits for its end.
    pub async fn carry_out(&self, rt: &Rt, ways: &Ways, asked: Asked) -> Result<(), IoError> {
        let since = rt.now();
        let number = self.free.take(rt).await;
        let place = &self.places[usize::from(number)];
        ways.begin_place(rt, number, since);
        place.trace.set(rt.trace());
        let caller = Caller { mailbox: self, rt, number };
        *place.asked.borrow_mut() = Some(asked);
        rt.hand_over_to(place.task.get().expect("each place has its task"));
        let done = poll_fn(|cx| match place.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                place.caller.set(Some(rt.park(cx)));
                Poll::Pending
            }
        })
        .await;
        caller.has_answer();
        done
    }

    /// Next change for the task of this place, with its request trace.
    pub async fn next(&self, number: usize) -> (Asked, u32) {
        let place = &self.places[number];
        let take = || place.asked.borrow_mut().take().map(|asked| (asked, place.trace.get()));
        poll_fn(|_| take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Reports the end of a change to its caller.
    pub fn answer(&self, rt: &Rt, number: usize, done: Result<(), IoError>) {
        let place = &self.places[number];
        if place.abandoned.take() {
            return self.free.give(rt, number as u16);
        }
        place.done.set(Some(done));
        if let Some(caller) = place.caller.take() {
            rt.hand_over(caller);
        }
    }
}

/// A caller that waits for an answer; dropping it abandons the change.
struct Caller<'a> {
    mailbox: &'a Mailbox,
    rt: &'a Rt,
    number: u16,
}

impl Caller<'_> {
    fn has_answer(self) {
        self.mailbox.free.give(self.rt, self.number);
        core::mem::forget(self);
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let place = &self.mailbox.places[usize::from(self.number)];
        place.caller.take();
        match place.done.take() {
            Some(_) => self.mailbox.free.give(self.rt, self.number),
            None => place.abandoned.set(true),
        }
    }
}
