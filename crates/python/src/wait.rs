//! Work on a thread of its own, while the calling thread handles signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::Failure;

/// Interval of signals and progress.
const TICK: Duration = Duration::from_millis(50);

/// Result of `work`, which runs without Python's lock. `tick` is called from time to time, and once at the
/// end.
///
/// # Errors
/// Of a signal or of `tick`: then `stop` is set, and the call returns when the work has ended. A second
/// signal leaves the work to end by itself.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce() -> T + Send + 'static,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    // The result of work that was left to itself has no receiver.
    let body = move || drop(sender.send(work()));
    let thread = Builder::new().name("doorbell".to_owned()).spawn(body)?;
    let mut interrupted: Option<PyErr> = None;
    loop {
        let received;
        (received, receiver) = py.detach(move || received_by(receiver));
        match (received, interrupted.take()) {
            (Ok(result), interrupted) => {
                // It has sent its result, and ends.
                py.detach(move || drop(thread.join()));
                return match interrupted {
                    Some(interrupted) => Err(interrupted),
                    None => tick(py).map(|()| result),
                };
            }
            (Err(RecvTimeoutError::Disconnected), _) => {
                let panic = thread.join().err();
                let text = panic.as_ref().and_then(|panic| panic.downcast_ref::<String>());
                let text = text.map_or("without a message", String::as_str).to_owned();
                return Err(Failure::Panicked(text).raise(py));
            }
            (Err(RecvTimeoutError::Timeout), Some(first)) => {
                py.check_signals()?;
                interrupted = Some(first);
            }
            (Err(RecvTimeoutError::Timeout), None) => {
                if let Err(error) = py.check_signals().and_then(|()| tick(py)) {
                    stop.store(true, Ordering::Relaxed);
                    interrupted = Some(error);
                }
            }
        }
    }
}

fn received_by<T>(receiver: Receiver<T>) -> (Result<T, RecvTimeoutError>, Receiver<T>) {
    (receiver.recv_timeout(TICK), receiver)
}
