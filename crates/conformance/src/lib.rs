//! NVMe conformance suite: cases by sections of the specification, for any controller that a bus can reach.
//!
//! The host of these cases has no driver. It writes registers, forms entries by hand, rings doorbells and
//! reads completions, so that cases can do what no driver does. It uses nothing about the controller except
//! what the controller reports: a case about an absent optional feature names that feature and is counted
//! separately.
//!
//! ```text
//!   suite ──► cases (tables, by section) ──► case, bench (queues, places, waits) ──► reach (any bus)
//! ```
//!
//! Each file imports only files to its right: only `suite` has the list of cases.
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
