//! Interrupts, one for each completion or one for several (NVMe base 2.0, 5.27.1.6 and 5.27.1.7).

use std::cell::Cell;
use std::rc::Rc;

use bus::DevicePort;
use media::Media;
use runtime::{Signal, Span, Time};
use wire::QueueId;
use wire::nvme::features::InterruptCoalescing;
use wire::nvme::status::Status;

use super::{Controller, VECTORS};

/// The unit of TIME.
const UNIT: Span = Span::us(100);

/// Completions of which the host has not been told yet, for each vector.
pub(super) struct Coalescing {
    /// How many share an interrupt, and how long one waits for others; none: nobody waits.
    limits: Cell<Option<(u32, Span)>>,
    held: [Cell<Held>; VECTORS as usize],
    /// Completions have begun to wait, or have ended.
    changed: Signal,
}

/// What waits for one vector.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    completions: u32,
    /// When the first of them has waited long enough.
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
    /// What the feature has been set to; a time or a threshold of zero is none.
    pub fn set(&self, to: InterruptCoalescing) {
        let (more, time) = (u32::from(to.thr()), u64::from(to.time()));
        let on = more > 0 && time > 0;
        self.limits.set(on.then(|| (more + 1, Span(UNIT.0 * time))));
    }

    /// A completion is there for a vector: whether its host is told now.
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

    /// When the next has waited long enough.
    fn next(&self) -> Option<Time> {
        let waiting = self.held.iter().map(Cell::get).filter(|held| held.completions > 0);
        waiting.map(|held| held.until).min()
    }

    /// Forgets what waits: the controller was reset.
    pub fn reset(&self) {
        self.limits.set(None);
        self.held.iter().for_each(|held| held.set(Held::default()));
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// A completion has been posted: tells the host, or leaves it to a later one. What failed is told at
    /// once, and so is all that the admin queue says.
    #[inline]
    pub(super) fn signal(&self, vector: u16, qid: QueueId, status: Status) {
        if let Some(limits) = self.coalescing.limits.get() {
            let may_wait = self.may_wait(vector, qid, status);
            if may_wait && !self.coalescing.adds(vector, limits, self.rt.now()) {
                self.coalescing.changed.notify(&self.rt);
                return;
            }
            // Whatever waits is told of by the same interrupt.
            self.coalescing.held[usize::from(vector)].set(Held::default());
        }
        self.port.interrupt(vector);
    }

    fn may_wait(&self, vector: u16, qid: QueueId, status: Status) -> bool {
        let alone = self.features.borrow().is_uncoalesced(vector);
        qid != QueueId::ADMIN && status == Status::SUCCESS && !alone
    }

    /// Tells the host of completions that have waited long enough.
    pub(super) async fn tell_late(self: Rc<Self>) {
        loop {
            let version = self.coalescing.changed.version();
            let Some(next) = self.coalescing.next() else {
                self.coalescing.changed.changed(&self.rt, version).await;
                continue;
            };
            self.rt.sleep_until(next).await;
            self.tell_waiting(|until| until <= next);
        }
    }

    /// Tells the host of the completions that wait, where the time until which they do is one of these.
    pub(super) fn tell_waiting(&self, which: impl Fn(Time) -> bool) {
        for (vector, held) in (0..).zip(&self.coalescing.held) {
            let Held { completions, until } = held.get();
            if completions > 0 && which(until) {
                held.set(Held::default());
                self.port.interrupt(vector);
            }
        }
    }
}
