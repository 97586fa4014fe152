//! Virtual and wall clocks behind one executor, with contended resources, request traces, RNG, event log and
//! declared configuration keys.
//!
//! The crate is independent of storage. It has no threads of its own, no I/O and no model of any device;
//! models are in `bus`, `media` and `device`.
//!
//! ```text
//!            one task: straight-line async; time passes at an await and nowhere else
//!              │ sleep_until, spend, reserve              │ wait for a change in memory
//!              ▼                                          ▼
//!    Rt::simulated: the clock jumps to the next timer     Rt::live: pass after pass over the waiting tasks
//! ```
//!
//! ```
//! use runtime::{Log, Rt, Span, Time};
//!
//! let rt = Rt::simulated(None, Log::Off);
//! let line = runtime::Line::default();
//! let end = rt.block_on(async {
//!     let turn = line.reserve(rt.now(), Span::ns(110));
//!     rt.sleep_until(turn.end).await;
//!     rt.now()
//! });
//! assert_eq!(end, Time::ZERO + Span::ns(110));
//! ```
//!
//! # Resources
//!
//! Time is integer picoseconds in a `u64` (213 days). The time of *n* bytes on a link is a rational, computed
//! for the whole transfer and rounded up once, because from PCIe Gen3 on a byte does not take whole
//! picoseconds.
//!
//! A contended resource is a [`Line`] (a FIFO server, reserved at once, so that queueing costs no event), a
//! [`Processor`] (one task at a time, interrupts before tasks), a [`Lock`], or a [`Pool`] of slots.
//! Contention is not coded anywhere: it results from the tasks that wait.
//!
//! # Request traces
//!
//! A request trace is a row of sums, one for each named stage, and the time of the last record. Every named
//! wait ends with [`Rt::record`], which adds the time since the last record to its stage, so the stages add
//! up to the latency by construction; time of no stage is "unexplained". For reading a breakdown:
//! - a stage ends at its record and begins at the one before. For a read, the data transfer goes up and ends
//!   when the last byte has left; for a write, it goes down, after `host read`, and ends when the data have
//!   arrived;
//! - `completion` lasts from the device's last record until the entry has landed, `poll` or `interrupt` from
//!   then until the driver acts on it;
//! - an operation longer than a command's maximum transfer runs as several commands at once, and its
//!   breakdown is that of the longest path: the command that ends last, with those that had its place before.
//!
//! A live run traces one command in `run.breakdown_sample`, selected by slot and use of the slot. Selection
//! by slot alone would trace all commands or none at depth 1.
//!
//! # Executor
//!
//! Tasks belong to the thread that made the [`Rt`] and need no `Send`. A wait records the *number* of its
//! task: waking is a push onto a queue, without reference count, lock or allocation, and waking an ended task
//! has no effect. The slots of a device are tasks that live as long as the controller, so nothing is spawned
//! or boxed on the path of a command.
//!
//! *Virtual time.* If no task is ready, the clock jumps to the next timer. With neither a ready task nor a
//! timer the executor panics: the model has a deadlock. A wait whose end is the next event of all (no task is
//! ready, no timer is earlier) advances the clock and continues in place, counted as one timed event. Code
//! that polls several futures in one task must therefore poll all but the last with [`beside_others`], which
//! tells the first ones that others have yet to be polled.
//!
//! *Wall clock.* Tasks that wait for memory are polled pass after pass; idle, the executor polls again,
//! spins, yields, and after a time without work sleeps ([`IdleSleep`]), for at most a set time, so that no
//! change is missed for longer; an `unpark` of
//! its thread wakes it at once. If no task waits for memory, the thread sleeps until the next timer at once.
//!
//! *Running inline.* When one task makes another ready (fetcher and slot, completion poller and caller),
//! [`Rt::hand_over`] runs the other in place, one level deep, on the wall clock: a command is never queued
//! between doorbell and completion. In virtual time no time passes either way, and the other task takes its
//! turn.
//!
//! [`Rt::shuffle_ready_tasks`] runs ready tasks in random order: a test that passes with it depends on no
//! unspecified order. [`Rt::pause_tasks`] draws pauses of tasks: a test that passes with it depends on no
//! time.
//!
//! # Determinism
//!
//! The same plan, job and seed give the same event log, byte for byte, on any machine:
//! - one thread, one virtual clock, ties broken by sequence number;
//! - no float, hash order, pointer, `usize` or operating-system value reaches a time, a draw or a log line.
//!   `crates/rules/tests/it/workspace.rs` rejects `HashMap` in the crates below `world`, and
//!   `Instant::now` outside `wall.rs`;
//! - random numbers come from [`Rng`], with one stream per named part, so that a new consumer shifts no
//!   other's draws;
//! - reports of simulated runs carry no date.
//!
//! Live runs do not repeat: their order is the machine's.
#![no_std]
#![warn(missing_docs)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod clock;
mod keys;
mod log;
mod pass;
mod pauses;
mod permutation;
mod prefetch;
mod resource;
mod rng;
mod rt;
mod sleep;
mod task;
mod time;
mod timers;
mod trace;
mod traces;
mod turns;
mod wait;
#[cfg(feature = "std")]
mod wall;

pub use clock::{IdleSleep, WallClock};
pub use keys::{Key, RATE_MAX, Unit};
pub use log::{Entry, Log};
pub use permutation::Permutation;
pub use prefetch::{prefetch, prefetch_to_write};
pub use resource::{Line, Lock, Policy as LockPolicy, Processor, Spend, Turn, Urgency, Waits};
pub use rng::Rng;
pub use rt::Rt;
pub use sleep::{Either, Sleep, beside_others, race};
pub use task::{Parked, TaskId};
pub use time::{Span, Time};
pub use traces::{
    Finished, SPANS_MAX, STAGES_MAX, Stage, StageName, StageSums, TraceSpan, Traces, is_listed,
};
pub use wait::{Pool, Signal};
#[cfg(feature = "std")]
pub use wall::STD_CLOCK;
