//! Controller state shared by its queues, and their requests to the supervisor.

use core::cell::Cell;

use runtime::{Rt, Signal};

use crate::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// Starting or resetting: commands wait.
    Starting,
    /// Shutting down: no new commands.
    Closing,
    Closed,
    /// No response, and none is expected.
    Gone,
}

/// Pending requests to the supervisor, in increasing order of precedence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asks {
    pub aborts: bool,
    pub reset: bool,
    pub shutdown: bool,
    pub gone: bool,
}

/// Shared state of one controller.
pub(super) struct Health {
    state: Cell<State>,
    changed: Signal,
    asks: Cell<Asks>,
    pub asked: Signal,
    /// Number of completed resets.
    pub resets: Cell<u64>,
    /// True if the last reset was requested by the caller: it does not count as a retry of any command.
    pub requested: Cell<bool>,
}

impl Health {
    pub fn new() -> Health {
        Health {
            state: Cell::new(State::Starting),
            changed: Signal::default(),
            asks: Cell::default(),
            asked: Signal::default(),
            resets: Cell::new(0),
            requested: Cell::new(false),
        }
    }

    #[inline]
    pub fn state(&self) -> State {
        self.state.get()
    }

    pub fn set(&self, rt: &Rt, state: State) {
        self.state.set(state);
        self.changed.notify(rt);
    }

    /// Adds a request to the supervisor, which runs as its own task.
    pub fn ask(&self, rt: &Rt, add: impl FnOnce(&mut Asks)) {
        let mut asks = self.asks.get();
        add(&mut asks);
        self.asks.set(asks);
        self.asked.notify(rt);
    }

    /// Takes the pending requests.
    pub fn take_asks(&self) -> Asks {
        self.asks.take()
    }

    /// Waits until commands are accepted, or never will be. Bounded, because starting and resetting are.
    #[inline]
    pub async fn running(&self, rt: &Rt) -> Result<(), Kind> {
        loop {
            match self.state.get() {
                State::Running => return Ok(()),
                State::Closing | State::Closed => return Err(Kind::Closed),
                State::Gone => return Err(Kind::Gone),
                State::Starting => self.changed.changed(rt, self.changed.version()).await,
            }
        }
    }

    /// Waits for the next change of state.
    pub async fn next(&self, rt: &Rt) {
        self.changed.changed(rt, self.changed.version()).await;
    }
}
