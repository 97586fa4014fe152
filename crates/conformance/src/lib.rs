//! Whether an NVMe controller does what the specification says: cases by its sections, for any controller
//! that can be reached through a bus.
//!
//! The host of these cases has no driver. It writes registers, lays out entries by hand, rings doorbells and
//! looks at completions, so that what a driver never does is done too. It knows nothing of the controller but
//! what that says of itself: a case about something optional says what is lacking and is counted apart.
//!
//! ```text
//!   suite ──► cases (tables, by section) ──► case, bench (queues, places, waits) ──► reach (any bus)
//! ```
//!
//! Each file imports only what is to its right: `suite` alone knows which cases there are.
//!
//! Sections are those of "NVMe base 2.0" and "NVM command set 1.0", and "NVMe over PCIe 1.0" for doorbells.

mod bench;
mod case;
mod cases;
mod reach;
mod suite;
mod verdict;

pub use bench::Bench;
pub use case::{Case, Harm, Section};
pub use reach::{Later, Reach};
pub use suite::{CaseRun, Counts, Table, sections};
pub use verdict::{Stop, Verdict};
