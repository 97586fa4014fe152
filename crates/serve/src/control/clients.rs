//! Clients of a listening socket, each on a thread of its own, up to a limit.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use runtime::Span;

use super::Control;

/// Maximum clients of a socket at a time: one more takes the place of the oldest of those whose request has
/// not come, or of the oldest.
const MOST: usize = 16;

/// Maximum threads: those of clients that were disconnected end soon, but not at once.
const THREADS_MOST: usize = 2 * MOST;

/// The place of a client among those of its socket.
#[derive(Default)]
pub(super) struct Place {
    is_kept: AtomicBool,
}

impl Place {
    /// Whether the client keeps it while others have not sent a request.
    pub fn keep(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Release);
    }
}

struct Known<S> {
    stream: S,
    place: Place,
}

/// A socket that listens, and does not block.
pub(super) struct Listening<'a, S> {
    /// Name of a client's thread.
    pub thread: &'static str,
    pub socket: BorrowedFd<'a>,
    pub accept: &'a dyn Fn() -> io::Result<S>,
    pub shutdown: fn(&S, Shutdown) -> io::Result<()>,
}

impl<S: Send + Sync> Listening<'_, S> {
    /// Calls `client` for each connection until the stop is requested.
    pub fn serve(&self, control: &Control, client: impl Fn(&S, &Place) -> io::Result<()> + Sync) {
        let (clients, client) = (&Mutex::new(VecDeque::<Arc<Known<S>>>::new()), &client);
        let connected = || clients.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = &AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while control.stop().wait_for(self.socket) {
                let Ok(stream) = (self.accept)() else {
                    // Without descriptors the socket stays readable: the next attempt is not at once.
                    control.stop().sleep(Span::ms(100));
                    continue;
                };
                while threads.load(Ordering::Acquire) >= THREADS_MOST {
                    if !control.stop().sleep(Span::ms(1)) {
                        break;
                    }
                }
                if connected().len() >= MOST
                    && let Some(oldest) = oldest(&mut connected())
                {
                    let _ = (self.shutdown)(&oldest.stream, Shutdown::Both);
                }
                let known = Arc::new(Known { stream, place: Place::default() });
                connected().push_back(known.clone());
                let own = known.clone();
                threads.fetch_add(1, Ordering::AcqRel);
                let thread =
                    Builder::new().name(self.thread.into()).spawn_scoped(scope, move || {
                        // An error of the connection ends it, and nothing else.
                        let _ = client(&own.stream, &own.place);
                        let mut connected = clients.lock().unwrap_or_else(PoisonError::into_inner);
                        connected.retain(|other| !Arc::ptr_eq(other, &own));
                        drop(connected);
                        drop(own);
                        threads.fetch_sub(1, Ordering::AcqRel);
                    });
                if thread.is_err() {
                    threads.fetch_sub(1, Ordering::AcqRel);
                    connected().retain(|other| !Arc::ptr_eq(other, &known));
                }
            }
            for known in connected().iter() {
                let _ = (self.shutdown)(&known.stream, Shutdown::Read);
            }
        });
    }
}

/// Takes the client out that one more displaces.
fn oldest<S>(connected: &mut VecDeque<Arc<Known<S>>>) -> Option<Arc<Known<S>>> {
    let is_free = |known: &Arc<Known<S>>| !known.place.is_kept.load(Ordering::Acquire);
    connected.remove(connected.iter().position(is_free).unwrap_or(0))
}
