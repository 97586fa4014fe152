//! What a thread may believe that reads of a reset: every order that the language's memory model allows, by
//! loom.
//!
//! Mirrors, access by access, the device (a completion, then CSTS with release), the controller's thread
//! (`Bar::disable`, `threads::News::tell`) and the thread whose queue it is (`News::now`,
//! `CompletionRing::clear`). Each variant with an order taken out must fail, or these tests would show
//! nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

const COMPLETION: u32 = 0x51;

/// The orders of the four accesses that must have one.
#[derive(Clone, Copy)]
struct Orders {
    /// The device says that it is off.
    off: Ordering,
    /// The controller's thread sees it.
    seen: Ordering,
    /// And tells of the reset.
    told: Ordering,
    /// Of which the queue's thread hears.
    heard: Ordering,
}

const BUILT: Orders = Orders { off: Release, seen: Acquire, told: Release, heard: Acquire };

#[derive(Default)]
struct World {
    /// A completion queue's entry in memory of the queue's thread.
    entry: AtomicU32,
    /// CSTS.RDY, the other way round.
    off: AtomicU32,
    news: AtomicU64,
}

/// A completion that was under way when the controller was turned off, and a ring that is emptied.
fn reset(orders: Orders) {
    loom::model(move || {
        let world = Arc::new(World::default());
        let device = thread::spawn({
            let world = world.clone();
            move || {
                world.entry.store(COMPLETION, Relaxed);
                world.off.store(1, orders.off);
            }
        });
        let controller = thread::spawn({
            let world = world.clone();
            move || {
                if world.off.load(orders.seen) == 1 {
                    world.news.store(1 << 3, orders.told);
                }
            }
        });
        let heard = world.news.load(orders.heard) != 0;
        if heard {
            world.entry.store(0, Relaxed);
        }
        device.join().expect("it asserts nothing");
        controller.join().expect("it asserts nothing");
        let entry = world.entry.load(Relaxed);
        assert!(!heard || entry == 0, "a completion from before the reset stands in the new ring");
    });
}

#[test]
fn who_hears_of_a_reset_empties_a_ring_that_nobody_writes() {
    reset(BUILT);
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn off_without_release_proves_nothing() {
    reset(Orders { off: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn off_without_acquire_proves_nothing() {
    reset(Orders { seen: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn news_without_release_prove_nothing() {
    reset(Orders { told: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn news_without_acquire_prove_nothing() {
    reset(Orders { heard: Relaxed, ..BUILT });
}
