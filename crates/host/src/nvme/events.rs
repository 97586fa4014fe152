//! Asynchronous events: one request is always outstanding (NVMe base 2.0, 5.2).

use alloc::rc::Rc;

use bus::HostPort;
use runtime::Span;
use wire::nvme::admin;
use wire::nvme::event::AsyncEvent;
use wire::nvme::log::lid;

use super::state::Core;
use crate::InitError;

/// Delay between two events, so that a stream of events cannot keep the host busy.
const EVENT_PAUSE: Span = Span::ms(1);

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
                match event.log_page() {
                    // The host-directed collector reads this page, and the map on the host the next.
                    lid::SUPERBLOCKS => core.events.space.notify(core.rt()),
                    lid::MOVES => core.events.moves.notify(core.rt()),
                    // If the page can't be read, its events stay masked; nothing can be done about it.
                    page => _ = core.admin.read_log(page).await,
                }
                core.rt().sleep(EVENT_PAUSE).await;
            }
            // The next round waits until the controller is running again.
            Err(InitError::Reset { .. }) => {
                core.events.space.notify(core.rt());
                core.events.moves.notify(core.rt());
            }
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
