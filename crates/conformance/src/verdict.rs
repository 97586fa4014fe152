//! Verdicts of cases.

/// Result of a step of a case.
pub type Verdict<T = ()> = Result<T, Stop>;

/// Reason for ending a case early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The controller violates the specification: the action, the value found and the value expected.
    Failed(String),
    /// The controller lacks a feature: the field that reports it.
    Lacks(String),
}

impl Stop {
    /// A failure with this text.
    pub fn failed<T>(words: impl Into<String>) -> Verdict<T> {
        Err(Stop::Failed(words.into()))
    }

    /// A missing optional feature with this text.
    pub fn lacks<T>(words: impl Into<String>) -> Verdict<T> {
        Err(Stop::Lacks(words.into()))
    }
}

/// Fails the case with this text unless the condition holds.
macro_rules! hold {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return $crate::verdict::Stop::failed(format!($($words)+));
        }
    };
}

/// Skips the case with this text unless the controller has the feature.
macro_rules! needs {
    ($has:expr, $($words:tt)+) => {
        if !$has {
            return $crate::verdict::Stop::lacks(format!($($words)+));
        }
    };
}

pub(crate) use {hold, needs};
