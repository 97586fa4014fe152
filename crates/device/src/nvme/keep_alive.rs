//! Keep Alive (NVMe base 2.0, 3.9, 5.18 and 5.27.1.12): if the timer is set and expires, the controller
//! assumes that the host is gone, and stops.

use std::cell::Cell;

use bus::DevicePort;
use media::Media;
use runtime::{Signal, Span, Time, race};
use wire::nvme::status::Status;

use super::Controller;

/// Granularity of the timer, in units of 100 ms.
pub(super) const KAS: u16 = 1;
const GRANULE_MS: u32 = 100 * KAS as u32;

/// Keep Alive Timeout, and the time at which it expires.
#[derive(Default)]
pub(super) struct KeepAlive {
    /// 0: disabled.
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
    /// Sets the timer, rounded up to its granularity; 0 disables it.
    pub(super) fn set_keep_alive(&self, ms: u32) {
        let rounded = ms.checked_next_multiple_of(GRANULE_MS).unwrap_or(u32::MAX);
        self.features.keep_alive.timeout_ms.set(rounded);
        self.host_is_alive();
    }

    /// Restarts the timer, if it is set. It does not run during shutdown (3.9).
    pub(super) fn host_is_alive(&self) {
        let timer = &self.features.keep_alive;
        let ms = Some(timer.timeout_ms.get()).filter(|ms| *ms > 0 && !self.is_shut_down());
        let expires = ms.map(|ms| self.rt.now() + Span::ms(ms.into()));
        // Unchanged if no timer is set.
        if timer.expires.replace(expires) != expires {
            timer.changed.notify(&self.rt);
        }
    }

    /// Disables the timer: the controller was reset.
    pub(super) fn forget_keep_alive(&self) {
        self.set_keep_alive(0);
    }

    /// Stops the controller when the timer expires (3.9). Never returns; cancel-safe.
    pub(super) async fn expire(&self) {
        let timer = &self.features.keep_alive;
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
            if self.registers.ready.get() {
                self.note_error_of_none(Status::KEEP_ALIVE_EXPIRED);
                self.fail("the host has been silent for longer than its Keep Alive Timeout", 0);
            }
        }
    }
}
