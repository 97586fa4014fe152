//! A server's socket: serves one client after another.

use std::fmt::Display;
use std::format;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::string::String;

use runtime::Span;

use super::channel::{Advance, Channel, Incoming, Message};
use super::function::Function;
use super::session::Session;
use super::{VfioUserError, limits};
use crate::listen::{Acceptor, Handshake, Step};

/// Listens at a path. Removes the socket when dropped.
pub struct Server {
    clients: Acceptor<Client>,
    maps_max: usize,
}

/// A client whose first message is incomplete.
struct Client {
    channel: Channel,
    incoming: Incoming,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Handshake for Client {
    type Whole = (Channel, Message);

    fn begin(socket: UnixStream) -> io::Result<Client> {
        Ok(Client { channel: Channel::new(socket)?, incoming: Incoming::default() })
    }

    fn advance(mut self) -> Result<Step<Client>, String> {
        match self.channel.advance(&mut self.incoming)? {
            Advance::Whole(message) => Ok(Step::Whole((self.channel, message))),
            Advance::Part => Ok(Step::Part(self)),
            Advance::Gone => Err("the client has gone".into()),
        }
    }
}

impl Server {
    /// Listens at a path, for clients of this user. A dead server's socket is replaced.
    ///
    /// # Errors
    /// If another server listens there, or the path exists and is no socket.
    pub fn bind(path: &Path) -> Result<Server, VfioUserError> {
        match Acceptor::bind(path) {
            Ok(clients) => Ok(Server { clients, maps_max: limits::DMA_MAPS_MAX }),
            Err(what) => Err(VfioUserError { socket: path.into(), what }),
        }
    }

    /// Divides [`limits::DMA_MAPS_MAX`] equally by the given number of sockets of this process, so that the
    /// clients of one do not exhaust the mappings of another.
    #[must_use]
    pub fn one_of(self, servers: usize) -> Server {
        Server { maps_max: limits::DMA_MAPS_MAX / servers.max(1), ..self }
    }

    /// Waits for a client and negotiates a version. Waits for all connected clients at once.
    ///
    /// # Errors
    /// If a client's first message is malformed or late, or accept fails. A further call may succeed.
    pub fn accept(&self, function: &Function) -> Result<Session, VfioUserError> {
        let path = self.clients.path();
        let (channel, message) = match self.clients.next() {
            Ok(come) => come,
            Err(what) => return Err(VfioUserError { socket: path.into(), what }),
        };
        // One client at a time: the others are disconnected now, which also frees their descriptors.
        let session = Session::agree(&channel, message, self.maps_max).and_then(|transfer_bytes| {
            self.turn_away();
            Session::new(channel, transfer_bytes, function, self.maps_max)
        });
        session.or_else(|error| fail(path, "a client's greeting", &error))
    }

    pub(super) fn turn_away(&self) {
        self.clients.turn_away();
    }

    /// Pause in which polling for connections is useless.
    pub(super) fn rest(&self) -> Span {
        self.clients.rest()
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.clients.as_fd()
    }
}

pub(super) fn fail<T>(socket: &Path, doing: &str, error: &dyn Display) -> Result<T, VfioUserError> {
    Err(VfioUserError { socket: socket.into(), what: format!("{doing}: {error}") })
}

/// Formats a system error with the failed step.
pub(super) fn said(doing: &str) -> impl Fn(io::Error) -> std::string::String + '_ {
    move |error| format!("{doing}: {error}")
}
