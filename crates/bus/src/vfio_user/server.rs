//! A server's socket: serves one client after another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use runtime::Span;

use super::channel::{Advance, Channel, Incoming, Message};
use super::error::{SessionError, VfioUserError, VfioUserErrorKind};
use super::limits;
use crate::listen::{AcceptError, Acceptor, Handshake, Step, Stop};

/// Listens at a path. Removes the socket when dropped.
pub struct Server {
    clients: Acceptor<Client>,
    /// Maximum number of mappings of a session.
    pub(super) maps_max: usize,
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
    type Error = SessionError;

    fn begin(socket: UnixStream) -> io::Result<Client> {
        Ok(Client { channel: Channel::new(socket)?, incoming: Incoming::default() })
    }

    fn advance(mut self) -> Result<Step<Client>, SessionError> {
        match self.channel.advance(&mut self.incoming)? {
            Advance::Whole(message) => Ok(Step::Whole((self.channel, message))),
            Advance::Part => Ok(Step::Part(self)),
            Advance::Gone => Err(SessionError::ClientGone),
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
            Err(error) => Err(VfioUserErrorKind::Listen(error).at(path)),
        }
    }

    /// Divides [`limits::DMA_MAPS_MAX`] equally by the given number of sockets of this process, so that the
    /// clients of one do not exhaust the mappings of another.
    #[must_use]
    pub fn one_of(self, servers: usize) -> Server {
        Server { maps_max: limits::DMA_MAPS_MAX / servers.max(1), ..self }
    }

    /// Waits for clients only until this stop is requested.
    #[must_use]
    pub fn until(self, stop: Arc<Stop>) -> Server {
        Server { clients: self.clients.until(stop), ..self }
    }

    /// Waits for a client's first message. Waits for all connected clients at once.
    pub(super) fn next(&self) -> Result<(Channel, Message), AcceptError<SessionError>> {
        self.clients.next()
    }

    pub(super) fn path(&self) -> &Path {
        self.clients.path()
    }

    pub(super) fn turn_away(&self, current: BorrowedFd<'_>) {
        self.clients.turn_away(current);
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
