//! Who connects: the socket that listens, and the clients that are there, with limits.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bus::listen::{self, Listener};
use runtime::{STD_CLOCK, Span, Time, WallClock};

use super::address::Address;

/// Clients at a time: each has two threads, and memory for what it has under way.
pub const CLIENTS_MAX: usize = 64;
/// Of these, clients of one address: 16 places are always there for others. Clients of a Unix socket
/// are not told apart: they are all of its owner.
pub const CLIENTS_OF_ADDRESS_MAX: usize = 48;
/// How long a client may take from its connection to the end of negotiation. It needs some round trips.
pub const NEGOTIATION: Span = Span::s(10);
/// How long the place of a client that was let go may take to become free: its thread ends when it next
/// looks.
const LEAVING: Duration = Duration::from_secs(1);

const _: () = assert!(CLIENTS_OF_ADDRESS_MAX < CLIENTS_MAX);

pub enum Socket {
    Unix(Listener),
    Tcp(TcpListener),
}

pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Listens at a path, or at the first address of a host that can be had.
    ///
    /// # Errors
    /// In words.
    pub fn bind(address: &Address) -> Result<Socket, String> {
        match address {
            Address::Tcp(any) => {
                TcpListener::bind(&any[..]).map(Socket::Tcp).map_err(|error| error.to_string())
            }
            Address::Unix(path) => Listener::bind(path).map(Socket::Unix),
        }
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Socket::Unix(listener) => listener.accept().map(Stream::Unix),
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Both may fail where the client has gone already, which its reader finds.
                let _ = stream.set_nodelay(true);
                // A machine that is switched off says nothing: its place is another's after some minutes.
                let _ = listen::keep_alive(&stream);
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Stream {
    pub fn end(&self) {
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// How long the next read and each write may wait.
    fn set_patience(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write))
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write))
            }
        }
    }

    /// Whose it is, as far as that can be told.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&*stream).read(into),
            Stream::Tcp(stream) => (&*stream).read(into),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&*stream).write(from),
            Stream::Tcp(stream) => (&*stream).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a client sends: until it has [negotiated](Self::negotiated), all of it within [`NEGOTIATION`].
pub struct Incoming<'a> {
    stream: &'a Stream,
    until: Option<Time>,
}

impl<'a> Incoming<'a> {
    pub fn new(stream: &'a Stream) -> Incoming<'a> {
        Incoming { stream, until: Some(STD_CLOCK.now() + NEGOTIATION) }
    }

    /// From here on a client may be silent for as long as it likes.
    pub fn negotiated(&mut self) -> io::Result<()> {
        self.until = None;
        self.stream.set_patience(None, None)
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(until) = self.until else { return self.stream.read(into) };
        let late = || {
            let text = format!("it has not ended its negotiation in {NEGOTIATION}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let left = until.since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Err(late());
        }
        // Rounded up: a wait of no time would be one without end.
        let left = Duration::from_nanos(left.as_ns().max(1_000_000));
        self.stream.set_patience(Some(left), Some(left))?;
        self.stream.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
            _ => error,
        })
    }
}

/// Who is there.
#[derive(Default)]
pub struct Clients {
    /// In the order in which they came.
    there: Mutex<Vec<Known>>,
    left: Condvar,
}

struct Known {
    stream: Arc<Stream>,
    address: Option<IpAddr>,
    negotiated: bool,
    let_go: bool,
}

impl Clients {
    fn there(&self) -> MutexGuard<'_, Vec<Known>> {
        // The list is whole even if somebody has panicked beside it.
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a client. If there are too many, it takes the place of the one that has been
    /// negotiating for the longest time: whoever speaks is not kept out by those who do not.
    ///
    /// # Errors
    /// All have negotiated, or too many of them are of its address: in words.
    pub fn admit(&self, stream: &Arc<Stream>) -> Result<(), String> {
        let (address, mut there) = (stream.address(), self.there());
        let alike = there.iter().filter(|known| address.is_some() && known.address == address);
        if alike.count() >= CLIENTS_OF_ADDRESS_MAX {
            return Err(format!("there are {CLIENTS_OF_ADDRESS_MAX} of its address"));
        }
        if there.len() >= CLIENTS_MAX {
            if let Some(silent) = there.iter_mut().find(|known| !known.negotiated && !known.let_go)
            {
                silent.let_go = true;
                silent.stream.end();
                let is_full = |there: &mut Vec<Known>| there.len() >= CLIENTS_MAX;
                let waited = self.left.wait_timeout_while(there, LEAVING, is_full);
                there = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if there.len() >= CLIENTS_MAX {
                return Err(format!("there are {CLIENTS_MAX}"));
            }
        }
        let (negotiated, let_go) = (false, false);
        there.push(Known { stream: stream.clone(), address, negotiated, let_go });
        Ok(())
    }

    /// The client of this stream has negotiated: it keeps its place.
    pub fn negotiated(&self, stream: &Arc<Stream>) {
        let mut there = self.there();
        let known = there.iter_mut().find(|known| Arc::ptr_eq(&known.stream, stream));
        known.expect("it was admitted").negotiated = true;
    }

    pub fn leaves(&self, stream: &Arc<Stream>) {
        self.there().retain(|known| !Arc::ptr_eq(&known.stream, stream));
        self.left.notify_all();
    }

    /// Rests for so long, or until a client leaves, and with it what it held.
    pub fn rest(&self, span: Span) {
        if span > Span::ZERO {
            drop(self.left.wait_timeout(self.there(), Duration::from_nanos(span.as_ns())));
        }
    }
}
