//! The host from outside, in one program: the drivers against scripted devices that can misbehave, and what
//! stands on them.

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
