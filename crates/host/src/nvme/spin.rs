//! Locks of queues that executors share: threads, or cores without an operating system.
//!
//! State under such a lock is in atomics, accessed with relaxed order; taking the lock is an acquire, giving
//! it back a release. So the locks need no `unsafe`.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Order in which waiting cores get a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinOrder {
    /// No lock: one core alone uses what it would guard.
    Unshared,
    /// Test and set: the first core that sees the free word has the lock.
    Unfair,
    /// Tickets: the order of arrival.
    Fair,
}

/// Turns of a spinning core after which it lets the operating system run another thread, which may be the
/// holder. Without one, it spins on.
#[cfg(feature = "std")]
const SPINS_BEFORE_YIELD: u32 = 200;

/// A spin lock, alone on its cache line.
#[repr(align(64))]
pub struct SpinLock {
    order: SpinOrder,
    /// Unfair: 1 if held. Fair: the next ticket.
    next: AtomicU32,
    /// Fair: the ticket of the holder.
    serving: AtomicU32,
    /// Written by the holder alone.
    waits: AtomicU64,
}

impl SpinLock {
    /// A free lock.
    pub const fn new(order: SpinOrder) -> SpinLock {
        SpinLock {
            order,
            next: AtomicU32::new(0),
            serving: AtomicU32::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Number of acquisitions that found the lock taken.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Spins until the lock is free, and takes it.
    pub fn lock(&self) -> SpinGuard<'_> {
        let has_waited = match self.order {
            SpinOrder::Unshared => false,
            SpinOrder::Unfair => self.take_unfair(),
            SpinOrder::Fair => self.take_ticket(),
        };
        if has_waited {
            self.waits.store(self.waits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        SpinGuard(self)
    }

    /// Returns true if the lock was taken.
    fn take_unfair(&self) -> bool {
        let (mut spins, mut has_waited) = (0, false);
        while self.next.swap(1, Ordering::Acquire) != 0 {
            has_waited = true;
            while self.next.load(Ordering::Relaxed) != 0 {
                relax(&mut spins);
            }
        }
        has_waited
    }

    fn take_ticket(&self) -> bool {
        let (mut spins, mut has_waited) = (0, false);
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        while self.serving.load(Ordering::Acquire) != ticket {
            has_waited = true;
            relax(&mut spins);
        }
        has_waited
    }
}

/// One turn of a spinning core.
fn relax(spins: &mut u32) {
    spin_loop();
    *spins += 1;
    #[cfg(feature = "std")]
    if spins.is_multiple_of(SPINS_BEFORE_YIELD) {
        std::thread::yield_now();
    }
}

/// A held [`SpinLock`], released when dropped.
pub struct SpinGuard<'a>(&'a SpinLock);

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        match self.0.order {
            SpinOrder::Unshared => {}
            SpinOrder::Unfair => self.0.next.store(0, Ordering::Release),
            SpinOrder::Fair => {
                let ticket = self.0.serving.load(Ordering::Relaxed);
                self.0.serving.store(ticket.wrapping_add(1), Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::vec::Vec;

    /// Increments that are a load and a store, not one operation: without the lock some are lost.
    fn counted(order: SpinOrder, threads: u32, turns: u32) -> u32 {
        let (lock, count) = (SpinLock::new(order), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for turn in 0..turns {
                        let _held = lock.lock();
                        let seen = count.load(Ordering::Relaxed);
                        if turn % 64 == 0 {
                            std::thread::yield_now();
                        }
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        count.load(Ordering::Relaxed)
    }

    #[test]
    fn spin_lock_excludes_other_threads_fair_and_unfair() {
        for order in [SpinOrder::Unfair, SpinOrder::Fair] {
            assert_eq!(counted(order, 4, 2000), 8000, "{order:?}");
        }
        assert!(counted(SpinOrder::Unshared, 4, 2000) < 8000, "the test needs the lock");
    }

    /// Threads that have arrived one after the other at a taken lock get it in that order.
    #[test]
    fn fair_spin_lock_keeps_order_of_arrival() {
        let (lock, order) = (SpinLock::new(SpinOrder::Fair), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let held = lock.lock();
            for number in 0..5_u32 {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let _held = lock.lock();
                    order.lock().unwrap().push(number);
                });
                while lock.next.load(Ordering::Relaxed) != number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(lock.waits(), 5);
    }
}
