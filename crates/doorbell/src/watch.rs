//! Progress bar of a run.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use world::engine::Progress;

/// Shows the progress of a run if standard error is a terminal.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    pub fn begin(what: &str, progress: Arc<Progress>) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        if !std::io::stderr().is_terminal() {
            return Watch { stop, thread: None };
        }
        let (what, stopped) = (what.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || {
            let style = ProgressStyle::with_template("{spinner} {msg} {pos} operations, {elapsed}");
            let bar = ProgressBar::new_spinner().with_style(style.expect("a template of ours"));
            bar.set_message(what);
            while !stopped.load(Ordering::Relaxed) {
                bar.set_position(progress.operations());
                bar.tick();
                std::thread::park_timeout(Duration::from_millis(200));
            }
            bar.finish_and_clear();
        });
        Watch { stop, thread: Some(thread) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
