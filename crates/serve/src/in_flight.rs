//! Requests of one connection that are in flight, limited by number and bytes.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Table of requests in flight, with limits on their number and total bytes.
pub(crate) struct InFlight {
    bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Cookie and data bytes of each request; the index is its tag.
    places: Vec<Option<(u64, usize)>>,
    bytes: usize,
    closed: bool,
}

impl InFlight {
    pub(crate) fn new(requests_max: usize, bytes_max: usize) -> InFlight {
        let places = vec![None; requests_max];
        let state = Mutex::new(State { places, bytes: 0, closed: false });
        InFlight { bytes_max, state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while locked")
    }

    /// Waits for a slot for a request of `bytes` data bytes, and returns its tag; `None` once
    /// [closed](Self::close).
    pub(crate) fn begin(&self, cookie: u64, bytes: usize) -> Option<u64> {
        let is_full = |state: &mut State| {
            let fits = state.bytes == 0 || state.bytes + bytes <= self.bytes_max;
            !(state.closed || fits && state.places.contains(&None))
        };
        let waited = self.changed.wait_while(self.state(), is_full);
        let mut state = waited.expect("no panic while locked");
        if state.closed {
            return None;
        }
        let free = state.places.iter().position(Option::is_none).expect("waited for");
        state.places[free] = Some((cookie, bytes));
        state.bytes += bytes;
        Some(free as u64)
    }

    /// Cookie of the request with this tag.
    pub(crate) fn cookie(&self, tag: u64) -> u64 {
        self.state().places[tag as usize].expect("it was begun").0
    }

    /// Frees the slot of a request that has its reply.
    pub(crate) fn end(&self, tag: u64) {
        let mut state = self.state();
        let (_, bytes) = state.places[tag as usize].take().expect("it was begun");
        state.bytes -= bytes;
        self.changed.notify_one();
    }

    /// Closes the table, as no reply can be sent any more: [`begin`](Self::begin) returns `None`.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }
}
