//! Who connects: the socket that listens, and the clients that are there, with limits.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bus::listen::{self, Listener};
use runtime::{STD_CLOCK, Span, Time, WallClock};

use super::address::Address;

/// Clients at a time: each has two threads, and memory for what it has under way.
pub const CLIENTS_MAX: usize = 64;
/// Of these, clients from one [`Network`]: 16 places are always there for others. Clients of a Unix socket
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

    /// Where it comes from, as far as that can be told.
    fn network(&self) -> Option<Network> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|peer| Network::of(peer.ip())),
        }
    }
}

/// What the limit of an address counts by: an IPv4 address, or the /64 of an IPv6 address. A host may
/// take any address of its /64, so a limit by the whole address would be none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network(IpAddr);

impl Network {
    fn of(address: IpAddr) -> Network {
        // A socket of both families gives an IPv4 peer as ::ffff:a.b.c.d: all of IPv4 is in that one /64.
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
    network: Option<Network>,
    negotiated: bool,
    let_go: bool,
}

impl Clients {
    fn there(&self) -> MutexGuard<'_, Vec<Known>> {
        // The list is whole even if somebody has panicked beside it.
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a client. At the limit of its address, or of all, it takes the place of the client that
    /// has been negotiating for the longest time: of those of its address, or of all.
    ///
    /// # Errors
    /// All that count against the limit have negotiated, or the place did not become free: in words.
    pub fn admit(&self, stream: &Arc<Stream>) -> Result<(), String> {
        self.admit_from(stream.network(), stream)
    }

    fn admit_from(&self, network: Option<Network>, stream: &Arc<Stream>) -> Result<(), String> {
        let mut there = self.there();
        if let Some(own) = network {
            let is_own = |known: &Known| known.network == network;
            there = self
                .with_place(there, CLIENTS_OF_ADDRESS_MAX, is_own)
                .ok_or_else(|| format!("there are {CLIENTS_OF_ADDRESS_MAX} clients from {own}"))?;
        }
        there = self
            .with_place(there, CLIENTS_MAX, |_| true)
            .ok_or_else(|| format!("there are {CLIENTS_MAX} clients"))?;
        let (negotiated, let_go) = (false, false);
        there.push(Known { stream: stream.clone(), network, negotiated, let_go });
        Ok(())
    }

    /// The list with fewer than `most` clients that count. At the limit, the first of them that has not
    /// negotiated is let go, and this waits for its place; none if it does not become free.
    fn with_place<'a>(
        &self,
        mut there: MutexGuard<'a, Vec<Known>>,
        most: usize,
        counts: impl Fn(&Known) -> bool,
    ) -> Option<MutexGuard<'a, Vec<Known>>> {
        let is_full = |there: &[Known]| there.iter().filter(|known| counts(known)).count() >= most;
        if !is_full(&there) {
            return Some(there);
        }
        let evictable = |known: &&mut Known| counts(known) && !known.negotiated && !known.let_go;
        let silent = there.iter_mut().find(evictable)?;
        silent.let_go = true;
        silent.stream.end();
        let waited = self.left.wait_timeout_while(there, LEAVING, |there| is_full(there));
        there = waited.unwrap_or_else(PoisonError::into_inner).0;
        (!is_full(&there)).then_some(there)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_a_network_evicts_only_its_own_silent_clients() {
        let clients = Clients::default();
        let connect = |address: &str| {
            let stream = Arc::new(Stream::Unix(UnixStream::pair().expect("a pair").0));
            let network = Network::of(address.parse().expect("an address"));
            (clients.admit_from(Some(network), &stream), stream)
        };
        let is_let_go = |stream: &Arc<Stream>| {
            let there = clients.there();
            let mut all = there.iter();
            all.find(|known| Arc::ptr_eq(&known.stream, stream)).expect("it is there").let_go
        };
        let (_, other) = connect("192.0.2.1");
        let (_, known) = connect("2001:db8::1");
        clients.negotiated(&known);
        let rest = 2..=CLIENTS_OF_ADDRESS_MAX;
        let (all, silent): (Vec<_>, Vec<_>) =
            rest.map(|host| connect(&format!("2001:db8::{host:x}"))).unzip();
        assert!(all.iter().all(Result::is_ok));
        // The place is not free before the client of it has left; then the next one is let go.
        for turn in 0..2 {
            let refused = connect("2001:db8::ffff").0;
            assert_eq!(refused, Err("there are 48 clients from 2001:db8::/64".into()));
            let let_go = silent.iter().filter(|stream| is_let_go(stream)).count();
            assert!(let_go == turn + 1 && is_let_go(&silent[turn]), "the oldest");
        }
        assert!(!is_let_go(&other), "older, of another network");
        assert!(!is_let_go(&known), "older, has negotiated");
        clients.leaves(&silent[0]);
        assert_eq!(connect("2001:db8::ffff").0, Ok(()));
        assert_eq!(connect("2001:db8:0:1::1").0, Ok(()), "the next /64");
    }

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
