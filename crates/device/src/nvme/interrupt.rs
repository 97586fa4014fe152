//! Interrupts and interrupt coalescing (NVMe base 2.0, 5.27.1.6 and 5.27.1.7).

use std::cell::Cell;
use std::rc::Rc;

use bus::DevicePort;
use media::Media;
use runtime::{Signal, Span, Time};
use wire::QueueId;
use wire::nvme::features::InterruptCoalescing;
use wire::nvme::status::Status;

use super::queue::Cq;
use super::{Controller, VECTORS};

/// Unit of the TIME field.
const UNIT: Span = Span::us(100);

/// Limits, and unsignalled completions per vector.
pub(super) struct Coalescing {
    /// Completions per interrupt, and maximum delay. `None`: no coalescing.
    limits: Cell<Option<(u32, Span)>>,
    held: [Cell<Held>; VECTORS as usize],
    /// Notified when a completion begins to wait.
    changed: Signal,
}

/// Unsignalled completions of one vector.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    completions: u32,
    /// Time at which the first of them must be signalled.
    until: Time,
}

impl Default for Coalescing {
    fn default() -> Coalescing {
        Coalescing {
            limits: Cell::new(None),
            held: std::array::from_fn(|_| Cell::default()),
            changed: Signal::default(),
        }
    }
}

impl Coalescing {
    /// Sets the limits of the feature; a time or threshold of zero disables coalescing.
    pub fn set(&self, to: InterruptCoalescing) {
        let (more, time) = (u32::from(to.thr()), u64::from(to.time()));
        let on = more > 0 && time > 0;
        self.limits.set(on.then(|| (more + 1, Span(UNIT.0 * time))));
    }

    /// Adds a completion for a vector. Returns true if the interrupt is due now.
    fn adds(&self, vector: u16, (most, time): (u32, Span), now: Time) -> bool {
        let held = &self.held[usize::from(vector)];
        let Held { completions, until } = held.get();
        if completions + 1 >= most {
            return true;
        }
        let until = if completions == 0 { now + time } else { until };
        held.set(Held { completions: completions + 1, until });
        false
    }

    /// Time of the next due interrupt.
    fn next(&self) -> Option<Time> {
        let waiting = self.held.iter().map(Cell::get).filter(|held| held.completions > 0);
        waiting.map(|held| held.until).min()
    }

    /// Discards all state: the controller was reset.
    pub fn reset(&self) {
        self.limits.set(None);
        self.held.iter().for_each(|held| held.set(Held::default()));
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Signals a posted completion, or leaves it to a later interrupt. Errors and completions of the admin
    /// queue are signalled immediately.
    #[inline]
    pub(super) fn signal(&self, vector: u16, qid: QueueId, status: Status) {
        if let Some(limits) = self.features.coalescing.limits.get() {
            let may_wait = self.may_wait(vector, qid, status);
            if may_wait && !self.features.coalescing.adds(vector, limits, self.rt.now()) {
                self.features.coalescing.changed.notify(&self.rt);
                return;
            }
            // This interrupt also signals the completions that wait.
            self.features.coalescing.held[usize::from(vector)].set(Held::default());
        }
        self.port.interrupt(vector);
    }

    /// Drives the interrupt pin, if there is one: asserted while a queue with interrupts has unread entries
    /// (NVMe over PCIe 1.0, 3.5.1.1). There is no coalescing.
    pub(super) fn drive_pin(&self) {
        let Some(pin) = self.port.pin() else { return };
        let unread =
            |cq: &mut Cq| cq.vector.is_some() && cq.unread(self.port.load(cq.head_doorbell)) > 0;
        // Every queue, so that none falls a lap behind.
        let mut is_asserted = false;
        for cq in self.queues.cqs.borrow_mut().iter_mut().flatten() {
            is_asserted |= unread(cq);
        }
        pin.drive(is_asserted);
    }

    /// Task that follows the head doorbells of a device with an interrupt pin.
    pub(super) async fn follow_heads(self: Rc<Self>) {
        let never = || {
            self.drive_pin();
            None
        };
        self.port.on_registers(never).await
    }

    fn may_wait(&self, vector: u16, qid: QueueId, status: Status) -> bool {
        let alone = self.features.values.borrow().is_uncoalesced(vector);
        qid != QueueId::ADMIN && status == Status::SUCCESS && !alone
    }

    /// Task that signals completions whose maximum delay has passed.
    pub(super) async fn tell_late(self: Rc<Self>) {
        loop {
            let version = self.features.coalescing.changed.version();
            let Some(next) = self.features.coalescing.next() else {
                self.features.coalescing.changed.changed(&self.rt, version).await;
                continue;
            };
            self.rt.sleep_until(next).await;
            self.tell_waiting(|until| until <= next);
        }
    }

    /// Signals the waiting completions of all vectors whose due time satisfies `which`.
    pub(super) fn tell_waiting(&self, which: impl Fn(Time) -> bool) {
        for (vector, held) in (0..).zip(&self.features.coalescing.held) {
            let Held { completions, until } = held.get();
            if completions > 0 && which(until) {
                held.set(Held::default());
                self.port.interrupt(vector);
            }
        }
    }
}
