//! Long questions, in their short forms.

mod array;
mod bridge;
mod conformance;
mod diskhog;
mod host_collector;
mod host_flash;
mod power_cuts;
