//! The DC Express front end against its own documentation (`wire::dcx`), and against hosts that do not
//! keep to it.
//!
//! The host of these tests has no driver: see [`raw`](crate::raw::dcx). An NVMe controller stands beside the front end
//! on the same port and medium, as it always does.

mod beside;
mod commands;
mod hostile;
mod model;
mod registers;
mod rings;
mod sleep;
mod stops;
mod tags;
