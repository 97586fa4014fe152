//! Jobs, recordings and reports through the public API, in one test binary.

mod job_errors;
mod job_files;
mod ledger;
mod pattern;
mod report;
mod traces;
