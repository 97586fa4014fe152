//! Listening sockets, connections, and handshakes with a timeout.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bus::listen::{self, Listener};
use runtime::{STD_CLOCK, Span, Time, WallClock};

use super::address::{Address, AddressError};

/// A listening socket of a front end.
pub enum Socket {
    Unix(Listener),
    Tcp(TcpListener),
}

/// Why a front end cannot listen at its address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is no path and no HOST:PORT, or its host does not resolve.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The path cannot be listened at.
    #[error("{path}: {error}, expected a place to listen at")]
    Unix { path: PathBuf, error: listen::ListenError },
    /// No address of the host can be bound.
    #[error("{address}: {error}, expected a place to listen at")]
    Tcp { address: PathBuf, error: io::Error },
}

pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Listens for the front end `flag`, at a path or at the first address of a host that can be bound.
    ///
    /// # Errors
    /// The address is invalid, or cannot be bound.
    pub fn bind(flag: &str, address: &Path) -> Result<Socket, ListenError> {
        match Address::of(flag, address)? {
            Address::Tcp(any) => TcpListener::bind(&any[..])
                .map(Socket::Tcp)
                .map_err(|error| ListenError::Tcp { address: address.into(), error }),
            Address::Unix(path) => Listener::bind(&path)
                .map(Socket::Unix)
                .map_err(|error| ListenError::Unix { path: address.into(), error }),
        }
    }

    /// Makes [`accept`](Socket::accept) return at once.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Socket::Unix(listener) => listener.set_nonblocking(),
            Socket::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// The error of the system call; the next call may succeed.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Socket::Unix(listener) => listener.accept().map(Stream::Unix),
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Both calls fail if the client has disconnected already; its reader detects that.
                let _ = stream.set_nodelay(true);
                // A client whose machine is switched off sends no FIN: keep-alive ends it after minutes.
                let _ = listen::keep_alive(&stream);
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(listener) => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Stream {
    /// Shuts one direction down: pending reads return, and replies can still be sent.
    pub fn end_of_requests(&self) {
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Read),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Read),
        };
    }

    /// Shuts the connection down: pending reads and writes return.
    pub fn end(&self) {
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Sets the timeouts of reads and writes; `None` for no timeout.
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

    /// Network of the peer; `None` for a Unix socket or if the peer's address is unknown.
    pub fn network(&self) -> Option<Network> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|peer| Network::of(peer.ip())),
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

/// Unit of the per-network client limit: an IPv4 address, or the /64 of an IPv6 address. A host may take any
/// address of its /64, so a limit per IPv6 address would have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network(IpAddr);

impl Network {
    pub fn of(address: IpAddr) -> Network {
        // A dual-stack socket reports an IPv4 peer as ::ffff:a.b.c.d, which puts all of IPv4 into one /64.
        Network(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(prefix) => write!(f, "{prefix}/64"),
        }
    }
}

/// Reader for a client's data, with one timeout for the whole handshake.
pub struct Incoming<'a> {
    stream: &'a Stream,
    handshake: Span,
    until: Option<Time>,
}

impl<'a> Incoming<'a> {
    /// Starts the handshake, which may take `handshake`.
    pub fn new(stream: &'a Stream, handshake: Span) -> Incoming<'a> {
        Incoming { stream, handshake, until: Some(STD_CLOCK.now() + handshake) }
    }

    /// Removes the timeouts: an idle client stays connected.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn handshake_has_ended(&mut self) -> io::Result<()> {
        self.until = None;
        self.stream.set_patience(None, None)
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(until) = self.until else { return self.stream.read(into) };
        let handshake = self.handshake;
        let late = || {
            let text = format!("it has not ended its negotiation in {handshake}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let left = until.since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Err(late());
        }
        // Rounded up to 1 ms: a timeout that the system rounds to zero would never expire.
        let left = Duration::from_nanos(left.as_ns().max(1_000_000));
        self.stream.set_patience(Some(left), Some(left))?;
        self.stream.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_is_ipv4_address_or_ipv6_64() {
        let of = |text: &str| Network::of(text.parse().expect("an address"));
        assert_eq!(of("192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"), "each IPv4 address by itself");
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"), "mapped is IPv4");
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"), "one /64");
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"), "the next /64");
        assert_ne!(of("::1"), of("127.0.0.1"));
        for (address, text) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(of(address).to_string(), text);
        }
    }
}
