//! The life of a ring or a pair of queues that a device serves: open, reset, gone, closed.
//!
//! ```text
//!   enable ─► Open ─ reset ─► Resetting ─► Open
//!              │                  └──────► Gone      it could not be disabled: its memory is quarantined
//!              ├─ give up ───────────────► Gone      the link is down, or the device's process dead
//!              └─ shut down ─────────────► Closed
//! ```

use core::cell::Cell;

use bus::HostPort;
use runtime::{Pool, Rt, Signal, Span};

use crate::{InitError, register};

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The device works on it.
    Open,
    /// It is being enabled, disabled or reset.
    Resetting,
    /// The device does not answer any more.
    Gone,
    /// The driver was shut down.
    Closed,
}

/// Where its state is kept, and who waits for it.
pub(crate) struct Life {
    state: Cell<State>,
    /// The state has changed.
    pub changed: Signal,
    /// The device has something to do: a watchdog need not look while it has nothing.
    pub active: Signal,
    /// The device sent too much that makes no sense.
    pub distrusted: Cell<bool>,
    stopped: Cell<bool>,
    /// Whoever has it enables, disables or resets.
    turn: Pool<()>,
}

impl Life {
    /// Before it is enabled for the first time.
    pub fn new() -> Life {
        Life {
            state: Cell::new(State::Resetting),
            changed: Signal::default(),
            active: Signal::default(),
            distrusted: Cell::new(false),
            stopped: Cell::new(false),
            turn: Pool::new([()]),
        }
    }

    #[inline]
    pub fn state(&self) -> State {
        self.state.get()
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    /// Its tasks end.
    pub fn is_over(&self) -> bool {
        self.stopped.get() || self.state.get() == State::Gone
    }

    /// Too much made no sense: the watchdog is to reset it.
    pub fn distrust(&self, rt: &Rt) {
        self.distrusted.set(true);
        self.active.notify(rt);
    }

    /// Waits while it is being reset; says how it is then.
    pub async fn settled(&self, rt: &Rt) -> State {
        loop {
            let seen = self.changed.version();
            match self.state.get() {
                State::Resetting => self.changed.changed(rt, seen).await,
                state => return state,
            }
        }
    }
}

/// What has such a life.
pub(crate) trait Lives<P: HostPort> {
    fn life(&self) -> &Life;
    fn port(&self) -> &P;
    /// How long the device may take to enable or to disable it.
    fn timeout(&self) -> Span;
    /// The register that says whether the device works on it: all zeros once it does not.
    fn status(&self) -> u32;
    /// Tells the device where it lies, and waits until it works on it.
    async fn enable(&self) -> Result<(), InitError>;
    /// Asks the device to leave it alone.
    fn ask_to_disable(&self);
    /// Nothing of it reaches host memory any more: what was in flight is lost.
    fn is_disabled(&self);
    /// What is to be done between the two halves of a reset.
    fn begin_anew(&self) {}
    /// What the device knows of is never used again, and all who wait are told.
    fn quarantine(&self);
    /// Nothing will be answered any more.
    fn close(&self) {}
    /// Its state has changed: others who are to know.
    fn tell(&self) {}
    /// A reset was completed.
    fn count_reset(&self);
    /// What the log calls it.
    fn number(&self) -> u64;

    fn set_state(&self, state: State) {
        let rt = self.port().rt();
        self.life().state.set(state);
        self.life().changed.notify(rt);
        self.life().active.notify(rt);
        self.tell();
    }

    /// The device works on it.
    fn open(&self) {
        self.life().distrusted.set(false);
        self.set_state(State::Open);
    }

    /// The link is down, or the device's process is dead.
    fn is_dead(&self) -> bool {
        self.port().is_gone()
    }

    fn not_ready(&self, found: u32, expected: u32) -> InitError {
        if self.is_dead() || found == u32::MAX {
            return InitError::Gone { register: "STATUS" };
        }
        InitError::NotReady { register: "STATUS", found, expected, waited: self.timeout() }
    }

    /// Disables it. When this returns well, nothing of it reaches host memory any more.
    async fn disable(&self) -> Result<(), InitError> {
        self.set_state(State::Resetting);
        self.ask_to_disable();
        let idle = |value: u32| (value == 0).then_some(());
        match register::until(self.port(), self.status(), self.timeout(), idle).await {
            Ok(()) => {
                self.is_disabled();
                Ok(())
            }
            Err(found) => Err(self.lose(self.not_ready(found, 0))),
        }
    }

    /// The device could not be stopped.
    fn lose(&self, error: InitError) -> InitError {
        self.quarantine();
        error
    }

    /// All are told that the device does not answer.
    fn give_up(&self) {
        if self.life().state() != State::Gone {
            self.lose(InitError::Gone { register: "STATUS" });
        }
    }

    /// Disables and enables it.
    async fn reset(&self) -> Result<(), InitError> {
        let rt = self.port().rt();
        self.life().turn.take(rt).await;
        let done = match self.life().state() {
            State::Gone => Err(InitError::Gone { register: "STATUS" }),
            State::Closed => Err(InitError::Closed),
            State::Open | State::Resetting => self.cycle().await,
        };
        self.life().turn.give(rt, ());
        done
    }

    async fn cycle(&self) -> Result<(), InitError> {
        self.port().rt().log("host", "reset", self.number(), 0);
        self.disable().await?;
        self.begin_anew();
        self.enable().await.map_err(|error| self.lose(error))?;
        self.count_reset();
        Ok(())
    }

    /// Disables it and ends its tasks.
    async fn shut_down(&self) -> Result<(), InitError> {
        let rt = self.port().rt();
        self.life().turn.take(rt).await;
        let done = match self.life().state() {
            State::Gone | State::Closed => Ok(()),
            State::Open | State::Resetting => self.disable().await,
        };
        self.close();
        self.life().stopped.set(true);
        let is_gone = self.life().state() == State::Gone;
        self.set_state(if is_gone { State::Gone } else { State::Closed });
        self.life().turn.give(rt, ());
        done
    }
}
