//! What to ask for, and what was seen.
//!
//! This room knows nothing of NVMe, of the bus or of who runs its operations. It says, in bytes and
//! picoseconds, what a job file or a recording asks for; it marks and checks contents; it counts
//! what it is told and prints it.
//!
//! ```text
//!  job file ──► job ──► pattern ──┐
//!                                 ├──► operations ──► (somebody's engine) ──► stats ──► report
//!  recording ─────────► trace ────┘         │                  │
//!                                           └──── verify ──────┘
//! ```
//!
//! What it is not: an engine. It neither waits nor submits, reads no clock and opens no file.
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
pub mod report;
pub mod stats;
pub mod trace;
pub mod verify;

pub use job::{Job, JobFile};
pub use pattern::{Op, OpKind, Ops, Target};
