//! Reports, as text and as JSON.
//!
//! [`Report::to_text`] prints tables; [`Report::to_json`] has the schema of fio 3.33's
//! `--output-format=json`, so that scripts written for fio work, and one more object, `doorbell`,
//! with the world, the plan, the notes and the breakdowns. Fields of fio's schema that are not
//! measured are zero, as in fio, and named in `doorbell.not_measured`.

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
    /// The errno that ended the job; 0 if it succeeded.
    pub error: i32,
    /// Duration of the measurement, without ramp and start delay.
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
    /// Time of the run, in milliseconds since 1970-01-01 00:00 UTC. Set by the caller: 0 for a
    /// simulated run, whose report must be identical byte for byte when repeated.
    pub unix_ms: u64,
    /// The settings of `[global]` as written.
    pub globals: Vec<(String, String)>,
    /// Notes of one line each: settings without effect, mapping of traces, and the like.
    pub notes: Vec<String>,
    /// Description of the world, from the caller.
    pub world: Value,
    /// Description of the plan, from the caller.
    pub plan: Value,
    pub jobs: Vec<JobReport>,
}

impl Report {
    /// The report in fio's JSON schema, with the `doorbell` object added.
    pub fn to_json(&self) -> Value {
        json::report(self)
    }

    /// The report as text. Ends with a line break.
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
