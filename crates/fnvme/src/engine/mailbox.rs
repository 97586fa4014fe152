//! Mailbox of orders from clients to the engine's thread; orders are rare.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};

use bus::live::{Client as Peer, Shared};
use host::fastpath::{Handle, Latency};
use wire::BusAddr;

use super::error::Error;
use functions::Named;

/// Resources created for a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// Client number at the engine.
    pub number: u32,
    /// Bus address of its ring.
    pub ring: BusAddr,
    /// Bus address of its DMA buffer.
    pub at: BusAddr,
    pub bytes: u64,
    pub area_bytes: u64,
    pub handle: Handle,
}

/// Area to open for a client.
#[derive(Default)]
pub(super) struct Wanted {
    /// Length in bytes; 0: that of the area of this name.
    pub bytes: u64,
    pub name: Option<String>,
    pub function: Option<Named>,
}

/// Orders to the engine other than requests.
pub(super) enum Order {
    Open(Wanted, SyncSender<Result<Lane, Error>>),
    Remove { name: String, tell: SyncSender<Result<(), Error>> },
    Close { number: u32, tell: SyncSender<()> },
    Admit { shared: Shared, peer: Peer },
    Ordinary { lba: u64, bytes: Vec<u8>, write: bool, tell: SyncSender<Result<Vec<u8>, Error>> },
    Latency { tell: SyncSender<Latency> },
}

/// Queue of orders, and the state of the engine.
#[derive(Default)]
pub(super) struct Mailbox {
    orders: Mutex<VecDeque<Order>>,
    put: AtomicU32,
    stopped: AtomicBool,
    gone: AtomicBool,
}

impl Mailbox {
    /// Queues an order.
    pub fn put(&self, order: Order) -> Result<(), Error> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_gone() {
            return Err(Error::Gone);
        }
        orders.push_back(order);
        self.put.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Number of orders queued so far.
    pub fn count(&self) -> u32 {
        self.put.load(Ordering::Acquire)
    }

    pub fn take(&self) -> Option<Order> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Asks the engine to end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Records that the engine has ended. Later orders fail, and queued ones are dropped, which closes
    /// their channels.
    pub fn leave(&self) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        self.gone.store(true, Ordering::Release);
        orders.clear();
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}
