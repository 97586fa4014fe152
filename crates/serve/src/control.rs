//! Control of a running server: its orderly stop, and what can change while its drives run.
//!
//! ```text
//!   ctl, scrapers ─► control thread ─► settings of a drive, and a count of requests
//!                                            ▲ one load in a pass of the idle executor
//!                                      device thread: applies them, and posts its counts
//! ```
//!
//! A device thread takes a lock only after a request, never for a command.

mod clients;
mod drive;
mod http;
mod metrics;
mod page;
mod socket;
mod verbs;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bus::listen::Stop;
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK};
use world::interfaces::Row;

use crate::Client;

pub use drive::Drive;
pub use http::HttpError;
pub use metrics::Metrics;
pub use page::Page;
pub use socket::{ControlSocket, LINE_BYTES_MAX};
pub use verbs::{VERBS, Verb};

/// Control of the drives of one server.
pub struct Control {
    stop: Arc<Stop>,
    /// As it was opened: settings at run time are applied to this.
    opened: Option<Plan>,
    drives: Mutex<Vec<Arc<Drive>>>,
}

impl Control {
    /// Drives can be stopped, and nothing else.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Control> {
        Ok(Control { stop: Arc::new(Stop::new()?), opened: None, drives: Mutex::default() })
    }

    /// Drives count their commands, and can change. `plan` is that of the server.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn watching(plan: Plan) -> io::Result<Control> {
        Ok(Control { opened: Some(plan), ..Control::new()? })
    }

    /// The stop of this server. After its request, drives flush and save what they hold, and
    /// [`serve`](crate::FrontEnd::serve) returns.
    pub fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }

    /// Adds the drive behind an address. `number` is that of its files.
    pub(crate) fn add(
        &self,
        row: &'static Row,
        address: &Path,
        plan: &Plan,
        number: u32,
    ) -> Arc<Drive> {
        let watched = self.opened.is_some();
        self.with(Drive::new(row, address, plan.clone(), number, watched, &self.stop))
    }

    /// Adds the address of a client that shares a drive: its connections, commands and, unless it has an
    /// extent of its own, faults.
    pub(crate) fn add_shared(
        &self,
        row: &'static Row,
        address: &Path,
        plan: &Plan,
        client: Option<&Client>,
    ) -> Arc<Drive> {
        let watched = self.opened.is_some();
        let drive = Drive::new(row, address, plan.clone(), 0, watched, &self.stop);
        self.with(drive.shared_by(client.map(|client| client.name.as_str())))
    }

    fn with(&self, drive: Drive) -> Arc<Drive> {
        let drive = Arc::new(drive);
        self.drives().push(drive.clone());
        drive
    }

    fn drives(&self) -> MutexGuard<'_, Vec<Arc<Drive>>> {
        self.drives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An executor for a device: with a table of request traces, if it is watched.
pub(crate) fn executor(row: &Row, watched: bool) -> Rt {
    let traces = watched.then(|| device::meter::traces(row.stages));
    device::meter::beside_traces(&Rt::live(&STD_CLOCK, traces, Log::Off))
}

/// Result of a check in a pass of the executor.
pub(crate) enum Look {
    Ready,
    /// Something was done: the next pass checks again.
    Busy,
    Idle,
}

/// Waits until `check` returns true.
pub(crate) async fn polled(rt: &Rt, mut check: impl FnMut() -> bool) {
    looked(rt, || if check() { Look::Ready } else { Look::Idle }).await;
}

/// Waits until `check` is ready. It is called in passes of the executor, not by a timer, which would keep an
/// idle executor from sleeping.
pub(crate) async fn looked(rt: &Rt, mut check: impl FnMut() -> Look) {
    /// Passes after which the task is polled less often, some tens of microseconds.
    const PASSES_UNTIL_PATIENT: u32 = 4_096;
    let mut passes = 0_u32;
    std::future::poll_fn(|cx| {
        match check() {
            Look::Ready => {
                rt.progress();
                return Poll::Ready(());
            }
            Look::Busy => {
                rt.progress();
                passes = 0;
            }
            Look::Idle => passes = passes.saturating_add(1),
        }
        rt.poll_again(cx, passes > PASSES_UNTIL_PATIENT);
        Poll::Pending
    })
    .await;
}
