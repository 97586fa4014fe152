//! Unix-domain listeners: bind, accept with a backoff, concurrent greetings. Shared by the servers of all
//! front ends.
//!
//! A server outlives the errors of its clients and of the system: accepting fails if the process has no
//! descriptor left (`EMFILE`) or the kernel no memory, and succeeds again later. Clients that have
//! connected and send nothing do not delay other clients.
//!
//! Clients that have connected and not yet sent a greeting are waited for together, for a bounded time and in
//! a bounded number, over all sockets at a path. If a thread cannot be created, one client is dropped.

use std::fs::File;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use runtime::{STD_CLOCK, Span, Time, WallClock};

use crate::fd::{self, Until};

/// Time limit of a client's greeting.
pub const GREETING: Span = Span::ms(5_000);
/// Connected clients of one server that have not greeted: a further client displaces the oldest. A client
/// that greets at once is safe unless this many others connect between its two system calls.
pub const GREETING_MAX: usize = 64;
/// Pause after a failed accept.
pub const REST: Span = Span::ms(100);
/// Minimum interval between two reports of failed accepts.
const SAYING: Span = Span::s(10);
/// Servers that bind in one folder take turns by a lock on it. A turn takes microseconds: a longer wait
/// means that another program holds the lock.
const TURNS: u32 = 200;
const TURN_MS: i32 = 10;

/// Why a path cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server listens at the path.
    #[error("binding: another server listens here")]
    Taken,
    /// The test for another server failed.
    #[error("testing for another server: {0}")]
    Test(io::Error),
    /// The socket of a dead server cannot be removed.
    #[error("removing the socket of a dead server: {0}")]
    Remove(io::Error),
    /// The path cannot be bound: it exists and is no socket, or its folder is not writable.
    #[error("binding: {0}")]
    Bind(io::Error),
}

/// Error of accept(2), as reported by a [`Backoff`].
#[derive(Debug, thiserror::Error)]
#[error("accepting: {0}: it is tried again every {REST}, and said every {SAYING}")]
pub struct AcceptFailed(pub io::Error);

/// Why a server has no next client. `E` is the error of a greeting. The next attempt may succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError<E> {
    /// The system call failed.
    #[error(transparent)]
    System(AcceptFailed),
    /// A client did not greet within [`GREETING`].
    #[error("a client's greeting: it has not come in {GREETING}")]
    Late,
    /// A client's greeting was rejected.
    #[error("a client's greeting: {0}")]
    Greeting(E),
    /// The server was stopped: no further client is accepted.
    #[error("the server has been stopped")]
    Stopped,
}

/// A request to stop, for all sockets of a process: from then on every wait for clients returns at once.
pub struct Stop {
    requested: AtomicBool,
    /// Readable from the request on, as its peer is shut down.
    watched: UnixStream,
    peer: UnixStream,
}

impl Stop {
    /// Not requested.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Stop> {
        let (watched, peer) = UnixStream::pair()?;
        Ok(Stop { requested: AtomicBool::new(false), watched, peer })
    }

    /// Requests the stop.
    pub fn request(&self) {
        // Release: a device that sees the request sees what was written before it.
        self.requested.store(true, Ordering::Release);
        // Fails only if it was shut down before.
        let _ = self.peer.shutdown(Shutdown::Both);
    }

    /// Returns true if the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Waits until `fd` is readable. Returns false if the stop was requested.
    pub fn wait_for(&self, fd: BorrowedFd<'_>) -> bool {
        let these = [(fd, Until::Readable), (self.watched.as_fd(), Until::Readable)];
        while !self.is_requested() {
            let mut ready = Vec::new();
            fd::wait(&these, -1, &mut ready);
            if ready.first() == Some(&true) {
                return !self.is_requested();
            }
        }
        false
    }

    /// Waits for this time, or until the stop is requested. Returns false if it was.
    pub fn sleep(&self, span: Span) -> bool {
        if !self.is_requested() {
            let these = [(self.watched.as_fd(), Until::Readable)];
            fd::wait(&these, milliseconds(span), &mut Vec::new());
        }
        !self.is_requested()
    }
}

/// Socket that listens at a path, for clients of its owner alone (mode 0600). Its file is removed when
/// dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: if another server's file has taken its place, it is left alone.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at a path. A dead server's socket, at which a connection is refused, is replaced. Only
    /// processes of the owner can connect, from the moment that the file exists.
    ///
    /// # Errors
    /// Another server listens at the path; the path exists and is no socket; the test for a server fails.
    pub fn bind(path: &Path) -> Result<Listener, ListenError> {
        // Two servers that both find a dead one's socket would otherwise remove each other's.
        let _turn = turn(path).map_err(ListenError::Bind)?;
        let is_socket =
            |path| std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if is_socket(path) {
            match fd::connect_at_once(path) {
                // A full backlog means that a server listens.
                Ok(_) => return Err(ListenError::Taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(ListenError::Taken);
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(ListenError::Remove)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(ListenError::Test(error)),
            }
        }
        let listener = fd::listen_for_owner(path).map_err(ListenError::Bind)?;
        let made = std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()));
        Ok(Listener { listener, path: path.into(), made })
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// The error of accept(2); the next call may succeed. A [`Backoff`] gives the pause before it.
    pub fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// Makes [`accept`](Listener::accept) return at once, with an error if there is no client.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        self.listener.set_nonblocking(true)
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path).ok().map(|m| (m.dev(), m.ino()));
        if found.is_some() && found == self.made {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Locks the folder of this path until the file is dropped. `None` if it cannot be locked.
fn turn(path: &Path) -> io::Result<Option<File>> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(folder) = File::open(parent.unwrap_or(Path::new("."))) else {
        // The folder may be writable but not readable: then there is no lock.
        return Ok(None);
    };
    for _ in 0..TURNS {
        match folder.try_lock() {
            Ok(()) => return Ok(Some(folder)),
            Err(std::fs::TryLockError::WouldBlock) => fd::wait(&[], TURN_MS, &mut Vec::new()),
            // A file system without locks.
            Err(std::fs::TryLockError::Error(_)) => return Ok(None),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "another program holds the folder locked"))
}

/// Enables TCP keep-alive: probes after two minutes of silence, and the end of the connection if they are
/// not answered.
///
/// # Errors
/// The error of setsockopt(2).
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    fd::keep_alive(stream.as_fd(), 120, 20, 6)
}

/// Pause after a failed accept, and rate limit of its reports.
#[derive(Default)]
pub struct Backoff {
    until: Time,
    said: Option<Time>,
}

impl Backoff {
    /// Records a failed accept. Returns the report to print, or `None` if one was printed recently. Also
    /// `None` if the client has gone or there was none: then there is no pause.
    pub fn failed(&mut self, error: io::Error) -> Option<AcceptFailed> {
        use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        if matches!(error.kind(), ConnectionAborted | Interrupted | WouldBlock) {
            return None;
        }
        let now = STD_CLOCK.now();
        self.until = now + REST;
        if self.said.is_some_and(|said| now.since(said) < SAYING) {
            return None;
        }
        self.said = Some(now);
        Some(AcceptFailed(error))
    }

    /// Ends the pause: a descriptor was freed.
    fn try_again(&mut self) {
        self.until = Time::ZERO;
    }

    /// Time left of the pause.
    pub fn left(&self) -> Span {
        // The clock is not read before the first failure.
        if self.said.is_none() { Span::ZERO } else { self.until.since(STD_CLOCK.now()) }
    }
}

/// A connected client whose greeting is incomplete.
pub(crate) trait Handshake: AsFd + Sized {
    type Whole;
    type Error;

    fn begin(socket: UnixStream) -> io::Result<Self>;

    /// Receives the available bytes without waiting.
    ///
    /// # Errors
    /// The greeting is malformed, or the client has gone.
    fn advance(self) -> Result<Step<Self>, Self::Error>;
}

pub(crate) enum Step<H: Handshake> {
    Whole(H::Whole),
    Part(H),
}

/// A server's socket and its clients that have not greeted; it waits for all of them at once.
pub(crate) struct Acceptor<G> {
    listener: Listener,
    state: Mutex<State<G>>,
    stop: Option<Arc<Stop>>,
}

struct State<G> {
    /// Clients and the time of their connection, oldest first.
    greeting: Vec<(G, Time)>,
    backoff: Backoff,
}

impl<G: Handshake> Acceptor<G> {
    pub fn bind(path: &Path) -> Result<Acceptor<G>, ListenError> {
        let listener = Listener::bind(path)?;
        listener.listener.set_nonblocking(true).map_err(ListenError::Bind)?;
        let state = State { greeting: Vec::new(), backoff: Backoff::default() };
        Ok(Acceptor { listener, state: Mutex::new(state), stop: None })
    }

    /// Waits for clients only until this stop is requested.
    pub fn until(self, stop: Arc<Stop>) -> Acceptor<G> {
        Acceptor { stop: Some(stop), ..self }
    }

    pub fn path(&self) -> &Path {
        &self.listener.path
    }

    fn state(&self) -> MutexGuard<'_, State<G>> {
        // The list is consistent even if a thread has panicked while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next complete greeting.
    ///
    /// # Errors
    /// A greeting is malformed or late, or accept failed. A further call may succeed.
    pub fn next(&self) -> Result<G::Whole, AcceptError<G::Error>> {
        loop {
            if let Some(next) = self.look(&mut self.state()) {
                return next;
            }
        }
    }

    /// Waits for an event or a deadline, and handles it.
    fn look(&self, state: &mut State<G>) -> Option<Result<G::Whole, AcceptError<G::Error>>> {
        if self.stop.as_ref().is_some_and(|stop| stop.is_requested()) {
            return Some(Err(AcceptError::Stopped));
        }
        let (now, rest) = (STD_CLOCK.now(), state.backoff.left());
        let mut these: Vec<_> =
            state.greeting.iter().map(|(client, _)| (client.as_fd(), Until::Readable)).collect();
        let clients = these.len();
        let listens = rest == Span::ZERO;
        if listens {
            these.push((self.listener.as_fd(), Until::Readable));
        }
        if let Some(stop) = &self.stop {
            these.push((stop.watched.as_fd(), Until::Readable));
        }
        let oldest = state.greeting.first().map(|(_, since)| (*since + GREETING).since(now));
        let waits = [oldest, Some(rest).filter(|rest| *rest > Span::ZERO)];
        let wait = waits.into_iter().flatten().min();
        let mut ready = Vec::new();
        fd::wait(&these, wait.map_or(-1, milliseconds), &mut ready);
        for place in (0..clients).filter(|place| ready[*place]) {
            let (client, since) = state.greeting.remove(place);
            match client.advance() {
                Ok(Step::Part(client)) => state.greeting.insert(place, (client, since)),
                Ok(Step::Whole(whole)) => return Some(Ok(whole)),
                Err(why) => return Some(Err(AcceptError::Greeting(why))),
            }
        }
        let late = |since: Time| STD_CLOCK.now().since(since) >= GREETING;
        if state.greeting.first().is_some_and(|(_, since)| late(*since)) {
            state.greeting.remove(0);
            return Some(Err(AcceptError::Late));
        }
        if !listens || ready.get(clients) != Some(&true) {
            return None;
        }
        self.take_in(state).map(|failed| Err(AcceptError::System(failed)))
    }

    /// Accepts a client; returns the report if that fails.
    fn take_in(&self, state: &mut State<G>) -> Option<AcceptFailed> {
        match self.listener.accept().and_then(G::begin) {
            Ok(client) => {
                if state.greeting.len() >= GREETING_MAX {
                    state.greeting.remove(0);
                }
                state.greeting.push((client, STD_CLOCK.now()));
                None
            }
            Err(error) => {
                let said = state.backoff.failed(error);
                if state.backoff.left() > Span::ZERO && !state.greeting.is_empty() {
                    // If descriptors have run out, the oldest silent client gives one back.
                    state.greeting.remove(0);
                    state.backoff.try_again();
                }
                said
            }
        }
    }

    /// Disconnects waiting clients, up to [`GREETING_MAX`] of the backlog, while the socket of the current
    /// one is open. A client that connects after that socket was closed is the next one.
    pub fn turn_away(&self, current: BorrowedFd<'_>) {
        let mut state = self.state();
        if !fd::has_hung_up(current) {
            state.greeting.clear();
        }
        for _ in 0..GREETING_MAX {
            match self.listener.accept() {
                // Checked after the accept, as it may connect between the two.
                Ok(client) if fd::has_hung_up(current) => {
                    if let Ok(client) = G::begin(client) {
                        state.greeting.push((client, STD_CLOCK.now()));
                    }
                    return;
                }
                Ok(_) => {}
                Err(error) => {
                    let _ = state.backoff.failed(error);
                    return;
                }
            }
        }
    }

    /// Time left of the pause after a failed accept; polling the listener is useless until then.
    pub fn rest(&self) -> Span {
        self.state().backoff.left()
    }
}

impl<G> AsFd for Acceptor<G> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Milliseconds, rounded up so that the last wait does not spin.
pub(crate) fn milliseconds(span: Span) -> i32 {
    (span.as_ns() / 1_000_000 + 1).min(i32::MAX as u64) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::string::ToString;

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn socket_has_mode_0600_and_is_removed_on_drop() {
        let path = path("mode");
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        assert!(matches!(Listener::bind(&path), Err(ListenError::Taken)));
        drop(listener);
        assert!(!path.exists());
    }

    /// A client whose first byte is all of its greeting.
    struct Brief(UnixStream);

    impl AsFd for Brief {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Handshake for Brief {
        type Whole = UnixStream;
        type Error = io::Error;

        fn begin(socket: UnixStream) -> io::Result<Brief> {
            Ok(Brief(socket))
        }

        fn advance(mut self) -> Result<Step<Brief>, io::Error> {
            self.0.read_exact(&mut [0])?;
            Ok(Step::Whole(self.0))
        }
    }

    /// Also where the server has not noticed that the current client has left, and what that one sent is
    /// unread.
    #[test]
    fn client_that_connects_after_the_current_one_left_is_the_next() {
        let path = path("next");
        let clients = Acceptor::<Brief>::bind(&path).unwrap();
        let (current, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(&[1]).unwrap();
        let mut early = UnixStream::connect(&path).unwrap();
        clients.turn_away(current.as_fd());
        assert_eq!(early.read(&mut [0]).unwrap(), 0, "it is disconnected");
        drop(peer);
        let mut next = UnixStream::connect(&path).unwrap();
        clients.turn_away(current.as_fd());
        clients.turn_away(current.as_fd());
        next.write_all(&[2]).unwrap();
        clients.next().unwrap().write_all(&[3]).unwrap();
        let mut got = [0];
        next.read_exact(&mut got).unwrap();
        assert_eq!(got, [3]);
    }

    #[test]
    fn bind_replaces_only_sockets_of_dead_servers() {
        let path = path("left");
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::bind(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
        let ours = Listener::bind(&path).unwrap();
        // The socket was removed by hand, and another server's is in its place: it is not removed.
        std::fs::remove_file(&path).unwrap();
        let others = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(UnixStream::connect(&path).is_ok());
        drop(others);
        // As left behind by `kill -9`.
        assert!(path.exists());
        let again = Listener::bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(again);
    }

    /// The backlog is full: the connection attempt does not wait.
    #[test]
    fn bind_detects_server_with_full_backlog() {
        let path = path("busy");
        let socket = fd::listen_for_owner(&path).unwrap();
        let mut crowd = Vec::new();
        while let Ok(client) = fd::connect_at_once(&path) {
            crowd.push(client);
        }
        assert!(matches!(Listener::bind(&path), Err(ListenError::Taken)));
        drop(socket);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn concurrent_binds_at_dead_socket_have_one_winner() {
        let path = path("turns");
        for _ in 0..50 {
            drop(UnixListener::bind(&path).unwrap());
            let all: Vec<_> = std::thread::scope(|scope| {
                let begin: Vec<_> = (0..4).map(|_| scope.spawn(|| Listener::bind(&path))).collect();
                begin.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(all.iter().filter(|bound| bound.is_ok()).count(), 1);
            assert!(UnixStream::connect(&path).is_ok());
        }
    }

    #[test]
    fn accept_failures_are_reported_at_limited_rate() {
        let mut backoff = Backoff::default();
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert!(backoff.failed(gone).is_none());
        assert_eq!(backoff.left(), Span::ZERO);
        let full = || io::Error::from_raw_os_error(libc::EMFILE);
        let failed = backoff.failed(full()).expect("the first failure is reported");
        assert_eq!(
            failed.to_string(),
            "accepting: Too many open files (os error 24): it is tried again every 100.000ms, and said \
             every 10.000s"
        );
        assert!(backoff.left() > Span::ZERO);
        assert_eq!((0..1000).filter_map(|_| backoff.failed(full())).count(), 0);
    }
}
