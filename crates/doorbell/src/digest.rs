//! The event log of a simulated run: its file, and the line that is printed.

use std::path::PathBuf;

use campaign::event_log::Digest;
use report::model::EventLog;

use super::output::create;

/// A digest that also writes the log to this file.
pub(super) fn into_file(path: &PathBuf) -> Result<Digest, String> {
    Ok(Digest::into_file(create(path)?, path.clone()))
}

/// The line that `run` and `replay` print.
pub(super) fn line(log: &EventLog, plan: &str, seed: u64) -> String {
    let EventLog { lines, digest } = log;
    format!("event log: {lines} lines, digest {digest} (plan {plan}, seed {seed})")
}
