//! Event reports of front ends: one line per event, with the same wording for all front ends.

use std::fmt::Display;
use std::path::Path;

/// Reason for the end of a client's session.
pub(crate) enum End {
    /// The client has closed its connection or exited.
    Disconnected,
    /// The server has closed the connection, for this reason.
    Dropped(String),
}

/// Reporter for the events of one address.
#[derive(Clone, Copy)]
pub struct Events<'a> {
    address: &'a Path,
    report: &'a (dyn Fn(&Path, &str) + Sync),
}

impl<'a> Events<'a> {
    /// Reports events of `address` to the function `report`.
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

    /// The last line of an address.
    pub(crate) fn stopped(&self) {
        self.note("stopped: what was written is flushed and saved");
    }

    pub(crate) fn note(&self, what: impl Display) {
        (self.report)(self.address, &what.to_string());
    }
}
