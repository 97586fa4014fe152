//! Life cycle of a ring or a queue pair: open, resetting, gone, closed.
//!
//! ```text
//!   enable ─► Open ─ reset ─► Resetting ─► Open
//!              │                  └──────► Gone      the device could not be stopped: memory is quarantined
//!              ├─ give up ───────────────► Gone      the link is down, or the device's process is dead
//!              └─ shut down ─────────────► Closed
//! ```

use core::cell::Cell;

use bus::HostPort;
use runtime::{Pool, Rt, Signal, Span};

use crate::{InitError, register};

/// Shortest time limit of enabling and of disabling, whatever the time-out of a command is: a device that is
/// given up for a pause of its own is gone for good. It is the unit of NVMe's CAP.TO.
const READY_MIN: Span = Span::ms(500);

/// The state of a ring or a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Enabled: requests are accepted.
    Open,
    /// Being enabled, disabled or reset.
    Resetting,
    /// The device does not respond any more.
    Gone,
    /// The driver was shut down.
    Closed,
}

/// State of a ring or a queue pair, with the signals for its waiters.
pub(crate) struct Lifecycle {
    state: Cell<State>,
    /// Notified at each change of state.
    pub changed: Signal,
    /// Notified when commands are in flight: the watchdog sleeps while there are none.
    pub active: Signal,
    /// True after too many malformed entries from the device.
    pub distrusted: Cell<bool>,
    stopped: Cell<bool>,
    /// Serialises enabling, disabling and resetting.
    turn: Pool<()>,
}

impl Lifecycle {
    /// State before the first enable.
    pub fn new() -> Lifecycle {
        Lifecycle {
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

    /// True if its tasks must end.
    pub fn has_ended(&self) -> bool {
        self.stopped.get() || self.state.get() == State::Gone
    }

    /// Records too many malformed entries: the watchdog resets the device.
    pub fn distrust(&self, rt: &Rt) {
        self.distrusted.set(true);
        self.active.notify(rt);
    }

    /// Waits until a reset has ended; returns the state then.
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

/// A ring or a queue pair with this life cycle; the methods differ between interfaces.
pub(crate) trait HasLifecycle<P: HostPort> {
    fn lifecycle(&self) -> &Lifecycle;
    fn port(&self) -> &P;
    /// Limit of a wait for one command.
    fn timeout(&self) -> Span;
    /// Time limit for enabling and for disabling.
    fn ready_within(&self) -> Span {
        self.timeout().max(READY_MIN)
    }
    /// Offset of the status register, which reads zero once the device has stopped.
    fn status(&self) -> u32;
    /// Programs the memory addresses, and waits until the device is ready.
    async fn enable(&self) -> Result<(), InitError>;
    /// Writes the register that stops the device.
    fn request_disable(&self);
    /// Drops requests in flight. Called once the device has stopped and no longer accesses host memory.
    fn on_disabled(&self);
    /// Called in a reset between disabling and enabling.
    fn prepare_restart(&self) {}
    /// Quarantines memory that the device may still write, and fails all requests.
    fn quarantine(&self);
    /// Fails outstanding requests at shutdown.
    fn on_shutdown(&self) {}
    /// Notifies the interface's own waiters of a change of state.
    fn notify_waiters(&self) {}
    fn record_reset(&self);
    /// Identifier in the event log.
    fn log_id(&self) -> u64;

    fn set_state(&self, state: State) {
        let rt = self.port().rt();
        self.lifecycle().state.set(state);
        self.lifecycle().changed.notify(rt);
        self.lifecycle().active.notify(rt);
        self.notify_waiters();
    }

    /// Opens it: the device is ready.
    fn open(&self) {
        self.lifecycle().distrusted.set(false);
        self.set_state(State::Open);
    }

    /// True if the link is down or the device's process is dead.
    fn is_dead(&self) -> bool {
        self.port().is_gone()
    }

    fn not_ready(&self, found: u32, expected: u32) -> InitError {
        if self.is_dead() || found == u32::MAX {
            return InitError::Gone { register: "STATUS" };
        }
        InitError::NotReady { register: "STATUS", found, expected, waited: self.ready_within() }
    }

    /// Disables it. After `Ok` the device no longer accesses host memory.
    async fn disable(&self) -> Result<(), InitError> {
        self.set_state(State::Resetting);
        self.request_disable();
        let idle = |value: u32| (value == 0).then_some(());
        match register::until(self.port(), self.status(), self.ready_within(), idle).await {
            Ok(()) => {
                self.on_disabled();
                Ok(())
            }
            Err(found) => Err(self.lose(self.not_ready(found, 0))),
        }
    }

    /// Quarantines the memory of a device that could not be stopped.
    fn lose(&self, error: InitError) -> InitError {
        self.quarantine();
        error
    }

    /// Fails all requests of a device that does not respond.
    fn give_up(&self) {
        if self.lifecycle().state() != State::Gone {
            self.lose(InitError::Gone { register: "STATUS" });
        }
    }

    /// Disables and enables the device; requests in flight are lost or replayed.
    async fn reset(&self) -> Result<(), InitError> {
        let rt = self.port().rt();
        self.lifecycle().turn.take(rt).await;
        let done = match self.lifecycle().state() {
            State::Gone => Err(InitError::Gone { register: "STATUS" }),
            State::Closed => Err(InitError::Closed),
            State::Open | State::Resetting => self.cycle().await,
        };
        self.lifecycle().turn.give(rt, ());
        done
    }

    async fn cycle(&self) -> Result<(), InitError> {
        self.port().rt().log("host", "reset", self.log_id(), 0);
        self.disable().await?;
        self.prepare_restart();
        self.enable().await.map_err(|error| self.lose(error))?;
        self.record_reset();
        Ok(())
    }

    /// Disables it and ends its tasks.
    async fn shut_down(&self) -> Result<(), InitError> {
        let rt = self.port().rt();
        self.lifecycle().turn.take(rt).await;
        let done = match self.lifecycle().state() {
            State::Gone | State::Closed => Ok(()),
            State::Open | State::Resetting => self.disable().await,
        };
        self.on_shutdown();
        self.lifecycle().stopped.set(true);
        let is_gone = self.lifecycle().state() == State::Gone;
        self.set_state(if is_gone { State::Gone } else { State::Closed });
        self.lifecycle().turn.give(rt, ());
        done
    }
}
