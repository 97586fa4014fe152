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
//! ```no_run
//! use std::rc::Rc;
//!
//! use bus::HostPort;
//! use conformance::{Harm, Table};
//!
//! /// Runs the cases that change no user data.
//! async fn check(port: impl HostPort) {
//!     let table = Table::run(Rc::new(port), |case| case.harm == Harm::None, |_| {}).await;
//!     println!("{}", table.text());
//!     assert_eq!(table.counts().failed, 0);
//! }
//! ```
//!
//! Each file imports only files to its right: only `suite` has the list of cases.
//!
//! Sections are those of "NVMe base 2.0" and "NVM command set 1.0", and "NVMe over PCIe 1.0" for doorbells.
//!
//! Cases reach the controller through [`Reach`], seven operations that every [`bus::HostPort`] has, with
//! boxed futures: nothing is measured here, and the cases are compiled once instead of once per bus. Each
//! case is a small function that begins on a controller that was just reset, and passes, fails, or names an
//! optional feature that Identify does not report.

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
