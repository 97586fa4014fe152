//! Integration tests of the host crate: drivers against scripted devices that can misbehave.

mod block;
mod block_order;
mod bringup;
mod common;
mod dcx;
mod dcx_order;
mod deadlines;
mod drops;
mod fastpath;
mod hostile;
mod io;
mod live;
mod pci;
mod recovery;
mod threads;
mod threads_order;
