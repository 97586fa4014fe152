//! An SSD as a PCI function over vfio-user: our server against our driver and against clients written
//! by hand, honest, hostile and dying.
//!
//! `DOORBELL_KILLS=200` and `DOORBELL_MESSAGES=10000000` make the runs as long as a release is held to;
//! `DOORBELL_SEED` repeats one.

mod doorbells;
mod exhaustion;
mod hostile;
mod kills;
mod memory;
mod messages;
mod nvme;
mod raw;
mod serving;
mod sharing;
mod work;

/// A number from the environment, or this one.
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number was expected"))
    })
}
