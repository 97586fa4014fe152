//! Queues between a session and one of its device threads. Locks are taken only if there is an item; an idle
//! device polls one word.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::table::Mapping;
use super::vectors::Change;
use crate::fd::Eventfd;
use wire::BusAddr;

/// Number of an access by messages, never reused.
pub(super) type AccessId = u64;

/// Item from the session for the device.
#[derive(Clone)]
pub(super) enum ToDevice {
    Map(Mapping),
    /// Remove this range of memory, or all of it. Answered when no access uses it any more.
    Unmap(Option<(BusAddr, u64)>),
    Vectors(Change),
    /// Change of the configuration space, with an optional reset. Answered.
    Config {
        bus_master: bool,
        intx_enabled: bool,
        reset: bool,
    },
    /// The function's registers mask or unmask the interrupt pin. Answered.
    Silence(bool),
    /// Reset. Answered when it has completed.
    Reset,
    Leave,
    /// Completion of a read by a message; `None` if it failed or the length differs.
    Read {
        id: AccessId,
        data: Option<Vec<u8>>,
    },
    /// Completion of a write by a message.
    Written {
        id: AccessId,
        done: bool,
    },
    /// All writes before this interrupt have landed.
    Raise(u16),
}

impl ToDevice {
    /// The part of an order that concerns the device ends other than the first: what they can reach and
    /// signal. `None` if the order is for the first end alone.
    pub fn for_others(&self) -> Option<ToDevice> {
        match *self {
            ToDevice::Reset | ToDevice::Leave | ToDevice::Vectors(Change::Trigger { .. }) => None,
            ToDevice::Config { bus_master, intx_enabled, .. } => {
                Some(ToDevice::Config { bus_master, intx_enabled, reset: false })
            }
            _ => Some(self.clone()),
        }
    }
}

/// Item from the device for the session.
pub(super) enum ToSession {
    /// Completion of an order. The session unmaps the unused mappings, because that takes time.
    Answer {
        result: Result<(), u32>,
        unused: Vec<Mapping>,
    },
    Read {
        id: AccessId,
        at: BusAddr,
        bytes: usize,
    },
    Write {
        id: AccessId,
        at: BusAddr,
        data: Vec<u8>,
    },
    /// Returned as [`ToDevice::Raise`] when all earlier writes have landed.
    Raise(u16),
    /// The file behind the memory at this address has failed.
    Lost(BusAddr),
    Ended,
}

pub(super) struct Mailbox {
    /// Number of items put for the device, modulo 2^32.
    news: AtomicU32,
    to_device: Mutex<VecDeque<ToDevice>>,
    to_session: Mutex<VecDeque<ToSession>>,
    /// Wakes the session, which has one for all its mailboxes.
    wake: Arc<Eventfd>,
    transfer_bytes: usize,
}

fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
    // A queue is consistent even if a thread has panicked while holding the lock.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    /// Creates queues for a client whose messages carry up to `transfer_bytes` bytes of data. `wake` is
    /// signalled with each item for the session.
    pub fn new(transfer_bytes: usize, wake: Arc<Eventfd>) -> Mailbox {
        Mailbox {
            news: AtomicU32::new(0),
            to_device: Mutex::default(),
            to_session: Mutex::default(),
            wake,
            transfer_bytes,
        }
    }

    /// Maximum bytes of data in one message.
    pub fn transfer_bytes(&self) -> usize {
        self.transfer_bytes
    }

    /// Number of items put for the device so far, modulo 2^32.
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

    /// Queues an item for the session, and wakes it.
    pub fn give_session(&self, what: ToSession) {
        lock(&self.to_session).push_back(what);
        self.wake.signal();
    }

    pub fn for_session(&self) -> Option<ToSession> {
        lock(&self.to_session).pop_front()
    }

    /// Removes the accesses and interrupts that the session has not taken; returns the accesses' numbers.
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
}
