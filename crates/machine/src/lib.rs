//! Builds a world from a plan, and runs work in it: a link, a host, a device and its medium, every number
//! with its source.
//!
//! ```
//! use machine::interfaces::Nvme;
//! use machine::plan::Plan;
//! use machine::work::Work;
//! use machine::world::{Options, simulate};
//! use std::path::Path;
//!
//! let plan = Plan::open("dc-express", &[])?;
//! let job = "[reads]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=10\n";
//! let work = Work::parse(Path::new("example.fio"), job, Default::default())?;
//! let outcome = simulate(NVME, &plan, &work, Options::default())?;
//! assert_eq!(outcome.jobs[0].1.seen.read.total.count(), 10);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod calibrate;
pub mod cli;
pub mod conformance;
pub mod device;
pub mod disk;
pub mod diskhog;
pub mod engine;
pub mod fastpath;
mod function;
pub mod hardware;
pub mod interfaces;
pub mod measure;
pub mod medium;
pub mod nbd;
pub mod papers;
mod pci;
pub mod plan;
pub mod power_cuts;
mod precondition;
pub mod series;
pub mod serve;
pub mod serve_shared;
pub mod tape;
pub mod work;
pub mod world;
