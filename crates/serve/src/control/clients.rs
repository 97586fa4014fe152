//! Clients of a listening socket, each on a thread of its own, up to a limit.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use runtime::Span;

use super::Control;

/// Maximum clients of a socket at a time: one more takes the place of the oldest.
const MOST: usize = 16;

/// Maximum threads: those of clients that were disconnected end soon, but not at once.
const THREADS_MOST: usize = 2 * MOST;

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
    pub fn serve(&self, control: &Control, client: impl Fn(&S) -> io::Result<()> + Sync) {
        let (clients, client) = (&Mutex::new(VecDeque::<Arc<S>>::new()), &client);
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
                let stream = Arc::new(stream);
                if connected().len() >= MOST
                    && let Some(oldest) = connected().pop_front()
                {
                    let _ = (self.shutdown)(&oldest, Shutdown::Both);
                }
                connected().push_back(stream.clone());
                let own = stream.clone();
                threads.fetch_add(1, Ordering::AcqRel);
                let thread =
                    Builder::new().name(self.thread.into()).spawn_scoped(scope, move || {
                        // An error of the connection ends it, and nothing else.
                        let _ = client(&own);
                        let mut connected = clients.lock().unwrap_or_else(PoisonError::into_inner);
                        connected.retain(|other| !Arc::ptr_eq(other, &own));
                        drop(connected);
                        drop(own);
                        threads.fetch_sub(1, Ordering::AcqRel);
                    });
                if thread.is_err() {
                    threads.fetch_sub(1, Ordering::AcqRel);
                    connected().retain(|other| !Arc::ptr_eq(other, &stream));
                }
            }
            for stream in connected().iter() {
                let _ = (self.shutdown)(stream, Shutdown::Read);
            }
        });
    }
}
