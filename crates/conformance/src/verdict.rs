//! How a case ends.

/// What comes of a step of a case, or why the case ends here.
pub type Verdict<T = ()> = Result<T, Stop>;

/// Why a case ends before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The controller does otherwise than the specification says: what was done, found and expected.
    Failed(String),
    /// The controller says that it does not have what the case is about: where it says so.
    Lacks(String),
}

impl Stop {
    /// A failure in these words.
    pub fn failed<T>(words: impl Into<String>) -> Verdict<T> {
        Err(Stop::Failed(words.into()))
    }

    /// Something optional is not there.
    pub fn lacks<T>(words: impl Into<String>) -> Verdict<T> {
        Err(Stop::Lacks(words.into()))
    }
}

/// Goes on if this holds; else the case has failed, in these words.
macro_rules! hold {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return $crate::verdict::Stop::failed(format!($($words)+));
        }
    };
}

/// Goes on if the controller has this; else the case is not about it, in these words.
macro_rules! needs {
    ($has:expr, $($words:tt)+) => {
        if !$has {
            return $crate::verdict::Stop::lacks(format!($($words)+));
        }
    };
}

pub(crate) use {hold, needs};
