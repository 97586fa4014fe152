//! Worlds: a device and a host built from a plan, in virtual time or live.
//!
//! ```text
//!    plan ─► interface row ─┬─ device: medium, faults, controller ── bus ── driver ─► engine ◄─ jobs, traces
//!                           └─ simulated: one executor; live: threads, processes or a real function
//! ```
//!
//! ```
//! use plan::Plan;
//! use std::path::Path;
//! use world::interfaces::NVME;
//! use world::work::Work;
//! use world::{Options, simulate};
//!
//! let plan = Plan::open("dc-express", &[])?;
//! let job = "[reads]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=10\n";
//! let work = Work::parse(Path::new("example.fio"), job, Default::default())?;
//! let result = simulate(NVME, &plan, &work, Options::default())?;
//! assert_eq!(result.jobs[0].1.stats.read.total.count(), 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It is not the command line, and holds no protocol: interfaces, drivers and models are in other crates, and
//! [`interfaces`] is their registry.
//!
//! *PCI.* The simulated NVMe controller is a function behind a root port, which is enumerated before the
//! driver uses it (`bus::sim`). *Time series* count the operations that end in an interval; at its end a task
//! of the world, present only if requested, samples counters, host memory (arena use and the tables of the
//! flash software) and cores. *Recordings* of live runs note arrivals in the engine and register writes in
//! the bus, in memory that was touched before the run (docs/results.md). *Repetition*: the same plan, job
//! and seed give the same event log (`runtime`); `doorbell replay` prints its digest, and `tools/test repeat`
//! compares an optimised build with an unoptimised one.

mod buffers;
pub mod device;
pub mod device_threads;
mod drive;
pub mod engine;
mod error;
mod function;
mod groups;
pub mod interfaces;
mod lanes;
mod live;
pub mod medium;
mod members;
pub mod pci;
mod precondition;
pub mod processor;
pub mod run_recorder;
mod run_result;
pub mod series;
pub mod shared_blocks;
mod simulated;
mod threads;
pub mod timeline;
pub mod trend;
pub mod warning;
mod window;
pub mod work;

pub use bus::link::Packets;
pub use drive::drive;
pub use error::{
    BuffersTooLarge, ChangeError, CheckError, DriverError, MediumError, RunError, UnknownInterface,
};
pub use groups::LAYERS;
pub use host_flash::Memory as HostMemory;
pub use live::{
    live_in_one_thread, live_in_threads, live_over_socket, live_over_vfio, live_over_vfio_user,
    until,
};
pub use members::{buses, flash_of, shared, sim_spec, simulated_device, traces};
pub use processor::{ThreadUse, timed};
pub use run_result::{HostResult, Options, RunResult};
pub use simulated::{in_virtual_time, simulate, simulate_on};
pub use threads::{Where, live_in_host_threads};
pub use trend::Falling;
pub use warning::Warning;
pub use window::{Busy, Instruments, Snapshot};
