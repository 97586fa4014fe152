//! Watchdog: late blocks, invalid descriptors, devices that have stopped, unresponsive devices.

use alloc::rc::Rc;

use bus::HostPort;
use runtime::{Either, Span, race};

use super::TICKS_PER_TIMEOUT;
use super::ring::Ring;
use crate::lifecycle::HasLifecycle;

/// Checks as long as the ring has tasks. It counts checks, not seconds: after a pause of the host no block is
/// blamed.
pub(super) async fn watch<P: HostPort>(ring: Rc<Ring<P>>) {
    let tick = Span((ring.options.timeout.0 / TICKS_PER_TIMEOUT).max(1));
    let (mut of, mut looks) = (None, 0);
    while !ring.lifecycle.has_ended() {
        let observed = ring.lifecycle.active.version();
        if !ring.lifecycle.is_open()
            || (ring.flight.get().is_none() && !ring.lifecycle.distrusted.get())
        {
            (of, looks) = (None, 0);
            ring.lifecycle.active.changed(ring.rt(), observed).await;
            continue;
        }
        if !ring.lifecycle.distrusted.get() {
            let turned =
                ring.lifecycle.changed.changed(ring.rt(), ring.lifecycle.changed.version());
            if let Either::First(()) = race(turned, ring.rt().sleep(tick)).await {
                continue;
            }
        }
        if ring.is_dead() {
            ring.give_up();
            continue;
        }
        // A returned descriptor counts as progress.
        let now = ring.flight.get().map(|flight| (flight.first, flight.returned));
        if now == of && now.is_some() {
            looks += 1;
        } else {
            (of, looks) = (now, 0);
        }
        let is_lost = looks >= TICKS_PER_TIMEOUT || ring.lifecycle.distrusted.get();
        // STATUS is read only while a block makes no progress: a register read stalls a core.
        if is_lost || looks > 0 && ring.has_device_stopped().await {
            // The reset itself reports whether the device is gone.
            let _ = ring.reset().await;
            (of, looks) = (None, 0);
        }
    }
}
