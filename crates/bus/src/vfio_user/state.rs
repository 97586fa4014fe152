//! State of a device's thread that survives a reset: mappings, vectors, accesses by messages.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::Vec;

use super::function::Registers;
use super::mailbox::{AccessId, Mailbox, ToSession};
use super::table::Table;
use super::vectors::{Signalling, Vectors};

pub(super) struct State {
    /// The session's first device end, which alone resets: it clears the registers and answers starts.
    pub is_first: bool,
    pub mailbox: Arc<Mailbox>,
    pub registers: Registers,
    pub table: RefCell<Table>,
    pub vectors: RefCell<Vectors>,
    pub bus_master: Cell<bool>,
    /// Accesses by messages in flight, by number.
    pub accesses: RefCell<BTreeMap<AccessId, Waiting>>,
    pub next_access: Cell<AccessId>,
    /// Number of posted accesses in flight: no task waits for them, but interrupts are ordered behind them.
    pub posted: Cell<usize>,
    /// Answer to send when all accesses before this number are complete.
    pub owed: RefCell<Option<(AccessId, ToSession)>>,
    /// The device has been ordered to restart; the client waits for it.
    pub restarting: Cell<bool>,
}

/// State of an access by messages.
pub(super) enum Waiting {
    Under,
    /// In flight; no task waits for it.
    Posted,
    Over(Option<Vec<u8>>),
    Abandoned,
}

impl State {
    /// State of a device that has not started, for up to `maps_max` mappings.
    pub fn new(
        is_first: bool,
        mailbox: Arc<Mailbox>,
        registers: Registers,
        signalling: Arc<Signalling>,
        maps_max: usize,
    ) -> State {
        State {
            is_first,
            mailbox,
            registers,
            table: RefCell::new(Table::new(maps_max)),
            vectors: RefCell::new(Vectors::new(signalling)),
            bus_master: Cell::new(false),
            accesses: RefCell::default(),
            next_access: Cell::new(0),
            posted: Cell::new(0),
            owed: RefCell::default(),
            // The session waits for the start of the first end, as after a reset.
            restarting: Cell::new(is_first),
        }
    }

    /// Removes a completed or abandoned access.
    pub fn forget(&self, id: AccessId) {
        if let Some(Waiting::Posted) = self.accesses.borrow_mut().remove(&id) {
            self.posted.set(self.posted.get() - 1);
        }
    }

    /// Result of an access, if it has completed.
    pub fn result_of(&self, id: AccessId) -> Option<Option<Vec<u8>>> {
        match self.accesses.borrow_mut().get_mut(&id) {
            Some(Waiting::Over(result)) => Some(result.take()),
            _ => None,
        }
    }

    /// Sends the deferred answer if the accesses before it have completed.
    pub fn settle(&self) {
        let mut owed = self.owed.borrow_mut();
        let accesses = self.accesses.borrow();
        let under_way = |(_, how): &(&AccessId, &Waiting)| !matches!(how, Waiting::Over(_));
        let first = accesses.iter().find(under_way).map(|(id, _)| *id);
        if owed.as_ref().is_some_and(|(barrier, _)| first.is_none_or(|first| first >= *barrier))
            && let Some((_, answer)) = owed.take()
        {
            self.mailbox.give_session(answer);
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.mailbox.give_session(ToSession::Ended);
    }
}
