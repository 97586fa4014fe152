//! Events of a function: a thread counts interrupts and waits for device errors and removal requests.
//!
//! Only this thread makes a system call per interrupt. A driver polls a counter, as on the other live
//! buses.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::vec::Vec;

use crate::fd::{self, Eventfd, Until};

/// Counters shared with the thread.
pub(super) struct EventCounts {
    /// Number of interrupts of each vector, modulo 2^32.
    interrupts: Vec<AtomicU32>,
    gone: AtomicBool,
}

impl EventCounts {
    pub(super) fn interrupts(&self, vector: u16) -> u32 {
        self.interrupts.get(usize::from(vector)).map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Returns true if the function has reported an error, or the kernel requests its removal.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Stop,
    /// Device error, or request to release the function.
    Gone,
    Vector(u16),
}

/// The thread and its counters.
pub(super) struct Events {
    pub seen: Arc<EventCounts>,
    stop: Arc<Eventfd>,
    thread: Option<JoinHandle<()>>,
}

impl Events {
    /// Starts the thread, which counts `vectors` and waits for `gone`.
    pub(super) fn start(vectors: Vec<Eventfd>, gone: Vec<Eventfd>) -> io::Result<Events> {
        let interrupts = vectors.iter().map(|_| AtomicU32::new(0)).collect();
        let seen = Arc::new(EventCounts { interrupts, gone: AtomicBool::new(false) });
        let stop = Arc::new(Eventfd::new()?);
        let mut events = std::vec![(Kind::Stop, stop.clone())];
        events.extend(gone.into_iter().map(|event| (Kind::Gone, Arc::new(event))));
        let numbered = (0..).zip(vectors);
        events.extend(numbered.map(|(vector, event)| (Kind::Vector(vector), Arc::new(event))));
        let counted = seen.clone();
        let thread = std::thread::Builder::new()
            .name("vfio-events".into())
            .spawn(move || count(&events, &counted))?;
        Ok(Events { seen, stop, thread: Some(thread) })
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn count(events: &[(Kind, Arc<Eventfd>)], seen: &EventCounts) {
    let waiting: Vec<_> =
        events.iter().map(|(_, event)| (event.as_fd(), Until::Readable)).collect();
    let mut ready = Vec::with_capacity(events.len());
    loop {
        fd::wait(&waiting, -1, &mut ready);
        for ((kind, event), _) in events.iter().zip(&ready).filter(|(_, ready)| **ready) {
            let count = event.take();
            match kind {
                Kind::Stop => return,
                Kind::Gone => seen.gone.store(true, Ordering::Release),
                Kind::Vector(vector) => {
                    seen.interrupts[usize::from(*vector)]
                        .fetch_add(count as u32, Ordering::Release);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what} did not come");
            std::thread::yield_now();
        }
    }

    #[test]
    fn interrupts_are_counted_per_vector() {
        let twice = || {
            let event = Eventfd::new().unwrap();
            let again = event.as_fd().try_clone_to_owned().unwrap();
            (event, Eventfd::from_peer(again).unwrap())
        };
        let (fds, rings): (Vec<_>, Vec<_>) = (0..3).map(|_| twice()).unzip();
        let (removal, remove) = twice();
        let events = Events::start(fds, std::vec![removal]).unwrap();
        for (vector, times) in [(0, 1), (2, 5)] {
            for _ in 0..times {
                rings[vector].signal();
            }
        }
        until("six interrupts", || {
            events.seen.interrupts(0) == 1 && events.seen.interrupts(2) == 5
        });
        assert_eq!((events.seen.interrupts(1), events.seen.interrupts(3)), (0, 0));
        assert!(!events.seen.is_gone());
        remove.signal();
        until("the removal", || events.seen.is_gone());
        // Drop terminates: the thread is joined.
        drop(events);
    }
}
