//! Shared memory between two processes: each sends a descriptor of its memory over a socket.
//!
//! The host's greeting: magic, version, bus address of its memory, length. The device's answer: magic,
//! version, length of its register window. After that the socket carries nothing; end of file tells each
//! side that the other has died.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::vec::Vec;

use runtime::Span;
use wire::BusAddr;

use super::{Shared, Window};
use crate::Memory;
use crate::fd;
use crate::listen::{AcceptError, Acceptor, Handshake, ListenError, Step, Stop};
use crate::memfd::Memfd;

const MAGIC: u32 = u32::from_le_bytes(*b"DOOR");
const VERSION: u32 = 1;
/// Maximum length of the register window that a device may announce, bytes.
const REGISTER_BYTES_MAX: u32 = 1 << 20;
/// Time limit for the server's greeting: it greets and serves one host at a time.
const WELCOME: Span = Span::s(5);

/// Error of a shared bus between two processes.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", socket.display())]
pub struct ProcessError {
    /// Path of the device's socket.
    pub socket: PathBuf,
    /// The cause.
    pub kind: ProcessErrorKind,
}

/// Cause of a [`ProcessError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessErrorKind {
    /// The path cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no next host; a further attempt may succeed.
    #[error(transparent)]
    Accept(#[from] AcceptError<GreetingError>),
    /// The register window could not be sent to the host.
    #[error("handing out the register window: {0}")]
    Welcome(GreetingError),
    /// No device listens at the path.
    #[error("connecting: {0}")]
    Connect(io::Error),
    /// The exchange of greetings with the device failed.
    #[error("greeting the device: {0}")]
    Greet(GreetingError),
}

impl ProcessErrorKind {
    fn at(self, socket: &Path) -> ProcessError {
        ProcessError { socket: socket.into(), kind: self }
    }
}

/// Error of an exchange of greetings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// A system call failed, or the memory file that the peer has sent is unsuitable.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The socket has taken a part of the greeting only.
    #[error("the greeting was sent in part")]
    SentInPart,
    /// The device did not greet in time: it serves another host, or does not run.
    #[error("no answer: expected the device's greeting within {limit}")]
    Late {
        /// Time limit.
        limit: Span,
    },
    /// The peer has closed the connection or died.
    #[error("the peer has gone before its greeting")]
    Gone,
    /// The peer's greeting has fewer than 24 bytes.
    #[error("the peer's greeting is too short")]
    TooShort,
    /// The peer's greeting has no descriptor.
    #[error("the peer's greeting came without a memory descriptor")]
    NoDescriptor,
    /// The peer's greeting does not begin with the magic number.
    #[error("the peer does not speak doorbell's shared-memory protocol")]
    Protocol,
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks version {found}, this is version {VERSION}")]
    Version {
        /// Version of the peer.
        found: u32,
    },
    /// The peer's memory does not fit the address space.
    #[error("the peer's memory is too large")]
    MemoryTooLarge,
    /// The length of the register window is invalid.
    #[error(
        "a register window of {bytes} bytes: a multiple of 4 up to {REGISTER_BYTES_MAX} was expected"
    )]
    Window {
        /// Length that the device announces.
        bytes: u64,
    },
    /// The file of the register window is shorter than the registers need.
    #[error("the register window is shorter than announced")]
    WindowTooShort,
}

/// Connection to the other process.
pub struct Client {
    socket: UnixStream,
    path: PathBuf,
    /// Host memory and register window. Both processes have descriptors of them, so either can release
    /// their pages.
    memory: [Memory; 2],
    /// The register window, until it has been sent to the host.
    window: Option<(Memfd, u32)>,
}

impl Client {
    /// Sends the register window to the host: the device is ready.
    pub fn welcome(&mut self) -> Result<(), ProcessError> {
        let Some((window, register_bytes)) = self.window.take() else { return Ok(()) };
        let greeting = greeting_of(u64::from(register_bytes), window.bytes() as u64);
        let sent = send(&self.socket, &greeting, &window);
        sent.and_then(|()| Ok(self.socket.set_nonblocking(true)?))
            .map_err(|error| ProcessErrorKind::Welcome(error).at(&self.path))
    }

    /// Returns true if the other process has released pages of the shared memory and the kernel had none to
    /// replace them: reads return zeros from then on.
    pub fn has_lost_memory(&self) -> bool {
        self.memory.iter().any(Memory::is_lost)
    }

    /// Returns true if the other process has closed its end, has died, or [its memory is
    /// lost](Self::has_lost_memory).
    pub fn is_gone(&mut self) -> bool {
        if self.has_lost_memory() {
            return true;
        }
        match self.socket.read(&mut [0; 16]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            }
        }
    }
}

/// The device's side: accepts one host after another. It waits for the greetings of all connected hosts at
/// once, each for at most [`GREETING`](crate::listen::GREETING).
pub struct Server {
    hosts: Acceptor<Host>,
}

/// A host that has not greeted.
struct Host(UnixStream);

impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Handshake for Host {
    type Whole = (UnixStream, [u8; 24], OwnedFd);
    type Error = GreetingError;

    fn begin(socket: UnixStream) -> io::Result<Host> {
        socket.set_nonblocking(true)?;
        Ok(Host(socket))
    }

    /// A greeting arrives in one piece.
    fn advance(self) -> Result<Step<Host>, GreetingError> {
        let mut greeting = [0; 24];
        match receive(&self.0, &mut greeting) {
            Ok(fd) => Ok(Step::Whole((self.0, greeting, fd))),
            Err(GreetingError::System(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok(Step::Part(self))
            }
            Err(error) => Err(error),
        }
    }
}

impl Server {
    /// Listens at a path, for hosts of this user. A dead server's socket is replaced.
    pub fn bind(path: &Path) -> Result<Server, ProcessError> {
        match Acceptor::bind(path) {
            Ok(hosts) => Ok(Server { hosts }),
            Err(error) => Err(ProcessErrorKind::Listen(error).at(path)),
        }
    }

    /// Waits for hosts only until this stop is requested.
    #[must_use]
    pub fn until(self, stop: Arc<Stop>) -> Server {
        Server { hosts: self.hosts.until(stop) }
    }

    /// Waits for a host and maps its memory. The host continues after [`welcome`](Client::welcome).
    pub fn accept(&self, register_bytes: u32) -> Result<(Shared, Client), ProcessError> {
        let path = self.hosts.path();
        let failed = |error| ProcessErrorKind::Accept(error).at(path);
        let (socket, greeting, fd) = self.hosts.next().map_err(failed)?;
        let greeted = greet_host(&greeting, fd, register_bytes);
        let (shared, window) = greeted.map_err(AcceptError::Greeting).map_err(failed)?;
        let memory = shared_memory(&shared);
        let window = Some((window, register_bytes));
        Ok((shared, Client { socket, path: path.into(), memory, window }))
    }
}

fn shared_memory(shared: &Shared) -> [Memory; 2] {
    [shared.host_memory.clone(), shared.window.memory.clone()]
}

fn greet_host(
    greeting: &[u8; 24],
    fd: OwnedFd,
    register_bytes: u32,
) -> Result<(Shared, Memfd), GreetingError> {
    let [base, bytes] = check_greeting(greeting)?;
    let bytes = usize::try_from(bytes).map_err(|_| GreetingError::MemoryTooLarge)?;
    let host_memory = Memfd::from_peer(fd, bytes)?.map_guarded(BusAddr(base))?;
    let memfd = Memfd::new("doorbell-registers", Window::bytes(register_bytes))?;
    let window = Window { memory: memfd.map_guarded(BusAddr(0))?, register_bytes, masks: None };
    Ok((Shared { host_memory, window, others: Arc::default() }, memfd))
}

/// The host's side: shares memory with the device that listens at `path`.
pub fn connect(
    path: &Path,
    memory_bytes: usize,
    memory_base: BusAddr,
) -> Result<(Shared, Client), ProcessError> {
    let socket = UnixStream::connect(path);
    let socket = socket.map_err(|error| ProcessErrorKind::Connect(error).at(path))?;
    let shared = greet_device(&socket, WELCOME, memory_bytes, memory_base);
    let shared = shared.map_err(|error| ProcessErrorKind::Greet(error).at(path))?;
    let memory = shared_memory(&shared);
    Ok((shared, Client { socket, path: path.into(), memory, window: None }))
}

fn greet_device(
    socket: &UnixStream,
    limit: Span,
    memory_bytes: usize,
    memory_base: BusAddr,
) -> Result<Shared, GreetingError> {
    socket.set_read_timeout(Some(Duration::from_nanos(limit.0 / 1000)))?;
    let memory = Memfd::new("doorbell-host", memory_bytes)?;
    send(socket, &greeting_of(memory_base.0, memory.bytes() as u64), &memory)?;
    let mut greeting = [0; 24];
    let fd = receive(socket, &mut greeting).map_err(|error| match error {
        // The read's time limit.
        GreetingError::System(error) if error.kind() == io::ErrorKind::WouldBlock => {
            GreetingError::Late { limit }
        }
        error => error,
    })?;
    let [register_bytes, bytes] = check_greeting(&greeting)?;
    let sensible = |r: &u32| r.is_multiple_of(4) && *r <= REGISTER_BYTES_MAX;
    let registers = u32::try_from(register_bytes).ok().filter(sensible);
    let register_bytes = registers.ok_or(GreetingError::Window { bytes: register_bytes })?;
    let bytes = usize::try_from(bytes).map_err(|_| GreetingError::MemoryTooLarge)?;
    if bytes < Window::bytes(register_bytes) {
        return Err(GreetingError::WindowTooShort);
    }
    let memfd = Memfd::from_peer(fd, bytes)?;
    socket.set_nonblocking(true)?;
    let window = Window { memory: memfd.map_guarded(BusAddr(0))?, register_bytes, masks: None };
    Ok(Shared { host_memory: memory.map_guarded(memory_base)?, window, others: Arc::default() })
}

/// Sends a greeting with the descriptor of a memory file.
fn send(socket: &UnixStream, greeting: &[u8; 24], memory: &Memfd) -> Result<(), GreetingError> {
    match fd::send(socket, greeting, &[memory.as_fd()])? {
        24 => Ok(()),
        _ => Err(GreetingError::SentInPart),
    }
}

/// Receives a greeting and its descriptor.
fn receive(socket: &UnixStream, greeting: &mut [u8; 24]) -> Result<OwnedFd, GreetingError> {
    let mut fds = Vec::new();
    let got = fd::receive(socket, greeting, &mut fds)?;
    match fds.pop() {
        Some(fd) if got == greeting.len() => Ok(fd),
        Some(_) => Err(GreetingError::TooShort),
        None if got == 0 => Err(GreetingError::Gone),
        None => Err(GreetingError::NoDescriptor),
    }
}

fn greeting_of(first: u64, second: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&first.to_le_bytes());
    bytes[16..].copy_from_slice(&second.to_le_bytes());
    bytes
}

fn check_greeting(bytes: &[u8; 24]) -> Result<[u64; 2], GreetingError> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return Err(GreetingError::Protocol);
    }
    if word(4) != VERSION {
        return Err(GreetingError::Version { found: word(4) });
    }
    Ok([long(8), long(16)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn silent_peer_is_late_within_limit() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = greet_device(&ours, Span::ms(20), 4096, BusAddr(0)).err().expect("no greeting");
        assert_eq!(error.to_string(), "no answer: expected the device's greeting within 20.000ms");
    }
}
