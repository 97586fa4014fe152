//! Tests of simulated and live worlds.

mod bus_faults;
mod commands;
mod determinism;
mod dropped_futures;
mod faults;
mod flash;
mod fused;
mod golden;
mod hop_budget;
mod host_threads;
mod hot_removal;
mod isolation;
mod laws;
mod long_operations;
mod mailbox;
mod namespaces;
mod nvme_data;
mod overtaken;
mod packets;
mod pin;
mod polling;
mod protection;
mod shadows;
mod timeline;
mod timing;
mod trace;
