//! The command and its pages.

mod block_live;
mod book;
mod common;
mod dcx_live;
mod docs;
mod errors;
mod explain;
mod fastpath_live;
mod fio_examples;
mod flags;
mod flash_killed;
mod flash_mount;
mod host_map;
mod nbd;
mod odd_jobs;
mod outputs;
mod pictures;
mod readme;
mod recorded;
mod results;
mod run_threads;
mod served;
mod sweep;
mod trace_events;
mod two_processes;
mod vfio_user;
