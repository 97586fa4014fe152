//! Reports of the controller about itself: counts, failed commands, self-tests, asynchronous events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use wire::CommandId;
use wire::nvme::event::AsyncEvent;

use super::errors::ErrorLog;
use super::self_test::SelfTests;
use super::threads::ThreadPlace;
use crate::counters::Counters;

pub(super) struct Health {
    pub counters: Arc<Counters>,
    /// Of a controller on one thread: see [`Controller::with_errors`](super::Controller::with_errors).
    pub errors: RefCell<ErrorLog>,
    pub self_tests: SelfTests,
    pub events: RefCell<Events>,
}

impl Health {
    /// Of a controller on a thread at this place among several, or on one alone.
    pub fn new(place: Option<&ThreadPlace>) -> Health {
        Health {
            counters: place.map(|place| place.counters().clone()).unwrap_or_default(),
            errors: RefCell::default(),
            self_tests: SelfTests::default(),
            events: RefCell::default(),
        }
    }
}

#[derive(Default)]
pub(super) struct Events {
    /// Outstanding Asynchronous Event Requests, oldest first.
    pub held: VecDeque<CommandId>,
    /// Events not yet reported.
    pub pending: VecDeque<AsyncEvent>,
    /// Log pages of reported events: further events of such a page are masked until the host reads it.
    pub silent: Vec<u8>,
}

impl Events {
    /// Queues an event, unless it is masked or already queued.
    pub fn note(&mut self, event: AsyncEvent) {
        if !self.silent.contains(&event.log_page()) && !self.pending.contains(&event) {
            self.pending.push_back(event);
        }
    }

    /// Returns true if the event is masked or queued.
    pub fn knows_of(&self, event: AsyncEvent) -> bool {
        self.silent.contains(&event.log_page()) || self.pending.contains(&event)
    }
}
