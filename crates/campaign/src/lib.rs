//! Long questions to a drive, each made of many runs: power cuts, the queue policies under contention,
//! the conformance suite, what this machine's own cores cost, and a plan that is made of that.

pub mod calibrate;
pub mod conformance;
pub mod diskhog;
pub mod measure;
pub mod power_cuts;
