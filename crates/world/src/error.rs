//! Why a run did not come to its end.

/// Why a run did not come to its end. Prints what, and what was expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(pub String);

impl RunError {
    /// The same in the words of another error.
    pub fn of(error: impl std::fmt::Display) -> RunError {
        RunError(error.to_string())
    }
}
