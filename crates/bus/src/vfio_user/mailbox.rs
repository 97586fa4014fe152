//! What a session and its device's thread hand each other. Locks are taken only when there is something;
//! a device that has nothing to fetch looks at one word.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::table::Mapping;
use super::vectors::Change;
use crate::fd::Eventfd;
use wire::BusAddr;

/// The number of an access to memory by messages, never used twice.
pub(super) type AccessId = u64;

/// What a session puts there.
pub(super) enum ToDevice {
    Map(Mapping),
    /// No more of this memory; of all, if nothing is named. Answered when nothing touches it any more.
    Unmap(Option<(BusAddr, u64)>),
    Vectors(Change),
    /// The configuration space says other things, and perhaps that the device is to be reset. Answered.
    Config {
        bus_master: bool,
        intx_enabled: bool,
        reset: bool,
    },
    /// The pin is to be silent by the function's own registers, or may speak. Answered.
    Silence(bool),
    /// A reset. Answered when it is over.
    Reset,
    Leave,
    /// What a message has read, if the client has answered with as much.
    Read {
        id: AccessId,
        data: Option<Vec<u8>>,
    },
    /// A message has written, or the client could not.
    Written {
        id: AccessId,
        done: bool,
    },
    /// What was to land before this interrupt has landed.
    Raise(u16),
}

/// What a device puts there.
pub(super) enum ToSession {
    /// An order has been carried out, or refused with this error. Mappings that are no longer used are
    /// unmapped by the session: that takes time.
    Answer { result: Result<(), u32>, unused: Vec<Mapping> },
    /// Read memory by a message.
    Read { id: AccessId, at: BusAddr, bytes: usize },
    /// Write memory by a message.
    Write { id: AccessId, at: BusAddr, data: Vec<u8> },
    /// Say when all that was written before has landed: then comes this interrupt.
    Raise(u16),
    /// The file behind the memory here has failed.
    Lost(BusAddr),
    /// The device's thread has ended.
    Ended,
}

pub(super) struct Mailbox {
    /// Counts what the session has put here.
    news: AtomicU32,
    to_device: Mutex<VecDeque<ToDevice>>,
    to_session: Mutex<VecDeque<ToSession>>,
    wake: Eventfd,
    transfer_bytes: usize,
}

fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
    // A queue is whole even if somebody has panicked beside it.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    /// One between a device and a client whose messages carry so many bytes of data.
    pub fn new(transfer_bytes: usize) -> io::Result<Mailbox> {
        Ok(Mailbox {
            news: AtomicU32::new(0),
            to_device: Mutex::default(),
            to_session: Mutex::default(),
            wake: Eventfd::new()?,
            transfer_bytes,
        })
    }

    /// The most bytes of data in one message.
    pub fn transfer_bytes(&self) -> usize {
        self.transfer_bytes
    }

    /// How much has been put here for the device.
    #[inline]
    pub fn news(&self) -> u32 {
        self.news.load(Ordering::Acquire)
    }

    pub fn give_device(&self, what: ToDevice) {
        lock(&self.to_device).push_back(what);
        self.news.fetch_add(1, Ordering::Release);
    }

    pub fn for_device(&self) -> Option<ToDevice> {
        lock(&self.to_device).pop_front()
    }

    /// Puts something here for the session, and wakes it.
    pub fn give_session(&self, what: ToSession) {
        lock(&self.to_session).push_back(what);
        self.wake.signal();
    }

    pub fn for_session(&self) -> Option<ToSession> {
        lock(&self.to_session).pop_front()
    }

    /// Takes back the accesses that the session has not yet fetched: their numbers.
    pub fn take_back(&self) -> Vec<AccessId> {
        let mut ids = Vec::new();
        lock(&self.to_session).retain(|what| match what {
            ToSession::Read { id, .. } | ToSession::Write { id, .. } => {
                ids.push(*id);
                false
            }
            ToSession::Raise(_) => false,
            ToSession::Answer { .. } | ToSession::Lost(_) | ToSession::Ended => true,
        });
        ids
    }

    /// The session has woken.
    pub fn woken(&self) {
        self.wake.take();
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
