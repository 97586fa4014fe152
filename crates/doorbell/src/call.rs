//! The call of a command, and the document that answers it.

use std::ffi::OsString;

pub(super) use campaign::document::measured;
use campaign::document::of_runs;
use report::model::{Command, Document, Run};

/// The command and its arguments, as typed.
pub(super) struct Call(Command);

impl Call {
    /// The program's name is first.
    pub(super) fn of(typed: &[OsString]) -> Call {
        let mut words = typed.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        Call(Command { name: words.next().unwrap_or_default(), arguments: words.collect() })
    }

    /// A document with these runs, and without findings of other commands.
    pub(super) fn document(&self, runs: Vec<Run>) -> Document {
        of_runs(self.0.clone(), runs)
    }
}
