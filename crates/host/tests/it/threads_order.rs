//! Memory ordering of a reset seen by another thread, checked with loom for every order that the language
//! allows.
//!
//! Mirrors, access by access, the device (a completion, then CSTS with release), the controller's thread
//! (`Bar::disable`, `threads::News::tell`) and the queue's thread (`News::now`, `CompletionRing::clear`).
//! Each variant with a relaxed order must fail, or these tests would prove nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

const COMPLETION: u32 = 0x51;

/// Orderings of the four accesses that need one.
#[derive(Clone, Copy)]
struct Orders {
    /// The device stores CSTS: disabled.
    off: Ordering,
    /// The controller's thread loads CSTS.
    seen: Ordering,
    /// The controller's thread stores the news.
    told: Ordering,
    /// The queue's thread loads the news.
    heard: Ordering,
}

const BUILT: Orders = Orders { off: Release, seen: Acquire, told: Release, heard: Acquire };

#[derive(Default)]
struct World {
    /// Entry of a completion queue in memory of the queue's thread.
    entry: AtomicU32,
    off: AtomicU32,
    news: AtomicU64,
}

/// A completion in flight when the controller is disabled, and a ring that is cleared.
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
fn ring_cleared_after_reset_news_gets_no_completion() {
    reset(BUILT);
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn csts_store_without_release_is_unsound() {
    reset(Orders { off: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn csts_load_without_acquire_is_unsound() {
    reset(Orders { seen: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn news_store_without_release_is_unsound() {
    reset(Orders { told: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a completion from before the reset")]
fn news_load_without_acquire_is_unsound() {
    reset(Orders { heard: Relaxed, ..BUILT });
}
