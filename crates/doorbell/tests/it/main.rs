//! The command, its pages and its house rules.

mod block_live;
mod common;
mod dcx_live;
mod docs;
mod errors;
mod fastpath_live;
mod flash_killed;
mod house;
mod nbd;
mod odd_jobs;
mod readme;
mod recorded;
mod run_threads;
mod served;
mod two_processes;
mod vfio_user;
