//! What a front end reports: one line for each event, the same words for all of them.

use std::fmt::Display;
use std::path::Path;

/// How a client's session ended.
pub(crate) enum End {
    /// The client has closed its connection, or died.
    Disconnected,
    /// The server has closed the connection, for this reason.
    Dropped(String),
}

/// Where the events of one address are reported.
#[derive(Clone, Copy)]
pub struct Events<'a> {
    address: &'a Path,
    report: &'a (dyn Fn(&Path, &str) + Sync),
}

impl<'a> Events<'a> {
    /// Events at this address, for this function.
    pub fn new(address: &'a Path, report: &'a (dyn Fn(&Path, &str) + Sync)) -> Events<'a> {
        Events { address, report }
    }

    pub(crate) fn waiting(&self) {
        self.note("waiting for a client");
    }

    pub(crate) fn connected(&self) {
        self.note("client connected");
    }

    pub(crate) fn ended(&self, end: &End) {
        match end {
            End::Disconnected => self.note("client disconnected"),
            End::Dropped(why) => self.note(format_args!("client dropped: {why}")),
        }
    }

    /// Something else that an operator wants to know.
    pub(crate) fn note(&self, what: impl Display) {
        (self.report)(self.address, &what.to_string());
    }
}
