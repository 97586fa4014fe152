//! Who works on which stripes: data and parity of one are changed, or read together, by one at a time.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Rt, Signal};

/// Stripes that are held, and who waits for them, in the order of asking.
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
    /// Waits until nobody who asked before holds, or waits for, any of these stripes: the first, and the one
    /// behind the last.
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

/// Stripes that somebody holds, until this is dropped.
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
