//! Concurrent clients, each in its own thread, within the limits of their front end.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bus::listen::Backoff;
use runtime::Span;
use world::RunError;

use super::socket::{Incoming, Network, Socket, Stream};
use crate::control::Drive;
use crate::events::End;
use crate::front_end::Limits;
use crate::{Control, Events};

/// Timeout for the slot of a dropped client to become free: its thread ends at its next read or write.
const LEAVING: Duration = Duration::from_secs(1);

/// Time for the replies to requests in flight when the server stops. A client that does not read them is
/// dropped then.
const STOPPING: Duration = Duration::from_secs(5);

/// Serves each client of a socket in its own thread until the stop is requested. Then no further request is
/// read, and those in flight get their replies.
///
/// # Errors
/// The device has ended: returned when the first client after that connects.
pub(crate) fn many_at_a_time(
    socket: &Socket,
    limits: &'static Limits,
    events: &Events<'_>,
    control: &Control,
    drive: &Drive,
    device_has_ended: impl Fn() -> bool,
    session: impl Fn(&Admitted<'_>) -> io::Result<()> + Sync,
) -> Result<(), RunError> {
    socket.set_nonblocking().map_err(RunError::of)?;
    let (clients, mut backoff) = (Clients::new(limits), Backoff::default());
    events.waiting();
    std::thread::scope(|scope| {
        while control.stop().wait_for(socket.as_fd()) {
            let stream = match socket.accept() {
                Ok(_) if device_has_ended() => {
                    return Err(RunError::Other("the drive has ended".into()));
                }
                Ok(stream) => Arc::new(stream),
                Err(error) => {
                    if let Some(failed) = backoff.failed(error) {
                        events.note(failed);
                    }
                    clients.rest(backoff.left());
                    continue;
                }
            };
            if !drive.is_powered() {
                events.ended(&End::Dropped("the power is off".into()));
                continue;
            }
            if let Err(why) = clients.admit(&stream) {
                events.ended(&End::Dropped(why.to_string()));
                continue;
            }
            let (clients, session, own) = (&clients, &session, stream.clone());
            let thread = Builder::new().name("client".into()).spawn_scoped(scope, move || {
                events.connected();
                let _entered = drive.enter(Some(&own));
                if !drive.is_powered() {
                    // The power was cut since, and perhaps before this client could be ended.
                    own.end();
                }
                events.ended(&match session(&Admitted { stream: &own, clients }) {
                    Ok(()) => End::Disconnected,
                    Err(error) => End::Dropped(error.to_string()),
                });
                clients.leaves(&own);
            });
            if let Err(error) = thread {
                clients.leaves(&stream);
                events.ended(&End::Dropped(format!("no thread for it: {error}")));
            }
        }
        clients.stop();
        Ok(())
    })
}

/// Why a client is not admitted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NotAdmitted {
    #[error("there are {clients} clients")]
    All { clients: usize },
    #[error("there are {clients} clients from {network}")]
    Network { clients: usize, network: Network },
}

/// An admitted client, as its session sees it.
pub(crate) struct Admitted<'a> {
    stream: &'a Arc<Stream>,
    clients: &'a Clients,
}

impl Admitted<'_> {
    pub(crate) fn stream(&self) -> &Stream {
        self.stream
    }

    /// Reader for the client's data. The handshake timeout starts now.
    pub(crate) fn incoming(&self) -> Incoming<'_> {
        Incoming::new(self.stream, self.clients.limits.handshake)
    }

    /// Marks the handshake as finished: the client is no longer dropped to free a slot for others.
    pub(crate) fn keep_place(&self) {
        self.clients.keep_place(self.stream);
    }
}

/// The clients connected to one socket.
struct Clients {
    limits: &'static Limits,
    /// In order of connection: the first has been connected longest.
    connected: Mutex<Vec<Known>>,
    left: Condvar,
}

struct Known {
    stream: Arc<Stream>,
    network: Option<Network>,
    keeps_place: bool,
    dropped: bool,
}

impl Clients {
    fn new(limits: &'static Limits) -> Clients {
        Clients { limits, connected: Mutex::default(), left: Condvar::new() }
    }

    fn connected(&self) -> MutexGuard<'_, Vec<Known>> {
        // The list is consistent even if a thread has panicked while holding the lock.
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a client. At the limit for its network or for all clients, drops the client whose handshake has
    /// taken longest, from its network or from all clients.
    ///
    /// # Errors
    /// All clients that count against the limit have finished their handshakes, or the slot did not become
    /// free.
    fn admit(&self, stream: &Arc<Stream>) -> Result<(), NotAdmitted> {
        self.admit_from(stream.network(), stream)
    }

    fn admit_from(
        &self,
        network: Option<Network>,
        stream: &Arc<Stream>,
    ) -> Result<(), NotAdmitted> {
        let mut connected = self.connected();
        if let (Some(own), Some(most)) = (network, self.limits.clients_of_network) {
            let is_own = |known: &Known| known.network == network;
            connected = self
                .with_place(connected, most, is_own)
                .ok_or(NotAdmitted::Network { clients: most, network: own })?;
        }
        let most = self.limits.clients;
        connected =
            self.with_place(connected, most, |_| true).ok_or(NotAdmitted::All { clients: most })?;
        let (keeps_place, dropped) = (false, false);
        connected.push(Known { stream: stream.clone(), network, keeps_place, dropped });
        Ok(())
    }

    /// Returns the list when fewer than `most` clients count. At the limit, drops the first of them that is
    /// in its handshake and waits for its slot. `None` if there is no such client or its slot does not become
    /// free.
    fn with_place<'a>(
        &self,
        mut connected: MutexGuard<'a, Vec<Known>>,
        most: usize,
        counts: impl Fn(&Known) -> bool,
    ) -> Option<MutexGuard<'a, Vec<Known>>> {
        let is_full =
            |connected: &[Known]| connected.iter().filter(|known| counts(known)).count() >= most;
        if !is_full(&connected) {
            return Some(connected);
        }
        let evictable = |known: &&mut Known| counts(known) && !known.keeps_place && !known.dropped;
        let first = connected.iter_mut().find(evictable)?;
        first.dropped = true;
        first.stream.end();
        let waited =
            self.left.wait_timeout_while(connected, LEAVING, |connected| is_full(connected));
        connected = waited.unwrap_or_else(PoisonError::into_inner).0;
        (!is_full(&connected)).then_some(connected)
    }

    fn keep_place(&self, stream: &Arc<Stream>) {
        let mut connected = self.connected();
        let known = connected.iter_mut().find(|known| Arc::ptr_eq(&known.stream, stream));
        known.expect("it was admitted").keeps_place = true;
    }

    /// Ends all connections: reads at once, replies when they are sent or too late.
    fn stop(&self) {
        let connected = self.connected();
        connected.iter().for_each(|known| known.stream.end_of_requests());
        let all = |connected: &mut Vec<Known>| !connected.is_empty();
        let left = self.left.wait_timeout_while(connected, STOPPING, all);
        let (connected, _) = left.unwrap_or_else(PoisonError::into_inner);
        connected.iter().for_each(|known| known.stream.end());
    }

    fn leaves(&self, stream: &Arc<Stream>) {
        self.connected().retain(|known| !Arc::ptr_eq(&known.stream, stream));
        self.left.notify_all();
    }

    /// Waits for `span`, or until a client leaves and frees its resources.
    fn rest(&self, span: Span) {
        if span > Span::ZERO {
            drop(self.left.wait_timeout(self.connected(), Duration::from_nanos(span.as_ns())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const OF_NETWORK: usize = 48;
    static LIMITS: Limits = Limits {
        clients: 64,
        clients_of_network: Some(OF_NETWORK),
        handshake: Span::s(10),
        in_flight: None,
    };

    #[test]
    fn limit_of_a_network_evicts_only_its_own_silent_clients() {
        let clients = Clients::new(&LIMITS);
        let connect = |address: &str| {
            let stream = Arc::new(Stream::Unix(UnixStream::pair().expect("a pair").0));
            let network = Network::of(address.parse().expect("an address"));
            (clients.admit_from(Some(network), &stream), stream)
        };
        let is_dropped = |stream: &Arc<Stream>| {
            let connected = clients.connected();
            let mut all = connected.iter();
            all.find(|known| Arc::ptr_eq(&known.stream, stream)).expect("it is there").dropped
        };
        let (_, other) = connect("192.0.2.1");
        let (_, known) = connect("2001:db8::1");
        clients.keep_place(&known);
        let rest = 2..=OF_NETWORK;
        let (all, silent): (Vec<_>, Vec<_>) =
            rest.map(|host| connect(&format!("2001:db8::{host:x}"))).unzip();
        assert!(all.iter().all(Result::is_ok));
        // The slot is not free until its client has left; the second attempt drops the next client.
        for turn in 0..2 {
            let refused = connect("2001:db8::ffff").0;
            let refused = refused.expect_err("its network is at its limit");
            assert_eq!(refused.to_string(), "there are 48 clients from 2001:db8::/64");
            let dropped = silent.iter().filter(|stream| is_dropped(stream)).count();
            assert!(dropped == turn + 1 && is_dropped(&silent[turn]), "the oldest");
        }
        assert!(!is_dropped(&other), "older, of another network");
        assert!(!is_dropped(&known), "older, has ended its handshake");
        clients.leaves(&silent[0]);
        assert_eq!(connect("2001:db8::ffff").0, Ok(()));
        assert_eq!(connect("2001:db8:0:1::1").0, Ok(()), "the next /64");
    }
}
