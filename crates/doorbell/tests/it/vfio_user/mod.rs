//! An SSD as a PCI function over vfio-user: our server against our driver and against clients written by
//! hand, well-behaved, hostile and killed.
//!
//! `DOORBELL_KILLS=200` and `DOORBELL_MESSAGES=10000000` give the lengths required for a release;
//! `DOORBELL_SEED` repeats a run.

mod doorbells;
mod exhaustion;
mod functions;
mod hostile;
mod kills;
mod memory;
mod messages;
mod names;
mod nvme;
mod raw;
mod serving;
mod sharing;
mod work;

/// A number from the environment, or this default.
fn env_or(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number was expected"))
    })
}
