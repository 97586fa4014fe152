//! Short forms of the campaigns.

mod array;
mod bridge;
mod conformance;
mod die_queues;
mod diskhog;
mod energy;
mod explain;
mod fit;
mod host_flash;
mod host_gc;
mod host_map;
mod parts;
mod power_cuts;
mod sweep;
mod tenants;
mod validate;
