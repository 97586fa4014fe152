//! The ring's state: enabled, disabled, reset, given up.

use bus::HostPort;
use wire::block::registers::{CONTROL, Control, OFFSET, RING, SHAPE, STATUS, Shape, Status};

use super::Completion;
use super::bios::Stage as BioStage;
use super::ring::{Ring, State};
use crate::{InitError, Kind, quarantine, register};

impl<P: HostPort> Ring<P> {
    pub fn turn(&self, state: State) {
        self.state.set(state);
        self.turned.notify(self.rt());
        self.active.notify(self.rt());
        self.rethink.notify(self.rt());
        self.freed.notify(self.rt());
        self.ended.notify(self.rt());
    }

    /// Tells the device where the ring lies, and waits until it works on it.
    pub async fn enable(&self) -> Result<(), InitError> {
        let at = self.memory.at().0;
        self.port.write32(RING, at as u32);
        self.port.write32(RING + 4, (at >> 32) as u32);
        let vector = match self.options.completion {
            Completion::Polled | Completion::Hybrid => None,
            Completion::Interrupt { vector } => Some(vector),
        };
        let shape = Shape::new()
            .with_entries_log2(self.bios.entries().ilog2() as u8)
            .with_vector(vector.unwrap_or(0));
        self.port.write32(SHAPE, shape.into_bits());
        self.port.write32(OFFSET, self.bios.next.get());
        let control = Control::new().with_enable(true).with_signals(vector.is_some());
        self.port.write32(CONTROL, control.into_bits());
        let ready = |value: u32| {
            let status = Status::from_bits(value);
            (status.ready() && value != u32::MAX).then_some(status)
        };
        match register::until(&self.port, STATUS, self.options.timeout, ready).await {
            Ok(status) if status.violation() == 0 => {
                self.announced.set(0);
                self.distrusted.set(false);
                self.turn(State::Open);
                Ok(())
            }
            Ok(status) => Err(self.not_ready(status.into_bits(), 1)),
            Err(found) => Err(self.not_ready(found, 1)),
        }
    }

    fn not_ready(&self, found: u32, expected: u32) -> InitError {
        if self.port.is_gone() || found == u32::MAX {
            return InitError::Gone { register: "STATUS" };
        }
        let waited = self.options.timeout;
        InitError::NotReady { register: "STATUS", found, expected, waited }
    }

    /// Disables the ring. When this returns well, nothing of it reaches host memory any more.
    async fn disable(&self) -> Result<(), InitError> {
        self.turn(State::Turning);
        self.port.write32(CONTROL, 0);
        let idle = |value: u32| (value == 0).then_some(());
        match register::until(&self.port, STATUS, self.options.timeout, idle).await {
            Ok(()) => {
                self.flight.set(None);
                Ok(())
            }
            Err(found) => Err(self.lose(self.not_ready(found, 0))),
        }
    }

    /// The device could not be stopped: what it knows of is never used again, and everybody is told.
    fn lose(&self, error: InitError) -> InitError {
        quarantine(&self.memory);
        quarantine(&self.pages);
        self.bios.quarantine_buffers();
        self.flight.set(None);
        self.fail_all(Kind::Gone);
        self.turn(State::Gone);
        error
    }

    fn fail_all(&self, kind: Kind) {
        for count in self.bios.all() {
            self.bios.bio(count).stage.set(BioStage::Ended(Err(kind)));
        }
        self.bios.next.set(self.bios.free.get());
        self.ended.notify(self.rt());
    }

    /// Disables and enables the ring. What was in it, and nobody has been told of, is stored anew in the
    /// old order, unless that has helped too often.
    pub async fn reset(&self) -> Result<(), InitError> {
        self.turning.take(self.rt()).await;
        let done = match self.state.get() {
            State::Gone => Err(InitError::Gone { register: "STATUS" }),
            State::Closed => Err(InitError::Closed),
            State::Open | State::Turning => self.cycle().await,
        };
        self.turning.give(self.rt(), ());
        done
    }

    async fn cycle(&self) -> Result<(), InitError> {
        self.rt().log("host", "reset", u64::from(self.bios.population()), 0);
        self.disable().await?;
        self.memory.zero();
        self.barren.set(self.barren.get() + 1);
        if self.barren.get() > self.options.retries {
            self.barren.set(0);
            self.fail_all(Kind::Reset);
        } else {
            self.bios.next.set(self.bios.head.get());
            for count in self.bios.all() {
                self.bios.bio(count).stage.set(BioStage::Filled);
                self.write(count, &self.bios.bio(count).command.get());
            }
        }
        self.enable().await.map_err(|error| self.lose(error))?;
        self.count(|counters| counters.resets += 1);
        Ok(())
    }

    /// The link is down, or the device's process is dead.
    pub fn is_dead(&self) -> bool {
        self.port.is_gone()
    }

    /// Everybody is told that the device does not answer.
    pub fn give_up(&self) {
        if self.state.get() != State::Gone {
            self.lose(InitError::Gone { register: "STATUS" });
        }
    }

    /// Disables the ring and ends its tasks.
    pub async fn shut_down(&self) -> Result<(), InitError> {
        self.turning.take(self.rt()).await;
        let done = match self.state.get() {
            State::Gone | State::Closed => Ok(()),
            State::Open | State::Turning => self.disable().await,
        };
        self.fail_all(Kind::Closed);
        self.stopped.set(true);
        self.turn(if self.state.get() == State::Gone { State::Gone } else { State::Closed });
        self.turning.give(self.rt(), ());
        done
    }
}
