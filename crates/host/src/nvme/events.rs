//! Asynchronous events: one request is always with the controller (NVMe base 2.0, 5.2).

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::HostPort;
use runtime::{Signal, Span};
use wire::nvme::admin;
use wire::nvme::event::AsyncEvent;
use wire::nvme::log::lid;

use super::controller::Core;
use crate::InitError;

/// How many events are remembered.
const EVENTS_KEPT: usize = 32;

/// Between two events: a controller that has nothing else to say must not keep the host busy.
const EVENT_PAUSE: Span = Span::ms(1);

/// What the controller has told of.
#[derive(Default)]
pub(super) struct Events {
    last: RefCell<VecDeque<AsyncEvent>>,
    count: Cell<u64>,
    /// Space of flash whose collector the host leads is short, or there was a reset.
    pub space: Signal,
}

impl Events {
    pub fn seen(&self) -> (Vec<AsyncEvent>, u64) {
        (self.last.borrow().iter().copied().collect(), self.count.get())
    }

    fn note(&self, event: AsyncEvent) {
        let mut last = self.last.borrow_mut();
        if last.len() == EVENTS_KEPT {
            last.pop_front();
        }
        last.push_back(event);
        self.count.set(self.count.get() + 1);
    }
}

/// Keeps a request with the controller, notes what it brings, and reads the page that the event
/// names, so that such events may come again. Ends with the controller, or if it wants no such
/// request.
pub(super) async fn listen<P: HostPort>(core: Rc<Core<P>>) {
    while core.health.running(core.rt()).await.is_ok() {
        let build = admin::async_event_request;
        match core.admin.command("Asynchronous Event Request", None, build).await {
            Ok((cqe, _)) => {
                let event = AsyncEvent::from_bits(cqe.dw0.get());
                core.events.note(event);
                core.rt().log("host", "event", u64::from(cqe.dw0.get()), 0);
                if event.log_page() == lid::SUPERBLOCKS {
                    // Whoever collects reads it.
                    core.events.space.notify(core.rt());
                } else {
                    // A page that can't be read keeps its events to itself; there is nothing to do.
                    core.admin.read_log(event.log_page()).await.ok();
                }
                core.rt().sleep(EVENT_PAUSE).await;
            }
            // The next round waits until the controller is back.
            Err(InitError::Reset { .. }) => core.events.space.notify(core.rt()),
            Err(error) => {
                let status = match error {
                    InitError::Refused { status, .. } => u64::from(status.bits()),
                    _ => 0,
                };
                core.rt().log("host", "no-events", status, 0);
                return;
            }
        }
    }
}
