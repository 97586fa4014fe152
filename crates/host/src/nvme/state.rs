//! State shared by the tasks of a controller.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::HostPort;
use runtime::{Rt, Signal, Span};
use wire::QueueId;
use wire::nvme::event::AsyncEvent;
use wire::nvme::identify::sgls;

use super::admin::Admin;
use super::attach::Identity;
use super::health::{Health, State};
use super::pair::Pair;
use super::queue::{Facts, Queue};
use super::{DEPTH_MAX, Options, QueueOptions, Sgl};
use crate::InitError;

const EVENTS_KEPT: usize = 32;

/// Events reported by the controller.
#[derive(Default)]
pub(super) struct Events {
    last: RefCell<VecDeque<AsyncEvent>>,
    count: Cell<u64>,
    /// Notified when flash with host-directed GC is short of space, and after a reset.
    pub space: Signal,
    /// Notified when units of a map on the host have moved, and after a reset.
    pub moves: Signal,
}

impl Events {
    pub fn seen(&self) -> (Vec<AsyncEvent>, u64) {
        (self.last.borrow().iter().copied().collect(), self.count.get())
    }

    pub fn note(&self, event: AsyncEvent) {
        let mut last = self.last.borrow_mut();
        if last.len() == EVENTS_KEPT {
            last.pop_front();
        }
        last.push_back(event);
        self.count.set(self.count.get() + 1);
    }
}

pub(super) struct Core<P: HostPort> {
    pub admin: Admin<P>,
    pub options: Options,
    pub health: Rc<Health>,
    pub queues: RefCell<Vec<Rc<Queue<P>>>>,
    pub identity: Identity,
    pub events: Events,
    /// Reason why the controller is gone or could not be shut down.
    pub last_error: Cell<Option<InitError>>,
    /// Number of Abort commands in flight.
    pub aborts: Cell<u32>,
    pub next_queue: Cell<u16>,
    /// Freed queue identifiers below `next_queue`.
    pub free_queues: RefCell<Vec<QueueId>>,
}

impl<P: HostPort> Core<P> {
    pub fn rt(&self) -> &Rt {
        self.admin.rt()
    }

    /// Properties of the controller that a queue needs.
    pub fn facts(&self) -> Facts {
        Facts {
            nsid: self.identity.nsid,
            geometry: self.identity.geometry,
            deallocated: self.identity.deallocated(),
            retries: self.options.retries,
            sgl: self.sgl(),
            kind: self.identity.protection,
            protect: self.options.protect,
            abilities: self.identity.abilities(),
        }
    }

    /// Buffers that scatter gather lists describe.
    pub fn sgl(&self) -> Sgl {
        match self.identity.controller.sgls.get() & sgls::SUPPORTED {
            0 => Sgl::Never,
            _ => self.options.sgl,
        }
    }

    /// Allocates a queue identifier at once: two queues may be created at the same time.
    pub fn next_queue_id(&self) -> QueueId {
        if let Some(free) = self.free_queues.borrow_mut().pop() {
            return free;
        }
        let number = self.next_queue.get();
        self.next_queue.set(number + 1);
        QueueId(number)
    }

    /// Frees a queue identifier that the controller does not know.
    pub fn take_back(&self, qid: QueueId) {
        if self.next_queue.get() == qid.0 + 1 {
            self.next_queue.set(qid.0);
        } else {
            self.free_queues.borrow_mut().push(qid);
        }
    }

    pub fn why(&self) -> InitError {
        match self.health.state() {
            State::Gone => self.last_error.get().unwrap_or(InitError::Gone { register: "CSTS" }),
            _ => InitError::Closed,
        }
    }

    /// Handles a failure to create a queue.
    pub fn not_created(&self, pair: &Pair<P>, error: InitError) -> InitError {
        if matches!(error, InitError::TimedOut { .. }) {
            return error;
        }
        // The controller did not create it: its memory and its identifier are free.
        pair.clear();
        self.take_back(pair.qid());
        if self.health.state() == State::Gone { self.why() } else { error }
    }

    pub async fn running(&self) -> Result<(), InitError> {
        self.health.running(self.rt()).await.map_err(|_| self.why())
    }

    /// Repeats `work` until the controller is gone or closed; `lead` precedes it after each reset. After a
    /// refused or lost command it goes on after `pause`.
    pub async fn keep_on(
        &self,
        pause: Span,
        lead: impl AsyncFn() -> Result<(), InitError>,
        work: impl AsyncFn() -> Result<(), InitError>,
    ) {
        let mut resets = self.health.resets.get();
        while self.running().await.is_ok() {
            let now = self.health.resets.get();
            let led = if now == resets { Ok(()) } else { lead().await };
            let done = match led {
                Ok(()) => {
                    resets = now;
                    work().await
                }
                Err(error) => Err(error),
            };
            match done {
                // The next round waits until the controller is running again.
                Ok(()) | Err(InitError::Reset { .. }) => {}
                Err(InitError::Refused { .. } | InitError::TimedOut { .. }) => {
                    self.rt().sleep(pause).await;
                }
                Err(_) => return,
            }
        }
    }

    /// Validates queue options and limits the depth to the controller's, which is one less than its entries.
    pub fn validate(&self, options: QueueOptions) -> Result<QueueOptions, InitError> {
        let asked = u32::from(self.next_queue.get());
        let granted = self.identity.queues;
        if asked > granted && self.free_queues.borrow().is_empty() {
            return Err(InitError::TooFewQueues { asked, granted });
        }
        if options.depth == 0 || options.depth > DEPTH_MAX {
            return Err(InitError::Unsupported {
                what: "the depth of a queue",
                found: u64::from(options.depth),
                expected: "1 to 1024 commands",
            });
        }
        let most = self.admin.bar.cap().queue_entries_max() - 1;
        // Controllers with queues of fewer than two entries were rejected before.
        let depth = u32::from(options.depth).min(most) as u16;
        Ok(QueueOptions { depth, ..options })
    }
}
