//! Watchdog: late reads, fences, unresponsive devices.
//!
//! ```text
//!   a read is older than its time-out ──► a fence is sent, if none is in flight
//!   the fence is passed ──► reads before it whose tags are still there are retried with another tag
//!   the fence is older than the time-out ──► the queue is disabled and enabled
//!   it cannot be disabled ──► gone
//! ```

use alloc::rc::Rc;

use bus::HostPort;
use runtime::{Either, Span, race};

use super::TICKS_PER_TIMEOUT;
use super::pair::Pair;
use crate::lifecycle::HasLifecycle;

/// Checks as long as the pair has tasks. It counts checks, not seconds: after a pause of the host no command
/// is blamed.
pub(super) async fn watch<P: HostPort>(pair: Rc<Pair<P>>) {
    let tick = tick(&pair);
    let (mut fence, mut looks) = (None, 0);
    while !pair.lifecycle.has_ended() {
        let seen = pair.lifecycle.active.version();
        let idle = !pair.slots.any_in_flight() && pair.fence.get().is_none();
        if (idle && !pair.lifecycle.distrusted.get()) || !pair.lifecycle.is_open() {
            pair.lifecycle.active.changed(pair.rt(), seen).await;
            continue;
        }
        let turned = pair.lifecycle.changed.changed(pair.rt(), pair.lifecycle.changed.version());
        if let Either::First(()) = race(turned, pair.rt().sleep(tick)).await {
            continue;
        }
        if pair.is_dead() {
            pair.give_up();
            continue;
        }
        if pair.slots.tick(|| pair.count(|counters| counters.timeouts += 1)) > 0 {
            pair.send_fence();
        }
        if pair.fence.get() == fence && fence.is_some() {
            looks += 1;
        } else {
            (fence, looks) = (pair.fence.get(), 0);
        }
        if looks > looks_within(&pair, pair.options.timeout) || pair.lifecycle.distrusted.get() {
            // The reset itself reports whether the device is gone.
            let _ = pair.reset().await;
            (fence, looks) = (None, 0);
        }
    }
}

fn tick<P: HostPort>(pair: &Pair<P>) -> Span {
    Span((pair.options.read_timeout().0 / TICKS_PER_TIMEOUT).max(1))
}

/// Number of checks within `span`, rounded up.
pub(super) fn looks_within<P: HostPort>(pair: &Pair<P>, span: Span) -> u32 {
    u32::try_from(span.0.div_ceil(tick(pair).0)).unwrap_or(u32::MAX)
}
