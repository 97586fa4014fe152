//! Sweeps: simulated runs over axes of plans, jobs, interfaces and seeds, and searches along an axis.
//!
//! ```text
//!   sweep file ─► Sweep: axes, points ─► check of all points ─► run: workers ─► Results: JSON lines
//!                                                     └─► find: bisection ─────────┘
//! ```
//!
//! A point is a simulated run, single-threaded and deterministic, so points run on threads of this process,
//! and a result depends on neither their number nor their order. Processes would each need the parsed jobs
//! and the state of a preconditioned flash drive; threads share them, and every point takes a copy of the
//! state.
//!
//! A sweep prints nothing: results go to a file, one line a point, and progress to a function.

mod axis;
mod check;
mod digests;
mod error;
mod file;
mod find;
mod memory;
mod point;
mod results;
mod saved;
mod space;
mod spec;
mod workers;

pub use error::{PointError, PointErrorAt, PointErrors, SweepError};
pub use file::settings;
pub use find::{Find, Found, Tried, bisect};
pub use memory::available_memory_bytes;
pub use results::Results;
pub use space::POINTS_MAX;
pub use spec::Sweep;
pub use workers::{Effort, Progress};
