//! Short forms of the campaigns.

mod array;
mod bridge;
mod conformance;
mod diskhog;
mod host_collector;
mod host_flash;
mod power_cuts;
