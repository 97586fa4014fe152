//! The log of a server: `tracing` events on standard error, at a bounded rate.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use runtime::{STD_CLOCK, Span, WallClock};
use tracing::Level;

/// Maximum lines in a second. The number of those left out is logged in the next one.
const LINES_PER_S: u32 = 50;

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogLevel {
    /// Clients that were dropped or refused, and failures
    Warn,
    /// Also clients that connect and leave, requests of control, the stop
    Info,
}

/// A log; without a level it is silent.
pub(super) struct Log {
    level: Option<LogLevel>,
    rate: Mutex<Rate>,
}

#[derive(Default)]
struct Rate {
    second: u64,
    lines: u32,
    left_out: u64,
}

impl Rate {
    /// Returns the number of lines left out before this one; `None` if it is left out too.
    fn admit(&mut self, second: u64) -> Option<u64> {
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        if self.lines >= LINES_PER_S {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Log {
    pub(super) fn start(level: Option<LogLevel>) -> Log {
        if let Some(level) = level {
            let level = if level == LogLevel::Warn { Level::WARN } else { Level::INFO };
            // Fails only if this process has a subscriber already.
            let _ = tracing_subscriber::fmt()
                .with_max_level(level)
                .with_writer(std::io::stderr)
                .with_ansi(false)
                .with_target(false)
                .try_init();
        }
        Log { level, rate: Mutex::default() }
    }

    /// Logs an event of an address, by the words of the event.
    pub(super) fn event(&self, address: &Path, what: &str) {
        let routine =
            ["waiting for", "client connected", "client disconnected", "stopped", "fault "];
        let is_routine = routine.iter().any(|words| what.starts_with(words));
        self.line(is_routine, &address.display().to_string(), what);
    }

    /// Logs a request of control.
    pub(super) fn request(&self, method: &str, error: Option<&str>) {
        match error {
            // It is polled.
            None if method == "stats" => {}
            None => self.line(true, "control", method),
            Some(error) => self.line(false, "control", &format!("{method}: rejected: {error}")),
        }
    }

    fn line(&self, is_routine: bool, of: &str, what: &str) {
        let Some(level) = self.level else { return };
        if is_routine && level == LogLevel::Warn {
            return;
        }
        let second = STD_CLOCK.now().0 / Span::s(1).0;
        let admitted = self.rate.lock().unwrap_or_else(PoisonError::into_inner).admit(second);
        let Some(left_out) = admitted else { return };
        if left_out > 0 {
            tracing::warn!("{left_out} lines were left out");
        }
        // A client has chosen some of the words: no line feed or escape of theirs reaches a terminal.
        let what = what.escape_debug();
        match is_routine {
            true => tracing::info!("{of}: {what}"),
            false => tracing::warn!("{of}: {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_counted() {
        let mut rate = Rate::default();
        let admitted = (0..80).filter(|_| rate.admit(7) == Some(0)).count();
        assert_eq!(admitted, 50);
        assert_eq!(rate.admit(8), Some(30));
        assert_eq!(rate.admit(8), Some(0));
    }
}
