//! Queues shared by several cores: the submission lock, and each core's handle.
//!
//! A core submits one command at a time and spins for the queue's lock; it holds the lock while it builds the
//! command, stores it and rings. If the queue is full it releases the lock, waits for a command to end, and
//! tries again, so the lock decides the order. A core whose cache lacks the queue's lines pays for their
//! transfer.
//!
//! Each core has a handle ([`Queue::shared_by`](super::Queue::shared_by)) with its own port and the lock;
//! slots, rings and resets belong to the queue.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{Cost, HostPort};
use core::future::Future;
use runtime::{Lock, LockPolicy, Rt, Span, Stage, stage};

/// Stages that a core's handle records, in addition to those of the queue.
pub const STAGES: &[&str] = &["lock wait"];

/// State common to the cores of a shared queue.
pub struct Shared {
    lock: Lock,
    /// Core that last held the lock.
    last: Cell<Option<u16>>,
    transfer: Span,
}

impl Shared {
    /// Creates the spin lock of one queue, whose cache line moves between caches in `transfer`. The policy
    /// decides which core gets a free lock.
    pub fn new(policy: LockPolicy, transfer: Span) -> Rc<Shared> {
        let lock = Lock::new(policy, transfer);
        Rc::new(Shared { lock, last: Cell::new(None), transfer })
    }

    /// Number of times that a core found the lock taken.
    pub fn waits(&self) -> u64 {
        self.lock.waits()
    }
}

/// One core's handle on a shared queue.
#[derive(Clone)]
pub(super) struct Share {
    shared: Rc<Shared>,
    /// Serialises this core's submissions to all queues.
    issuing: Rc<Lock>,
    core: u16,
    /// True if completions are processed on this core.
    is_home: bool,
    /// Cost of acquiring and releasing a lock whose cache line is local.
    lock: Cost,
    /// Cost of moving the lines from another cache.
    transfer: Cost,
    /// Stage of the wait for the lock and for a free slot.
    pub waited: Stage,
    rt: Rt,
}

impl Share {
    pub fn new<P: HostPort>(
        port: &P,
        shared: &Rc<Shared>,
        claimant: &Issuer,
        is_home: bool,
    ) -> Share {
        Share {
            shared: shared.clone(),
            issuing: claimant.issuing.clone(),
            core: claimant.core,
            is_home,
            lock: port.cost("lock"),
            transfer: port.cost("lock transfer"),
            waited: stage!(port.rt(), STAGES, "lock wait"),
            rt: port.rt().clone(),
        }
    }

    /// Waits for the core's turn and the queue's lock.
    pub async fn take(&self) -> Held<'_> {
        self.issuing.acquire(&self.rt).await;
        let issuing = Issuing(self);
        self.shared.lock.acquire(&self.rt).await;
        Held { lock: Locked(self), issuing: Some(issuing) }
    }

    /// Acquires the lock alone, to resubmit a command that already has a slot. The core's turn may belong to
    /// a command that waits for a slot, and so for this one: waiting for the turn would deadlock.
    pub async fn take_again(&self) -> Held<'_> {
        self.shared.lock.acquire(&self.rt).await;
        Held { lock: Locked(self), issuing: None }
    }

    /// Releases the lock until `freed` is ready, then acquires it again; the core keeps its turn.
    pub async fn wait<'a>(&'a self, held: Held<'a>, freed: impl Future<Output = ()>) -> Held<'a> {
        let Held { lock, issuing } = held;
        drop(lock);
        freed.await;
        if !self.is_home {
            // The word that signals it was written by another core.
            self.rt.sleep(self.shared.transfer).await;
        }
        self.shared.lock.acquire(&self.rt).await;
        Held { lock: Locked(self), issuing }
    }

    /// Pays the cost of the lock on this core.
    pub async fn pay<P: HostPort>(&self, port: &P) {
        port.spend(self.lock).await;
        if self.shared.last.replace(Some(self.core)) != Some(self.core) {
            port.spend(self.transfer).await;
        }
    }
}

/// Identity of a core that shares queues.
#[derive(Clone)]
pub struct Issuer {
    core: u16,
    issuing: Rc<Lock>,
}

impl Issuer {
    /// Core number `core`.
    pub fn new(core: u16) -> Issuer {
        Issuer { core, issuing: Rc::new(Lock::new(LockPolicy::Fair, Span::ZERO)) }
    }
}

/// Right to submit to a queue; dropping it releases the lock, then the turn.
pub(super) struct Held<'a> {
    lock: Locked<'a>,
    issuing: Option<Issuing<'a>>,
}

struct Locked<'a>(&'a Share);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.shared.lock.release(&self.0.rt);
    }
}

struct Issuing<'a>(&'a Share);

impl Drop for Issuing<'_> {
    fn drop(&mut self) {
        self.0.issuing.release(&self.0.rt);
    }
}
