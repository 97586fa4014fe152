//! Events and pools of resources to wait for.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::rt::Rt;
use crate::task::Parked;

/// A versioned event. A waiter passes the version that it has seen, so no change is missed.
#[derive(Default)]
pub struct Signal {
    version: Cell<u64>,
    waiting: RefCell<Vec<(u64, Parked)>>,
    next_ticket: Cell<u64>,
}

impl Signal {
    /// Number of changes so far.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// Counts a change and wakes all waiters.
    #[inline]
    pub fn notify(&self, rt: &Rt) {
        self.version.set(self.version.get() + 1);
        if !self.waiting.borrow().is_empty() {
            self.wake_all(rt);
        }
    }

    /// Out of line: most changes have no waiter.
    #[inline(never)]
    fn wake_all(&self, rt: &Rt) {
        let mut waiting = core::mem::take(&mut *self.waiting.borrow_mut());
        for (_, parked) in waiting.drain(..) {
            rt.unpark(parked);
        }
        // The list keeps its capacity, unless a foreign waker has already begun another.
        let mut list = self.waiting.borrow_mut();
        if list.is_empty() {
            *list = waiting;
        }
    }

    /// Waits until the version differs from `seen`.
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
        // The version is unchanged, so a ticket taken earlier is still in the list.
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
    /// Leaves the list. A wait that is dropped repeatedly, as in a race, must not make the list grow.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && self.signal.version.get() == self.seen
        {
            self.signal.waiting.borrow_mut().retain(|(t, _)| *t != ticket);
        }
    }
}

/// A FIFO pool of N items: command slots, tags, credits, a lock. A newcomer never overtakes, and a waiter
/// that is dropped passes its item on.
pub struct Pool<T> {
    state: RefCell<PoolState<T>>,
}

struct PoolState<T> {
    free: Vec<T>,
    /// Waiting tasks by ticket, oldest first.
    queue: VecDeque<(u64, Parked)>,
    /// Items granted to a ticket and not yet fetched.
    granted: Vec<(u64, T)>,
    next_ticket: u64,
}

impl<T> Pool<T> {
    /// A pool that holds `items`; the last is handed out first.
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

    /// Number of free items.
    #[inline]
    pub fn available(&self) -> usize {
        self.state.borrow().free.len()
    }

    /// Takes an item, if one is free and no task waits.
    #[inline]
    pub fn try_take(&self) -> Option<T> {
        let mut state = self.state.borrow_mut();
        if state.queue.is_empty() { state.free.pop() } else { None }
    }

    /// Waits for an item and takes it.
    pub fn take<'a>(&'a self, rt: &'a Rt) -> Take<'a, T> {
        Take { pool: self, rt, ticket: None }
    }

    /// Returns an item to the pool, or to the longest-waiting task.
    #[inline]
    pub fn give(&self, rt: &Rt, item: T) {
        let mut state = self.state.borrow_mut();
        if state.queue.is_empty() {
            return state.free.push(item);
        }
        drop(state);
        self.grant(rt, item);
    }

    /// Grants an item to the longest-waiting task, if any.
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
