//! Result of a job.

use runtime::Span;
use workload::stats::JobStats;

/// Number of error messages that are stored per run.
const ERRORS_KEPT: usize = 20;

/// Result of one clone of a job.
#[derive(Default)]
pub struct JobResult {
    /// Latencies, counts and latency breakdowns.
    pub stats: JobStats,
    /// Time from the first operation to the end of the last, without `ramp_time`. Operations that began in
    /// the ramp are left out of the statistics too, so that no rate is above what was possible.
    pub measured: Span,
    /// The same, with `ramp_time` and the start delay.
    pub elapsed: Span,
    /// Sum of the times from submission to completion, for Little's law.
    pub in_flight: Span,
    pub messages: Vec<String>,
    /// Failures outside of an operation, such as an invalid line in a recording.
    pub failures: u64,
    /// Number of verified blocks.
    pub blocks_verified: u64,
}

impl JobResult {
    /// Failed operations, verification errors and other failures.
    pub fn errors(&self) -> u64 {
        self.stats.errors() + self.failures
    }

    /// Merges the result of another clone that ran at the same time.
    pub fn merge(&mut self, other: &JobResult) {
        self.stats.merge(&other.stats);
        self.measured = self.measured.max(other.measured);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.in_flight += other.in_flight;
        let room = ERRORS_KEPT.saturating_sub(self.messages.len());
        self.messages.extend(other.messages.iter().take(room).cloned());
        self.failures += other.failures;
        self.blocks_verified += other.blocks_verified;
    }

    pub(super) fn push_message(&mut self, message: String) {
        // All tasks of a job may report the same error; it is stored once.
        if self.messages.len() < ERRORS_KEPT && self.messages.last() != Some(&message) {
            self.messages.push(message);
        }
    }

    /// Records a failure outside of an operation.
    pub fn fail(&mut self, message: String) {
        self.failures += 1;
        self.push_message(message);
    }
}
