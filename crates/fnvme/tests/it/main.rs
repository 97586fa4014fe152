//! Tests through the crate's public interface.

mod latency;
mod named_areas;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fnvme::engine::{Drive, Service};
use fnvme::{Client, Direction};
use plan::Plan;
use world::RunError;

/// A temporary folder with the file of a drive. One test has one at a time, as each test needs a core for the
/// engine and one for its client.
struct Folder(PathBuf, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

static TURN: Mutex<()> = Mutex::new(());

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("fnvme-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a new folder");
        Folder(folder, TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn drive(&self) -> PathBuf {
        self.0.join("drive")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const BLOCK: u64 = 512;

/// An engine on a drive of 4 MiB in this file.
fn start(file: &Path, more: &[(&str, &str)]) -> Result<Service, RunError> {
    let file = format!("{:?}", file.display().to_string());
    let sets = [
        ("medium.capacity", "4 MiB"),
        ("host.memory", "64 MiB"),
        ("host.queue_depth", "16"),
        ("medium.file", &file),
    ];
    let plan = Plan::open("live", &[&sets, more].concat()).expect("a valid plan");
    Service::start(&plan, &Drive::Here { own_thread: false }, 0)
}

fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let mut rng = runtime::Rng::new(seed);
    (0..bytes / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Writes all of an area.
fn write(client: &Client, seed: u64) {
    let bytes = client.area_bytes();
    client.copy_in(0, &pattern(seed, bytes)).expect("inside");
    client.transfer(Direction::Write, 0, bytes, 4096).expect("a write");
}

/// Asserts that an area has these bytes.
#[track_caller]
fn holds(client: &Client, seed: u64) {
    let bytes = client.area_bytes();
    let mut found = vec![0; bytes as usize];
    client.copy_in(0, &found).expect("inside");
    client.transfer(Direction::Read, 0, bytes, 4096).expect("a read");
    client.copy_out(0, &mut found).expect("inside");
    assert!(found == pattern(seed, bytes), "other bytes");
}
