//! Shared memory between two processes: each sends a descriptor of its memory over a socket.
//!
//! The host's greeting: magic, version, bus address of its memory, length. The device's answer: magic,
//! version, length of its register window. After that the socket carries nothing; end of file tells each
//! side that the other has died.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::sync::Arc;
use std::time::Duration;
use std::vec::Vec;

use super::{Shared, Window};
use crate::Memory;
use crate::fd::{self, Memfd};
use crate::listen::{Acceptor, Handshake, Step};
use wire::BusAddr;

const MAGIC: u32 = u32::from_le_bytes(*b"DOOR");
const VERSION: u32 = 1;
/// Maximum length of the register window that a device may announce, bytes.
const REGISTER_BYTES_MAX: u32 = 1 << 20;
/// Time limit for the server's greeting: it greets and serves one host at a time.
const WELCOME: Duration = Duration::from_secs(5);

/// Error of a shared bus between two processes.
#[derive(Debug)]
pub struct ProcessError {
    socket: PathBuf,
    what: String,
}

impl ProcessError {
    /// The cause, without the socket's path.
    pub fn reason(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.socket.display(), self.what)
    }
}

impl core::error::Error for ProcessError {}

fn fail<T>(socket: &Path, doing: &str, error: &dyn fmt::Display) -> Result<T, ProcessError> {
    Err(ProcessError { socket: socket.into(), what: std::format!("{doing}: {error}") })
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
        let sent =
            send(&self.socket, &greeting, &window).and_then(|()| self.socket.set_nonblocking(true));
        sent.or_else(|error| fail(&self.path, "handing out the register window", &error))
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

    fn begin(socket: UnixStream) -> io::Result<Host> {
        socket.set_nonblocking(true)?;
        Ok(Host(socket))
    }

    /// A greeting arrives in one piece.
    fn advance(self) -> Result<Step<Host>, String> {
        let mut greeting = [0; 24];
        match receive(&self.0, &mut greeting) {
            Ok(fd) => Ok(Step::Whole((self.0, greeting, fd))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Step::Part(self)),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Server {
    /// Listens at a path, for hosts of this user. A dead server's socket is replaced.
    pub fn bind(path: &Path) -> Result<Server, ProcessError> {
        match Acceptor::bind(path) {
            Ok(hosts) => Ok(Server { hosts }),
            Err(what) => Err(ProcessError { socket: path.into(), what }),
        }
    }

    /// Waits for a host and maps its memory. The host continues after [`welcome`](Client::welcome).
    pub fn accept(&self, register_bytes: u32) -> Result<(Shared, Client), ProcessError> {
        let path = self.hosts.path();
        let (socket, greeting, fd) = match self.hosts.next() {
            Ok(come) => come,
            Err(what) => return Err(ProcessError { socket: path.into(), what }),
        };
        match greet_host(&greeting, fd, register_bytes) {
            Ok((shared, window)) => {
                let memory = shared_memory(&shared);
                let window = Some((window, register_bytes));
                Ok((shared, Client { socket, path: path.into(), memory, window }))
            }
            Err(error) => fail(path, "a client's greeting", &error),
        }
    }
}

fn shared_memory(shared: &Shared) -> [Memory; 2] {
    [shared.host_memory.clone(), shared.window.memory.clone()]
}

fn greet_host(
    greeting: &[u8; 24],
    fd: OwnedFd,
    register_bytes: u32,
) -> io::Result<(Shared, Memfd)> {
    let [base, bytes] = check_greeting(greeting)?;
    let bytes = usize::try_from(bytes).map_err(|_| invalid("the peer's memory is too large"))?;
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
    let socket = match UnixStream::connect(path) {
        Ok(socket) => socket,
        Err(error) => return fail(path, "connecting", &error),
    };
    match greet_device(&socket, memory_bytes, memory_base) {
        Ok(shared) => {
            let memory = shared_memory(&shared);
            Ok((shared, Client { socket, path: path.into(), memory, window: None }))
        }
        Err(error) => fail(path, "greeting the device", &error),
    }
}

fn greet_device(
    socket: &UnixStream,
    memory_bytes: usize,
    memory_base: BusAddr,
) -> io::Result<Shared> {
    socket.set_read_timeout(Some(WELCOME))?;
    let memory = Memfd::new("doorbell-host", memory_bytes)?;
    send(socket, &greeting_of(memory_base.0, memory.bytes() as u64), &memory)?;
    let mut greeting = [0; 24];
    let fd = receive(socket, &mut greeting)?;
    let [register_bytes, bytes] = check_greeting(&greeting)?;
    let sensible = |r: &u32| r.is_multiple_of(4) && *r <= REGISTER_BYTES_MAX;
    let registers = u32::try_from(register_bytes).ok().filter(sensible);
    let register_bytes = registers.ok_or_else(|| invalid("a register window of no sense"))?;
    let bytes = usize::try_from(bytes).map_err(|_| invalid("a register window of no sense"))?;
    if bytes < Window::bytes(register_bytes) {
        return Err(invalid("the register window is shorter than announced"));
    }
    let memfd = Memfd::from_peer(fd, bytes)?;
    socket.set_nonblocking(true)?;
    let window = Window { memory: memfd.map_guarded(BusAddr(0))?, register_bytes, masks: None };
    Ok(Shared { host_memory: memory.map_guarded(memory_base)?, window, others: Arc::default() })
}

/// Sends a greeting with the descriptor of a memory file.
fn send(socket: &UnixStream, greeting: &[u8; 24], memory: &Memfd) -> io::Result<()> {
    match fd::send(socket, greeting, &[memory.as_fd()])? {
        24 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::WriteZero, "the greeting was sent in part")),
    }
}

/// Receives a greeting and its descriptor.
fn receive(socket: &UnixStream, greeting: &mut [u8; 24]) -> io::Result<OwnedFd> {
    let mut fds = Vec::new();
    let got = fd::receive(socket, greeting, &mut fds)?;
    match fds.pop() {
        Some(fd) if got == greeting.len() => Ok(fd),
        Some(_) => Err(invalid("the peer's greeting is too short")),
        None if got == 0 => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the peer has gone before its greeting",
        )),
        None => Err(invalid("the peer's greeting came without a memory descriptor")),
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn greeting_of(first: u64, second: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&first.to_le_bytes());
    bytes[16..].copy_from_slice(&second.to_le_bytes());
    bytes
}

fn check_greeting(bytes: &[u8; 24]) -> io::Result<[u64; 2]> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return Err(invalid("the peer does not speak doorbell's shared-memory protocol"));
    }
    if word(4) != VERSION {
        let text = std::format!("the peer speaks version {}, this is version {VERSION}", word(4));
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok([long(8), long(16)])
}
