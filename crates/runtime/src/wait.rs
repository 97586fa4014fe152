//! Two things to wait for: a change, and a turn.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::rt::{Parked, Rt};

/// Something that changes. A waiter names the version it has seen, so no change is ever missed.
#[derive(Default)]
pub struct Signal {
    version: Cell<u64>,
    waiting: RefCell<Vec<(u64, Parked)>>,
    next_ticket: Cell<u64>,
}

impl Signal {
    /// The number of changes so far.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// It has changed: everybody who waits is woken.
    #[inline]
    pub fn notify(&self, rt: &Rt) {
        self.version.set(self.version.get() + 1);
        if !self.waiting.borrow().is_empty() {
            self.wake_all(rt);
        }
    }

    /// Out of line: most changes have nobody who waits for them.
    #[inline(never)]
    fn wake_all(&self, rt: &Rt) {
        let mut waiting = core::mem::take(&mut *self.waiting.borrow_mut());
        for (_, parked) in waiting.drain(..) {
            rt.unpark(parked);
        }
        // The list keeps its room, unless a foreign waker has already begun another.
        let mut list = self.waiting.borrow_mut();
        if list.is_empty() {
            *list = waiting;
        }
    }

    /// Waits until it has changed since `seen`.
    pub fn changed<'a>(&'a self, rt: &'a Rt, seen: u64) -> Changed<'a> {
        Changed { signal: self, rt, seen, ticket: None }
    }
}

/// See [`Signal::changed`].
pub struct Changed<'a> {
    signal: &'a Signal,
    rt: &'a Rt,
    seen: u64,
    ticket: Option<u64>,
}

impl Future for Changed<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.version.get() != self.seen {
            return Poll::Ready(());
        }
        // Still the version that was seen: if we stand in the list, we still stand there.
        if self.ticket.is_none() {
            let ticket = self.signal.next_ticket.get();
            self.signal.next_ticket.set(ticket + 1);
            self.signal.waiting.borrow_mut().push((ticket, self.rt.park(cx)));
            self.ticket = Some(ticket);
        }
        Poll::Pending
    }
}

impl Drop for Changed<'_> {
    /// Leaves the list, if it still stands there: a wait that is given up again and again, as in a race,
    /// must not make the list longer.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && self.signal.version.get() == self.seen
        {
            self.signal.waiting.borrow_mut().retain(|(t, _)| *t != ticket);
        }
    }
}

/// Things of which there are only so many: command slots, tags, credits, a lock. Handed out first
/// come, first served; a newcomer never overtakes, and a waiter that is dropped passes its turn on.
pub struct Pool<T> {
    state: RefCell<PoolState<T>>,
}

struct PoolState<T> {
    free: Vec<T>,
    /// Who waits, by ticket, oldest first.
    queue: VecDeque<(u64, Parked)>,
    /// What has been given to a ticket that has not fetched it yet.
    granted: Vec<(u64, T)>,
    next_ticket: u64,
}

impl<T> Pool<T> {
    /// A pool that holds `items`; the last is given first.
    pub fn new(items: impl IntoIterator<Item = T>) -> Pool<T> {
        Pool {
            state: RefCell::new(PoolState {
                free: items.into_iter().collect(),
                queue: VecDeque::new(),
                granted: Vec::new(),
                next_ticket: 0,
            }),
        }
    }

    /// How many lie free.
    #[inline]
    pub fn available(&self) -> usize {
        self.state.borrow().free.len()
    }

    /// One, if one is free and nobody waits for it.
    #[inline]
    pub fn try_take(&self) -> Option<T> {
        let mut state = self.state.borrow_mut();
        if state.queue.is_empty() { state.free.pop() } else { None }
    }

    /// Waits for a turn, and takes one.
    pub fn take<'a>(&'a self, rt: &'a Rt) -> Take<'a, T> {
        Take { pool: self, rt, ticket: None }
    }

    /// Gives one back, to whoever has waited longest.
    #[inline]
    pub fn give(&self, rt: &Rt, item: T) {
        let mut state = self.state.borrow_mut();
        if state.queue.is_empty() {
            return state.free.push(item);
        }
        drop(state);
        self.grant(rt, item);
    }

    /// Gives one to whoever has waited longest, if anybody has.
    #[inline(never)]
    fn grant(&self, rt: &Rt, item: T) {
        let mut state = self.state.borrow_mut();
        if let Some((ticket, parked)) = state.queue.pop_front() {
            state.granted.push((ticket, item));
            drop(state);
            rt.unpark(parked);
        }
    }
}

/// See [`Pool::take`].
pub struct Take<'a, T> {
    pool: &'a Pool<T>,
    rt: &'a Rt,
    ticket: Option<u64>,
}

impl<T> Future for Take<'_, T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(ticket) = self.ticket else {
            if let Some(item) = self.pool.try_take() {
                return Poll::Ready(item);
            }
            let mut state = self.pool.state.borrow_mut();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.queue.push_back((ticket, self.rt.park(cx)));
            drop(state);
            self.ticket = Some(ticket);
            return Poll::Pending;
        };
        let mut state = self.pool.state.borrow_mut();
        match state.granted.iter().position(|(t, _)| *t == ticket) {
            Some(found) => {
                let (_, item) = state.granted.swap_remove(found);
                drop(state);
                self.ticket = None;
                Poll::Ready(item)
            }
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Take<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.pool.state.borrow_mut();
        state.queue.retain(|(t, _)| *t != ticket);
        if let Some(found) = state.granted.iter().position(|(t, _)| *t == ticket) {
            let (_, item) = state.granted.swap_remove(found);
            drop(state);
            self.pool.give(self.rt, item);
        }
    }
}
