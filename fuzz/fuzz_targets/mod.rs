//! The function of each target, a module for each.

pub mod block_host;
pub mod dcx_host;
pub mod fastpath;
pub mod greeting;
pub mod hostile_device;
pub mod hostile_host;
pub mod iolog;
pub mod job_file;
pub mod journal;
pub mod nbd;
#[cfg(feature = "machine")]
pub mod nbd_server;
#[cfg(feature = "machine")]
pub mod plan;
pub mod prp_walk;
mod scratch;
pub mod scsi;
pub mod state;
#[cfg(feature = "machine")]
pub mod vfio_user;
