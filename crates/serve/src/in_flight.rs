//! What one connection has in flight, within limits.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Requests in flight, at most so many, of at most so many bytes.
pub(crate) struct InFlight {
    bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Cookies, and bytes that are moved.
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
        self.state.lock().expect("nobody panics with it")
    }

    /// Waits for a place for a request that moves this many bytes, and returns its tag; none once
    /// [closed](Self::close).
    pub(crate) fn begin(&self, cookie: u64, bytes: usize) -> Option<u64> {
        let is_full = |state: &mut State| {
            let fits = state.bytes == 0 || state.bytes + bytes <= self.bytes_max;
            !(state.closed || fits && state.places.contains(&None))
        };
        let waited = self.changed.wait_while(self.state(), is_full);
        let mut state = waited.expect("nobody panics with it");
        if state.closed {
            return None;
        }
        let free = state.places.iter().position(Option::is_none).expect("waited for");
        state.places[free] = Some((cookie, bytes));
        state.bytes += bytes;
        Some(free as u64)
    }

    /// The cookie of a request in flight.
    pub(crate) fn cookie(&self, tag: u64) -> u64 {
        self.state().places[tag as usize].expect("it was begun").0
    }

    /// The request has been answered.
    pub(crate) fn end(&self, tag: u64) {
        let mut state = self.state();
        let (_, bytes) = state.places[tag as usize].take().expect("it was begun");
        state.bytes -= bytes;
        self.changed.notify_one();
    }

    /// No reply can be sent any more.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }
}
