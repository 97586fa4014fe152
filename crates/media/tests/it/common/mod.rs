//! Temporary directory of a test, removed at its end.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let unique = format!("doorbell-media-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        fs::create_dir(&path).expect("a new directory among the temporary files");
        Scratch(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left-overs must not turn a passed test into a failed one, nor hide a failure.
        let _ = fs::remove_dir_all(&self.0);
    }
}
