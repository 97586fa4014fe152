//! Event log: timestamped events as numbers, so that two runs can be compared byte for byte.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;

use crate::time::Time;

/// One logged event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Time of the event.
    pub at: Time,
    /// Component that logged it.
    pub component: &'static str,
    /// Name of the event.
    pub what: &'static str,
    /// First argument; its meaning depends on `what`.
    pub a: u64,
    /// Second argument.
    pub b: u64,
}

/// `123456 device fetch 1 4`: picoseconds, component, event, and the two arguments in hexadecimal.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {:x} {:x}", self.at.0, self.component, self.what, self.a, self.b)
    }
}

/// Sink of log entries.
#[derive(Clone, Default)]
pub enum Log {
    /// No sink; logging costs one branch.
    #[default]
    Off,
    /// In memory.
    Kept(Rc<RefCell<Vec<Entry>>>),
    /// A function, for example one that writes a file or a digest.
    To(Rc<dyn Fn(&Entry)>),
}

impl Log {
    /// A log in memory.
    pub fn kept() -> Log {
        Log::Kept(Rc::default())
    }

    /// True if there is a sink.
    #[inline]
    pub fn is_on(&self) -> bool {
        !matches!(self, Log::Off)
    }

    /// Adds an entry.
    pub fn put(&self, entry: &Entry) {
        match self {
            Log::Off => {}
            Log::Kept(entries) => entries.borrow_mut().push(*entry),
            Log::To(sink) => sink(entry),
        }
    }

    /// Entries of a log in memory so far; empty for the other kinds.
    pub fn entries(&self) -> Vec<Entry> {
        match self {
            Log::Kept(entries) => entries.borrow().clone(),
            Log::Off | Log::To(_) => Vec::new(),
        }
    }
}
