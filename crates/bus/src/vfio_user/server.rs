//! A server's socket: one client after another.

use std::fmt::Display;
use std::format;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::function::Function;
use super::session::Session;
use super::{VfioUserError, channel::Channel};

/// Listens at a path. Removes the socket when dropped.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Listens at a path. A socket that a dead server has left there is replaced.
    ///
    /// # Errors
    /// If another server listens there, or there is something else.
    pub fn bind(path: &Path) -> Result<Server, VfioUserError> {
        if UnixStream::connect(path).is_ok() {
            return fail(path, "binding", &"another server listens here");
        }
        let stale = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if stale && let Err(error) = std::fs::remove_file(path) {
            return fail(path, "removing the socket of a dead server", &error);
        }
        match UnixListener::bind(path) {
            Ok(listener) => Ok(Server { listener, path: path.into() }),
            Err(error) => fail(path, "binding", &error),
        }
    }

    /// Waits for a client, and agrees with it on a version.
    ///
    /// # Errors
    /// If the client's first message makes no sense. The next client may be better.
    pub fn accept(&self, function: &Function) -> Result<Session, VfioUserError> {
        let accepted = self.listener.set_nonblocking(false).and_then(|()| self.listener.accept());
        let channel = accepted.and_then(|(socket, _)| Channel::new(socket));
        let session = match channel {
            Ok(channel) => Session::greet(channel, function),
            Err(error) => return fail(&self.path, "accepting", &error),
        };
        session.or_else(|error| fail(&self.path, "a client's greeting", &error))
    }

    /// Turns away whoever else has connected.
    pub(super) fn turn_away(&self) {
        let _ = self.listener.set_nonblocking(true);
        while self.listener.accept().is_ok() {}
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(super) fn fail<T>(socket: &Path, doing: &str, error: &dyn Display) -> Result<T, VfioUserError> {
    Err(VfioUserError { socket: socket.into(), what: format!("{doing}: {error}") })
}

/// An error of the system, in words.
pub(super) fn said(doing: &str) -> impl Fn(io::Error) -> std::string::String + '_ {
    move |error| format!("{doing}: {error}")
}
