//! Jobs, recordings and reports from outside, in one program.

mod job_errors;
mod job_files;
mod ledger;
mod pattern;
mod report;
mod traces;
