//! What was seen, for people and for programs.
//!
//! [`Report::to_text`] is a page to read; [`Report::to_json`] has the schema of fio 3.33's
//! `--output-format=json`, so that scripts written for fio work, and one more object, `doorbell`,
//! with the world, the plan, the notes and the breakdowns. Whatever fio's schema has a place for
//! and nobody measured is zero there, as in fio, and named in `doorbell.not_measured`.

mod calendar;
mod json;
mod text;

use std::fmt;

use runtime::Span;
use serde_json::Value;

use crate::stats::JobStats;

/// One job, or all clones of one.
#[derive(Clone, Debug, Default)]
pub struct JobReport {
    pub name: String,
    /// Free text from the job file.
    pub description: String,
    /// The reporting group, from 0.
    pub group: u32,
    /// An errno that ended it; 0 if it ended well.
    pub error: i32,
    /// How long was measured, ramp and start delay not counted.
    pub measured: Span,
    /// From the job's start to its end.
    pub elapsed: Span,
    pub options: Vec<(String, String)>,
    pub stats: JobStats,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The program's version, as in "0.1.0".
    pub version: String,
    /// When, in milliseconds since 1970-01-01 00:00 UTC. The caller's affair: a simulated run that
    /// is to repeat byte for byte gives 0.
    pub unix_ms: u64,
    /// The settings of `[global]` as written.
    pub globals: Vec<(String, String)>,
    /// What was accepted without effect, what was mapped, and the like: a line each.
    pub notes: Vec<String>,
    /// Which world, in the caller's words.
    pub world: Value,
    /// The plan, in the caller's words.
    pub plan: Value,
    pub jobs: Vec<JobReport>,
}

impl Report {
    /// As fio's JSON, with ours beside it.
    pub fn to_json(&self) -> Value {
        json::report(self)
    }

    /// As a page to read. Ends with a line break.
    pub fn to_text(&self) -> String {
        let mut page = String::new();
        text::write(&mut page, self).expect("a String takes everything");
        page
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(f, self)
    }
}
