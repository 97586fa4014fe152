//! Tools that need many runs: power-loss campaigns, queue sharing policies under contention, the conformance
//! suite, calibration of a plan to this machine, the reasons for a run's rate, sweeps over plans and jobs,
//! plans beside measurements of real drives.
//! Single runs, as the command line and Python make them, are here as well: [`run`], [`document`],
//! [`event_log`].
//!
//! ```text
//!    seed, plan, job ─► runs of world::simulate, or live ─► one table, and arguments that repeat a failure
//! ```
//!
//! It is not the command line: each module takes its arguments from `doorbell` and returns a result to print.
//!
//! ```console
//! $ doorbell power-cuts small-flash --cuts 1000
//! $ doorbell calibrate --out this-machine.toml
//! ```

pub mod calibrate;
pub mod conformance;
pub mod diskhog;
pub mod document;
pub mod event_log;
pub mod explain;
pub mod fit;
pub mod power_cuts;
pub mod run;
pub mod sweep;
pub mod tenants;
pub mod validate;
