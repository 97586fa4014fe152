//! The NVMe controller against the specification, and against malicious hosts.
//!
//! These tests use no driver: see [`raw`](crate::raw::nvme). Sections cited as "NVMe base 2.0", "NVMe over
//! PCIe 1.0" and "NVM command set 1.0" are those of the NVM Express 2.0 family of specifications.

mod aborts;
mod arbitration;
mod at_once;
mod collects;
mod commands;
mod completions;
mod events;
mod examined;
mod features;
mod formats;
mod fused;
mod host_maps;
pub mod hostile;
mod identify;
mod keep_alive;
pub mod live;
mod logs;
mod mounts;
mod namespaces;
mod power;
mod protection;
mod prps;
mod queues;
mod ranges;
mod registers;
mod reservation_model;
mod reservations;
mod resets;
mod sanitize_flash;
mod sanitizes;
mod self_tests;
mod sgls;
mod shadows;
mod subsystems;
mod threads;
mod uncorrectable;
