//! Jobs and recordings through the public API, in one test binary.

mod job_errors;
mod job_files;
mod ledger;
mod pattern;
mod traces;
