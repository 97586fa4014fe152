//! Keep Alive (NVMe base 2.0, 3.9, 5.18 and 5.27.1.12): a host that has set the timer and is silent for
//! longer is taken for gone, and the controller stops.

use std::cell::Cell;

use bus::DevicePort;
use media::Media;
use runtime::{Signal, Span, Time, race};
use wire::nvme::status::Status;

use super::Controller;

/// Granularity of the timer, in units of 100 ms.
pub(super) const KAS: u16 = 1;
const GRANULE_MS: u32 = 100 * KAS as u32;

/// How long the host may be silent, and until when.
#[derive(Default)]
pub(super) struct KeepAlive {
    /// None: 0.
    timeout_ms: Cell<u32>,
    expires: Cell<Option<Time>>,
    changed: Signal,
}

impl KeepAlive {
    pub fn timeout_ms(&self) -> u32 {
        self.timeout_ms.get()
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Sets the timer, rounded up to what it can keep; 0 stops it.
    pub(super) fn set_keep_alive(&self, ms: u32) {
        let rounded = ms.checked_next_multiple_of(GRANULE_MS).unwrap_or(u32::MAX);
        self.keep_alive.timeout_ms.set(rounded);
        self.host_is_alive();
    }

    /// Begins the timer anew, if it is set. None runs once the controller shuts down (3.9).
    pub(super) fn host_is_alive(&self) {
        let (timer, csts) = (&self.keep_alive, self.csts.get());
        let ms = Some(timer.timeout_ms.get()).filter(|ms| *ms > 0 && csts.shst() == 0);
        let expires = ms.map(|ms| self.rt.now() + Span::ms(ms.into()));
        // Without a timer there is nobody to tell.
        if timer.expires.replace(expires) != expires {
            timer.changed.notify(&self.rt);
        }
    }

    pub(super) fn forget_keep_alive(&self) {
        self.set_keep_alive(0);
    }

    /// Stops the controller when the timer has run out (3.9). Ends never, and may be dropped at any time.
    pub(super) async fn expire(&self) {
        let timer = &self.keep_alive;
        loop {
            let changed = timer.changed.version();
            let Some(expires) = timer.expires.get() else {
                timer.changed.changed(&self.rt, changed).await;
                continue;
            };
            if self.rt.now() < expires {
                let news = timer.changed.changed(&self.rt, changed);
                race(self.rt.sleep_until(expires), news).await;
                continue;
            }
            timer.expires.set(None);
            if self.ready.get() {
                self.note_error_of_none(Status::KEEP_ALIVE_EXPIRED);
                self.fail("the host has been silent for longer than its Keep Alive Timeout", 0);
            }
        }
    }
}
