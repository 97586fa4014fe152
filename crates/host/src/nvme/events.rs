//! Asynchronous events: one request is always outstanding (NVMe base 2.0, 5.2).

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

const EVENTS_KEPT: usize = 32;

/// Delay between two events, so that a stream of events cannot keep the host busy.
const EVENT_PAUSE: Span = Span::ms(1);

/// Events reported by the controller.
#[derive(Default)]
pub(super) struct Events {
    last: RefCell<VecDeque<AsyncEvent>>,
    count: Cell<u64>,
    /// Notified when flash with host-directed GC is short of space, and after a reset.
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

/// Keeps an event request outstanding, records its events, and reads the log page that an event names, which
/// re-enables that event type. Ends with the controller, or if it rejects the request.
pub(super) async fn listen<P: HostPort>(core: Rc<Core<P>>) {
    while core.health.running(core.rt()).await.is_ok() {
        let build = admin::async_event_request;
        match core.admin.command("Asynchronous Event Request", None, build).await {
            Ok((cqe, _)) => {
                let event = AsyncEvent::from_bits(cqe.dw0.get());
                core.events.note(event);
                core.rt().log("host", "event", u64::from(cqe.dw0.get()), 0);
                if event.log_page() == lid::SUPERBLOCKS {
                    // The host-directed collector reads this page.
                    core.events.space.notify(core.rt());
                } else {
                    // If the page can't be read, its events stay masked; nothing can be done about it.
                    core.admin.read_log(event.log_page()).await.ok();
                }
                core.rt().sleep(EVENT_PAUSE).await;
            }
            // The next round waits until the controller is running again.
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
