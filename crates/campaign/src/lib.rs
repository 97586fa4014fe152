//! Tools that need many runs: power-loss campaigns, queue sharing policies under contention, the conformance
//! suite, calibration of a plan to this machine.

pub mod calibrate;
pub mod conformance;
pub mod diskhog;
pub mod measure;
pub mod power_cuts;
