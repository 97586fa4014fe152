//! Control of a running server: its orderly stop.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use bus::listen::Stop;
use runtime::Rt;

/// Control of the drives of one server.
pub struct Control {
    stop: Arc<Stop>,
}

impl Control {
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Control> {
        Ok(Control { stop: Arc::new(Stop::new()?) })
    }

    /// The stop of this server. After its request, drives flush and save what they hold, and
    /// [`serve`](crate::FrontEnd::serve) returns.
    pub fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }
}

/// Waits until `check` returns true. It is called in passes of the executor, not by a timer, which would
/// keep an idle executor from sleeping.
pub(crate) async fn polled(rt: &Rt, mut check: impl FnMut() -> bool) {
    /// Passes after which the task is polled less often, some tens of microseconds.
    const PASSES_UNTIL_PATIENT: u32 = 4_096;
    let mut passes = 0_u32;
    std::future::poll_fn(|cx| {
        if check() {
            rt.progress();
            return Poll::Ready(());
        }
        passes = passes.saturating_add(1);
        rt.poll_again(cx, passes > PASSES_UNTIL_PATIENT);
        Poll::Pending
    })
    .await;
}
