//! The DC Express front end against its specification (`wire::dcx`), and against malicious hosts.
//!
//! These tests use no driver: see [`raw`](crate::raw::dcx). An NVMe controller shares the front end's port
//! and medium, as it always does.

mod at_once;
mod beside;
mod commands;
mod compared;
mod hostile;
mod model;
mod registers;
mod rings;
mod sleep;
mod stops;
mod tags;
mod writes_at_once;
