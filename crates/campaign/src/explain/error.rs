//! Why a run cannot be explained.

use plan::PlanErrors;
use world::RunError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The run itself fails, or the interface does not support the plan.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The plan as given does not parse again.
    #[error(transparent)]
    Plan(#[from] PlanErrors),
    /// Every simulation would write the same file.
    #[error("{origin}: {key}: found a file, expected none: explain simulates the run many times")]
    File { origin: String, key: &'static str },
    /// No operation of the job succeeded, so there is no rate.
    #[error("{file}: found no operation that succeeded, expected one at least{}", first(.messages))]
    NoOperation { file: String, messages: Vec<String> },
}

fn first(messages: &[String]) -> String {
    messages.first().map_or_else(String::new, |message| format!(": {message}"))
}
