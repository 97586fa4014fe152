//! Two clocks, one executor, FIFO servers and other contended resources, RNG and event log; and the
//! declaration of configuration keys.
//!
//! Independent of storage. Protocol code is straight-line `async`: time passes at an `.await` and nowhere
//! else. The same code runs in virtual time, where the clock jumps from event to event, and live, where it
//! is polled.
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
#![no_std]
#![warn(missing_docs)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod keys;
mod log;
mod pass;
mod resource;
mod rng;
mod rt;
mod sleep;
mod time;
mod timers;
mod trace;
mod wait;
#[cfg(feature = "std")]
mod wall;

pub use keys::{Key, Unit};
pub use log::{Entry, Log};
pub use resource::{Line, Lock, Policy as LockPolicy, Processor, Spend, Turn, Urgency, Waits};
pub use rng::Rng;
pub use rt::{Parked, Rt, TaskId, WallClock};
pub use sleep::{Either, Sleep, beside_others, race};
pub use time::{Span, Time};
pub use trace::{Finished, SLOT_BITS, STAGES_MAX, Stage, StageSums, Traces, slot_bits};
pub use wait::{Pool, Signal};
#[cfg(feature = "std")]
pub use wall::STD_CLOCK;
