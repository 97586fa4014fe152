//! Locks on stripes: data and parity of a stripe are changed, or read together, by one owner at a time.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Rt, Signal};

/// Held stripes and their waiters, in FIFO order.
#[derive(Default)]
pub struct Stripes {
    asked: RefCell<Vec<Asked>>,
    left: Signal,
    next: Cell<u64>,
}

struct Asked {
    ticket: u64,
    stripes: (u64, u64),
}

impl Stripes {
    /// Waits until no earlier owner or waiter has any of these stripes: first, and one past the last.
    pub async fn hold<'a>(&'a self, rt: &'a Rt, stripes: (u64, u64)) -> Held<'a> {
        let ticket = self.next.replace(self.next.get() + 1);
        self.asked.borrow_mut().push(Asked { ticket, stripes });
        let held = Held { of: self, rt, ticket };
        loop {
            let seen = self.left.version();
            if self.is_first(ticket, stripes) {
                return held;
            }
            self.left.changed(rt, seen).await;
        }
    }

    fn is_first(&self, ticket: u64, (begin, end): (u64, u64)) -> bool {
        let asked = self.asked.borrow();
        let mut before = asked.iter().filter(|other| other.ticket < ticket);
        before.all(|other| other.stripes.1 <= begin || end <= other.stripes.0)
    }
}

/// Held stripes; released on drop.
pub struct Held<'a> {
    of: &'a Stripes,
    rt: &'a Rt,
    ticket: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.of.asked.borrow_mut().retain(|one| one.ticket != self.ticket);
        self.of.left.notify(self.rt);
    }
}
