//! Life cycle of the ring: enable, disable, and replay after a reset.

use bus::HostPort;
use runtime::Span;
use wire::block::registers::{
    CONTROL, Control, OFFSET, RING, SHAPE, STATUS, Shape, Status, Violation,
};

use super::Completion;
use super::bios::Stage as BioStage;
use super::ring::Ring;
use crate::lifecycle::{HasLifecycle, Lifecycle, State};
use crate::{InitError, Kind, quarantine, register};

impl<P: HostPort> Ring<P> {
    /// Reads the state of a device whose block makes no progress. Returns true if it does not work on it: it
    /// has stopped over a protocol violation, it was reset by another, or it does not answer.
    pub async fn has_device_stopped(&self) -> bool {
        let version = self.lifecycle.changed.version();
        let found = self.port.read32(STATUS).await;
        if self.lifecycle.changed.version() != version {
            // The state was that of before a reset of our own.
            return false;
        }
        let status = Status::from_bits(found);
        let works = found != u32::MAX && status.ready() && status.violation() == 0;
        if !works {
            let violation = Violation::from_bits(status.violation()).filter(|_| status.ready());
            self.count(|counters| {
                counters.stops += 1;
                counters.violation = violation;
            });
            self.rt().log("host", "stopped", u64::from(status.violation()), found.into());
        }
        !works
    }

    fn fail_all(&self, kind: Kind) {
        for count in self.bios.all() {
            self.bios.bio(count).stage.set(BioStage::Ended(Err(kind)));
        }
        self.bios.next.set(self.bios.free.get());
        self.ended.notify(self.rt());
    }
}

impl<P: HostPort> HasLifecycle<P> for Ring<P> {
    fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    fn port(&self) -> &P {
        &self.port
    }

    fn timeout(&self) -> Span {
        self.options.timeout
    }

    fn status(&self) -> u32 {
        STATUS
    }

    async fn enable(&self) -> Result<(), InitError> {
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
        match register::until(&self.port, STATUS, self.ready_within(), ready).await {
            Ok(status) if status.violation() == 0 => {
                self.announced.set(0);
                self.open();
                Ok(())
            }
            Ok(status) => Err(self.not_ready(status.into_bits(), 1)),
            Err(found) => Err(self.not_ready(found, 1)),
        }
    }

    fn request_disable(&self) {
        self.port.write32(CONTROL, 0);
    }

    fn on_disabled(&self) {
        self.flight.set(None);
    }

    /// Stores unanswered descriptors again in the old order, or fails them after too many resets in a row.
    fn prepare_restart(&self) {
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
    }

    fn quarantine(&self) {
        quarantine(&self.memory);
        quarantine(&self.pages);
        self.bios.quarantine_buffers();
        self.flight.set(None);
        self.fail_all(Kind::Gone);
        self.set_state(State::Gone);
    }

    fn on_shutdown(&self) {
        self.fail_all(Kind::Closed);
    }

    fn notify_waiters(&self) {
        self.rethink.notify(self.rt());
        self.freed.notify(self.rt());
        self.ended.notify(self.rt());
    }

    fn record_reset(&self) {
        self.count(|counters| counters.resets += 1);
    }

    fn log_id(&self) -> u64 {
        self.bios.population().into()
    }
}
