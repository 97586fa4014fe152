//! Worlds: a device and a host, put together from a plan, in virtual time or live.
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
//! let outcome = simulate(NVME, &plan, &work, Options::default())?;
//! assert_eq!(outcome.jobs[0].1.stats.read.total.count(), 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod device;
mod drive;
pub mod engine;
mod error;
mod function;
mod groups;
pub mod interfaces;
mod live;
pub mod medium;
mod members;
pub mod pci;
mod precondition;
mod processor;
pub mod run_recorder;
mod run_result;
pub mod series;
mod simulated;
mod threads;
pub mod work;

pub use drive::drive;
pub use error::RunError;
pub use groups::LAYERS;
pub use live::{
    live_in_one_thread, live_in_threads, live_over_socket, live_over_vfio, live_over_vfio_user,
    shared, until,
};
pub use members::{buses, flash_of, sim_spec, simulated_device, traces};
pub use run_result::{Busy, HostResult, Options, RunResult};
pub use simulated::{in_virtual_time, on_cores_in_virtual_time, simulate};
pub use threads::{Where, live_in_host_threads};
