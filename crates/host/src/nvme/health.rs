//! The state that a controller's queues share, and what they ask of its supervisor.

use core::cell::Cell;

use runtime::{Rt, Signal};

use crate::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// It is being started, or reset: commands wait.
    Starting,
    /// It is being shut down: no new commands.
    Closing,
    Closed,
    /// It doesn't answer, and won't.
    Gone,
}

/// What is asked of the supervisor; the later in this list, the more it matters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asks {
    pub aborts: bool,
    pub reset: bool,
    pub shutdown: bool,
    pub gone: bool,
}

pub(super) struct Health {
    state: Cell<State>,
    changed: Signal,
    asks: Cell<Asks>,
    pub asked: Signal,
    /// Resets that were completed.
    pub resets: Cell<u64>,
    /// The last reset was the caller's own wish: no command is to blame for it.
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

    /// Asks the supervisor, which runs as its own task, for something.
    pub fn ask(&self, rt: &Rt, add: impl FnOnce(&mut Asks)) {
        let mut asks = self.asks.get();
        add(&mut asks);
        self.asks.set(asks);
        self.asked.notify(rt);
    }

    /// What has been asked for since this was last called.
    pub fn take_asks(&self) -> Asks {
        self.asks.take()
    }

    /// Waits until commands are taken, or never will be. Starting and resetting are bounded, so
    /// this is.
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
