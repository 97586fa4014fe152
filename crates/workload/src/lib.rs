//! Workloads and statistics: fio jobs, recorded traces, verification.
//!
//! This crate depends neither on NVMe nor on the bus nor on the engine that runs the operations. It
//! generates operations, in bytes and picoseconds, from a job file or a recording; it stamps and
//! verifies contents; it collects statistics.
//!
//! ```text
//!  job file ──► job ──► pattern ──┐
//!                                 ├──► operations ──► (an engine elsewhere) ──► stats
//!  recording ─────────► trace ────┘         │                  │
//!                                           └──── verify ──────┘
//! ```
//!
//! It is not an engine: it neither waits nor submits, reads no clock and opens no file.
//!
//! ```
//! use runtime::Span;
//! use workload::stats::JobStats;
//! use workload::{Ops, Target, job};
//!
//! let file = job::parse("four.fio", "[four]\nrw=randrw\nbs=4k\nnumber_ios=4\n").unwrap();
//! let target = Target { capacity_bytes: 1 << 30, block_bytes: 512 };
//! let mut stats = JobStats::default();
//! for op in Ops::new(&file.jobs[0], 0, 1, target).unwrap() {
//!     // An engine would submit it and wait; here every operation takes 50 microseconds.
//!     stats.of_mut(op.kind).record(Span::us(50), Span::us(50), op.bytes);
//! }
//! assert_eq!(stats.read.total.count() + stats.write.total.count(), 4);
//! ```

pub mod job;
pub mod limits;
pub mod pattern;
pub mod stats;
pub mod trace;
pub mod verify;

pub use job::{Job, JobFile};
pub use pattern::{Op, OpKind, Ops, Target};
