//! The event log: what happened when, as numbers, so that two runs can be compared byte for byte.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;

use crate::time::Time;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Time,
    /// The room or part that says so.
    pub who: &'static str,
    /// What happened.
    pub what: &'static str,
    /// Its first number; what it means goes with `what`.
    pub a: u64,
    /// Its second number.
    pub b: u64,
}

/// `123456 device fetch 1 4`: picoseconds, who, what and the two numbers in hex.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {:x} {:x}", self.at.0, self.who, self.what, self.a, self.b)
    }
}

/// Where entries go.
#[derive(Clone, Default)]
pub enum Log {
    /// Nowhere; writing costs one branch.
    #[default]
    Off,
    /// Into memory.
    Kept(Rc<RefCell<Vec<Entry>>>),
    /// To a function, as to a file or a digest.
    To(Rc<dyn Fn(&Entry)>),
}

impl Log {
    /// A log in memory.
    pub fn kept() -> Log {
        Log::Kept(Rc::default())
    }

    /// Whether anybody listens.
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

    /// What a log in memory holds so far; empty for the other kinds.
    pub fn entries(&self) -> Vec<Entry> {
        match self {
            Log::Kept(entries) => entries.borrow().clone(),
            Log::Off | Log::To(_) => Vec::new(),
        }
    }
}
