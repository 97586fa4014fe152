//! A queue that several cores share: the lock under which they submit, and each core's handle.
//!
//! A core issues one command at a time, and spins for a queue's lock while it does; the lock is held while
//! the command is formed, stored and rung for. Who finds the queue full gives the lock back, waits until a
//! command has ended, and tries again, so that it is the lock that decides who comes next. A core whose cache
//! lacks the queue's words pays for their way from another cache.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{Cost, HostPort};
use core::future::Future;
use runtime::{Lock, LockPolicy, Rng, Rt, Span, Stage};

/// What the cores that share a queue have in common.
pub struct Shared {
    lock: Lock,
    /// The core that last held the lock.
    last: Cell<Option<u16>>,
    transfer: Span,
}

impl Shared {
    /// For one queue: a spin lock whose word takes `transfer` from one cache to another. Who sees it first
    /// is drawn.
    pub fn new(rng: Rng, transfer: Span) -> Rc<Shared> {
        let lock = Lock::new(LockPolicy::Unfair(rng), transfer);
        Rc::new(Shared { lock, last: Cell::new(None), transfer })
    }

    /// How often a core has found the lock taken.
    pub fn waits(&self) -> u64 {
        self.lock.waits()
    }
}

/// One core among those that share a queue.
#[derive(Clone)]
pub(super) struct Share {
    shared: Rc<Shared>,
    /// This core issues one command at a time, on whichever queue.
    issuing: Rc<Lock>,
    core: u16,
    /// Completions are taken in on this core.
    is_home: bool,
    /// Taking and giving back a lock whose word is at hand.
    lock: Cost,
    /// The words' way from another cache.
    transfer: Cost,
    /// The wait for the lock, and for room in the queue.
    pub waited: Stage,
    rt: Rt,
}

impl Share {
    pub fn new<P: HostPort>(port: &P, shared: &Rc<Shared>, who: &Issuer, is_home: bool) -> Share {
        Share {
            shared: shared.clone(),
            issuing: who.issuing.clone(),
            core: who.core,
            is_home,
            lock: port.cost("lock"),
            transfer: port.cost("lock transfer"),
            waited: port.rt().stage("lock wait"),
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

    /// Waits for the lock alone, to submit once more what has a slot already. The core's turn may be with one
    /// that waits for a slot: that waits for us, and so we must not wait for it.
    pub async fn take_again(&self) -> Held<'_> {
        self.shared.lock.acquire(&self.rt).await;
        Held { lock: Locked(self), issuing: None }
    }

    /// Gives the lock back until `freed` has come, and takes it again; the core goes on issuing.
    pub async fn wait<'a>(&'a self, held: Held<'a>, freed: impl Future<Output = ()>) -> Held<'a> {
        let Held { lock, issuing } = held;
        drop(lock);
        freed.await;
        if !self.is_home {
            // The word that says so was written on another core.
            self.rt.sleep(self.shared.transfer).await;
        }
        self.shared.lock.acquire(&self.rt).await;
        Held { lock: Locked(self), issuing }
    }

    /// What taking the lock costs this core.
    pub async fn pay<P: HostPort>(&self, port: &P) {
        port.spend(self.lock).await;
        if self.shared.last.replace(Some(self.core)) != Some(self.core) {
            port.spend(self.transfer).await;
        }
    }
}

/// A core, as those queues know it that it shares with others.
#[derive(Clone)]
pub struct Issuer {
    core: u16,
    issuing: Rc<Lock>,
}

impl Issuer {
    /// The core of this number.
    pub fn new(core: u16) -> Issuer {
        Issuer { core, issuing: Rc::new(Lock::new(LockPolicy::Fair, Span::ZERO)) }
    }
}

/// The right to submit to a queue, given back when it is dropped: the lock first.
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
