//! Listening at a path of a file system: what the servers of all front ends share.
//!
//! A server outlives its clients' mistakes, and the system's: accepting fails where a process has no
//! descriptor left (`EMFILE`) or the kernel no memory, and succeeds again when some are given back. And
//! clients that have connected and say nothing delay nobody who speaks.

use std::format;
use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use runtime::{STD_CLOCK, Span, Time, WallClock};

use crate::fd::{self, Until};

/// How long a client may take for its greeting.
pub const GREETING: Span = Span::ms(5_000);
/// Clients that have connected and not yet greeted, of one server: another one takes the place of the
/// oldest. A client that speaks at once is in time unless as many others come between its two system
/// calls.
pub const GREETING_MAX: usize = 64;
/// For how long nobody is accepted after accepting has failed.
pub const REST: Span = Span::ms(100);
/// How often a server says that it cannot accept, at most.
const SAYING: Span = Span::s(10);
/// Servers that begin to listen in one folder do so one after the other. Each is done in no time: one that
/// waits longer has met something else that holds the folder.
const TURNS: u32 = 200;
const TURN_MS: i32 = 10;

/// A socket that listens at a path, for its owner's clients alone (mode 0600). It is removed when dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Which file it is: another server's that has taken its place is left alone.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at a path. A socket that a dead server has left there is replaced: one at which a
    /// connection is refused. Others may connect from the moment that it is there, and only its owner's
    /// processes can.
    ///
    /// # Errors
    /// In words: what was done and why it failed. Another server listens there; there is something else; it
    /// cannot be told who listens.
    pub fn bind(path: &Path) -> Result<Listener, String> {
        let failed = |error: io::Error| format!("binding: {error}");
        // Two servers that both find a dead one's socket would otherwise remove each other's.
        let _turn = turn(path).map_err(failed)?;
        let is_socket =
            |path| std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if is_socket(path) {
            match fd::connect_at_once(path) {
                // As many as may wait to be accepted wait: somebody listens.
                Ok(_) => return Err("binding: another server listens here".into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err("binding: another server listens here".into());
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(|error| {
                        format!("removing the socket of a dead server: {error}")
                    })?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("asking who listens: {error}")),
            }
        }
        let listener = fd::listen_for_owner(path).map_err(failed)?;
        let made = std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()));
        Ok(Listener { listener, path: path.into(), made })
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// What the system says; the next call may succeed. Who does not want to ask again at once rests by a
    /// [`Backoff`].
    pub fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// Where it is.
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

/// The right to listen at a path of this folder, until it is dropped.
fn turn(path: &Path) -> io::Result<Option<File>> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(folder) = File::open(parent.unwrap_or(Path::new("."))) else {
        // One that may be written and not read: then there are no turns.
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

/// Asks the other end of a connection, when it has said nothing for two minutes, whether it is still
/// there, and ends the connection if it does not answer.
///
/// # Errors
/// What the system says.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    fd::keep_alive(stream.as_fd(), 120, 20, 6)
}

/// When to try again to accept, and whether to say that it has failed.
#[derive(Default)]
pub struct Backoff {
    until: Time,
    said: Option<Time>,
}

impl Backoff {
    /// Accepting has failed: what to say of it, if it is time to say something. None, too, if it was
    /// the client that has gone meanwhile; then there is nothing to wait for.
    pub fn failed(&mut self, error: &io::Error) -> Option<String> {
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
        Some(format!("accepting: {error}: it is tried again every {REST}, and said every {SAYING}"))
    }

    /// Something has changed: there is no need to rest.
    fn try_again(&mut self) {
        self.until = Time::ZERO;
    }

    /// How long to rest before the next try.
    pub fn left(&self) -> Span {
        // Before the first failure the clock is not asked.
        if self.said.is_none() { Span::ZERO } else { self.until.since(STD_CLOCK.now()) }
    }
}

/// A client that has connected, until its greeting is whole.
pub(crate) trait Handshake: AsFd + Sized {
    type Whole;

    fn begin(socket: UnixStream) -> io::Result<Self>;

    /// Takes in what has come, without waiting.
    ///
    /// # Errors
    /// It makes no sense, or the client has gone.
    fn advance(self) -> Result<Step<Self>, String>;
}

/// How far a greeting has come.
pub(crate) enum Step<H: Handshake> {
    Whole(H::Whole),
    Part(H),
}

/// A server's socket, and who has connected and not yet greeted: all are listened to at once.
pub(crate) struct Acceptor<G> {
    listener: Listener,
    state: Mutex<State<G>>,
}

struct State<G> {
    /// The oldest first, and since when.
    greeting: Vec<(G, Time)>,
    backoff: Backoff,
}

impl<G: Handshake> Acceptor<G> {
    pub fn bind(path: &Path) -> Result<Acceptor<G>, String> {
        let listener = Listener::bind(path)?;
        listener.listener.set_nonblocking(true).map_err(|error| format!("binding: {error}"))?;
        let state = State { greeting: Vec::new(), backoff: Backoff::default() };
        Ok(Acceptor { listener, state: Mutex::new(state) })
    }

    pub fn path(&self) -> &Path {
        &self.listener.path
    }

    fn state(&self) -> MutexGuard<'_, State<G>> {
        // The list is whole even if somebody has panicked beside it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next greeting that is whole.
    ///
    /// # Errors
    /// One that makes no sense, or does not come; accepting fails. The next may be better.
    pub fn next(&self) -> Result<G::Whole, String> {
        loop {
            if let Some(next) = self.look(&mut self.state()) {
                return next;
            }
        }
    }

    /// Waits until something happens, or something is to be done.
    fn look(&self, state: &mut State<G>) -> Option<Result<G::Whole, String>> {
        let (now, rest) = (STD_CLOCK.now(), state.backoff.left());
        let mut these: Vec<_> =
            state.greeting.iter().map(|(client, _)| (client.as_fd(), Until::Readable)).collect();
        let clients = these.len();
        if rest == Span::ZERO {
            these.push((self.listener.as_fd(), Until::Readable));
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
                Err(why) => return Some(Err(format!("a client's greeting: {why}"))),
            }
        }
        let late = |since: Time| STD_CLOCK.now().since(since) >= GREETING;
        if state.greeting.first().is_some_and(|(_, since)| late(*since)) {
            state.greeting.remove(0);
            return Some(Err(format!("a client's greeting: it has not come in {GREETING}")));
        }
        if ready.get(clients) == Some(&true) { self.take_in(state).map(Err) } else { None }
    }

    /// Accepts a client; what to say if that fails.
    fn take_in(&self, state: &mut State<G>) -> Option<String> {
        match self.listener.accept().and_then(G::begin) {
            Ok(client) => {
                if state.greeting.len() >= GREETING_MAX {
                    state.greeting.remove(0);
                }
                state.greeting.push((client, STD_CLOCK.now()));
                None
            }
            Err(error) => {
                let said = state.backoff.failed(&error);
                if state.backoff.left() > Span::ZERO && !state.greeting.is_empty() {
                    // It may be a descriptor that there is none of: who has said nothing gives one back.
                    state.greeting.remove(0);
                    state.backoff.try_again();
                }
                said
            }
        }
    }

    /// Turns away whoever else has connected: some of them, where there are many.
    pub fn turn_away(&self) {
        let mut state = self.state();
        state.greeting.clear();
        for _ in 0..GREETING_MAX {
            if let Err(error) = self.listener.accept() {
                let _ = state.backoff.failed(&error);
                return;
            }
        }
    }

    /// For how long nobody can be accepted: there is no use in asking whether somebody has come.
    pub fn rest(&self) -> Span {
        self.state().backoff.left()
    }
}

impl<G> AsFd for Acceptor<G> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Rounded up, so that the last wait does not spin.
pub(crate) fn milliseconds(span: Span) -> i32 {
    (span.as_ns() / 1_000_000 + 1).min(i32::MAX as u64) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn a_socket_is_its_owners_alone_and_goes_with_its_listener() {
        let path = path("mode");
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        assert!(Listener::bind(&path).is_err_and(|why| why.contains("another server")));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_dead_servers_socket_is_left_alone() {
        let path = path("left");
        std::fs::write(&path, "a file").unwrap();
        assert!(Listener::bind(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
        let ours = Listener::bind(&path).unwrap();
        // Taken away by hand, and another's put there: it is not ours to remove.
        std::fs::remove_file(&path).unwrap();
        let others = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(UnixStream::connect(&path).is_ok());
        drop(others);
        // As `kill -9` leaves it.
        assert!(path.exists());
        let again = Listener::bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(again);
    }

    /// With a queue so short that one more would wait: it is not waited for.
    #[test]
    fn a_server_that_is_too_busy_to_accept_is_a_server() {
        let path = path("busy");
        let socket = fd::listen_for_owner(&path).unwrap();
        let mut crowd = Vec::new();
        while let Ok(client) = fd::connect_at_once(&path) {
            crowd.push(client);
        }
        assert!(Listener::bind(&path).is_err_and(|why| why.contains("another server")));
        drop(socket);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn of_servers_that_find_a_dead_ones_socket_one_takes_its_place() {
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
    fn a_failure_is_said_now_and_then() {
        let mut backoff = Backoff::default();
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!((backoff.failed(&gone), backoff.left()), (None, Span::ZERO));
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        assert!(backoff.failed(&full).is_some_and(|words| words.contains("Too many open files")));
        assert!(backoff.left() > Span::ZERO);
        assert_eq!((0..1000).filter_map(|_| backoff.failed(&full)).count(), 0);
    }
}
